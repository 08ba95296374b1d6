//! Log and trace settings. They are set when the daemon starts. A request that would change one is
//! refused.

use super::error::RequestError;
use atoll_protocol::{LogSettings, TraceSettings};
use serde::Serialize;
use serde_json::{Map, Value};
use tracing::level_filters::LevelFilter;

/// The settings of the log.
pub(crate) fn logging() -> LogSettings {
    let level = LevelFilter::current();
    LogSettings {
        log_file: String::new(),
        log_info: level >= LevelFilter::INFO,
        log_warning: level >= LevelFilter::WARN,
        log_error: level >= LevelFilter::ERROR,
        log_verbose_level: u32::from(level >= LevelFilter::DEBUG),
        log_format: "default".into(),
    }
}

/// The settings of the log. An error if `wanted` would change one.
pub(crate) fn set_logging(wanted: &Map<String, Value>) -> Result<LogSettings, RequestError> {
    unchanged(wanted, logging(), "start the daemon with --log")
}

/// The settings of traces. An error if `wanted` would change one.
pub(crate) fn set_trace(wanted: &Map<String, Value>) -> Result<TraceSettings, RequestError> {
    unchanged(wanted, TraceSettings::default(), "request traces are not supported")
}

/// Returns `current`. An error if `wanted` would change a setting; null stands for the default.
fn unchanged<T: Serialize>(wanted: &Map<String, Value>, current: T, remedy: &str) -> Result<T, RequestError> {
    let settings = serde_json::to_value(&current).unwrap_or_default();
    for (name, value) in wanted.iter().filter(|(_, value)| !value.is_null()) {
        match settings.get(name) {
            Some(now) if now == value => {}
            Some(now) => {
                return Err(RequestError::bad_request(format!(
                    "setting `{name}` is {now} and cannot be changed by a request; {remedy}"
                )));
            }
            None => return Err(RequestError::bad_request(format!("there is no setting `{name}`"))),
        }
    }
    Ok(current)
}
