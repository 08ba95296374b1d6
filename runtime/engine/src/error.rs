//! Errors of the engine, each with its cause: the request, the configuration, the device, or the
//! engine's state.

use crate::config::FunctionKey;
use atoll_core::memory::{LoadRefusal, Refusal};
use atoll_core::tokens::ShareError;
use atoll_core::{Class, LaneError, Tenant};
use atoll_device::DeviceError;

/// Why an engine cannot start, or a function cannot be loaded or unloaded.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No scheduling policy has the configured name.
    #[error("there is no scheduling policy `{name}`; choose one of: {known}")]
    UnknownPolicy {
        /// The name.
        name: String,
        /// The names of all policies.
        known: String,
    },
    /// No device has the name that a function was to be loaded onto.
    #[error("there is no device `{name}`; choose one of: {known}")]
    UnknownDevice {
        /// The name.
        name: String,
        /// The names of all devices.
        known: String,
    },
    /// A lane cannot be opened or closed.
    #[error("{0}")]
    Lane(LaneError),
    /// The share of a client is rejected.
    #[error("{0}")]
    Share(ShareError),
    /// A function of this name is loaded, or being loaded.
    #[error("a function `{0}` is already loaded; unload it first")]
    AlreadyLoaded(FunctionKey),
    /// No function of this name is loaded.
    #[error("no function `{0}` is loaded")]
    NotLoaded(FunctionKey),
    /// The bundle has no code for the device.
    #[error("the bundle has code for {has}, but device {device} runs {wants}; compile the model for one of these")]
    NoTarget {
        /// The device.
        device: String,
        /// Targets the device runs.
        wants: String,
        /// Targets in the bundle.
        has: String,
    },
    /// The bundle is valid but cannot be served.
    #[error("function `{name}` cannot be served: {reason}")]
    Unservable {
        /// The function.
        name: FunctionKey,
        /// The reason.
        reason: String,
    },
    /// The constants do not fit the device's memory.
    #[error(
        "function `{name}` needs {wanted} bytes for its constants, but only {free} of {total} bytes on the device \
         are free; unload a function or raise the memory limit"
    )]
    OutOfMemory {
        /// The function.
        name: FunctionKey,
        /// Bytes needed.
        wanted: u64,
        /// Free bytes.
        free: u64,
        /// Bytes of the device.
        total: u64,
    },
    /// The constants of all functions together would exceed the overcommit limit.
    #[error(
        "function `{name}` adds {wanted} bytes of constants; those of all functions would be {all} bytes, but \
         {limit} are allowed on a device of {total} bytes; unload a function, raise the memory limit, or raise \
         --memory-overcommit"
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
        /// Bytes of the device.
        total: u64,
    },
    /// The constants do not fit the tenant's quota of device memory, alone or together with those
    /// of its other functions.
    #[error(
        "function `{name}` needs {wanted} bytes for its constants; tenant `{}` has a quota of {quota} bytes, of which \
         {free} are free, and the constants of its functions would be {all} bytes, of which {limit} are allowed; \
         unload a function or raise the quota", name.tenant
    )]
    OverQuota {
        /// The function.
        name: FunctionKey,
        /// Bytes needed.
        wanted: u64,
        /// Free bytes of the quota.
        free: u64,
        /// The tenant's quota in bytes.
        quota: u64,
        /// Bytes of the constants of the tenant's functions, this one included.
        all: u64,
        /// The limit for those bytes, with overcommit.
        limit: u64,
    },
    /// No residency policy has the configured name.
    #[error("there is no residency policy `{name}`; choose one of: {known}")]
    UnknownResidencyPolicy {
        /// The name.
        name: String,
        /// The names of all policies.
        known: String,
    },
    /// The device failed or refused the request.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The operating system refused a thread or a file.
    #[error("{what}: {source}")]
    Os {
        /// The operation that failed.
        what: &'static str,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The engine is shutting down or has stopped.
    #[error("the engine is shutting down")]
    ShuttingDown,
}

