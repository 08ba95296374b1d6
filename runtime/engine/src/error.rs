//! What can go wrong, and whose fault it is.

use crate::config::FunctionKey;
use atoll_core::memory::{LoadRefusal, Refusal};
use atoll_core::{Class, LaneError, Tenant};
use atoll_device::DeviceError;

/// Why an engine cannot start, or a function cannot be loaded or unloaded.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The configuration names no policy there is.
    #[error("there is no scheduling policy `{name}`; there are: {known}")]
    UnknownPolicy {
        /// The name.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A function is to be loaded onto a device that there is not.
    #[error("there is no device `{name}`; there are: {known}")]
    UnknownDevice {
        /// The name.
        name: String,
        /// The names there are.
        known: String,
    },
    /// Lanes cannot be as they are asked for.
    #[error("{0}")]
    Lane(LaneError),
    /// A function of this name is loaded, or being loaded.
    #[error("a function `{0}` is loaded already; unload it first")]
    AlreadyLoaded(FunctionKey),
    /// No function of this name is loaded.
    #[error("no function `{0}` is loaded")]
    NotLoaded(FunctionKey),
    /// The bundle has no code for the device.
    #[error("the bundle has code for {has}, the device {device} runs {wants}; compile the model for one of these")]
    NoTarget {
        /// The device.
        device: String,
        /// Targets the device runs.
        wants: String,
        /// Targets in the bundle.
        has: String,
    },
    /// The bundle is valid and yet cannot be served.
    #[error("function `{name}` cannot be served: {reason}")]
    Unservable {
        /// The function.
        name: FunctionKey,
        /// Why.
        reason: String,
    },
    /// The constants do not fit the device's memory.
    #[error(
        "function `{name}` needs {wanted} bytes for its constants, {free} of {total} bytes are free on the device; unload a function or raise the memory limit"
    )]
    OutOfMemory {
        /// The function.
        name: FunctionKey,
        /// Bytes needed.
        wanted: u64,
        /// Bytes free.
        free: u64,
        /// Bytes there are.
        total: u64,
    },
    /// The constants of all functions together would exceed the device's memory by more than is
    /// allowed.
    #[error(
        "function `{name}` brings {wanted} bytes of constants; those of all functions would be {all} bytes, {limit} are allowed on a device of {total} bytes; unload a function, raise the memory limit, or allow \
         more with --memory-overcommit"
    )]
    OverCommitted {
        /// The function.
        name: FunctionKey,
        /// Bytes that only this function needs.
        wanted: u64,
        /// Bytes of the constants of all functions, this one included.
        all: u64,
        /// Bytes allowed.
        limit: u64,
        /// Bytes there are.
        total: u64,
    },
    /// The tenant's quota of device memory has no room for the constants, ever or beside those of
    /// its other functions.
    #[error(
        "function `{name}` needs {wanted} bytes for its constants; tenant `{}` has a quota of {quota} bytes, of which {free} are free, and the constants of its functions would be {all} bytes, of which {limit} \
         are allowed; unload a function or raise the quota", name.tenant
    )]
    OverQuota {
        /// The function.
        name: FunctionKey,
        /// Bytes needed.
        wanted: u64,
        /// Bytes of the quota that are free.
        free: u64,
        /// Bytes the tenant may have.
        quota: u64,
        /// Bytes of the constants of the tenant's functions, this one included.
        all: u64,
        /// Bytes they may be, with over-commit.
        limit: u64,
    },
    /// The configuration names no residency policy there is.
    #[error("there is no residency policy `{name}`; there are: {known}")]
    UnknownResidencyPolicy {
        /// The name.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The operating system refused a thread or a file.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
    /// The engine is shutting down or has stopped.
    #[error("the engine is shutting down")]
    ShuttingDown,
}

impl EngineError {
    /// Why a function's constants are not taken.
    pub(crate) fn refused(refusal: LoadRefusal, name: &FunctionKey) -> EngineError {
        let name = name.clone();
        match refusal {
            LoadRefusal::OutOfMemory { wanted, free, total } => EngineError::OutOfMemory { name, wanted, free, total },
            LoadRefusal::OverCommitted { wanted, all, limit, total } => {
                EngineError::OverCommitted { name, wanted, all, limit, total }
            }
            LoadRefusal::OverQuota { wanted, free, quota, all, limit } => {
                EngineError::OverQuota { name, wanted, free, quota, all, limit }
            }
        }
    }
}

