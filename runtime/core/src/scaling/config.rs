//! The settings of a function's scaling, checked once.

use super::algorithm::INSTANCES_MAX;
use std::fmt;

/// Largest headroom in percent: ten times the load.
pub const HEADROOM_PERCENT_MAX: u64 = 900;

/// When to scale, and how far. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScalingConfig {
    /// The latency that requests may have.
    pub slo_ns: u64,
    /// How often [`super::Autoscaler::step`] is called.
    pub interval_ns: u64,
    /// Capacity above the predicted load, in percent: it serves bursts.
    pub headroom_percent: u64,
    /// For how long there has to be a surplus before instances are removed.
    pub cool_down_ns: u64,
    /// After how long without a request the last instance is removed.
    pub idle_ns: u64,
    /// How long an instance takes to start, as far as it is known.
    pub cold_start_ns: u64,
    /// The fewest instances. With 0 the function may have none.
    pub min_instances: u32,
    /// The most instances. A load that needs more makes them larger.
    pub max_instances: u32,
}

/// Why settings are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The SLO is zero.
    NoSlo,
    /// The interval is zero.
    NoInterval,
    /// The headroom exceeds [`HEADROOM_PERCENT_MAX`].
    Headroom(u64),
    /// The function may have no instance at all, or more than [`INSTANCES_MAX`].
    Most(u32),
    /// There are more instances at least than at most.
    Range {
        /// At least.
        min: u32,
        /// At most.
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
        if self.headroom_percent > HEADROOM_PERCENT_MAX {
            return Err(ConfigError::Headroom(self.headroom_percent));
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
