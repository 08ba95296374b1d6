//! Decides how many instances of a function run and with which resources (Algorithm 1 of
//! FaST-GShare, corrected).
//!
//! [`scale`] is the algorithm: it covers a load with instances at the most efficient point of the
//! profile, and the remainder with the smallest sufficient point; it removes the least efficient
//! instances first. [`Autoscaler`] decides when to scale: on the predicted load, with a cool-down,
//! and to and from zero. [`Demand`] replays the recent requests of a function and returns the
//! instances that they needed; a request that needs one more instance starts it at once. For a
//! function without a measured profile, [`Profile::learned`] derives one from the device time of
//! its requests.
//!
//! [`assign`] chooses the device of a new instance, and which instances move to make room;
//! [`consolidate`] chooses the moves that free a device; [`resized`] says whether an instance can
//! be resized on its device.
//!
//! Differences from the paper: points that break the SLO are not used; a remainder of zero adds no
//! instance; an instance larger than the surplus is skipped (the paper's loop never ends); every
//! function is processed (the paper's loop returns after the first).

mod algorithm;
mod autoscaler;
mod config;
mod decision;
mod demand;
mod estimate;
mod fit;
mod fleet;
mod host;
mod observed;
mod placing;
mod predictor;
mod profile;

pub use algorithm::{Change, INSTANCES_MAX, Instance, ScaleError, scale};
pub use autoscaler::Autoscaler;
pub use config::{ConfigError, HEADROOM_PERCENT_DEFAULT, HEADROOM_PERCENT_MAX, ScalingConfig};
pub use decision::{Decision, Why};
pub use demand::{Demand, Needed, REPLAYED_MAX, SLACK_PERCENT};
pub use estimate::Estimate;
pub use host::{Constants, Host, NS_PER_BYTE, Need, Nowhere, Placed, Relocation, Spot, Stay};
pub use observed::Observed;
pub use placing::{Assignment, assign, consolidate, resized};
pub use predictor::{LEVEL_PERCENT, Predictor, RATE_MAX, SEASON_PERCENT, SLOTS_MAX};
pub use profile::{POINTS_MAX, Point, Profile, ProfileError};
