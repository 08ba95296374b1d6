//! The oracle: it knows every request, and has an instance only in the intervals in which it is
//! needed.

use super::ScaledFunction;
use super::world::{fastest, service_ns};
use atoll_core::scaling::Point;

/// An instance of the oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Foreseen {
    /// When it can begin with another request.
    pub(super) free_at: u64,
    /// Its number; `None` if it is new.
    pub(super) id: Option<u64>,
}

/// Returns the fewest instances of a point, existing or new, that serve the arrivals of an interval
/// in time, and the existing instances that are not needed.
pub(super) fn needed(
    have: Vec<Foreseen>,
    arrivals: &[u64],
    point: &Point,
    slo_ns: u64,
) -> (Vec<Foreseen>, Vec<Foreseen>) {
    let (service_ns, slack_ns) = (service_ns(point), slo_ns.saturating_sub(point.latency_ns));
    let (mut spare, mut needed): (_, Vec<Foreseen>) = (have, Vec::new());
    spare.sort_unstable();
    for &at in arrivals {
        let in_time = |foreseen: &Foreseen| foreseen.free_at <= at + slack_ns;
        let free = needed.iter_mut().min_by_key(|foreseen| foreseen.free_at).filter(|foreseen| in_time(foreseen));
        if let Some(foreseen) = free {
            foreseen.free_at = foreseen.free_at.max(at) + service_ns;
            continue;
        }
        let has_spare = spare.first().is_some_and(in_time);
        let Foreseen { free_at, id } = if has_spare { spare.remove(0) } else { Foreseen { free_at: at, id: None } };
        needed.push(Foreseen { free_at: free_at.max(at) + service_ns, id });
    }
    (needed, spare)
}

/// The point with which a function takes the least device time over the whole run, among those that
/// keep the SLO; the fastest if none does.
pub(super) fn cheapest(function: &ScaledFunction, end_ns: u64) -> Point {
    let (profile, slo_ns) = (&function.profile, function.config.slo_ns);
    let points = profile.points().iter().filter(|point| point.latency_ns <= slo_ns);
    points.min_by_key(|point| cost(function, point, end_ns)).copied().unwrap_or_else(|| fastest(profile))
}

/// The area of instances times nanoseconds.
fn cost(function: &ScaledFunction, point: &Point, end_ns: u64) -> u128 {
    let interval_ns = function.config.interval_ns.max(1);
    let (mut rest, mut have, mut time_ns) = (&function.arrivals[..], Vec::new(), 0_u128);
    for begin in (0..end_ns).step_by(usize::try_from(interval_ns).unwrap_or(usize::MAX)) {
        let end = (begin + interval_ns).min(end_ns);
        let (arrivals, later) = rest.split_at(rest.partition_point(|at| *at < end));
        rest = later;
        let (needed, spare) = needed(have, arrivals, point, function.config.slo_ns);
        time_ns += needed.len() as u128 * u128::from(end - begin);
        // An instance that is not needed any more still finishes its requests.
        time_ns += spare.iter().map(|foreseen| u128::from(foreseen.free_at.saturating_sub(begin))).sum::<u128>();
        have = needed;
    }
    time_ns * u128::from(point.area())
}
