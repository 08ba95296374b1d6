//! Estimates of a profile: between its measured points, and for functions without one.

use super::predictor::RATE_MAX;
use super::profile::{Point, Profile, ProfileError};

/// An estimate at resources that were not measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Throughput and latency.
    pub point: Point,
    /// The largest relative error of the throughput, in percent, when the same method estimates
    /// inner points of the grid from their neighbours. `None` if the grid has no inner point.
    pub error_percent: Option<u64>,
}

impl Profile {
    /// Derives a profile from `service_ns`, the measured device time of a request. Its points have
    /// `partition` percent of the compute units and multiples of `unit` percent of the time.
    /// Throughput is proportional to the time, up to [`RATE_MAX`]. The latency is an upper bound: a
    /// request pauses in each window of `window_ns` once the quota is used up.
    ///
    /// # Errors
    /// If the partition or the unit is not from 1 to 100 %, or if `service_ns` is so long that a
    /// point serves less than a thousandth of a request per second.
    pub fn learned(partition: u32, unit: u32, service_ns: u64, window_ns: u64) -> Result<Profile, ProfileError> {
        let service_ns = service_ns.max(1);
        let of_unit = 10_000_000_000 * u64::from(unit.min(100)) / service_ns;
        let point = |times: u32| {
            let quota = times * unit;
            let allowed = (window_ns * u64::from(quota) / 100).max(1);
            let windows = (service_ns - 1) / allowed + 1;
            let pauses = windows.saturating_mul(window_ns.saturating_sub(allowed));
            let latency_ns = service_ns.saturating_add(pauses);
            let throughput = of_unit.saturating_mul(times.into()).min(RATE_MAX);
            Point { partition, quota, throughput, latency_ns }
        };
        let most = 100_u32.checked_div(unit).unwrap_or(1).max(1);
        Profile::new((1..=most).map(point).collect())
    }

    /// The throughput and latency at a partition and a quota, both in percent, by bilinear
    /// interpolation between the four points around it. `None` outside the grid.
    pub fn estimate(&self, partition: u32, quota: u32) -> Option<Estimate> {
        let (partitions, quotas) = self.axes();
        let (rows, columns) = (around(&partitions, partition)?, around(&quotas, quota)?);
        let at = |row: usize, column: usize| self.points()[row * quotas.len() + column];
        let blend = |of: fn(&Point) -> u64| {
            let in_row = |row| {
                let ends = (of(&at(row, columns.low)), of(&at(row, columns.high)));
                between(ends, columns.part)
            };
            between((in_row(rows.low), in_row(rows.high)), rows.part)
        };
        let (throughput, latency_ns) = (blend(|point| point.throughput), blend(|point| point.latency_ns));
        let error_percent = self.error_percent(&partitions, &quotas);
        Some(Estimate { point: Point { partition, quota, throughput, latency_ns }, error_percent })
    }

    fn axes(&self) -> (Vec<u32>, Vec<u32>) {
        let axis = |of: fn(&Point) -> u32| {
            let mut values: Vec<u32> = self.points().iter().map(of).collect();
            values.sort_unstable();
            values.dedup();
            values
        };
        (axis(|point| point.partition), axis(|point| point.quota))
    }

    /// The largest error at inner points. Each is estimated from its neighbours along each axis.
    fn error_percent(&self, partitions: &[u32], quotas: &[u32]) -> Option<u64> {
        let at = |row: usize, column: usize| self.points()[row * quotas.len() + column].throughput;
        let mut errors = Vec::new();
        for row in 0..partitions.len() {
            for column in 0..quotas.len() {
                let inner = |index: usize, axis: &[u32]| index > 0 && index + 1 < axis.len();
                if inner(column, quotas) {
                    let part = part_of(quotas[column - 1], quotas[column], quotas[column + 1]);
                    errors.push((between((at(row, column - 1), at(row, column + 1)), part), at(row, column)));
                }
                if inner(row, partitions) {
                    let part = part_of(partitions[row - 1], partitions[row], partitions[row + 1]);
                    errors.push((between((at(row - 1, column), at(row + 1, column)), part), at(row, column)));
                }
            }
        }
        // The measured throughput is not zero: `Profile::new` checked it.
        errors.iter().map(|(estimate, measured)| (100 * estimate.abs_diff(*measured)).div_ceil(*measured)).max()
    }
}

/// Indices of two neighbours on an axis, and the position of a value between them, in thousandths.
#[derive(Clone, Copy)]
struct Around {
    low: usize,
    high: usize,
    part: u64,
}

fn around(axis: &[u32], value: u32) -> Option<Around> {
    let high = axis.iter().position(|known| *known >= value)?;
    if axis[high] == value {
        return Some(Around { low: high, high, part: 0 });
    }
    let low = high.checked_sub(1)?;
    Some(Around { low, high, part: part_of(axis[low], value, axis[high]) })
}

fn part_of(low: u32, value: u32, high: u32) -> u64 {
    1_000 * u64::from(value - low) / u64::from((high - low).max(1))
}

fn between((low, high): (u64, u64), part: u64) -> u64 {
    let sum = u128::from(low) * u128::from(1_000 - part) + u128::from(high) * u128::from(part);
    u64::try_from(sum / 1_000).unwrap_or(u64::MAX)
}
