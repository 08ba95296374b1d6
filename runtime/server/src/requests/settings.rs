//! Log and trace settings. Requests of the tenant `local` change the level of the log; a request
//! that would change another setting is refused.

use super::error::{Kind, RequestError};
use crate::app::App;
use crate::identity::{Principal, Reason};
use atoll_engine::Class;
use atoll_protocol::{LogSettings, TraceSettings};
use serde::Serialize;
use serde_json::{Map, Value};
use tracing::level_filters::LevelFilter;

/// The levels from none to all messages. The index of a level is its number here.
const LEVELS: [LevelFilter; 6] = [
    LevelFilter::OFF,
    LevelFilter::ERROR,
    LevelFilter::WARN,
    LevelFilter::INFO,
    LevelFilter::DEBUG,
    LevelFilter::TRACE,
];

/// The switches of levels, each with the number of the first level that it is on at.
const SWITCHES: [(&str, usize); 3] = [("log_info", 3), ("log_warning", 2), ("log_error", 1)];

/// The settings of the log.
pub(crate) fn logging() -> LogSettings {
    settings_of(LevelFilter::current())
}

fn settings_of(level: LevelFilter) -> LogSettings {
    LogSettings {
        log_file: String::new(),
        log_info: level >= LevelFilter::INFO,
        log_warning: level >= LevelFilter::WARN,
        log_error: level >= LevelFilter::ERROR,
        log_verbose_level: u32::from(level >= LevelFilter::DEBUG) + u32::from(level >= LevelFilter::TRACE),
        log_format: "default".into(),
    }
}

/// Changes the level of the log, and returns the settings.
///
/// # Errors
/// If `wanted` has an unknown setting, would change another setting than the level, contradicts
/// itself, or if the caller may not change the level.
pub(crate) fn set_logging(
    app: &App,
    caller: &Principal,
    wanted: &Map<String, Value>,
) -> Result<LogSettings, RequestError> {
    let current = LevelFilter::current();
    let level = level(current, wanted)?;
    if level == current {
        return Ok(logging());
    }
    let Some(control) = &app.log else {
        return unchanged(wanted, logging(), "start the daemon with --log");
    };
    if !caller.tenant.is_local() {
        app.recorder.refusals.charge(Reason::ModelControl, caller, Class::BestEffort);
        let text = "only the tenant `local` may change settings of the log";
        return Err(RequestError::denied(Reason::ModelControl, text));
    }
    control.set(level).map_err(|error| RequestError::new(Kind::Internal, error))?;
    tracing::info!(%level, "a request has changed the level of the log");
    Ok(logging())
}

/// The level that a request asks for.
fn level(current: LevelFilter, wanted: &Map<String, Value>) -> Result<LevelFilter, RequestError> {
    let mut number = LEVELS.iter().position(|level| *level == current).unwrap_or(0);
    // Each switch that the request sets moves the level as far as it needs. What switches contradict
    // is found below.
    if let Some(verbose) = wanted.get("log_verbose_level").and_then(Value::as_u64) {
        let most = verbose.min(2) as usize + 3;
        number = if verbose > 0 { most } else { number.min(3) };
    }
    for (name, first) in SWITCHES {
        match wanted.get(name).and_then(Value::as_bool) {
            Some(true) => number = number.max(first),
            Some(false) => number = number.min(first - 1),
            None => {}
        }
    }
    let settings = settings_of(LEVELS[number]);
    let given = |name: &str| wanted.get(name).filter(|value| !value.is_null());
    let switches =
        [("log_info", settings.log_info), ("log_warning", settings.log_warning), ("log_error", settings.log_error)];
    let unmet = switches.iter().find(|(name, now)| given(name).is_some_and(|value| value != now));
    // Triton has more verbose levels than there are levels here.
    let is_verbose =
        |value: &Value| value.as_u64().map(|level| level.min(2)) == Some(settings.log_verbose_level.into());
    let not_verbose = given("log_verbose_level").is_some_and(|value| !is_verbose(value));
    if let Some(name) = unmet.map(|(name, _)| *name).or(not_verbose.then_some("log_verbose_level")) {
        let text = "errors, warnings, information and verbose messages are levels, and each includes the ones before";
        return Err(RequestError::bad_request(format!("setting `{name}` contradicts the others: {text}")));
    }
    let mut fixed = wanted.clone();
    fixed.remove("log_verbose_level");
    unchanged(&fixed, settings, "logs go to standard error in the format of --log-format")?;
    Ok(LEVELS[number])
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

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(current: LevelFilter, json: &str) -> Result<LevelFilter, String> {
        level(current, &serde_json::from_str(json).unwrap()).map_err(|error| error.message)
    }

    #[test]
    fn switches_move_the_level_as_far_as_they_need() {
        use LevelFilter as Level;
        for (current, json, expected) in [
            (Level::INFO, "{}", Level::INFO),
            (Level::INFO, r#"{"log_verbose_level": 1}"#, Level::DEBUG),
            (Level::WARN, r#"{"log_verbose_level": 7}"#, Level::TRACE),
            (Level::TRACE, r#"{"log_verbose_level": 0}"#, Level::INFO),
            (Level::WARN, r#"{"log_verbose_level": 0}"#, Level::WARN),
            (Level::DEBUG, r#"{"log_info": false}"#, Level::WARN),
            (Level::DEBUG, r#"{"log_info": true, "log_format": "default"}"#, Level::DEBUG),
            (Level::OFF, r#"{"log_info": true, "log_file": null}"#, Level::INFO),
            (Level::INFO, r#"{"log_error": false}"#, Level::OFF),
            (Level::INFO, r#"{"log_info": false, "log_warning": true}"#, Level::WARN),
        ] {
            assert_eq!(asked(current, json), Ok(expected), "{current} {json}");
        }
        for level in LEVELS {
            let settings = serde_json::to_string(&settings_of(level)).unwrap();
            assert_eq!(asked(Level::ERROR, &settings), Ok(level), "{settings}");
        }
    }

    #[test]
    fn contradictions_and_other_settings_are_refused() {
        for (json, expected) in [
            (r#"{"log_info": false, "log_verbose_level": 1}"#, "log_verbose_level"),
            (r#"{"log_info": true, "log_error": false}"#, "log_info"),
            (r#"{"log_file": "/tmp/log"}"#, "`log_file` is \"\" and cannot be changed"),
            (r#"{"log_format": "ISO8601"}"#, "log_format"),
            (r#"{"log_info": "yes"}"#, "log_info"),
            (r#"{"level": "debug"}"#, "there is no setting `level`"),
        ] {
            let error = asked(LevelFilter::INFO, json).unwrap_err();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }
}
