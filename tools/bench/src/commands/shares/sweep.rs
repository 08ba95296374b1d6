//! The throughput of one instance by its quota.

use super::work::Work;
use super::{Args, OUTSTANDING, set_quota, warm_up};
use crate::output::{Align, Table};
use anyhow::{Context, Result, anyhow};
use atoll_engine::EngineHandle;
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Name of the instance.
const INSTANCE: &str = "swept";

/// The throughput at each quota.
#[derive(Debug, Serialize)]
pub(super) struct Sweep {
    /// Ascending by quota; the last one is the whole device.
    quotas: Vec<Quota>,
    /// The largest deviation of a throughput from its part of the whole device's, as a fraction of
    /// that part.
    deviation_max: f64,
}

#[derive(Debug, Serialize)]
struct Quota {
    /// Part of the time.
    quota: f64,
    /// Answers per second.
    per_s: f64,
    /// The same over the quota's part of the throughput with the whole device.
    over_linear: f64,
}

impl Sweep {
    /// Measures each quota of `--quotas`, and the whole device.
    pub(super) fn measure(args: &Args, handle: &EngineHandle, work: &Work) -> Result<Sweep> {
        let quotas: BTreeSet<u32> = args.quotas.iter().copied().chain([100]).collect();
        let work = work.of(INSTANCE);
        let measured = quotas.into_iter().map(|percent| {
            let quota = f64::from(percent) / 100.0;
            Ok((quota, throughput(args, handle, &work, quota)?))
        });
        Ok(Sweep::of(&measured.collect::<Result<Vec<_>>>()?))
    }

    /// Compares throughputs by quota with the last one, that of the whole device.
    fn of(measured: &[(f64, f64)]) -> Sweep {
        let whole = measured.last().map_or(0.0, |&(_, per_s)| per_s).max(f64::MIN_POSITIVE);
        let quotas: Vec<Quota> = measured
            .iter()
            .map(|&(quota, per_s)| Quota { quota, per_s, over_linear: per_s / (whole * quota) })
            .collect();
        let deviation_max = quotas.iter().map(|quota| (quota.over_linear - 1.0).abs()).fold(0.0, f64::max);
        Sweep { quotas, deviation_max }
    }

    pub(super) fn text(&self) -> String {
        let columns = [("quota", Align::Right), ("per s", Align::Right), ("over linear", Align::Right)];
        let mut table = Table::new(columns);
        for Quota { quota, per_s, over_linear } in &self.quotas {
            table.row([format!("{:.0} %", quota * 100.0), format!("{per_s:.2}"), format!("{over_linear:.4}")]);
        }
        format!("{table}\nlargest deviation from linear: {:.2} %\n", self.deviation_max * 100.0)
    }
}

/// Answers per second to an instance with a quota.
fn throughput(args: &Args, handle: &EngineHandle, work: &Work, quota: f64) -> Result<f64> {
    set_quota(handle, INSTANCE, quota)?;
    let stop = AtomicBool::new(false);
    let (from, ended) = std::thread::scope(|scope| {
        let busy = scope.spawn(|| work.keep_busy(handle, OUTSTANDING, &stop));
        std::thread::sleep(warm_up(args));
        let from = Instant::now();
        std::thread::sleep(Duration::from_secs_f64(args.duration));
        stop.store(true, Ordering::Relaxed);
        (from, busy.join())
    });
    let ended = ended.map_err(|_| anyhow!("a client panicked"))??;
    rate(from, Duration::from_secs_f64(args.duration), &ended)
        .with_context(|| format!("too few answers at a quota of {:.0} %; use a longer --duration", quota * 100.0))
}

/// The rate of the ends of requests within a period, from the first to the last of them; `None` if
/// there are not two.
pub(in crate::commands) fn rate(from: Instant, period: Duration, ended: &[Instant]) -> Option<f64> {
    let within: Vec<Instant> = ended.iter().copied().filter(|at| *at >= from && *at <= from + period).collect();
    let span = within.last()?.duration_since(*within.first()?);
    (!span.is_zero()).then(|| (within.len() - 1) as f64 / span.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughputs_are_compared_with_their_part_of_the_whole_device() {
        let sweep = Sweep::of(&[(0.1, 9.0), (0.5, 51.0), (1.0, 100.0)]);
        let over: Vec<f64> = sweep.quotas.iter().map(|quota| (quota.over_linear * 1e3).round()).collect();
        assert_eq!(over, [900.0, 1020.0, 1000.0]);
        assert!((sweep.deviation_max - 0.1).abs() < 1e-9);
        assert!(sweep.text().contains("largest deviation from linear: 10.00 %"), "{}", sweep.text());
    }

    #[test]
    fn a_rate_is_of_the_ends_within_the_period() {
        let from = Instant::now();
        let at = |ms: u64| from + Duration::from_millis(ms);
        let second = Duration::from_secs(1);
        let ended = [at(100), at(350), at(600), at(2_000)];
        assert_eq!(rate(from, second, &ended).map(f64::round), Some(4.0), "the last one is too late");
        assert_eq!(rate(at(500), second, &ended), None, "one end is no rate");
    }
}