impl InvokeError {
    /// Why an invocation of a tenant is not taken.
    pub(crate) fn refused(refusal: Refusal, tenant: &Tenant) -> InvokeError {
        match refusal {
            Refusal::OutOfMemory { wanted, constants, free, obtainable, total } => {
                InvokeError::OutOfMemory { wanted, constants, free, obtainable, total }
            }
            Refusal::OverQuota { wanted, constants, free, quota } => {
                InvokeError::OverQuota { tenant: tenant.clone(), wanted, constants, free, quota }
            }
        }
    }
}

/// Why an invocation has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvokeError {
    /// No function of this name is loaded.
    #[error("no function of this name is loaded")]
    UnknownFunction,
    /// Too many invocations of the class wait already.
    #[error("{capacity} invocations of this class wait already; try again later or raise the queue capacity")]
    QueueFull {
        /// How many may wait.
        capacity: usize,
    },
    /// The scheduling policy takes no invocations of this class.
    #[error(
        "the scheduling policy takes no {0} invocations; ask for another class, or start the daemon with another policy"
    )]
    ClassRefused(Class),
    /// The inputs do not fit the function, or a kernel met a value that the model does not take;
    /// the text names the input, or the node, and what is wrong.
    #[error("{0}")]
    BadInput(String),
    /// The invocation would not fit even if nothing else were on the device.
    #[error(
        "the invocation needs {wanted} bytes on the device at once, {constants} of them for constants; it has {total} bytes, of which {free} are free and {obtainable} could be, at the cost of what nobody \
         uses now; send smaller inputs or raise the memory limit"
    )]
    OutOfMemory {
        /// Bytes needed, constants included.
        wanted: u64,
        /// Bytes of its constants.
        constants: u64,
        /// Bytes free.
        free: u64,
        /// Bytes that are free, or would be if constants that nobody uses went.
        obtainable: u64,
        /// Bytes there are.
        total: u64,
    },
    /// The invocation would not fit its tenant's quota even if nothing else of the tenant were on
    /// the device.
    #[error(
        "the invocation needs {wanted} bytes on the device at once, {constants} of them for constants; tenant `{tenant}` has a quota of {quota} bytes for work of this class, of which {free} are free; send \
         smaller inputs or raise the quota"
    )]
    OverQuota {
        /// Whose quota.
        tenant: Tenant,
        /// Bytes needed, constants included.
        wanted: u64,
        /// Bytes of its constants.
        constants: u64,
        /// Bytes of the quota that are free.
        free: u64,
        /// Bytes the tenant may have for work of the invocation's class.
        quota: u64,
    },
    /// A step of the session is running.
    #[error("a step of this session is running; wait for its answer before the next one")]
    SessionBusy,
    /// There is no such session.
    #[error(
        "there is no such session: it was closed, not used for too long, or its function was unloaded; begin another one"
    )]
    NoSession,
    /// What the session kept is lost.
    #[error("the session is lost: the process that held its state died; begin another one")]
    SessionLost,
    /// The tenant has too many sessions.
    #[error("{limit} sessions are open already; end one first")]
    TooManySessions {
        /// How many may be open.
        limit: usize,
    },
    /// The deadline passed before the result was there.
    #[error("the deadline passed before the result was there")]
    DeadlineExceeded,
    /// It was cancelled.
    #[error("the invocation was cancelled")]
    Cancelled,
    /// Its function was unloaded while it waited.
    #[error("the function was unloaded while the invocation waited")]
    Unloaded,
    /// The device or a kernel failed; the text says where.
    #[error("{0}")]
    Device(String),
    /// What runs the function dies again and again; the text says how it did the last time.
    #[error("the function is unavailable for now: {0}; it will be tried again")]
    Unavailable(String),
    /// The engine is shutting down or has stopped.
    #[error("the engine is shutting down")]
    ShuttingDown,
}
