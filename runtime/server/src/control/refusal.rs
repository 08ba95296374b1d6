//! Maps errors to refusals. A refusal has a kind, which tells whether the client or the operator
//! has to act, and a message.

use crate::code::CodeError;
use crate::cuda::LiveError;
use crate::deployed::DeployError;
use crate::graphs::{GraphDeployError, Rejected};
use crate::identity::{Denial, Denied};
use crate::instances::InstanceError;
use crate::leases::LeaseError;
use atoll_control::{Answer, Attachments, Refusal, RefusalKind, WireError};
use atoll_engine::{EngineError, InvokeError, SuspendError};
use atoll_kgraph::BundleError;
use atoll_lease::Refusal as Refused;
use atoll_store::StoreError;
use std::fmt::Display;
use std::io;

/// The answer for a refusal. Failures of the daemon are logged.
pub(super) fn refused(refusal: Refusal) -> (Answer, Attachments) {
    if refusal.kind == RefusalKind::Daemon {
        tracing::error!(error = refusal.message, "a control request failed");
    }
    (Answer::Refused(refusal), Attachments::default())
}

pub(super) fn bad_request(message: impl Display) -> Refusal {
    Refusal { kind: RefusalKind::BadRequest, message: message.to_string() }
}

/// The refusal for a panic in the daemon; the panic hook has reported the panic.
pub(super) fn panicked() -> Refusal {
    Refusal { kind: RefusalKind::Daemon, message: "internal error: a request panicked; please report this bug".into() }
}

/// An error that knows its kind of refusal.
pub(super) trait HasRefusalKind: Display {
    fn kind(&self) -> RefusalKind;
}

/// Converts the error of a result to a refusal.
pub(super) trait OrRefuse<T> {
    /// Converts the error to a refusal.
    fn or_refuse(self) -> Result<T, Refusal>;
}

impl<T, E: HasRefusalKind> OrRefuse<T> for Result<T, E> {
    fn or_refuse(self) -> Result<T, Refusal> {
        self.map_err(|error| Refusal { kind: error.kind(), message: error.to_string() })
    }
}

impl HasRefusalKind for Denied {
    fn kind(&self) -> RefusalKind {
        RefusalKind::Denied
    }
}

impl HasRefusalKind for Denial {
    fn kind(&self) -> RefusalKind {
        match self {
            Denial::Model => RefusalKind::NotFound,
            Denial::Invocations { .. } => RefusalKind::Quota,
            Denial::Class { .. }
            | Denial::ModelControl { .. }
            | Denial::SharedMemory { .. }
            | Denial::CudaSharedMemory { .. }
            | Denial::Operator
            | Denial::Lease { .. } => RefusalKind::Denied,
        }
    }
}

impl HasRefusalKind for StoreError {
    fn kind(&self) -> RefusalKind {
        match self {
            StoreError::NoObject(_) => RefusalKind::NotFound,
            StoreError::Quota { .. } => RefusalKind::Quota,
            StoreError::Damaged(_)
            | StoreError::DiskFull { .. }
            | StoreError::Io { .. }
            | StoreError::Index { .. }
            | StoreError::InUse { .. } => RefusalKind::Daemon,
        }
    }
}

impl HasRefusalKind for DeployError {
    fn kind(&self) -> RefusalKind {
        match self {
            DeployError::BadName(_) | DeployError::Taken(_) | DeployError::TakenByGraph(_) => RefusalKind::BadRequest,
            DeployError::NotTrusted { .. } => RefusalKind::Denied,
            DeployError::Code(CodeError::NoSource { .. } | CodeError::NoCompiler { .. } | CodeError::Signature(_)) => {
                RefusalKind::Denied
            }
            DeployError::Code(CodeError::Compile(_) | CodeError::Bundle(_)) => RefusalKind::BadRequest,
            DeployError::TooMany { .. }
            | DeployError::NoRoom { .. }
            | DeployError::NoDescriptors { .. }
            | DeployError::Code(CodeError::Budget { .. })
            | DeployError::Engine(EngineError::OverQuota { .. }) => RefusalKind::Quota,
            DeployError::Bundle(BundleError::Io { .. }) => RefusalKind::Daemon,
            DeployError::Bundle(_) => RefusalKind::BadRequest,
            DeployError::Store(error) => error.kind(),
            DeployError::Engine(
                EngineError::NoTarget { .. } | EngineError::Unservable { .. } | EngineError::UnknownDevice { .. },
            ) => RefusalKind::BadRequest,
            DeployError::Engine(
                EngineError::OutOfMemory { .. } | EngineError::OverCommitted { .. } | EngineError::ShuttingDown,
            ) => RefusalKind::Busy,
            DeployError::Engine(EngineError::Device(_)) => RefusalKind::Function,
            DeployError::Engine(_) => RefusalKind::Daemon,
        }
    }
}

impl HasRefusalKind for Rejected {
    fn kind(&self) -> RefusalKind {
        match &self.reason {
            reason if reason.is_of_deadline() => RefusalKind::Deadline,
            reason if reason.is_of_limits() => RefusalKind::BadRequest,
            _ => RefusalKind::Busy,
        }
    }
}

