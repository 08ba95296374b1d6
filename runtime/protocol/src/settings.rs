//! Messages of the logging and trace extensions.

use serde::{Deserialize, Serialize};

/// `GET` and `POST /v2/logging`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogSettings {
    /// Always empty: logs go to standard error.
    pub log_file: String,
    /// Whether info messages are logged.
    pub log_info: bool,
    /// Whether warnings are logged.
    pub log_warning: bool,
    /// Whether errors are logged.
    pub log_error: bool,
    /// 0 if debug messages are not logged.
    pub log_verbose_level: u32,
    /// Always `default`.
    pub log_format: String,
}

/// `GET` and `POST /v2/trace/setting`, for the server or a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceSettings {
    /// `["TIMESTAMPS"]` if requests are traced, otherwise `["OFF"]`.
    pub trace_level: Vec<String>,
    /// One of this many requests is traced.
    pub trace_rate: String,
    /// Number of traces left; -1 for no limit.
    pub trace_count: String,
    /// Interval of writing traces.
    pub log_frequency: String,
    /// Path of the trace file.
    pub trace_file: String,
    /// Format of traces.
    pub trace_mode: String,
}

impl Default for TraceSettings {
    /// Tracing is off.
    fn default() -> TraceSettings {
        TraceSettings {
            trace_level: vec!["OFF".into()],
            trace_rate: "1000".into(),
            trace_count: "-1".into(),
            log_frequency: "0".into(),
            trace_file: String::new(),
            trace_mode: "triton".into(),
        }
    }
}
