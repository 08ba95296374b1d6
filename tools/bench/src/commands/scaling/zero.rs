//! First requests to a model whose instances are gone.

use anyhow::{Result, ensure};
use atoll_fleet::{FleetHandle, Inference};
use std::time::{Duration, Instant};

/// How often the instances are counted.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Times of requests that found no instance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FromZero {
    /// The longest latency.
    pub(super) longest_ms: f64,
    /// The largest difference from the request after it, which found the instance.
    pub(super) over_ms: f64,
}

/// Waits `count` times until no instance is left, and then makes two requests. `None` for no times.
///
/// # Errors
/// A request fails, or instances stay for longer than `within`.
pub(super) fn measure(
    fleet: &FleetHandle,
    ask: impl Fn() -> Result<()>,
    count: u32,
    within: Duration,
) -> Result<Option<FromZero>> {
    let timed = || -> Result<f64> {
        let began = Instant::now();
        ask()?;
        Ok(began.elapsed().as_secs_f64() * 1e3)
    };
    let mut pairs = Vec::new();
    for _ in 0..count {
        wait(fleet, within)?;
        pairs.push((timed()?, timed()?));
    }
    Ok(of(&pairs))
}

/// Waits until no instance is left.
fn wait(fleet: &FleetHandle, within: Duration) -> Result<()> {
    let began = Instant::now();
    let has_instances = || {
        let statistics = fleet.statistics();
        statistics.iter().flat_map(|engine| &engine.shares).any(|share| share.client.instance.is_some())
    };
    while has_instances() {
        ensure!(began.elapsed() < within, "instances are left after {} s without a request", within.as_secs());
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// Summarizes pairs of requests: without an instance, and with one.
fn of(pairs: &[(f64, f64)]) -> Option<FromZero> {
    let longest_ms = pairs.iter().map(|&(cold, _)| cold).reduce(f64::max)?;
    let over_ms = pairs.iter().map(|&(cold, warm)| cold - warm).reduce(f64::max)?;
    Some(FromZero { longest_ms, over_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_compared_with_the_request_after_it() {
        assert_eq!(of(&[(30.0, 10.0), (35.0, 20.0)]), Some(FromZero { longest_ms: 35.0, over_ms: 20.0 }));
        assert_eq!(of(&[]), None);
    }
}
