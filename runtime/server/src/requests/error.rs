//! Errors of requests. An error has a kind, which tells whether the client or the server is at
//! fault, and a message.

use crate::graphs::Rejected;
use crate::identity::{Denial, Reason};
use crate::leases::LeaseError;
use crate::model::FitError;
use crate::repository::{FindError, LoadError};
use atoll_engine::{EngineError, InvokeError};
use atoll_lease::Refusal;
use atoll_protocol::ProtocolError;

/// The kind of an error. It determines the status over HTTP (`http/error.rs`) and gRPC
/// (`grpc/status.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The request is not valid, or does not fit the model.
    BadRequest,
    /// The request asks for a feature that Atoll does not support.
    Unsupported,
    /// Credentials are missing or not valid.
    Unidentified,
    /// The sender does not have the right.
    Denied,
    /// There is no such route, model or version.
    NotFound,
    /// The route does not take this method.
    WrongMethod,
    /// The request did not arrive in time.
    TooSlow,
    /// The request conflicts with the present state: its lease has ended or has another holder.
    Conflict,
    /// The instance of the request was removed while the request waited or ran. Part of it may have
    /// run, so a client should repeat it only if that is safe.
    Aborted,
    /// The request is larger than allowed.
    TooLarge,
    /// The request is encoded in an unknown way.
    UnknownEncoding,
    /// A bug or a failed device.
    Internal,
    /// Memory or a quota is full.
    Exhausted,
    /// The queue is full, or the model or the server does not accept requests now.
    Unavailable,
    /// The deadline passed.
    DeadlineExceeded,
}

impl Kind {
    /// Its name in traces.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Kind::BadRequest => "bad_request",
            Kind::Unsupported => "unsupported",
            Kind::Unidentified => "unidentified",
            Kind::Denied => "denied",
            Kind::NotFound => "not_found",
            Kind::WrongMethod => "wrong_method",
            Kind::TooSlow => "too_slow",
            Kind::Conflict => "conflict",
            Kind::Aborted => "aborted",
            Kind::TooLarge => "too_large",
            Kind::UnknownEncoding => "unknown_encoding",
            Kind::Internal => "internal",
            Kind::Exhausted => "exhausted",
            Kind::Unavailable => "unavailable",
            Kind::DeadlineExceeded => "deadline_exceeded",
        }
    }
}

/// A request that was refused or failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestError {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    /// The credential, right or quota that is missing.
    pub(crate) reason: Option<Reason>,
}

impl RequestError {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> RequestError {
        RequestError { kind, message: message.into(), reason: None }
    }

    /// The answer for missing or invalid credentials. It does not tell which part of a token is
    /// wrong.
    pub(crate) fn unidentified(reason: Reason) -> RequestError {
        let (kind, message) = match reason {
            Reason::BadToken => (Kind::Unidentified, "the token is not valid"),
            Reason::UnknownCertificate => {
                (Kind::Denied, "the client certificate is assigned to no tenant of this daemon")
            }
            _ => (
                Kind::Unidentified,
                "this daemon requires authentication: send the header `Authorization: Bearer TOKEN`, or a client \
                certificate if it has TLS",
            ),
        };
        RequestError { reason: Some(reason), ..RequestError::new(kind, message) }
    }

