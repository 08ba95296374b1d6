//! What a profile says between and without measured points.

use super::profile::{Point, Profile, ProfileError};

/// A point between measured ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Throughput and latency.
    pub point: Point,
    /// The largest relative error of the throughput that the same method has where it can be
    /// checked: at inner points of the grid, computed from their neighbours. In percent; `None` if
    /// the grid has no inner point.
    pub error_percent: Option<u64>,
}

impl Profile {
    /// The profile of a function that was not profiled, from the device time of a request that was
    /// measured. An instance gets a multiple of `unit` percent of the time of `partition` percent of
    /// the compute units, and its throughput is proportional to its time. A request waits at the end
    /// of each window for what the quota does not allow, so the latency is an upper bound.
    ///
    /// # Errors
    /// If the partition or the unit is not from 1 to 100 %, or the time exceeds a second by so much
    /// that less than a thousandth of a request is served in a second.
    pub fn learned(partition: u32, unit: u32, service_ns: u64, window_ns: u64) -> Result<Profile, ProfileError> {
        let service_ns = service_ns.max(1);
        let of_unit = 10_000_000_000 * u64::from(unit.min(100)) / service_ns;
        let point = |times: u32| {
            let quota = times * unit;
            let allowed = (window_ns * u64::from(quota) / 100).max(1);
            let windows = (service_ns - 1) / allowed + 1;
            let pauses = windows.saturating_mul(window_ns.saturating_sub(allowed));
            let latency_ns = service_ns.saturating_add(pauses);
            Point { partition, quota, throughput: of_unit.saturating_mul(times.into()), latency_ns }
        };
        let most = 100_u32.checked_div(unit).unwrap_or(1).max(1);
        Profile::new((1..=most).map(point).collect())
    }

    /// The throughput and latency at any partition and quota, bilinear between the four points
    /// around it. Outside the grid it is `None`.
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

    /// The largest error at inner points, each estimated along both axes from its neighbours.
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
        // A measured throughput is not zero.
        errors.iter().map(|(estimate, measured)| (100 * estimate.abs_diff(*measured)).div_ceil(*measured)).max()
    }
}

/// Two neighbours on an axis, and where a value is between them, in thousandths.
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
