//! How many instances of a function run, and with which resources (FaST-GShare Algorithm 1,
//! mended).
//!
//! [`scale`] is the algorithm: it covers a load with instances of the most efficient point of the
//! profile, and the rest with the smallest sufficient one; it removes the least efficient instances
//! first. [`Autoscaler`] decides when: on a predicted load, with a cool-down, and to and from zero.
//! A function without a measured profile has the one that [`Profile::learned`] makes of the time of
//! its requests.
//!
//! [`assign`] says which device of a fleet gets a new instance, and which instances move for it, and
//! [`consolidate`] when a device can be freed.
//!
//! Differences from the paper: points that break the SLO are not used; a rest of zero adds no
//! instance; an instance that is larger than the surplus is passed over (there the loop never ends);
//! every function is looked at (there the loop returns after the first).

mod algorithm;
mod autoscaler;
mod config;
mod estimate;
mod fleet;
mod host;
mod placing;
mod predictor;
mod profile;

pub use algorithm::{Change, INSTANCES_MAX, Instance, ScaleError, scale};
pub use autoscaler::{Autoscaler, Decision, Observed, Why};
pub use config::{ConfigError, HEADROOM_PERCENT_MAX, ScalingConfig};
pub use estimate::Estimate;
pub use host::{Constants, Host, NS_PER_BYTE, Need, Nowhere, Placed, Relocation, Spot, Stay};
pub use placing::{Assignment, assign, consolidate};
pub use predictor::{LEVEL_PERCENT, Predictor, RATE_MAX, SEASON_PERCENT, SLOTS_MAX};
pub use profile::{POINTS_MAX, Point, Profile, ProfileError};
