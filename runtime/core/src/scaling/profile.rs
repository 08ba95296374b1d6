//! Profiles: the throughput and latency of an instance by its resources, and the checks of a
//! profile.

use super::predictor::RATE_MAX;
use std::fmt;

/// Points of one profile: enough for a grid of 32 partitions and 32 quotas.
pub const POINTS_MAX: usize = 1024;

/// By how many percent the throughput of a point may be below that of a point with fewer resources.
/// Allows for noise of the measurement.
const NOISE_PERCENT: u64 = 5;

/// One measured point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Compute units, in percent of a device.
    pub partition: u32,
    /// Quota of time, in percent.
    pub quota: u32,
    /// Throughput, in thousandths of a request per second.
    pub throughput: u64,
    /// A high percentile of the latency of a request, in nanoseconds.
    pub latency_ns: u64,
}

impl Point {
    /// Partition times quota: its part of a device, in ten-thousandths.
    pub fn area(&self) -> u64 {
        u64::from(self.partition) * u64::from(self.quota)
    }

    /// Compares the throughput per resource of two points (RPR in FaST-GShare).
    pub(super) fn efficiency_cmp(&self, other: &Point) -> std::cmp::Ordering {
        let scaled = |point: &Point, by: &Point| u128::from(point.throughput) * u128::from(by.area());
        scaled(self, other).cmp(&scaled(other, self))
    }
}

/// The points of a function: a full grid of partitions and quotas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    points: Vec<Point>,
}

/// Why points do not form a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileError {
    /// There is no point, or more than [`POINTS_MAX`].
    Count(usize),
    /// The partition or quota of a point is not from 1 to 100 %.
    Resources(Point),
    /// A point has a throughput of zero.
    NoThroughput(Point),
    /// A point has a throughput above [`RATE_MAX`].
    Throughput(Point),
    /// A point has a latency of zero.
    NoLatency(Point),
    /// Two points have the same resources.
    Twice(Point),
    /// The grid has no point here.
    Hole {
        /// The partition.
        partition: u32,
        /// The quota.
        quota: u32,
    },
    /// A point has less throughput than one with fewer resources.
    NotMonotone {
        /// The point.
        point: Point,
        /// The point with fewer resources.
        below: Point,
    },
}

impl Profile {
    /// Checks points.
    ///
    /// # Errors
    /// See [`ProfileError`].
    pub fn new(mut points: Vec<Point>) -> Result<Profile, ProfileError> {
        if points.is_empty() || points.len() > POINTS_MAX {
            return Err(ProfileError::Count(points.len()));
        }
        for point in &points {
            if !(1..=100).contains(&point.partition) || !(1..=100).contains(&point.quota) {
                return Err(ProfileError::Resources(*point));
            }
            if point.throughput == 0 {
                return Err(ProfileError::NoThroughput(*point));
            }
            if point.throughput > RATE_MAX {
                return Err(ProfileError::Throughput(*point));
            }
            if point.latency_ns == 0 {
                return Err(ProfileError::NoLatency(*point));
            }
        }
        points.sort_by_key(|point| (point.partition, point.quota));
        let resources = |point: &Point| (point.partition, point.quota);
        if let Some(pair) = points.windows(2).find(|pair| resources(&pair[0]) == resources(&pair[1])) {
            return Err(ProfileError::Twice(pair[1]));
        }
        check_grid(&points)?;
        check_monotone(&points)?;
        Ok(Profile { points })
    }

    /// The points, by partition and quota.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// The points whose latency is at most `slo_ns`.
    pub(super) fn within(&self, slo_ns: u64) -> impl Iterator<Item = Point> {
        self.points.iter().filter(move |point| point.latency_ns <= slo_ns).copied()
    }

    /// The point with the highest throughput per resource whose latency is at most `slo_ns`; of
    /// equal ones the smallest. `None` if no point keeps the SLO.
    pub fn most_efficient(&self, slo_ns: u64) -> Option<Point> {
        self.within(slo_ns).max_by(|a, b| a.efficiency_cmp(b).then(b.area().cmp(&a.area())))
    }
}

fn check_grid(points: &[Point]) -> Result<(), ProfileError> {
    let mut quotas: Vec<u32> = points.iter().map(|point| point.quota).collect();
    quotas.sort_unstable();
    quotas.dedup();
    for row in points.chunk_by(|a, b| a.partition == b.partition) {
        if let Some(quota) = quotas.iter().find(|quota| row.iter().all(|point| point.quota != **quota)) {
            return Err(ProfileError::Hole { partition: row[0].partition, quota: *quota });
        }
    }
    Ok(())
}

fn check_monotone(points: &[Point]) -> Result<(), ProfileError> {
    for (at, point) in points.iter().enumerate() {
        let fewer = points[..at].iter().filter(|other| other.quota <= point.quota);
        let above = |other: &&Point| other.throughput * (100 - NOISE_PERCENT) > point.throughput * 100;
        if let Some(below) = fewer.into_iter().find(above) {
            return Err(ProfileError::NotMonotone { point: *point, below: *below });
        }
    }
    Ok(())
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.throughput as f64 / 1e3;
        write!(f, "{} % of the compute units × {} % of the time ({rate} requests/s)", self.partition, self.quota)
    }
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProfileError::Count(count) => write!(f, "a profile of {count} points; 1 to {POINTS_MAX} are possible"),
            ProfileError::Resources(point) => write!(f, "a point at {point}; 1 to 100 % is possible"),
            ProfileError::NoThroughput(point) => {
                write!(f, "no throughput at {point}; measure it again, or leave out that row and column")
            }
            ProfileError::Throughput(point) => {
                write!(f, "a throughput above {} requests/s at {point}; measure it again", RATE_MAX / 1_000)
            }
            ProfileError::NoLatency(point) => write!(f, "no latency at {point}; measure it again"),
            ProfileError::Twice(point) => write!(f, "two points at {point}"),
            ProfileError::Hole { partition, quota } => write!(
                f,
                "no point at {partition} % of the compute units × {quota} % of the time, where the grid has one; \
                 measure it"
            ),
            ProfileError::NotMonotone { point, below } => write!(
                f,
                "{point} has over {NOISE_PERCENT} % less throughput than {below}, which has fewer resources; \
                 measure both again"
            ),
        }
    }
}

impl std::error::Error for ProfileError {}
