//! Errors as gRPC statuses.

use crate::requests::error::{Kind, RequestError};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// The metadata that says which credential or right is missing. Over HTTP it is the field `reason`.
const REASON: &str = "reason";

/// The gRPC code of an error.
fn code(kind: Kind) -> Code {
    match kind {
        Kind::BadRequest => Code::InvalidArgument,
        Kind::Unsupported | Kind::WrongMethod | Kind::UnknownEncoding => Code::Unimplemented,
        Kind::Unidentified => Code::Unauthenticated,
        Kind::Conflict => Code::FailedPrecondition,
        Kind::Aborted => Code::Aborted,
        Kind::Denied => Code::PermissionDenied,
        Kind::NotFound => Code::NotFound,
        Kind::TooLarge | Kind::Exhausted => Code::ResourceExhausted,
        Kind::Internal => Code::Internal,
        Kind::Unavailable => Code::Unavailable,
        Kind::TooSlow | Kind::DeadlineExceeded => Code::DeadlineExceeded,
    }
}

impl From<RequestError> for Status {
    fn from(error: RequestError) -> Status {
        let mut status = Status::new(code(error.kind), error.message);
        if error.kind == Kind::Internal {
            tracing::error!(code = ?status.code(), error = status.message(), "a request failed");
        }
        if let Some(reason) = error.reason {
            status.metadata_mut().insert(REASON, MetadataValue::from_static(reason.label()));
        }
        status
    }
}
