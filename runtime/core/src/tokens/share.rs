//! Shares: the part of a lane that a client is promised, and the checks of a share.

use crate::ids::LaneId;
use std::fmt;

/// A fraction in millionths; `Ppm::WHOLE` is 100 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ppm(u32);

impl Ppm {
    /// 100 %.
    pub const WHOLE: Ppm = Ppm(1_000_000);

    /// A fraction from 0 to 1, rounded to a millionth; `None` if it is anything else.
    pub fn of_fraction(fraction: f64) -> Option<Ppm> {
        (0.0..=1.0).contains(&fraction).then(|| Ppm((fraction * 1e6).round() as u32))
    }

    /// A whole percentage, at most 100.
    pub const fn of_percent(percent: u32) -> Ppm {
        Ppm(if percent > 100 { 1_000_000 } else { percent * 10_000 })
    }

    /// A number of millionths, at most a million; more counts as a million.
    pub(super) fn of_millionths(millionths: u32) -> Ppm {
        Ppm(millionths.min(1_000_000))
    }

    /// The fraction `part / whole`, rounded down to a millionth; 100 % if `part` is larger.
    pub fn of_parts(part: u32, whole: u32) -> Ppm {
        Ppm((u64::from(part.min(whole)) * 1_000_000 / u64::from(whole.max(1))) as u32)
    }

    /// The number of millionths.
    pub const fn millionths(self) -> u32 {
        self.0
    }

    /// This fraction of a number.
    pub fn of(self, whole: u64) -> u64 {
        (u128::from(whole) * u128::from(self.0) / 1_000_000) as u64
    }
}

impl fmt::Display for Ppm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", f64::from(self.0) / 1e4)
    }
}

/// An unchecked share, with the names and units of FaSTPod.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShareRequest {
    /// Compute units of the lane, in percent: above 0, at most 100.
    pub sm_partition: f64,
    /// The fraction of time that the client gets whenever it has work: above 0, at most 1.
    pub quota_request: f64,
    /// The largest fraction of time that the client gets: from `quota_request` to 1.
    pub quota_limit: f64,
    /// The group of the client. Time that no client requests goes first to clients of groups that
    /// use less than they request.
    pub group: u32,
}

/// A checked share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareSpec {
    pub(super) partition: Ppm,
    pub(super) request: Ppm,
    pub(super) limit: Ppm,
    pub(super) group: u32,
}

/// Why a share is rejected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ShareError {
    /// The partition is not a percentage above 0 and up to 100.
    Partition(f64),
    /// The request is not a fraction above 0 and up to 1.
    Request(f64),
    /// The limit is not a fraction above 0 and up to 1.
    Limit(f64),
    /// The request exceeds the limit.
    RequestAboveLimit {
        /// The request.
        request: f64,
        /// The limit.
        limit: f64,
    },
    /// The sum of request times partition over the lane's clients exceeds 100 %.
    LaneArea {
        /// The sum, including the new share.
        sum: Ppm,
    },
    /// Clients of which only some can run at the same time, because no more of their partitions
    /// fit into the lane, request more time than these have.
    LaneTime {
        /// The sum of their requests, including the new share.
        sum: Ppm,
        /// How many of them fit side by side.
        side_by_side: u32,
    },
    /// The lane does not exist, or it is closing.
    Lane(LaneId),
    /// The lane has the maximum number of clients with shares, which is this one.
    Clients(usize),
}

/// A contiguous range of compute units of a device, to which clients of a lane are bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// Index of the first compute unit.
    pub first: u32,
    /// Number of compute units, at least one.
    pub count: u32,
}

impl Span {
    /// Whether two spans have a compute unit in common.
    pub fn overlaps(self, other: Span) -> bool {
        self.first < other.first + other.count && other.first < self.first + self.count
    }

    /// The indices of its compute units.
    pub fn units(self) -> std::ops::Range<u32> {
        self.first..self.first + self.count
    }
}

/// The compute units that a client occupies, or would occupy, with its token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Units {
    /// Their part of the lane, in millionths.
    pub(super) part: u32,
    /// Their indices, if the client is bound to them. Two clients whose spans overlap never have
    /// tokens at the same time.
    pub(super) span: Option<Span>,
}

impl Units {
    /// Whether two clients are bound to a common compute unit.
    pub(super) fn excludes(self, other: Units) -> bool {
        self.span.zip(other.span).is_some_and(|(span, other)| span.overlaps(other))
    }
}

