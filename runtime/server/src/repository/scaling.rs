//! The table `[scaling]` of a model's settings.

use crate::limits::{SCALING_INTERVAL_MS_MIN, SCALING_MS_MAX};
use atoll_core::scaling::{Predictor, SLOTS_MAX, ScalingConfig};
use serde::Deserialize;

/// Settings of the autoscaler, which creates, resizes and removes instances of a model by its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScalingSettings {
    /// Target of the 99th percentile of latency, in milliseconds.
    pub latency_ms: u64,
    /// Fewest instances. With 0, the default, an idle model has no instances, and its next request
    /// waits until one has started.
    #[serde(default)]
    pub min_instances: u32,
    /// Most instances; 8 if absent. When this number is reached, instances become larger.
    #[serde(default = "max_instances")]
    pub max_instances: u32,
    /// Compute units of an instance in whole percent of a device; 100 if absent. If the model has a
    /// profile, instances have the partition of a point of the profile instead.
    #[serde(default = "sm_partition")]
    pub sm_partition: u32,
    /// The fraction of the device's time that an instance is guaranteed, in steps of 0.01; 0.2 if
    /// absent. At `max_instances`, an instance may get a multiple of it. If the model has a
    /// profile, instances have the quota of a point of the profile instead.
    #[serde(default = "quota_request", deserialize_with = "percent")]
    pub quota_request: u32,
    /// Upper limit of the fraction of the device's time of an instance. If absent, or less than the
    /// instance's request, it is the request.
    #[serde(default, deserialize_with = "some_percent")]
    pub quota_limit: Option<u32>,
    /// Extra capacity in percent of the predicted load, at most 900. If absent, the number of
    /// instances follows what recent requests needed, and a request that needs one more instance
    /// starts it at once; if instances start too slowly for that, 30.
    #[serde(default)]
    pub headroom_percent: Option<u64>,
    /// Interval of decisions in milliseconds: 100 to 86400000; 1000 if absent.
    #[serde(default = "interval_ms")]
    pub interval_ms: u64,
    /// How long the capacity has to exceed the load before instances are removed, in milliseconds;
    /// 30000 if absent.
    #[serde(default = "cool_down_ms")]
    pub cool_down_ms: u64,
    /// Time without requests after which the last instance is removed, in milliseconds; 60000 if
    /// absent.
    #[serde(default = "idle_ms")]
    pub idle_ms: u64,
    /// Time after which the load repeats itself, in seconds: 2 intervals to 86400, a day. The
    /// prediction learns how the load of each part of it differs from the mean. It takes effect where
    /// a load is predicted: see `headroom_percent`. If absent, the prediction is the mean.
    #[serde(default)]
    pub season_s: Option<u64>,
}

impl ScalingSettings {
    /// Checks the values.
    ///
    /// # Errors
    /// Names the first value that is not possible.
    pub fn check(&self) -> Result<(), String> {
        let times = [("latency_ms", self.latency_ms), ("cool_down_ms", self.cool_down_ms), ("idle_ms", self.idle_ms)];
        if let Some((name, ms)) = times.into_iter().find(|(_, ms)| *ms > SCALING_MS_MAX) {
            return Err(format!("scaling: {name} is {ms}; at most {SCALING_MS_MAX}, a day, are possible"));
        }
        if !(SCALING_INTERVAL_MS_MIN..=SCALING_MS_MAX).contains(&self.interval_ms) {
            return Err(format!(
                "scaling: interval_ms is {}; {SCALING_INTERVAL_MS_MIN} to {SCALING_MS_MAX} are possible",
                self.interval_ms
            ));
        }
        if !(1..=100).contains(&self.sm_partition) {
            return Err(format!("scaling: sm_partition is {}; 1 to 100 are possible", self.sm_partition));
        }
        if let Some(limit) = self.quota_limit.filter(|limit| *limit < self.quota_request) {
            let fraction = |percent: u32| f64::from(percent) / 100.0;
            return Err(format!(
                "scaling: quota_request {} exceeds quota_limit {}; lower one or raise the other",
                fraction(self.quota_request),
                fraction(limit)
            ));
        }
        if let Some(season_s) = self.season_s
            && self.slots().is_none()
        {
            return Err(format!(
                "scaling: season_s is {season_s}; a season has at most a day, and consists of 2 to {SLOTS_MAX} equal \
                 parts of whole intervals (interval_ms is {})",
                self.interval_ms
            ));
        }
        self.config().checked().map(drop).map_err(|error| format!("scaling: {error}"))
    }

    /// The predictor of the load.
    pub fn predictor(&self) -> Predictor {
        self.slots().map_or_else(Predictor::new, |(slots, intervals)| Predictor::with_season(slots, intervals))
    }

    /// The slots of the season, as many as possible, and the intervals of each.
    fn slots(&self) -> Option<(usize, u64)> {
        let season_ms = self.season_s?.checked_mul(1_000).filter(|ms| *ms <= SCALING_MS_MAX)?;
        let intervals = season_ms.checked_div(self.interval_ms)?;
        let is_whole = season_ms.is_multiple_of(self.interval_ms);
        let slots = (2..=SLOTS_MAX as u64).rev().find(|slots| is_whole && intervals.is_multiple_of(*slots))?;
        (intervals > 0).then_some((slots as usize, intervals / slots))
    }