impl EngineError {
    /// The error for a function whose constants are refused.
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
    /// The error for a refused invocation of a tenant.
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
    /// The request names an instance that does not exist. The request did not run.
    #[error("there is no instance `{0}`; `atoll instance ls` lists the instances")]
    UnknownInstance(String),
    /// The instance of the request was removed while the request waited or ran. Part of it may have
    /// run.
    #[error("instance `{0}` was removed while the request waited or ran; part of it may have run")]
    InstanceRemoved(String),
    /// The queue of the class is full.
    #[error("{capacity} invocations of this class are already waiting; try again later or raise the queue capacity")]
    QueueFull {
        /// Capacity of the queue.
        capacity: usize,
    },
    /// The scheduling policy does not accept invocations of this class.
    #[error(
        "the scheduling policy accepts no {0} invocations; use another class, or start the daemon with another policy"
    )]
    ClassRefused(Class),
    /// The inputs do not fit the function, or a kernel met a value that the model does not accept.
    /// The text names the input or the node, and what is wrong.
    #[error("{0}")]
    BadInput(String),
    /// The invocation would not fit even if nothing else were on the device.
    #[error(
        "the invocation needs {wanted} bytes on the device at once, {constants} of them for constants; the device has \
         {total} bytes, of which {free} are free and {obtainable} free or reclaimable; send smaller inputs or raise \
         the memory limit"
    )]
    OutOfMemory {
        /// Bytes needed, constants included.
        wanted: u64,
        /// Bytes of its constants.
        constants: u64,
        /// Free bytes.
        free: u64,
        /// Bytes that are free or could be reclaimed.
        obtainable: u64,
        /// Bytes of the device.
        total: u64,
    },
    /// The invocation would not fit its tenant's quota even if nothing else of the tenant were on
    /// the device.
    #[error(
        "the invocation needs {wanted} bytes on the device at once, {constants} of them for constants; tenant \
         `{tenant}` has a quota of {quota} bytes for work of this class, of which {free} are free; send smaller \
         inputs or raise the quota"
    )]
    OverQuota {
        /// The tenant.
        tenant: Tenant,
        /// Bytes needed, constants included.
        wanted: u64,
        /// Bytes of its constants.
        constants: u64,
        /// Free bytes of the quota.
        free: u64,
        /// The tenant's quota for the class of the invocation, in bytes.
        quota: u64,
    },
    /// The invocation alone would exceed the memory limit of its instance.
    #[error(
        "the invocation needs {wanted} bytes on the device, {constants} of them for its instance's part of the \
         constants; instance `{instance}` has a gpu_mem of {limit} bytes; send smaller inputs or raise it with `atoll \
         instance resize`"
    )]
    OverInstanceMemory {
        /// The instance.
        instance: String,
        /// Bytes needed, constants included.
        wanted: u64,
        /// Its part of the constants, in bytes.
        constants: u64,
        /// The limit of the instance, in bytes.
        limit: u64,
    },
    /// A step of the session is running.
    #[error("a step of this session is running; wait for its answer before the next one")]
    SessionBusy,
    /// The session does not exist.
    #[error(
        "the session does not exist: it was closed, idle for too long, or its function was unloaded; begin a new one"
    )]
    NoSession,
    /// The state of the session is lost.
    #[error("the session is lost: the process that held its state died; begin a new one")]
    SessionLost,
    /// The tenant has too many sessions.
    #[error("{limit} sessions are already open; close one first")]
    TooManySessions {
        /// The limit.
        limit: usize,
    },
    /// The deadline passed before the invocation finished.
    #[error("the deadline passed before the invocation finished")]
    DeadlineExceeded,
    /// The invocation was cancelled.
    #[error("the invocation was cancelled")]
    Cancelled,
    /// Its function was unloaded while it waited.
    #[error("the function was unloaded while the invocation waited")]
    Unloaded,
    /// The device or a kernel failed; the text tells where.
    #[error("{0}")]
    Device(String),
    /// The device was lost, before or while the invocation ran. The text gives the cause.
    #[error("the device is lost: {0}")]
    DeviceLost(String),
    /// The executor of the function was lost while the invocation may have been running there. Only
    /// for [`EngineHandle::submit_movable`](crate::EngineHandle::submit_movable). The text gives the
    /// cause.
    #[error("{0}")]
    ExecutorLost(String),
    /// The executor of the function died too often in a row, or it has no memory in one piece for
    /// the invocation. The text gives the cause.
    #[error("the function is unavailable for now: {0}; it will be tried again")]
    Unavailable(String),
    /// The engine is shutting down or has stopped.
    #[error("the engine is shutting down")]
    ShuttingDown,
}