impl ShareSpec {
    /// Checks a share.
    ///
    /// # Errors
    /// If a figure is out of range, is not a number, or rounds to zero millionths; or if the
    /// request exceeds the limit.
    pub fn new(share: &ShareRequest) -> Result<ShareSpec, ShareError> {
        let &ShareRequest { sm_partition, quota_request: request, quota_limit: limit, group } = share;
        let positive = |fraction: f64| Ppm::of_fraction(fraction).filter(|ppm| ppm.0 > 0);
        let partition = positive(sm_partition / 100.0).ok_or(ShareError::Partition(sm_partition))?;
        let spec = ShareSpec {
            partition,
            request: positive(request).ok_or(ShareError::Request(request))?,
            limit: positive(limit).ok_or(ShareError::Limit(limit))?,
            group,
        };
        if spec.request > spec.limit {
            return Err(ShareError::RequestAboveLimit { request, limit });
        }
        Ok(spec)
    }

    /// The same quotas with another partition. A device assigns whole units, so the partition that
    /// it grants may differ from the requested one.
    #[must_use]
    pub fn with_partition(self, partition: Ppm) -> ShareSpec {
        ShareSpec { partition, ..self }
    }

    /// The request and the limit.
    pub fn quotas(&self) -> (Ppm, Ppm) {
        (self.request, self.limit)
    }

    /// The share of the lane's compute units.
    pub fn partition(&self) -> Ppm {
        self.partition
    }

    /// The fraction of time that the client gets whenever it has work.
    pub fn request(&self) -> Ppm {
        self.request
    }

    /// The largest fraction of time that the client gets.
    pub fn limit(&self) -> Ppm {
        self.limit
    }

    /// The group of the client; see [`ShareRequest::group`].
    pub fn group(&self) -> u32 {
        self.group
    }
}

/// Rejects shares that a lane cannot honour together.
///
/// The check of the area (partition times request) is not enough, because clients whose partitions
/// exceed the lane never run at the same time: two shares of 60 % × 0.8 have an area of 96 % and
/// need 160 % of the time. So for each number of clients, those of which no more fit side by side
/// must not request more time than that many have together.
pub(crate) fn check_lane(shares: &[ShareSpec]) -> Result<(), ShareError> {
    let area: u128 = shares.iter().map(|share| u128::from(share.partition.0) * u128::from(share.request.0)).sum();
    if area > u128::from(WHOLE * WHOLE) {
        return Err(ShareError::LaneArea { sum: saturated((area / u128::from(WHOLE)) as u64) });
    }
    let lane = Widest::of(shares);
    for side_by_side in (1..shares.len() as u64).take_while(|count| count * WHOLE < lane.all()) {
        let sum = lane.wanted(side_by_side);
        if sum > side_by_side * WHOLE {
            return Err(ShareError::LaneTime { sum: saturated(sum), side_by_side: side_by_side as u32 });
        }
    }
    Ok(())
}

/// 100 %, in millionths.
const WHOLE: u64 = Ppm::WHOLE.0 as u64;

/// Shares by their partitions, the largest first.
struct Widest {
    /// Partition and request of each, in millionths.
    shares: Vec<(u64, u64)>,
    /// `sums[n]` is the sum of the first n requests.
    sums: Vec<u64>,
}

impl Widest {
    fn of(shares: &[ShareSpec]) -> Widest {
        let figures = |share: &ShareSpec| (u64::from(share.partition.0), u64::from(share.request.0));
        let mut shares: Vec<(u64, u64)> = shares.iter().map(figures).collect();
        shares.sort_unstable_by(|a, b| b.cmp(a));
        let mut sums = vec![0];
        shares.iter().for_each(|(_, request)| sums.push(sums[sums.len() - 1] + request));
        Widest { shares, sums }
    }

    /// The sum of all requests.
    fn all(&self) -> u64 {
        self.sums[self.shares.len()]
    }

    /// The sum of the requests of shares whose partitions satisfy `is_wide`. If a partition does,
    /// all larger ones must, too.
    fn sum_of(&self, is_wide: impl Fn(u64) -> bool) -> u64 {
        self.sums[self.shares.partition_point(|(partition, _)| is_wide(*partition))]
    }

    /// The largest sum of requests of clients of which at most `count` fit side by side: of those
    /// with more than the part of the lane that `count + 1` of them could have each; and of a
    /// client with less than that together with those of which at most `count - 1` fit beside it.
    fn wanted(&self, count: u64) -> u64 {
        let is_wide = |partition: u64| partition * (count + 1) > WHOLE;
        let beside = |(partition, request): (u64, u64)| {
            let others = self.sum_of(|other| other * count > WHOLE - partition);
            if others > 0 { others + request } else { 0 }
        };
        let narrow = &self.shares[self.shares.partition_point(|(partition, _)| is_wide(*partition))..];
        narrow.iter().copied().map(beside).fold(self.sum_of(is_wide), u64::max)
    }
}

fn saturated(millionths: u64) -> Ppm {
    Ppm(u32::try_from(millionths).unwrap_or(u32::MAX))
}

