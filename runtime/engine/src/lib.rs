//! The engine: functions, memory and invocations on one device.
//!
//! One thread owns the device. It reports events to the scheduler of [`atoll_core`] and carries out
//! its actions; it takes no scheduling decisions itself. Clients hold an [`EngineHandle`]: their
//! threads check requests, bind shapes and prepare launches, so that the engine's thread only gets
//! valid requests. It sleeps when there is nothing to do. While launches are on the device it may
//! first spin for some microseconds, if it has a core to itself. Start reading at [`Engine`] and
//! [`EngineHandle`], then `worker/mod.rs`.
//!
//! Not here: compilers, wire formats, logs on the request path, and interpretation of tensor
//! contents.
//!
//! # Invariants
//!
//! - Every invocation is answered exactly once, even if its function is unloaded, the device is
//!   lost or the engine stops.
//! - All constants and memory of an invocation are on the device from before its first launch until
//!   after its last; a waiting invocation holds none of them.
//! - A CUDA session that is suspended has its contents in host memory, and comes back to the same
//!   address.
//! - An invocation uses exactly the memory that [`atoll_kgraph::invocation_bytes`] promises.
//! - Outputs of an invocation are read, and its memory is given to other invocations, only when
//!   none of its launches is on the device.
//! - Memory that is retained for its outputs is given to no other invocation before the outputs are
//!   released, or copied to host memory.
//! - A function that failed to load, or was unloaded, holds no resources.
//! - A batch holds requests of one function, class, priority and shape. If a batch fails, each of
//!   its requests runs again alone.

mod accounts;
mod allowance;
mod batch;
mod batching;
mod binding;
mod branches;
mod chain;
mod clock;
mod config;
mod cores;
mod cpu_bill;
mod decoding;
mod doorbell;
mod error;
mod event;
mod flush;
mod function;
mod handle;
mod histogram;
mod instance;
mod invocation;
pub mod limits;
mod literal;
mod meter;
mod padding;
mod padding_thread;
mod recorder;
mod request;
mod residency;
mod retained;
mod session;
mod share;
mod shared;
mod staging;
mod statistics;
mod strings;
mod suspending;
mod suspension;
mod worker;

pub use accounts::{InvocationOutcome, MemoryKind, MemoryUse, Usage, UsageRow};
pub use atoll_core::memory::{HostLimits, HostRefusal, MemoryQuotas, TenantBytes};
pub use atoll_core::tokens::{Ppm, ShareError, ShareRequest, ShareSpec};
pub use atoll_core::{BadTenant, Class, DeviceId, LaneError, LaneId, Tenant};
pub use atoll_device::{
    ComputeUnitUse, DomainUse, ExecutorProcess, ExecutorStatistics, GroupUse, HANDLE_BYTES, ImportError, ImportId,
    Imports, Lane, LaneSpec, MemoryHandle,
};
pub use atoll_trace::FunctionName;
pub use config::{BatchingOptions, EngineConfig, FunctionInfo, FunctionKey, FunctionOptions};
pub use cores::{CoreShare, CoreUse};
pub use decoding::StringThreads;
pub use error::{EngineError, InvokeError};
pub use flush::{FlushRequest, FlushWork};
pub use handle::{Engine, EngineHandle};
pub use histogram::Histogram;
pub use padding::{PaddingModule, PaddingService};
pub use recorder::TraceBatch;
pub use request::{
    ChainRequest, InputTensor, InvocationId, InvocationRequest, InvocationResult, InvocationTiming, LaunchTime,
    OutputTensor, Reply, Retain, StageInput, StageRequest,
};
pub use retained::RetainedTensor;
pub use session::SessionId;
pub use share::{InstanceMemory, SHARE_PERIOD_WINDOWS, ShareClient, ShareStatistics, divisible};
pub use statistics::{
    BatchStatistics, ClassStatistics, ConstantState, ConstantStatistics, DeviceStatistics, EngineStatistics,
    FunctionMemory, FunctionStatistics, LaneStatistics, TenantMemory,
};
pub use suspension::{
    HostRoom, MemorySession, SUSPEND_IDLE_DEFAULT, SessionPlace, SuspendError, SuspendedSession, SuspensionConfig,
    SuspensionStatistics,
};