    /// The configuration of the autoscaler.
    pub fn config(&self) -> ScalingConfig {
        let ns = |ms: u64| ms.saturating_mul(1_000_000);
        ScalingConfig {
            slo_ns: ns(self.latency_ms),
            interval_ns: ns(self.interval_ms),
            headroom_percent: self.headroom_percent,
            cool_down_ns: ns(self.cool_down_ms),
            idle_ns: ns(self.idle_ms),
            cold_start_ns: 0,
            min_instances: self.min_instances,
            max_instances: self.max_instances,
        }
    }
}

fn max_instances() -> u32 {
    8
}

fn sm_partition() -> u32 {
    100
}

fn quota_request() -> u32 {
    20
}

fn interval_ms() -> u64 {
    1_000
}

fn cool_down_ms() -> u64 {
    30_000
}

fn idle_ms() -> u64 {
    60_000
}

/// Deserializes a fraction in steps of 0.01 to percent.
fn percent<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let fraction = f64::deserialize(deserializer)?;
    let percent = (fraction * 100.0).round();
    if (1.0..=100.0).contains(&percent) && (fraction * 100.0 - percent).abs() < 1e-6 {
        return Ok(percent as u32);
    }
    Err(serde::de::Error::custom(format!("a quota of {fraction}; 0.01 to 1 in steps of 0.01 is possible")))
}

fn some_percent<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    percent(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ScalingSettings, String> {
        let settings: ScalingSettings = toml::from_str(text).map_err(|error| error.to_string())?;
        settings.check().map(|()| settings)
    }

    #[test]
    fn only_the_target_is_needed() {
        let settings = read("latency_ms = 50").unwrap();
        assert_eq!((settings.min_instances, settings.max_instances, settings.quota_request), (0, 8, 20));
        assert_eq!((settings.config().slo_ns, settings.quota_limit), (50_000_000, None));
        let settings = read("latency_ms = 50\nquota_request = 0.07\nquota_limit = 1").unwrap();
        assert_eq!((settings.quota_request, settings.quota_limit), (7, Some(100)));
    }

    #[test]
    fn a_season_has_as_many_slots_as_possible() {
        let slots = |text: &str| read(&format!("latency_ms = 50\n{text}")).map(|settings| settings.slots());
        assert_eq!(slots(""), Ok(None));
        assert_eq!(slots("season_s = 86400"), Ok(Some((1440, 60))));
        assert_eq!(slots("season_s = 2"), Ok(Some((2, 1))));
        assert_eq!(slots("season_s = 4\ninterval_ms = 500"), Ok(Some((8, 1))));
        assert_eq!(slots("season_s = 2894"), Ok(Some((2, 1447))));
    }

    /// The prediction for the first interval of a busy half of a season of 4 seconds.
    fn predicted(season: &str) -> u64 {
        let settings = read(&format!("latency_ms = 50\ninterval_ms = 500\n{season}")).unwrap();
        let mut predictor = settings.predictor();
        for interval in 0..8 * 50 + 4 {
            predictor.observe(if interval % 8 < 4 { 10_000 } else { 90_000 });
        }
        predictor.predict()
    }

    #[test]
    fn a_season_is_predicted() {
        let (with, without) = (predicted("season_s = 4"), predicted(""));
        assert!(with > 60_000 && without < 30_000, "{with}, {without}");
    }

    #[test]
    fn bad_figures_are_refused_with_the_cause() {
        for (text, part) in [
            ("", "latency_ms"),
            ("latency_ms = 0", "a target latency of 0"),
            ("latency_ms = 50\nmin_instances = 3\nmax_instances = 2", "at least 3 instances, and at most 2"),
            ("latency_ms = 50\nmax_instances = 0", "at most 0 instances"),
            ("latency_ms = 50\nmin_instances = -1", "min_instances"),
            ("latency_ms = 50\nquota_request = 0.5\nquota_limit = 0.4", "quota_request 0.5 exceeds quota_limit 0.4"),
            ("latency_ms = 50\nquota_request = 0", "a quota of 0;"),
            ("latency_ms = 50\nquota_request = nan", "a quota of NaN;"),
            ("latency_ms = 50\nquota_limit = 1.5", "a quota of 1.5;"),
            ("latency_ms = 50\nquota_request = 0.005", "steps of 0.01"),
            ("latency_ms = 50\nsm_partition = 130", "sm_partition is 130; 1 to 100"),
            ("latency_ms = 50\nheadroom_percent = 1000", "a headroom of 1000 %"),
            ("latency_ms = 50\ninterval_ms = 1", "interval_ms is 1; 100 to"),
            ("latency_ms = 50\nidle_ms = 86400001", "idle_ms is 86400001; at most 86400000, a day,"),
            ("latency_ms = 50\nseason_s = 0", "season_s is 0; a season has at most a day"),
            ("latency_ms = 50\nseason_s = 1", "season_s is 1; a season"),
            ("latency_ms = 50\nseason_s = 1447", "2 to 1440 equal parts"),
            ("latency_ms = 50\nseason_s = 10\ninterval_ms = 3000", "interval_ms is 3000"),
            ("latency_ms = 50\nseason_s = 172800", "season_s is 172800; a season has at most a day"),
            ("latency_ms = 50\nthroughput = 3", "throughput"),
        ] {
            let message = read(text).expect_err(text);
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
