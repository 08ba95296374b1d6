//! Maps errors to HTTP answers: a status that says whether client or server has to act, and a
//! message.

use crate::identity::{Denial, Reason};
use crate::model::FitError;
use crate::repository::{FindError, LoadError};
use atoll_engine::{EngineError, InvokeError};
use atoll_protocol::{ErrorBody, ProtocolError};
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// An error answer.
#[derive(Debug)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    message: String,
    /// The credential or right that is missing.
    reason: Option<Reason>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into(), reason: None }
    }

    /// The answer for missing or bad credentials. It does not tell which part of a token is wrong.
    pub(super) fn unidentified(reason: Reason) -> ApiError {
        let (status, message) = match reason {
            Reason::BadToken => (StatusCode::UNAUTHORIZED, "the token is not valid"),
            Reason::UnknownCertificate => {
                (StatusCode::FORBIDDEN, "the client certificate is assigned to no tenant of this daemon")
            }
            _ => (
                StatusCode::UNAUTHORIZED,
                "this daemon wants to know who asks: send the header `Authorization: Bearer TOKEN`, or a client \
                certificate if it has TLS",
            ),
        };
        ApiError { reason: Some(reason), ..ApiError::new(status, message) }
    }

    /// The answer for a missing right.
    pub(super) fn denied(reason: Reason, message: impl Into<String>) -> ApiError {
        ApiError { reason: Some(reason), ..ApiError::new(StatusCode::FORBIDDEN, message) }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }

    /// The answer for a panic in the server; the panic hook has reported the panic.
    pub(super) fn panicked() -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error: a request panicked; please report this bug")
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if self.status.is_server_error()
            && self.status != StatusCode::SERVICE_UNAVAILABLE
            && self.status != StatusCode::GATEWAY_TIMEOUT
        {
            tracing::error!(status = self.status.as_u16(), error = self.message, "a request failed");
        }
        let reason = self.reason.map(|reason| reason.label().to_owned());
        let mut response = (self.status, Json(ErrorBody { error: self.message, reason })).into_response();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            // How to authenticate (RFC 6750 §3).
            let challenge = HeaderValue::from_static("Bearer realm=\"atoll\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

impl From<Denial> for ApiError {
    fn from(denial: Denial) -> ApiError {
        ApiError::denied(denial.reason(), denial.to_string())
    }
}

impl From<ProtocolError> for ApiError {
    fn from(error: ProtocolError) -> ApiError {
        ApiError::bad_request(error.to_string())
    }
}

impl From<FitError> for ApiError {
    fn from(error: FitError) -> ApiError {
        ApiError::bad_request(error.to_string())
    }
}

impl From<FindError> for ApiError {
    fn from(error: FindError) -> ApiError {
        let status = match error {
            FindError::Unknown(_) | FindError::Version { .. } => StatusCode::NOT_FOUND,
            FindError::NotReady { .. } => StatusCode::SERVICE_UNAVAILABLE,
        };
        ApiError::new(status, error.to_string())
    }
}

impl From<InvokeError> for ApiError {
    fn from(error: InvokeError) -> ApiError {
        let status = match &error {
            InvokeError::BadInput(_) | InvokeError::NoSession | InvokeError::SessionLost => StatusCode::BAD_REQUEST,
            InvokeError::UnknownFunction | InvokeError::UnknownInstance(_) | InvokeError::Unloaded => {
                StatusCode::NOT_FOUND
            }
            InvokeError::QueueFull { .. }
            | InvokeError::ClassRefused(_)
            | InvokeError::OutOfMemory { .. }
            | InvokeError::OverQuota { .. }
            | InvokeError::SessionBusy
            | InvokeError::TooManySessions { .. }
            | InvokeError::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
            InvokeError::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            // Only the server cancels: for a disconnected client, or while it stops.
            InvokeError::Cancelled | InvokeError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            InvokeError::Device(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        ApiError::new(status, error.to_string())
    }
}

impl From<LoadError> for ApiError {
    /// As in Triton, any problem with a model is a 400.
    fn from(error: LoadError) -> ApiError {
        let status = match &error {
            LoadError::Engine(EngineError::ShuttingDown) => StatusCode::SERVICE_UNAVAILABLE,
            LoadError::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        };
        ApiError::new(status, error.to_string())
    }
}