impl HasRefusalKind for InstanceError {
    fn kind(&self) -> RefusalKind {
        match self {
            InstanceError::Name(_)
            | InstanceError::Exists(_)
            | InstanceError::Leased(_)
            | InstanceError::Reserved(_)
            | InstanceError::Share(_)
            | InstanceError::Latency(_)
            | InstanceError::NoPlace { .. } => RefusalKind::BadRequest,
            InstanceError::NoFunction(_) | InstanceError::Unknown(_) => RefusalKind::NotFound,
            InstanceError::Store(error) => error.kind(),
            InstanceError::Engine(EngineError::ShuttingDown) => RefusalKind::Busy,
            InstanceError::Engine(_) => RefusalKind::Daemon,
        }
    }
}

impl HasRefusalKind for LeaseError {
    fn kind(&self) -> RefusalKind {
        match self {
            LeaseError::Denied(denial) => denial.kind(),
            LeaseError::Bad(_) | LeaseError::NoStore => RefusalKind::BadRequest,
            LeaseError::NoFunction(_) => RefusalKind::NotFound,
            LeaseError::NotReady { .. } | LeaseError::Full { .. } => RefusalKind::Busy,
            LeaseError::Refused(Refused::NoLease(_)) => RefusalKind::NotFound,
            LeaseError::Refused(Refused::NoRoom | Refused::Drained(_)) => RefusalKind::Busy,
            LeaseError::Refused(Refused::TooMany) => RefusalKind::Quota,
            LeaseError::Refused(_) => RefusalKind::BadRequest,
            LeaseError::Instance(error) => error.kind(),
            LeaseError::Store(error) => error.kind(),
            LeaseError::Panicked => RefusalKind::Daemon,
        }
    }
}

impl HasRefusalKind for GraphDeployError {
    fn kind(&self) -> RefusalKind {
        match self {
            GraphDeployError::Manifest(_) | GraphDeployError::Name(_) | GraphDeployError::Taken(_) => {
                RefusalKind::BadRequest
            }
            GraphDeployError::TooMany { .. } | GraphDeployError::TooManyFiles { .. } => RefusalKind::Quota,
            GraphDeployError::Store(error) => error.kind(),
        }
    }
}

impl HasRefusalKind for InvokeError {
    fn kind(&self) -> RefusalKind {
        match self {
            InvokeError::BadInput(_) | InvokeError::ClassRefused(_) | InvokeError::NoSession => RefusalKind::BadRequest,
            InvokeError::UnknownFunction
            | InvokeError::UnknownInstance(_)
            | InvokeError::InstanceRemoved(_)
            | InvokeError::Unloaded => RefusalKind::NotFound,
            InvokeError::QueueFull { .. }
            | InvokeError::OutOfMemory { .. }
            | InvokeError::ShuttingDown
            | InvokeError::Cancelled
            | InvokeError::SessionBusy => RefusalKind::Busy,
            InvokeError::OverQuota { .. }
            | InvokeError::OverInstanceMemory { .. }
            | InvokeError::TooManySessions { .. } => RefusalKind::Quota,
            InvokeError::DeadlineExceeded => RefusalKind::Deadline,
            InvokeError::Device(_)
            | InvokeError::DeviceLost(_)
            | InvokeError::ExecutorLost(_)
            | InvokeError::Unavailable(_)
            | InvokeError::SessionLost => RefusalKind::Function,
        }
    }
}

impl HasRefusalKind for SuspendError {
    fn kind(&self) -> RefusalKind {
        match self {
            SuspendError::NoSession => RefusalKind::NotFound,
            SuspendError::HostMemory(_) => RefusalKind::Quota,
            SuspendError::Busy | SuspendError::OnDevice | SuspendError::ShuttingDown => RefusalKind::Busy,
            SuspendError::Unreadable(_) => RefusalKind::Function,
        }
    }
}

impl HasRefusalKind for LiveError {
    fn kind(&self) -> RefusalKind {
        match self {
            LiveError::Gone => RefusalKind::NotFound,
            LiveError::OtherKind { .. } | LiveError::OnGpu(_) => RefusalKind::BadRequest,
            LiveError::Busy | LiveError::NotReady(_) | LiveError::Share(_) => RefusalKind::Busy,
            LiveError::Suspend(error) => error.kind(),
            LiveError::Memory(error) | LiveError::Refused(error) => error.kind(),
            LiveError::Code(_) | LiveError::Lost(_) | LiveError::NoCode(_) => RefusalKind::Function,
        }
    }
}

impl HasRefusalKind for WireError {
    fn kind(&self) -> RefusalKind {
        match self {
            WireError::Io(_) => RefusalKind::Daemon,
            WireError::FilesOfUser { .. } => RefusalKind::Quota,
            _ => RefusalKind::BadRequest,
        }
    }
}

impl HasRefusalKind for io::Error {
    fn kind(&self) -> RefusalKind {
        RefusalKind::Daemon
    }
}