impl fmt::Display for ShareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShareError::Partition(percent) => {
                write!(f, "a partition of {percent} % of the compute units; above 0 and up to 100 is possible")
            }
            ShareError::Request(request) => {
                write!(f, "a quota request of {request}; it must be above 0 and at most 1")
            }
            ShareError::Limit(limit) => write!(f, "a quota limit of {limit}; it must be above 0 and at most 1"),
            ShareError::RequestAboveLimit { request, limit } => {
                write!(f, "the quota request {request} exceeds the quota limit {limit}; lower it or raise the limit")
            }
            ShareError::LaneArea { sum } => write!(
                f,
                "the requests of the lane's clients times their partitions come to {sum} of the lane; \
                 lower a request or a partition, or use another lane"
            ),
            ShareError::LaneTime { sum, side_by_side } => write!(
                f,
                "clients of the lane of which at most {side_by_side} fit side by side request {sum} of the time, and \
                 only {} is there; lower a request or a partition",
                saturated(u64::from(*side_by_side) * WHOLE)
            ),
            ShareError::Lane(lane) => write!(f, "there is no open lane {} for the share", lane.0),
            ShareError::Clients(max) => {
                write!(f, "the lane has {max} clients with shares already, which is the limit; use another lane")
            }
        }
    }
}

impl std::error::Error for ShareError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(sm_partition: f64, quota_request: f64, quota_limit: f64) -> Result<ShareSpec, String> {
        ShareSpec::new(&ShareRequest { sm_partition, quota_request, quota_limit, group: 0 })
            .map_err(|error| error.to_string())
    }

    #[test]
    fn figures_are_checked_with_the_cause() {
        let spec = share(24.0, 0.4, 0.8).expect("the paper's figures");
        assert_eq!((spec.partition.0, spec.request.0, spec.limit.0), (240_000, 400_000, 800_000));
        assert_eq!((spec.request.of(40_000_000), spec.limit().to_string()), (16_000_000, "80 %".to_owned()));
        for (partition, request, limit, part) in [
            (0.0, 0.4, 0.8, "a partition of 0 %"),
            (130.0, 0.4, 0.8, "a partition of 130 %"),
            (-1.0, 0.4, 0.8, "a partition of -1 %"),
            (f64::NAN, 0.4, 0.8, "a partition of NaN %"),
            (1e-9, 0.4, 0.8, "a partition of 0.000000001 %"),
            (24.0, 0.0, 0.8, "a quota request of 0;"),
            (24.0, f64::NAN, 0.8, "a quota request of NaN;"),
            (24.0, 0.4, 1.01, "a quota limit of 1.01;"),
            (24.0, 0.4, f64::INFINITY, "a quota limit of inf;"),
            (24.0, 0.5, 0.4, "the quota request 0.5 exceeds the quota limit 0.4"),
        ] {
            let error = share(partition, request, limit).expect_err("refused");
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_lane_refuses_what_it_cannot_honour() {
        let all = |shares: &[(f64, f64)]| {
            let shares: Vec<ShareSpec> = shares.iter().map(|&(p, r)| share(p, r, r).expect("valid")).collect();
            check_lane(&shares).map_err(|error| error.to_string())
        };
        let paper = [(12.0, 0.4), (12.0, 0.4), (12.0, 0.4), (12.0, 0.4), (24.0, 0.4), (24.0, 0.4)];
        let paper: Vec<_> = paper.into_iter().chain([(50.0, 0.6), (50.0, 0.6)]).collect();
        assert_eq!(all(&paper), Ok(()));
        assert_eq!(all(&[(100.0, 0.1), (100.0, 0.9)]), Ok(()));
        assert_eq!(all(&[(30.0, 0.9), (80.0, 0.1)]), Ok(()), "80 and 30 % exclude each other and need 100 %");
        for (shares, part) in [
            (&[(60.0, 0.8), (60.0, 0.8)][..], "at most 1 fit side by side request 160 % of the time"),
            (&[(30.0, 0.9), (80.0, 0.2)], "at most 1 fit side by side request 110 % of the time"),
            (&[(40.0, 0.8); 3], "at most 2 fit side by side request 240 % of the time, and only 200 % is there"),
            (&[(30.0, 0.8); 4], "at most 3 fit side by side request 320 % of the time"),
            (&[(20.0, 0.9), (41.0, 0.8), (41.0, 0.8)], "at most 2 fit side by side request 250 % of the time"),
        ] {
            let error = all(shares).expect_err("time");
            assert!(error.contains(part), "{shares:?}: {error}");
        }
        assert_eq!(all(&[(40.0, 0.6); 3]), Ok(()), "two at a time have 200 % of the time, and 180 % is requested");
        assert_eq!(all(&[(20.0, 0.4), (41.0, 0.8), (41.0, 0.8)]), Ok(()));
        assert!(all(&[(50.0, 1.0), (50.0, 1.0), (1.0, 1.0)]).expect_err("area").contains("come to 101 %"));
        assert_eq!(all(&[(40.0, 1.0), (40.0, 1.0)]), Ok(()));
    }
}
