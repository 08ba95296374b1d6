//! The values that memory decisions are about: functions, invocations, and places in memory.

use crate::ids::{Class, DeviceOffset, Nanos, TaskId};
use crate::tenant::Tenant;

/// A function that is loaded or being loaded. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u64);

/// The memory of one stage of an invocation, kept for later invocations. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u64);

/// A session. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// The session of an invocation.
#[derive(Clone, Copy, Debug)]
pub struct SessionSpec {
    /// The session.
    pub session: SessionId,
    /// Bytes of its state; the same for all of its invocations.
    pub bytes: u64,
    /// How long it is kept without an invocation, in nanoseconds.
    pub idle_ns: u64,
    /// Whether its memory may be moved to host memory.
    pub may_suspend: bool,
    /// Where its memory has to be, if kernels know its address already. `None` for any place.
    pub at: Option<DeviceOffset>,
}

/// A range of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its first byte.
    pub at: DeviceOffset,
    /// Its length, a multiple of the granule.
    pub bytes: u64,
}

/// One constant of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConstantSpec {
    /// The digest of its bytes: equal constants are stored once.
    pub digest: [u8; 32],
    /// Its size in bytes.
    pub bytes: u64,
    /// Its offset in the function's weights.
    pub offset: u64,
}

/// A function to register.
#[derive(Clone, Debug)]
pub struct FunctionSpec {
    /// The function.
    pub function: FunctionId,
    /// Its owner.
    pub tenant: Tenant,
    /// The default class of its invocations.
    pub class: Class,
    /// Its constants, in the order in which launches refer to them.
    pub constants: Vec<ConstantSpec>,
}

/// The needs of one stage of an invocation.
#[derive(Clone, Debug)]
pub struct StageSpec {
    /// The function that it calls.
    pub function: FunctionId,
    /// The values of the function's symbols. Memory of an earlier invocation is reused if these are
    /// equal.
    pub shape: Box<[i64]>,
    /// Bytes of its own memory.
    pub bytes: u64,
}

/// The needs of an invocation.
#[derive(Clone, Debug)]
pub struct InvocationSpec {
    /// Its id in the scheduler.
    pub task: TaskId,
    /// Its class.
    pub class: Class,
    /// The owner of the functions it calls.
    pub tenant: Tenant,
    /// Its stages, at least one.
    pub stages: Vec<StageSpec>,
    /// Its session, if it is a step of one; it then has one stage.
    pub session: Option<SessionSpec>,
}

/// The memory of one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The slot.
    pub slot: SlotId,
    /// The newly allocated memory; `None` if it was kept from an earlier invocation.
    pub fresh: Option<Fresh>,
}

/// Newly allocated memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fresh {
    /// The memory.
    pub place: Place,
    /// Whether it has to be cleared, because it may hold constants of other tenants.
    pub clear: bool,
}

/// Memory use of a tenant with a quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantUse {
    /// The tenant.
    pub tenant: Tenant,
    /// Its quota.
    pub quota: super::quota::TenantBytes,
    /// Current use.
    pub used: super::quota::TenantBytes,
    /// Peak use.
    pub most: super::quota::TenantBytes,
}

/// The memory of a device.
#[derive(Clone, Copy, Debug)]
pub struct MemorySpec {
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Where the range for constants begins.
    pub constants_base: DeviceOffset,
    /// Bytes of that range; 0 if constants and invocations share one range.
    pub constants_bytes: u64,
    /// Allocation granule of constants in bytes.
    pub constants_granule: u64,
    /// Use only this many bytes.
    pub limit_bytes: Option<u64>,
    /// Overcommit ratio: total constant bytes of all functions may be up to this multiple of device
    /// memory.
    pub overcommit: f64,
}

/// The order in which invocations get memory: real-time ones first, then by arrival.
pub type Turn = (Class, TaskId);

/// The earlier of two optional times.
pub(super) fn earlier(a: Option<Nanos>, b: Option<Nanos>) -> Option<Nanos> {
    a.into_iter().chain(b).min()
}