    /// The answer for a missing right.
    pub(crate) fn denied(reason: Reason, message: impl Into<String>) -> RequestError {
        RequestError { reason: Some(reason), ..RequestError::new(Kind::Denied, message) }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> RequestError {
        RequestError::new(Kind::BadRequest, message)
    }

    /// The answer for a panic in the server; the panic hook has reported the panic.
    pub(crate) fn panicked() -> RequestError {
        RequestError::new(Kind::Internal, "internal error: a request panicked; please report this bug")
    }
}

impl From<Denial> for RequestError {
    fn from(denial: Denial) -> RequestError {
        let denied = RequestError::denied(denial.reason(), denial.to_string());
        match denial {
            Denial::Invocations { .. } => RequestError { kind: Kind::Exhausted, ..denied },
            _ => denied,
        }
    }
}

impl From<ProtocolError> for RequestError {
    fn from(error: ProtocolError) -> RequestError {
        RequestError::bad_request(error.to_string())
    }
}

impl From<FitError> for RequestError {
    fn from(error: FitError) -> RequestError {
        RequestError::bad_request(error.to_string())
    }
}

impl From<FindError> for RequestError {
    fn from(error: FindError) -> RequestError {
        let kind = match error {
            FindError::Unknown(_) | FindError::Version { .. } => Kind::NotFound,
            FindError::NotReady { .. } | FindError::VersionNotReady { .. } => Kind::Unavailable,
        };
        RequestError::new(kind, error.to_string())
    }
}

impl From<InvokeError> for RequestError {
    fn from(error: InvokeError) -> RequestError {
        let kind = match &error {
            InvokeError::BadInput(_) | InvokeError::NoSession | InvokeError::SessionLost => Kind::BadRequest,
            InvokeError::UnknownFunction | InvokeError::UnknownInstance(_) | InvokeError::Unloaded => Kind::NotFound,
            InvokeError::InstanceRemoved(_) => Kind::Aborted,
            InvokeError::OutOfMemory { .. }
            | InvokeError::OverQuota { .. }
            | InvokeError::OverInstanceMemory { .. }
            | InvokeError::TooManySessions { .. } => Kind::Exhausted,
            InvokeError::DeadlineExceeded => Kind::DeadlineExceeded,
            // A full queue has Triton's code, since clients repeat a request by its code. Only the
            // server cancels requests: if the client disconnects, or while the server stops.
            InvokeError::QueueFull { .. }
            | InvokeError::Cancelled
            | InvokeError::ClassRefused(_)
            | InvokeError::SessionBusy
            | InvokeError::ShuttingDown
            | InvokeError::DeviceLost(_)
            | InvokeError::Unavailable(_) => Kind::Unavailable,
            InvokeError::Device(_) | InvokeError::ExecutorLost(_) => Kind::Internal,
        };
        RequestError::new(kind, error.to_string())
    }
}

impl From<Rejected> for RequestError {
    fn from(rejected: Rejected) -> RequestError {
        // A deadline that cannot be kept fails a request as it fails requests of models. A request
        // that other limits rule out would be rejected again later, so it is the client's error.
        let kind = match &rejected.reason {
            reason if reason.is_of_deadline() => Kind::DeadlineExceeded,
            reason if reason.is_of_limits() => Kind::BadRequest,
            _ => Kind::Unavailable,
        };
        RequestError::new(kind, rejected.message)
    }
}

impl From<LeaseError> for RequestError {
    fn from(error: LeaseError) -> RequestError {
        let kind = match &error {
            LeaseError::Denied(denial) => return denial.clone().into(),
            LeaseError::Bad(_) | LeaseError::Refused(Refusal::TooLarge | Refusal::NoDevice(_)) => Kind::BadRequest,
            LeaseError::NoStore => Kind::Unsupported,
            LeaseError::NoFunction(_) | LeaseError::Refused(Refusal::NoLease(_)) => Kind::NotFound,
            LeaseError::Refused(Refusal::KeyUsed | Refusal::Ended | Refusal::Stale { .. }) => Kind::Conflict,
            LeaseError::Refused(Refusal::NoRoom | Refusal::TooMany) | LeaseError::Full { .. } => Kind::Exhausted,
            LeaseError::NotReady { .. } | LeaseError::Refused(Refusal::Drained(_)) => Kind::Unavailable,
            LeaseError::Instance(_) | LeaseError::Store(_) | LeaseError::Panicked => Kind::Internal,
        };
        RequestError::new(kind, error.to_string())
    }
}

impl From<LoadError> for RequestError {
    /// As in Triton, any problem with a model counts as an error of the client.
    fn from(error: LoadError) -> RequestError {
        let kind = match &error {
            LoadError::Engine(EngineError::ShuttingDown) => Kind::Unavailable,
            LoadError::Panicked | LoadError::Brought { .. } => Kind::Internal,
            _ => Kind::BadRequest,
        };
        RequestError::new(kind, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::Nanos;
    use atoll_core::graphs::Reason;

    #[test]
    fn deadlines_fail_requests_of_graphs_as_they_fail_those_of_models() {
        for (reason, kind) in [
            (Reason::DeadlinePast, Kind::DeadlineExceeded),
            (Reason::TooSlow { fastest: Nanos(7) }, Kind::DeadlineExceeded),
            (Reason::Unplanned, Kind::BadRequest),
            (Reason::NoMemory, Kind::Unavailable),
        ] {
            let rejected = Rejected { reason, message: "no".into() };
            assert_eq!(RequestError::from(rejected).kind, kind, "{reason}");
        }
        assert_eq!(RequestError::from(InvokeError::DeadlineExceeded).kind, Kind::DeadlineExceeded);
        assert_eq!(RequestError::from(InvokeError::QueueFull { capacity: 1 }).kind, Kind::Unavailable);
    }
}
