//! Errors of the daemon as errors of the CUDA driver.

use crate::deployed::DeployError;
use atoll_engine::{EngineError, InvokeError};
use atoll_session::Code;

/// `CUDA_ERROR_LAUNCH_TIMEOUT`, after which the session is broken.
const LAUNCH_TIMEOUT: Code = Code(702);

/// `CUDA_ERROR_INVALID_PTX`
pub(super) const INVALID_PTX: Code = Code(218);

/// `CUDA_ERROR_UNSUPPORTED_PTX_VERSION`
pub(super) const UNSUPPORTED_PTX_VERSION: Code = Code(222);

/// The error of a call whose task failed.
pub(super) fn of_task(error: &InvokeError) -> Code {
    match error {
        InvokeError::OutOfMemory { .. } | InvokeError::OverQuota { .. } | InvokeError::OverInstanceMemory { .. } => {
            Code::OUT_OF_MEMORY
        }
        InvokeError::ClassRefused(_) => Code::NOT_PERMITTED,
        InvokeError::BadInput(_) => Code::INVALID_VALUE,
        InvokeError::QueueFull { .. } | InvokeError::TooManySessions { .. } => Code::LAUNCH_OUT_OF_RESOURCES,
        InvokeError::SessionLost | InvokeError::ExecutorLost(_) => Code::LAUNCH_FAILED,
        InvokeError::Device(reason) | InvokeError::DeviceLost(reason) => match cause(reason) {
            cause if cause.contains("longer than its limit") => LAUNCH_TIMEOUT,
            cause if cause.contains("outside") => Code::ILLEGAL_ADDRESS,
            _ => Code::LAUNCH_FAILED,
        },
        InvokeError::UnknownFunction
        | InvokeError::UnknownInstance(_)
        | InvokeError::InstanceRemoved(_)
        | InvokeError::SessionBusy
        | InvokeError::NoSession
        | InvokeError::DeadlineExceeded
        | InvokeError::Cancelled
        | InvokeError::Unloaded
        | InvokeError::Unavailable(_)
        | InvokeError::ShuttingDown => Code::DEVICE_UNAVAILABLE,
    }
}

/// The part of a device's message behind the name of the kernel, which the program chooses.
fn cause(reason: &str) -> &str {
    reason.rsplit_once(" faulted: ").map_or(reason, |(_, cause)| cause)
}

/// The error of collected calls that failed. A trap of a program without `trap` instructions is one
/// of the fence: a kernel used an address outside of its tenant's memory.
pub(super) fn of_calls(error: &InvokeError, has_traps: bool) -> Code {
    match error {
        InvokeError::Device(reason) | InvokeError::DeviceLost(reason)
            if !has_traps && cause(reason).contains("executed `trap`") =>
        {
            Code::ILLEGAL_ADDRESS
        }
        error => of_task(error),
    }
}

/// The error of a call whose kernel could not be loaded.
pub(super) fn of_kernel(error: &DeployError) -> Code {
    match error {
        DeployError::Engine(EngineError::OutOfMemory { .. } | EngineError::OverQuota { .. }) => Code::OUT_OF_MEMORY,
        DeployError::Engine(EngineError::Unservable { .. }) => Code::LAUNCH_OUT_OF_RESOURCES,
        DeployError::Engine(EngineError::ShuttingDown) => Code::DEVICE_UNAVAILABLE,
        error if error.is_over_quota() => Code::LAUNCH_OUT_OF_RESOURCES,
        DeployError::NotTrusted { .. } => Code::NOT_PERMITTED,
        _ => Code::NOT_SUPPORTED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_break_a_session_and_quotas_do_not() {
        let device = |reason: &str| of_task(&InvokeError::Device(reason.into()));
        let faults = [
            device("kernel 'a' faulted: write of 4 bytes at 0x10 outside every buffer"),
            device("kernel 'a' faulted: it ran for longer than its limit of 10 s"),
            device("kernel 'a' faulted: it executed `trap`"),
            of_task(&InvokeError::SessionLost),
            device("kernel 'outside' faulted: it executed `trap`"),
        ];
        assert_eq!(faults.map(|code| code.0), [700, 702, 719, 719, 719]);
        let trap = InvokeError::Device("kernel 'a' faulted: it executed `trap`".into());
        assert_eq!([false, true].map(|has_traps| of_calls(&trap, has_traps).0), [700, 719]);
        assert!(faults.iter().all(|code| code.is_sticky()));
        for error in [InvokeError::BadInput(String::new()), InvokeError::QueueFull { capacity: 1 }] {
            assert!(!of_task(&error).is_sticky(), "{error}");
        }
    }
}
