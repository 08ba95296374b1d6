//! Measures throughput and latency of a model on shares of a device: a grid of quotas of time and
//! partitions of the compute units, for one or more batches (FaST-GShare §3.2).
//!
//! A measurement can be stopped and continued: the caller stores each point when it is measured,
//! and known points are not measured again.

use crate::failure::{OrUserError, user_error};
use crate::invoker;
use crate::profiler;
use anyhow::{Context, Result};
use atoll_core::scaling::{Point, Profile as Scaling, ProfileError};
use atoll_engine::{
    ChainRequest, Class, EngineHandle, EngineStatistics, FunctionKey, InputTensor, ShareClient, ShareRequest,
    ShareSpec, StageInput, StageRequest, Tenant,
};
use atoll_kgraph::{Bundle, LoadPoint, Profile};
use atoll_protocol::Tensor;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Quotas of FaST-GShare's grid, in percent.
pub const QUOTAS: [u32; 5] = [20, 40, 60, 80, 100];
/// Partitions of FaST-GShare's grid, in percent.
pub const PARTITIONS: [u32; 7] = [6, 12, 24, 50, 60, 80, 100];

/// Values of one axis.
const AXIS_MAX: usize = 32;
/// Answers before a measurement begins.
const WARM_UPS: usize = 3;
/// Gain of throughput, in percent, below which larger partitions are skipped.
const FLAT_PERCENT: u64 = 3;
/// How often points that contradict each other are measured again.
const AGAIN_MAX: usize = 3;
/// A measurement ends after this multiple of its shortest time, even with few answers.
const LONGEST: u32 = 10;
/// The instance that has the share.
const INSTANCE: &str = "atoll-profile-grid";

/// The axes of a grid, checked: in percent, ascending, without duplicates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axes {
    /// Partitions, without those that the device rounds up to the same number of compute units.
    pub partitions: Vec<u32>,
    /// Quotas.
    pub quotas: Vec<u32>,
}

impl Axes {
    /// Checks the axes of a grid for a device with this number of compute units.
    ///
    /// # Errors
    /// A user error: no value, too many values, or a value that is not from 1 to 100.
    pub fn new(partitions: &[u32], quotas: &[u32], compute_units: u32) -> Result<Axes> {
        let checked = |name: &str, values: &[u32]| {
            let mut values = values.to_vec();
            values.sort_unstable();
            values.dedup();
            if values.is_empty() || values.len() > AXIS_MAX {
                return Err(user_error(format!("--{name} has {} values; 1 to {AXIS_MAX} are possible", values.len())));
            }
            match values.iter().find(|value| !(1..=100).contains(*value)) {
                Some(value) => Err(user_error(format!("--{name} {value}: 1 to 100 % is possible"))),
                None => Ok(values),
            }
        };
        let units = |partition: &u32| (partition * compute_units).div_ceil(100).max(1);
        let all = checked("partitions", partitions)?;
        // Of partitions with equal units the largest, which is nearest to what the device assigns.
        let is_last = |at: usize| all.get(at + 1).is_none_or(|next| units(next) != units(&all[at]));
        let partitions = (0..all.len()).filter(|at| is_last(*at)).map(|at| all[at]).collect();
        Ok(Axes { partitions, quotas: checked("quotas", quotas)? })
    }
}

/// How a point is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Fewest answers.
    pub runs: u32,
    /// Shortest time.
    pub time: Duration,
    /// Requests in flight, so that the share is never idle.
    pub depth: usize,
}

/// A model to measure on shares.
pub struct Grid<'a> {
    /// The engine.
    pub handle: &'a EngineHandle,
    /// The model's bundle.
    pub bundle: &'a Bundle,
    /// The name of the loaded function.
    pub function: &'a str,
    /// The axes.
    pub axes: &'a Axes,
    /// The effort per point.
    pub effort: Effort,
}

/// What happened to a point of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// It was measured.
    Measured(&'a LoadPoint),
    /// It was known.
    Known(&'a LoadPoint),
    /// Partitions from this one on, in percent, are skipped: the last measured partition brought
    /// less than 3 % more throughput than its predecessor.
    Flat(u32),
}

/// Requests that were kept in flight.
struct Driven {
    elapsed: Duration,
    /// The time from request to answer of each request, in nanoseconds.
    latencies: Vec<u64>,
    used: Used,
}

/// Use of the device.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    compute_units: u32,
    /// Time that launches of the share kept the device busy.
    share_ns: u64,
    /// Time that the compute units ran blocks, summed over the units.
    units_ns: Option<u64>,
}

impl Used {
    fn of(statistics: &EngineStatistics) -> Used {
        let is_its = |client: &ShareClient| client.instance.as_deref() == Some(INSTANCE);
        let share = statistics.shares.iter().find(|share| is_its(&share.client));
        let device = &statistics.device;
        Used {
            compute_units: device.compute_units,
            share_ns: share.map_or(0, |share| share.received_ns),
            units_ns: device.busy_ns,
        }
    }

