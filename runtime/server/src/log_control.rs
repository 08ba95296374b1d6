//! Changes the level of the log of a running daemon.

use std::fmt;
use std::sync::Arc;
use tracing::level_filters::LevelFilter;

/// Sets the level of the daemon's log. The program that writes the log supplies it.
#[derive(Clone)]
pub struct LogControl(Arc<dyn Fn(LevelFilter) -> Result<(), String> + Send + Sync>);

impl LogControl {
    /// A control that sets the level by this function. Its error says why the level is unchanged.
    pub fn new(set: impl Fn(LevelFilter) -> Result<(), String> + Send + Sync + 'static) -> LogControl {
        LogControl(Arc::new(set))
    }

    pub(crate) fn set(&self, level: LevelFilter) -> Result<(), String> {
        (self.0)(level)
    }
}

impl fmt::Debug for LogControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogControl")
    }
}
