//! The engine: functions, memory and invocations on one device (design D3, D5, D9).
//!
//! One thread owns the device. It tells the scheduler of [`atoll_core`] what happens and carries
//! out what the scheduler decides; it never decides itself who runs. Clients hold an
//! [`EngineHandle`]: their threads check requests, bind shapes and prepare launches, so that the
//! engine's thread has only valid ones to handle. It sleeps when there is nothing to do; while
//! launches are on the device it may look for the end of one for some microseconds first, if a core
//! is free for it.
//!
//! Not here: compilers, wire formats, logs on the way of a request, and anything that knows what a
//! tensor means.
//!
//! # Invariants
//!
//! - Every invocation is answered exactly once, whatever happens to it, its function, the device or
//!   the engine.
//! - What an invocation needs, constants and memory, is all on the device before its first launch
//!   and until after its last, or it waits without any of it.
//! - An invocation uses exactly the memory that [`atoll_kgraph::invocation_bytes`] promises, all of
//!   it from before its first launch until after its last.
//! - Outputs are read, and memory is given to others, only when nothing of the invocation is on the
//!   device (design D5 b).
//! - A function that failed to load, or was unloaded, holds nothing.

mod accounts;
mod binding;
mod branches;
mod chain;
mod clock;
mod config;
mod cores;
mod doorbell;
mod error;
mod event;
mod function;
mod handle;
mod histogram;
mod instance;
mod invocation;
pub mod limits;
mod literal;
mod padding;
mod padding_thread;
mod recorder;
mod request;
mod session;
mod shared;
mod staging;
mod statistics;
mod worker;

pub use accounts::{InvocationOutcome, MemoryKind, MemoryUse, Usage, UsageRow};
pub use atoll_core::memory::{MemoryQuotas, TenantBytes};
pub use atoll_core::{BadTenant, Class, DeviceId, LaneError, LaneId, Tenant};
pub use atoll_device::{ComputeUnitUse, ExecutorProcess, ExecutorStatistics, Lane, LaneSpec};
pub use atoll_trace::FunctionName;
pub use config::{EngineConfig, FunctionInfo, FunctionKey, FunctionOptions};
pub use cores::{CoreShare, CoreUse};
pub use error::{EngineError, InvokeError};
pub use handle::{Engine, EngineHandle};
pub use histogram::Histogram;
pub use padding::{PaddingModule, PaddingService};
pub use recorder::TraceBatch;
pub use request::{
    ChainRequest, InputTensor, InvocationId, InvocationRequest, InvocationResult, InvocationTiming, LaunchTime,
    OutputTensor, Reply, StageInput, StageRequest,
};
pub use session::SessionId;
pub use statistics::{
    ClassStatistics, ConstantState, ConstantStatistics, DeviceStatistics, EngineStatistics, FunctionMemory,
    FunctionStatistics, LaneStatistics, TenantMemory,
};
