//! Failures as exceptions.

use atoll_client::{ClientError, RefusalKind};
use pyo3::prelude::*;
use std::io::ErrorKind;

/// The exception for an error of the client.
pub(crate) fn raised(py: Python<'_>, error: &ClientError) -> PyErr {
    let class = match error {
        ClientError::Refused(refusal) => match refusal.kind {
            RefusalKind::BadRequest => "InvalidInput",
            RefusalKind::NotFound => "NotFound",
            RefusalKind::Denied => "Denied",
            RefusalKind::Quota => "QuotaExceeded",
            RefusalKind::Busy => "Unavailable",
            RefusalKind::Deadline => "DeadlineExceeded",
            RefusalKind::Function => "FunctionFailed",
            RefusalKind::Daemon => "InternalError",
        },
        ClientError::RingFull(_) | ClientError::NoRoom { .. } => "RingFull",
        ClientError::File { source, .. } if source.kind() == ErrorKind::NotFound => "NotFound",
        ClientError::File { .. } | ClientError::Call(_) | ClientError::NoOutput(_) => "InvalidInput",
        _ => "ConnectionFailed",
    };
    exception(py, class, error.to_string())
}

/// The exception `InvalidInput`.
pub(crate) fn invalid(py: Python<'_>, message: impl Into<String>) -> PyErr {
    exception(py, "InvalidInput", message.into())
}

/// An exception of `atoll._errors` with a message.
pub(crate) fn exception(py: Python<'_>, class: &str, message: String) -> PyErr {
    let made = py.import("atoll._errors").and_then(|module| module.getattr(class)?.call1((message,)));
    made.map_or_else(|error| error, PyErr::from_value)
}
