//! The decision of a step, and its reason.

use super::algorithm::{Change, ScaleError};
use std::fmt;

/// Why instances are added, resized or removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Why {
    /// Nothing changes.
    #[default]
    Steady,
    /// A request found no instance.
    First,
    /// There are fewer instances than the configured minimum.
    Minimum,
    /// The load exceeds the capacity.
    Load,
    /// Load and queue together exceed the capacity.
    Queue,
    /// More than 1 % of the requests of a cool-down took longer than the SLO.
    Late,
    /// The capacity exceeded the load throughout the cool-down.
    Surplus,
    /// No request came for the idle time.
    Idle,
}

impl Why {
    /// All reasons.
    pub const ALL: [Why; 8] =
        [Why::Steady, Why::First, Why::Minimum, Why::Load, Why::Queue, Why::Late, Why::Surplus, Why::Idle];

    /// The reason in words.
    pub fn words(self) -> &'static str {
        match self {
            Why::Steady => "nothing changes",
            Why::First => "a request found no instance",
            Why::Minimum => "there were fewer instances than min_instances",
            Why::Load => "the load exceeded the capacity",
            Why::Queue => "the queue would have taken longer than the target latency",
            Why::Late => "over 1 % of the requests took longer than the target latency",
            Why::Surplus => "the capacity exceeded the load throughout the cool-down",
            Why::Idle => "no request came for the idle time",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

/// The decision of a step and its inputs. Rates are in thousandths of a request per second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// What to do.
    pub change: Change,
    /// Why.
    pub why: Why,
    /// The rate of arrivals in the interval.
    pub rate: u64,
    /// The predicted rate of the next interval.
    pub predicted: u64,
    /// The load to serve: what recent requests needed, or the rate with headroom and queue.
    pub load: u64,
    /// The capacity before the change.
    pub capacity: u64,
    /// Why the SLO cannot be kept. Instances are then added at the points with the lowest latency.
    pub problem: Option<ScaleError>,
}
