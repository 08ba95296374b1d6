//! Log and trace settings as messages.

use super::proto::inference::log_settings_request::setting_value::ParameterChoice as LogChoice;
use super::proto::inference::log_settings_response::SettingValue as LogValue;
use super::proto::inference::log_settings_response::setting_value::ParameterChoice as LogAnswer;
use super::proto::inference::trace_setting_response::SettingValue as TraceValue;
use super::proto::inference::{LogSettingsRequest, LogSettingsResponse, TraceSettingRequest, TraceSettingResponse};
use crate::app::App;
use crate::identity::Principal;
use crate::requests::error::RequestError;
use crate::requests::settings::{set_logging, set_trace};
use serde::Serialize;
use serde_json::{Map, Value};

/// The settings of traces, after the changes of the request.
pub(super) fn trace(
    app: &App,
    caller: &Principal,
    request: TraceSettingRequest,
) -> Result<TraceSettingResponse, RequestError> {
    let is_of_model = !request.model_name.is_empty();
    let wanted = request.settings.into_iter().map(|(name, setting)| {
        let mut values = setting.value.into_iter().map(Value::from);
        // The level is a list, every other setting one value; an empty list asks for the default.
        let value = if name == "trace_level" { Value::Array(values.collect()) } else { values.next().into() };
        (name, if value.as_array().is_some_and(Vec::is_empty) { Value::Null } else { value })
    });
    let current = fields(&set_trace(app, caller, &wanted.collect(), is_of_model)?);
    let text = |value: Value| value.as_str().map(str::to_owned).unwrap_or_else(|| value.to_string());
    let values = |value| match value {
        Value::Array(values) => values.into_iter().map(text).collect(),
        one => vec![text(one)],
    };
    let settings = current.into_iter().map(|(name, value)| (name, TraceValue { value: values(value) }));
    Ok(TraceSettingResponse { settings: settings.collect() })
}

/// The settings of the log, after the changes of the request.
pub(super) fn logging(
    app: &App,
    caller: &Principal,
    request: LogSettingsRequest,
) -> Result<LogSettingsResponse, RequestError> {
    let wanted = request.settings.into_iter().map(|(name, setting)| {
        let value = match setting.parameter_choice {
            Some(LogChoice::BoolParam(value)) => value.into(),
            Some(LogChoice::Uint32Param(value)) => value.into(),
            Some(LogChoice::StringParam(value)) => value.into(),
            None => Value::Null,
        };
        (name, value)
    });
    let current = fields(&set_logging(app, caller, &wanted.collect())?);
    let answer = |value: Value| match value {
        Value::Bool(value) => LogAnswer::BoolParam(value),
        Value::Number(value) => LogAnswer::Uint32Param(value.as_u64().and_then(|n| n.try_into().ok()).unwrap_or(0)),
        Value::String(value) => LogAnswer::StringParam(value),
        other => LogAnswer::StringParam(other.to_string()),
    };
    let settings = current.into_iter().map(|(name, value)| (name, LogValue { parameter_choice: Some(answer(value)) }));
    Ok(LogSettingsResponse { settings: settings.collect() })
}

fn fields(settings: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(settings) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}
