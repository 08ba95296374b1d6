//! The rule by which `atoll lease scale` decides: that of the daemon's autoscaler, on measurements
//! that another program has collected from several daemons.

use atoll_core::Nanos;
use atoll_core::packing::InstanceId;
use atoll_core::scaling::{Autoscaler, Decision, INSTANCES_MAX, Instance, Observed, Point, Profile, RATE_MAX};
use atoll_core::tokens::WINDOW_NS_DEFAULT;
use atoll_server::ScalingSettings;
use serde::{Deserialize, Serialize};

/// Largest number of requests in a step. Larger ones count as this.
const REQUESTS_MAX: u64 = 1 << 40;

/// The measurements of an interval.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    /// The time by the clock of the sender, which never goes back, in nanoseconds.
    now_ns: u64,
    /// Requests that arrived since the step before.
    arrivals: u64,
    /// Requests that wait now.
    queued: u64,
    /// Requests that ended since the step before, and those of them that took longer than the
    /// target.
    ended: u64,
    late: u64,
    /// The replicas that serve requests or are starting.
    running: Vec<Replica>,
    /// The points of the function's profile, as a daemon reports them.
    #[serde(default)]
    points: Vec<MeasuredPoint>,
    /// Mean device time of a request, in nanoseconds. Used without points.
    #[serde(default)]
    service_ns: Option<u64>,
}

/// A replica, and its share of a device: compute units in percent, and a fraction of the time.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Replica {
    id: u64,
    sm_partition: f64,
    quota: f64,
}

/// A point of a profile, as in the answer to `GET /v2/models/{name}/profile`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MeasuredPoint {
    sm_partition: u32,
    quota: f64,
    per_1000_s: u64,
    latency_ns_p99: u64,
}

/// The share of a new replica.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Share {
    sm_partition: f64,
    quota: f64,
}

/// A decision. Rates are in requests per second.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Answer {
    add: Vec<Share>,
    /// Replicas with their new shares.
    resize: Vec<Replica>,
    remove: Vec<u64>,
    why: &'static str,
    rate: f64,
    predicted: f64,
    load: f64,
    capacity: f64,
    /// Why the target cannot be kept.
    problem: Option<String>,
}

/// The scaling of one function.
pub(super) struct Rule {
    settings: ScalingSettings,
    autoscaler: Autoscaler,
}

/// A fraction in whole percent, from 1 to 100.
fn percent(fraction: f64) -> u32 {
    (fraction * 100.0).round().clamp(1.0, 100.0) as u32
}

fn fraction(percent: u32) -> f64 {
    f64::from(percent) / 100.0
}

impl Rule {
    /// The rule with settings in JSON: those of the table `[scaling]`.
    pub(super) fn new(settings: &str) -> Result<Rule, String> {
        let settings: ScalingSettings = serde_json::from_str(settings).map_err(|error| error.to_string())?;
        settings.check()?;
        Ok(Rule { settings, autoscaler: Autoscaler::new(settings.config(), settings.predictor()) })
    }

    /// Decides on a step in JSON. Returns the decision, or the reason why there is none, as a line
    /// of JSON.
    pub(super) fn answer(&mut self, step: &str) -> String {
        let step: Result<Step, String> = serde_json::from_str(step).map_err(|error| error.to_string());
        let answer = step.and_then(|step| self.step(&step));
        let answer = answer.and_then(|answer| serde_json::to_string(&answer).map_err(|error| error.to_string()));
        answer.unwrap_or_else(|error| serde_json::json!({ "error": error }).to_string())
    }

    fn step(&mut self, step: &Step) -> Result<Answer, String> {
        if step.running.len() > INSTANCES_MAX {
            return Err(format!("{} replicas; at most {INSTANCES_MAX} are possible", step.running.len()));
        }
        let profile = self.profile(step)?;
        let running: Vec<Instance> = step.running.iter().map(|replica| instance(replica, profile.as_ref())).collect();
        let observed = Observed {
            arrivals: step.arrivals.min(REQUESTS_MAX),
            queued: step.queued.min(REQUESTS_MAX),
            ended: step.ended.min(REQUESTS_MAX),
            late: step.late.min(REQUESTS_MAX),
            ..Observed::default()
        };
        let (partition, quota) = (self.settings.sm_partition, self.settings.quota_request);
        let unmeasured = Point { partition, quota, throughput: 0, latency_ns: 0 };
        let decided = self.autoscaler.step(Nanos(step.now_ns), &observed, profile.as_ref(), unmeasured, &running);
        Ok(answer(decided.map_err(|error| error.to_string())?))
    }

    /// The profile: from its points, else from the device time of requests. `None` if nothing is
    /// measured.
    fn profile(&self, step: &Step) -> Result<Option<Profile>, String> {
        if step.points.is_empty() {
            let (partition, unit) = (self.settings.sm_partition, self.settings.quota_request);
            let learned = |service_ns| Profile::learned(partition, unit, service_ns, WINDOW_NS_DEFAULT).ok();
            return Ok(step.service_ns.and_then(learned));
        }
        let point = |point: &MeasuredPoint| Point {
            partition: point.sm_partition,
            quota: percent(point.quota),
            throughput: point.per_1000_s.min(RATE_MAX),
            latency_ns: point.latency_ns_p99,
        };
        Profile::new(step.points.iter().map(point).collect()).map(Some).map_err(|error| error.to_string())
    }
}

