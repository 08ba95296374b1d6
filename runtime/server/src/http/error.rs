//! Errors as HTTP answers: a status and a JSON body.

use crate::requests::error::{Kind, RequestError};
use atoll_protocol::ErrorBody;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// The HTTP status of an error.
pub(super) fn status(kind: Kind) -> StatusCode {
    match kind {
        Kind::BadRequest | Kind::Unsupported => StatusCode::BAD_REQUEST,
        Kind::Unidentified => StatusCode::UNAUTHORIZED,
        Kind::Denied => StatusCode::FORBIDDEN,
        Kind::NotFound => StatusCode::NOT_FOUND,
        Kind::Conflict => StatusCode::CONFLICT,
        Kind::Aborted => StatusCode::GONE,
        Kind::WrongMethod => StatusCode::METHOD_NOT_ALLOWED,
        Kind::TooSlow => StatusCode::REQUEST_TIMEOUT,
        Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Kind::UnknownEncoding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        Kind::Exhausted | Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Kind::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
    }
}

impl IntoResponse for RequestError {
    fn into_response(self) -> Response {
        let status = status(self.kind);
        if self.kind == Kind::Internal {
            tracing::error!(status = status.as_u16(), error = self.message, "a request failed");
        }
        let reason = self.reason.map(|reason| reason.label().to_owned());
        let mut response = (status, Json(ErrorBody { error: self.message, reason })).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if status == StatusCode::UNAUTHORIZED {
            // How to authenticate (RFC 6750 §3).
            let challenge = HeaderValue::from_static("Bearer realm=\"atoll\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}
