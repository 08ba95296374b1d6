//! Bodies of the logging and trace extensions.

use serde::{Deserialize, Serialize};

/// `GET` and `POST /v2/logging`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogSettings {
    /// Always empty: logs go to standard error.
    pub log_file: String,
    /// Whether informative messages are written.
    pub log_info: bool,
    /// Whether warnings are.
    pub log_warning: bool,
    /// Whether errors are.
    pub log_error: bool,
    /// 0 to not write debugging messages.
    pub log_verbose_level: u32,
    /// Always `default`.
    pub log_format: String,
}

/// `GET` and `POST /v2/trace/setting`, for the server or a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceSettings {
    /// Always `["OFF"]`.
    pub trace_level: Vec<String>,
    /// One of so many requests.
    pub trace_rate: String,
    /// How many are left; -1 for no bound.
    pub trace_count: String,
    /// How often traces are written.
    pub log_frequency: String,
    /// Where to.
    pub trace_file: String,
    /// In which form.
    pub trace_mode: String,
}

impl Default for TraceSettings {
    /// Nothing is traced.
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