fn instance(replica: &Replica, profile: Option<&Profile>) -> Instance {
    let (partition, quota) = (percent(replica.sm_partition / 100.0), percent(replica.quota));
    let estimate = profile.and_then(|profile| profile.estimate(partition, quota));
    let unknown = Point { partition, quota, throughput: 0, latency_ns: 0 };
    Instance { id: InstanceId(replica.id), point: estimate.map_or(unknown, |estimate| estimate.point) }
}

fn answer(decision: Decision) -> Answer {
    let per_second = |rate: u64| rate as f64 / 1e3;
    let Decision { change, why, rate, predicted, load, capacity, problem } = decision;
    let share = |point: &Point| Share { sm_partition: point.partition.into(), quota: fraction(point.quota) };
    let resized = |(id, point): &(InstanceId, Point)| {
        let Share { sm_partition, quota } = share(point);
        Replica { id: id.0, sm_partition, quota }
    };
    Answer {
        add: change.add.iter().map(share).collect(),
        resize: change.resize.iter().map(resized).collect(),
        remove: change.remove.iter().map(|id| id.0).collect(),
        why: why.words(),
        rate: per_second(rate),
        predicted: per_second(predicted),
        load: per_second(load),
        capacity: per_second(capacity),
        problem: problem.map(|problem| problem.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// 10 requests/s at 50 % × 20 %, 18 at 40 %, and 25 at all units.
    fn points() -> Value {
        let point = |sm_partition: u32, quota: f64, per_1000_s: u64| {
            json!({
                "sm_partition": sm_partition, "quota": quota, "per_1000_s": per_1000_s, "latency_ns_p99": 20_000_000,
            })
        };
        json!([point(50, 0.2, 10_000), point(50, 0.4, 18_000), point(100, 0.2, 11_000), point(100, 0.4, 25_000)])
    }

    fn step(rule: &mut Rule, seconds: u64, arrivals: u64, running: &[(u64, f64)]) -> Value {
        let running: Vec<Value> =
            running.iter().map(|(id, quota)| json!({ "id": id, "sm_partition": 50, "quota": quota })).collect();
        let line = json!({
            "now_ns": seconds * 1_000_000_000, "arrivals": arrivals, "queued": 0, "ended": arrivals, "late": 0,
            "running": running, "points": points(),
        });
        serde_json::from_str(&rule.answer(&line.to_string())).unwrap()
    }

    #[test]
    fn a_load_is_covered_by_the_most_efficient_point_and_a_remainder() {
        let mut rule = Rule::new(r#"{"latency_ms": 100, "headroom_percent": 0, "cool_down_ms": 2000}"#).unwrap();
        // 10 requests/s per 1,000 is the most; 25 of 4,000 and 18 of 2,000 are less.
        let answer = step(&mut rule, 1, 35, &[]);
        let small = json!({ "sm_partition": 50.0, "quota": 0.2 });
        assert_eq!(answer["add"], json!([small, small, small, small]), "{answer}");
        assert_eq!((&answer["why"], &answer["rate"]), (&json!("a request found no instance"), &json!(35.0)));
        let four = [(7, 0.2), (8, 0.2), (9, 0.2), (10, 0.4)];
        assert_eq!(step(&mut rule, 2, 10, &four)["add"], json!([]));
        // After the cool-down, the least efficient one that the load does not need ends first.
        let removed = |answer: &Value| answer["remove"].as_array().is_some_and(|removed| !removed.is_empty());
        let answer = (3..20).map(|second| step(&mut rule, second, 10, &four)).find(removed).unwrap();
        assert_eq!(answer["remove"], json!([10]), "{answer}");
        // Time that stands still decides nothing.
        let answer = step(&mut rule, 1, 1, &four);
        assert!(answer["error"].as_str().unwrap().contains("the clock went from"), "{answer}");
    }

    #[test]
    fn bad_lines_are_answered_with_the_cause() {
        for (settings, says) in [
            ("", "EOF"),
            ("{}", "latency_ms"),
            (r#"{"latency_ms": 0}"#, "a target latency of 0"),
            (r#"{"latency_ms": 5, "replicas": 3}"#, "replicas"),
            (r#"{"latency_ms": 5, "min_instances": 3, "max_instances": 2}"#, "at least 3 instances"),
        ] {
            let error = Rule::new(settings).err().unwrap();
            assert!(error.contains(says), "{settings}: {error}");
        }
        let mut rule = Rule::new(r#"{"latency_ms": 100}"#).unwrap();
        let zero = r#"{"now_ns": 1, "arrivals": 0, "queued": 0, "ended": 0, "late": 0, "running": []"#;
        let point = r#"{"sm_partition": 50, "quota": 0.2, "per_1000_s": 0, "latency_ns_p99": 5}"#;
        for (line, says) in [
            ("[1]".into(), "invalid"),
            (r#"{"now_ns": -1}"#.into(), "-1"),
            (format!("{zero}, \"load\": 1}}"), "load"),
            (format!("{zero}, \"points\": [{point}]}}"), "no throughput at"),
        ] {
            let answer: Value = serde_json::from_str(&rule.answer(&line)).unwrap();
            assert!(answer["error"].as_str().is_some_and(|error| error.contains(says)), "{line}: {answer}");
        }
        // It goes on after them.
        let answer: Value = serde_json::from_str(&rule.answer(&format!("{zero}}}"))).unwrap();
        assert_eq!(answer["why"], "nothing changes", "{answer}");
        let many = r#"{"now_ns": 2, "arrivals": 18446744073709551615, "queued": 18446744073709551615, "ended": 1,
            "late": 1, "running": [], "service_ns": 1000000}"#;
        let answer: Value = serde_json::from_str(&rule.answer(many)).unwrap();
        assert_eq!(answer["add"].as_array().unwrap().len(), 8, "{answer}");
    }
}
