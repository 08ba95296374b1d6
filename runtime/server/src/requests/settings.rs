//! Log and trace settings. Requests of the tenant `local` change the level of the log, and which
//! requests are traced; a request that would change another setting is refused.

use super::error::{Kind, RequestError};
use crate::app::App;
use crate::identity::{Principal, Reason};
use crate::otlp::Sampling;
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

/// The switches of levels, each with the number of the lowest level at which it is on.
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
/// If `wanted` has an unknown setting, would change a setting other than the level, or contradicts
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
    may_change(app, caller, "the log")?;
    control.set(level).map_err(|error| RequestError::new(Kind::Internal, error))?;
    tracing::info!(%level, "a request has changed the level of the log");
    Ok(logging())
}

/// The level that a request asks for.
fn level(current: LevelFilter, wanted: &Map<String, Value>) -> Result<LevelFilter, RequestError> {
    for (name, value) in wanted.iter().filter(|(_, value)| !value.is_null()) {
        let expected = match name.as_str() {
            "log_verbose_level" if !value.is_u64() => "a whole number from 0",
            switch if SWITCHES.iter().any(|(name, _)| *name == switch) && !value.is_boolean() => "true or false",
            _ => continue,
        };
        return Err(RequestError::bad_request(format!("setting `{name}` is {expected}, not {value}")));
    }
    let mut number = LEVELS.iter().position(|level| *level == current).unwrap_or(0);
    // Each switch that the request sets moves the level as far as it needs. Contradictions between
    // switches are found below.
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

/// The settings of traces. Without a collector they are off.
pub(crate) fn trace(app: &App) -> TraceSettings {
    app.tracer.as_ref().map_or_else(TraceSettings::default, |tracer| traced(tracer.sampling()))
}

fn traced(Sampling { is_on, one_of }: Sampling) -> TraceSettings {
    TraceSettings {
        trace_level: vec![if is_on { TIMESTAMPS } else { OFF }.into()],
        trace_rate: one_of.to_string(),
        trace_mode: "opentelemetry".into(),
        ..TraceSettings::default()
    }
}

const OFF: &str = "OFF";
const TIMESTAMPS: &str = "TIMESTAMPS";

/// Changes which requests are traced, and returns the settings. Models have no settings of their
/// own.
///
/// # Errors
/// If `wanted` has an unknown setting, or would change a setting other than level and rate, a setting
/// of a model, or any setting without a collector; or if the caller may not change them.
pub(crate) fn set_trace(
    app: &App,
    caller: &Principal,
    wanted: &Map<String, Value>,
    is_of_model: bool,
) -> Result<TraceSettings, RequestError> {
    if is_of_model {
        return unchanged(wanted, trace(app), "models have no settings of their own");
    }
    let Some(tracer) = &app.tracer else {
        return unchanged(wanted, trace(app), "start the daemon with --otlp-endpoint");
    };
    let mut wanted = wanted.clone();
    if let Some(rate) = wanted.get_mut("trace_rate").filter(|rate| rate.is_number()) {
        *rate = rate.to_string().into();
    }
    let current = tracer.sampling();
    let sampling = sampling(current, tracer.sampling_at_start(), &wanted);
    unchanged(&wanted, traced(sampling), "the level is OFF or TIMESTAMPS, and the rate a whole number from 1")?;
    if sampling != current {
        may_change(app, caller, "traces")?;
        tracer.sample(sampling);
        tracing::info!(is_on = sampling.is_on, one_of = sampling.one_of, "a request has changed the traces");
    }
    Ok(trace(app))
}

/// The sampling that a request asks for. Ignores invalid values; null stands for the configured value.
fn sampling(current: Sampling, at_start: Sampling, wanted: &Map<String, Value>) -> Sampling {
    let is_on = wanted.get("trace_level").and_then(|level| match level {
        Value::Null => Some(at_start.is_on),
        Value::Array(levels) => match levels.as_slice() {
            [Value::String(level)] if level == TIMESTAMPS => Some(true),
            [Value::String(level)] if level == OFF => Some(false),
            _ => None,
        },
        _ => None,
    });
    let one_of = wanted.get("trace_rate").and_then(|rate| match rate {
        Value::Null => Some(at_start.one_of),
        rate => rate.as_str()?.parse().ok().filter(|one_of| *one_of > 0),
    });
    Sampling { is_on: is_on.unwrap_or(current.is_on), one_of: one_of.unwrap_or(current.one_of) }
}

/// Refuses callers other than the tenant `local`.
fn may_change(app: &App, caller: &Principal, what: &str) -> Result<(), RequestError> {
    if caller.tenant.is_local() {
        return Ok(());
    }
    app.recorder.refusals.charge(Reason::Operator, caller, Class::BestEffort);
    let text = format!("only the tenant `local` may change settings of {what}");
    Err(RequestError::denied(Reason::Operator, text))
}

/// Returns `current`. An error if `wanted` would change a setting; null stands for the default.
fn unchanged<T: Serialize>(wanted: &Map<String, Value>, current: T, remedy: &str) -> Result<T, RequestError> {
    let settings = serde_json::to_value(&current).unwrap_or_default();
    for (name, value) in wanted.iter().filter(|(_, value)| !value.is_null()) {
        match settings.get(name) {
            Some(now) if now == value => {}
            Some(now) => {
                return Err(RequestError::bad_request(format!(
                    "setting `{name}` is {now} and cannot be changed to {value} by a request; {remedy}"
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
            (r#"{"log_info": "yes"}"#, "setting `log_info` is true or false, not \"yes\""),
            (r#"{"log_verbose_level": -1}"#, "setting `log_verbose_level` is a whole number from 0, not -1"),
            (r#"{"level": "debug"}"#, "there is no setting `level`"),
        ] {
            let error = asked(LevelFilter::INFO, json).unwrap_err();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }

    #[test]
    fn levels_and_rates_of_traces_are_read() {
        let current = Sampling { is_on: true, one_of: 10 };
        let at_start = Sampling { is_on: false, one_of: 1000 };
        for (json, is_on, one_of) in [
            ("{}", true, 10),
            (r#"{"trace_level": ["OFF"]}"#, false, 10),
            (r#"{"trace_level": ["TIMESTAMPS"], "trace_rate": "1"}"#, true, 1),
            (r#"{"trace_level": null, "trace_rate": null}"#, false, 1000),
            (r#"{"trace_level": ["TENSORS"], "trace_rate": "0"}"#, true, 10),
            (r#"{"trace_level": ["OFF", "TIMESTAMPS"], "trace_rate": "many"}"#, true, 10),
        ] {
            let found = sampling(current, at_start, &serde_json::from_str(json).unwrap());
            assert_eq!(found, Sampling { is_on, one_of }, "{json}");
        }
    }
}
