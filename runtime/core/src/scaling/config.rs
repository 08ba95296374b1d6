//! The settings of a function's scaling, and their checks.

use super::algorithm::INSTANCES_MAX;
use std::fmt;

/// Largest headroom in percent: a capacity of ten times the load.
pub const HEADROOM_PERCENT_MAX: u64 = 900;

/// Headroom in percent if none is set and an instance starts too slowly for a request to wait for
/// it.
pub const HEADROOM_PERCENT_DEFAULT: u64 = 30;

/// When to scale, and how far. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScalingConfig {
    /// The latency target of requests.
    pub slo_ns: u64,
    /// The time between calls of [`super::Autoscaler::step`].
    pub interval_ns: u64,
    /// Capacity beyond the predicted load, in percent of the load, to serve bursts. `None`: the
    /// number of instances follows [`super::Demand`], and a request that needs one more instance
    /// starts it at once.
    pub headroom_percent: Option<u64>,
    /// How long a surplus must last before instances are removed.
    pub cool_down_ns: u64,
    /// The time without a request after which the last instance is removed.
    pub idle_ns: u64,
    /// The time that an instance takes to start; an estimate until it was measured.
    pub cold_start_ns: u64,
    /// Minimum number of instances. With 0 the function may have none.
    pub min_instances: u32,
    /// Maximum number of instances. If a load needs more, instances are enlarged.
    pub max_instances: u32,
}

/// Why settings are rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The SLO is zero.
    NoSlo,
    /// The interval is zero.
    NoInterval,
    /// The headroom exceeds [`HEADROOM_PERCENT_MAX`].
    Headroom(u64),
    /// The maximum number of instances is 0 or above [`INSTANCES_MAX`].
    Most(u32),
    /// The minimum number of instances exceeds the maximum.
    Range {
        /// The minimum.
        min: u32,
        /// The maximum.
        max: u32,
    },
}

impl ScalingConfig {
    /// Checks settings.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn checked(self) -> Result<ScalingConfig, ConfigError> {
        let (min, max) = (self.min_instances, self.max_instances);
        if self.slo_ns == 0 {
            return Err(ConfigError::NoSlo);
        }
        if self.interval_ns == 0 {
            return Err(ConfigError::NoInterval);
        }
        if let Some(percent) = self.headroom_percent.filter(|percent| *percent > HEADROOM_PERCENT_MAX) {
            return Err(ConfigError::Headroom(percent));
        }
        if max == 0 || max as usize > INSTANCES_MAX {
            return Err(ConfigError::Most(max));
        }
        if min > max { Err(ConfigError::Range { min, max }) } else { Ok(self) }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::NoSlo => write!(f, "a target latency of 0; it has to be longer"),
            ConfigError::NoInterval => write!(f, "an interval of 0; it has to be longer"),
            ConfigError::Headroom(percent) => {
                write!(f, "a headroom of {percent} %; at most {HEADROOM_PERCENT_MAX} % are possible")
            }
            ConfigError::Most(max) => write!(f, "at most {max} instances; 1 to {INSTANCES_MAX} are possible"),
            ConfigError::Range { min, max } => {
                write!(f, "at least {min} instances, and at most {max}; the first must not exceed the second")
            }
        }
    }
}

impl std::error::Error for ConfigError {}