    fn since(self, before: Used) -> Used {
        let units_ns = self.units_ns.zip(before.units_ns).map(|(now, before)| now.saturating_sub(before));
        Used { share_ns: self.share_ns.saturating_sub(before.share_ns), units_ns, ..self }
    }
}

/// A part of the time of so many units, in thousandths.
fn permille(ns: u128, elapsed: Duration, units: u32) -> u32 {
    let all = elapsed.as_nanos().saturating_mul(units.into()).max(1);
    ((ns * 1000 + all / 2) / all).min(1000) as u32
}

impl Grid<'_> {
    /// Measures the points of the grid that the profile does not have, for these inputs. Calls
    /// `keep` after each point, with the profile and what happened.
    ///
    /// # Errors
    /// The inputs do not fit, the device refuses a share, an invocation fails, or points contradict
    /// each other even after they were measured again.
    pub fn measure(
        &self,
        inputs: &[Tensor],
        profile: &mut Profile,
        keep: &mut dyn FnMut(&Profile, Step<'_>) -> Result<()>,
    ) -> Result<Vec<LoadPoint>> {
        let inputs: Vec<InputTensor> = inputs.iter().map(invoker::input).collect();
        let symbols = profiler::symbols(self.bundle, &inputs)?;
        for _ in 0..AGAIN_MAX {
            let points = self.rows(&inputs, &symbols, profile, keep)?;
            match scaling(&points) {
                Err(ProfileError::NotMonotone { point, below }) => {
                    let is_one = |known: &LoadPoint| {
                        [point, below].iter().any(|odd| shares(known) == (odd.partition, odd.quota))
                    };
                    profile.points.retain(|known| known.symbols != symbols || !is_one(known));
                }
                other => {
                    other.or_user_error()?;
                    return Ok(points);
                }
            }
        }
        Err(user_error(format!(
            "points of the grid contradict each other also after {AGAIN_MAX} measurements; measure on an idle machine, \
             or longer (--seconds)"
        )))
    }

    /// Measures rows, one for each partition, until a larger partition brings no more throughput.
    fn rows(
        &self,
        inputs: &[InputTensor],
        symbols: &[i64],
        profile: &mut Profile,
        keep: &mut dyn FnMut(&Profile, Step<'_>) -> Result<()>,
    ) -> Result<Vec<LoadPoint>> {
        let mut rows: Vec<Vec<LoadPoint>> = Vec::new();
        for &partition in &self.axes.partitions {
            if let [.., before, last] = &rows[..]
                && is_flat(before, last)
            {
                keep(profile, Step::Flat(partition))?;
                break;
            }
            let mut row = Vec::new();
            for &quota in &self.axes.quotas {
                let is_it = |point: &&LoadPoint| point.symbols == symbols && shares(point) == (partition, quota);
                let known = profile.points.iter().find(is_it).cloned();
                let is_known = known.is_some();
                let point = known.map_or_else(|| self.point(inputs, symbols, partition, quota), Ok)?;
                if !is_known {
                    profile.insert_point(point.clone());
                }
                keep(profile, if is_known { Step::Known(&point) } else { Step::Measured(&point) })?;
                row.push(point);
            }
            rows.push(row);
        }
        Ok(rows.concat())
    }

    fn point(&self, inputs: &[InputTensor], symbols: &[i64], partition: u32, quota: u32) -> Result<LoadPoint> {
        let fraction = f64::from(quota) / 100.0;
        let request =
            ShareRequest { sm_partition: partition.into(), quota_request: fraction, quota_limit: fraction, group: 0 };
        let client = ShareClient { tenant: Tenant::default(), instance: Some(INSTANCE.into()) };
        let share = ShareSpec::new(&request).or_user_error()?;
        let at = || format!("{partition} % of the compute units and {quota} % of the time");
        self.handle.place_share(client.clone(), share).with_context(at)?;
        let measured = self.drive(inputs).with_context(at);
        self.handle.remove_share(client);
        let Driven { elapsed, mut latencies, used } = measured?;
        latencies.sort_unstable();
        let quantile = |percent: usize| latencies[(latencies.len() - 1) * percent / 100];
        let rate = latencies.len() as u128 * 1_000_000_000_000 / elapsed.as_nanos().max(1);
        Ok(LoadPoint {
            symbols: symbols.into(),
            lane_permille: partition * 10,
            quota_permille: quota * 10,
            runs: u32::try_from(latencies.len()).unwrap_or(u32::MAX),
            per_1000_s: u64::try_from(rate).unwrap_or(u64::MAX),
            latency_ns_p50: quantile(50),
            latency_ns_p99: quantile(99),
            utilisation_permille: Some(permille(used.share_ns.into(), elapsed, 1)),
            occupancy_permille: used.units_ns.map(|ns| permille(ns.into(), elapsed, used.compute_units)),
        })
    }

    /// Keeps requests in flight.
    fn drive(&self, inputs: &[InputTensor]) -> Result<Driven> {
        let (answer, answered) = mpsc::channel();
        let submit = || {
            let answer = answer.clone();
            let begun = Instant::now();
            let reply = move |result| drop(answer.send((begun.elapsed(), result)));
            self.handle.submit_chain(self.request(inputs), Box::new(reply));
        };
        let depth = self.effort.depth.max(1);
        (0..depth).for_each(|_| submit());
        let next = || answered.recv().context("the engine ended");
        for _ in 0..WARM_UPS + depth {
            next()?.1?;
            submit();
        }
        let before = Used::of(&self.handle.statistics());
        let (begun, mut latencies) = (Instant::now(), Vec::new());
        loop {
            let (latency, result) = next()?;
            result?;
            latencies.push(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
            let elapsed = begun.elapsed();
            let is_enough = latencies.len() >= self.effort.runs as usize && elapsed >= self.effort.time;
            if is_enough || elapsed >= self.effort.time * LONGEST {
                let used = Used::of(&self.handle.statistics()).since(before);
                // Requests in flight end before the share is removed.
                for _ in 1..depth {
                    next()?.1?;
                }
                return Ok(Driven { elapsed, latencies, used });
            }
            submit();
        }
    }

    fn request(&self, inputs: &[InputTensor]) -> ChainRequest {
        let stage = StageRequest {
            function: FunctionKey::local(self.function),
            inputs: inputs.iter().cloned().map(StageInput::Tensor).collect(),
            outputs: None,
            retain: Vec::new(),
        };
        ChainRequest {
            stages: vec![stage],
            class: Some(Class::BestEffort),
            priority: 0,
            instance: Some(INSTANCE.into()),
            deadline: None,
            times_launches: false,
        }
    }
}

/// Partition and quota of a point, in percent.
pub fn shares(point: &LoadPoint) -> (u32, u32) {
    (point.lane_permille / 10, point.quota_permille / 10)
}

/// The points as those of a profile for scaling.
///
/// # Errors
/// As [`Scaling::new`].
pub fn scaling(points: &[LoadPoint]) -> Result<Scaling, ProfileError> {
    let point = |point: &LoadPoint| {
        let (partition, quota) = shares(point);
        Point { partition, quota, throughput: point.per_1000_s, latency_ns: point.latency_ns_p99 }
    };
    Scaling::new(points.iter().map(point).collect())
}

/// Whether a row has hardly more throughput than the one before, at any quota.
fn is_flat(before: &[LoadPoint], last: &[LoadPoint]) -> bool {
    let mut pairs = before.iter().zip(last);
    pairs.all(|(before, last)| last.per_1000_s * 100 < before.per_1000_s * (100 + FLAT_PERCENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(rates: [u64; 2]) -> Vec<LoadPoint> {
        let point = |per_1000_s, quota_permille| LoadPoint {
            symbols: vec![],
            lane_permille: 500,
            quota_permille,
            runs: 1,
            per_1000_s,
            latency_ns_p50: 1,
            latency_ns_p99: 1,
            utilisation_permille: None,
            occupancy_permille: None,
        };
        vec![point(rates[0], 500), point(rates[1], 1000)]
    }

    #[test]
    fn axes_are_sorted_and_equal_partitions_are_one() {
        let axes = Axes::new(&PARTITIONS, &[100, 20, 20], 2).unwrap();
        assert_eq!((axes.partitions, axes.quotas), (vec![50, 100], vec![20, 100]));
        assert_eq!(Axes::new(&PARTITIONS, &QUOTAS, 80).unwrap().partitions, PARTITIONS);
        assert_eq!(Axes::new(&PARTITIONS, &QUOTAS, 1).unwrap().partitions, [100]);
        let why = |partitions: &[u32], quotas: &[u32]| Axes::new(partitions, quotas, 2).unwrap_err().to_string();
        assert!(why(&[], &[1]).contains("--partitions has 0 values"));
        assert!(why(&[50], &[0]).contains("--quotas 0: 1 to 100 %"));
        assert!(why(&[130], &[1]).contains("--partitions 130: 1 to 100 %"));
    }

    #[test]
    fn use_is_that_of_the_measured_time() {
        let used = |share_ns, units_ns| Used { compute_units: 2, share_ns, units_ns };
        let since = used(700, Some(900)).since(used(200, Some(400)));
        assert_eq!((since.share_ns, since.units_ns), (500, Some(500)));
        assert_eq!(used(7, None).since(used(2, Some(4))).units_ns, None);
        let second = Duration::from_nanos(1000);
        assert_eq!((permille(500, second, 1), permille(500, second, 2)), (500, 250));
        assert_eq!((permille(1500, second, 1), permille(1, Duration::ZERO, 1)), (1000, 1000), "at most the whole");
    }

    #[test]
    fn a_row_is_flat_if_no_quota_gains() {
        assert!(is_flat(&row([100, 200]), &row([102, 199])));
        assert!(!is_flat(&row([100, 200]), &row([104, 199])));
    }
}
