//! What memory decisions are told, and what they ask for.
//!
//! Each thing that a device may refuse is an action whose outcome comes back as an event:
//!
//! | action | may fail with | told as |
//! |---|---|---|
//! | [`Action::Reserve`] | no memory for a constant, device lost | [`Event::Reserved`] |
//! | [`Action::Grant`] | fresh memory cannot be cleared | [`Event::GrantFailed`] |
//! | [`Action::Begin`] | inputs cannot be written | [`Event::Prepared`] where they could; otherwise the task ends and [`Event::Left`] follows |
//! | [`Action::Write`] | the device refuses bytes of a constant | [`Event::Written`], [`Event::WriteFailed`] |
//! | [`Action::Show`] | the tenant's executor maps the constants later | [`Event::Unmapped`], then [`Event::Mapped`] |
//! | [`Action::GiveBack`], [`Action::GiveStateBack`] | memory cannot be cleared | [`Event::NotGivenBack`] |
//!
//! [`Action::Release`], [`Action::Hide`] and the notes for accounts cannot fail.

use crate::ids::{Class, DeviceOffset, Nanos, TaskId};
use crate::residency::ItemId;
use crate::tenant::Tenant;
use std::ops::Range;
use std::sync::Arc;

/// Names a function that is loaded, or being loaded. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u64);

/// Names the memory of one stage of an invocation, kept for later ones. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u64);

/// Names a session. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// The session of an invocation.
#[derive(Clone, Copy, Debug)]
pub struct SessionSpec {
    /// The session.
    pub session: SessionId,
    /// Bytes of its memory, the same for all of its invocations.
    pub bytes: u64,
    /// How long it is kept without an invocation.
    pub idle_ns: u64,
}

/// A range of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where it begins.
    pub at: DeviceOffset,
    /// How many bytes it takes, a multiple of the granule.
    pub bytes: u64,
}

/// One constant of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConstantSpec {
    /// The digest of its bytes: equal constants are held once.
    pub digest: [u8; 32],
    /// Its bytes.
    pub bytes: u64,
    /// Where they begin in the function's weights.
    pub offset: u64,
}

/// A function whose constants are to be managed.
#[derive(Clone, Debug)]
pub struct FunctionSpec {
    /// The function.
    pub function: FunctionId,
    /// Who owns it.
    pub tenant: Tenant,
    /// The class of invocations that do not name one.
    pub class: Class,
    /// Its constants, in the order in which launches name them.
    pub constants: Vec<ConstantSpec>,
}

/// What one stage of an invocation needs.
#[derive(Clone, Debug)]
pub struct StageSpec {
    /// The function that it calls.
    pub function: FunctionId,
    /// Memory of an earlier invocation is reused where this is equal: the values of the function's
    /// symbols.
    pub shape: Box<[i64]>,
    /// Bytes of memory of its own.
    pub bytes: u64,
}

/// What an invocation needs.
#[derive(Clone, Debug)]
pub struct InvocationSpec {
    /// The task that it is to the scheduler.
    pub task: TaskId,
    /// Its class.
    pub class: Class,
    /// Whose functions it calls.
    pub tenant: Tenant,
    /// Its stages, at least one.
    pub stages: Vec<StageSpec>,
    /// The session that it is a step of; it has one stage then.
    pub session: Option<SessionSpec>,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// An invocation arrives that [`super::Memory::check`] lets in. Answered by
    /// [`Action::Admitted`].
    Arrived(InvocationSpec),
    /// The scheduler wants an invocation prepared. Answered by [`Action::Begin`], or
    /// [`Action::Unready`] where there is no memory for it.
    Prepare {
        /// The invocation.
        task: TaskId,
    },
    /// The inputs of an invocation are in place: it keeps its memory and its constants until it
    /// leaves.
    Prepared {
        /// The invocation.
        task: TaskId,
    },
    /// An invocation has failed or was cancelled, and will leave: nothing is reserved for it any
    /// more.
    Ending {
        /// The invocation.
        task: TaskId,
    },
    /// An invocation is over; nothing of it is on the device. [`Event::Resume`] follows when all
    /// that this frees was told.
    Left {
        /// The invocation.
        task: TaskId,
    },
    /// Memory may have become free: looks at those who wait.
    Resume,
    /// A session ends, at once or when its invocations have left. Unknown ones are ended already.
    /// [`Event::Resume`] follows.
    SessionClosed {
        /// The session.
        session: SessionId,
    },
    /// The code of a function is on the device: loads its constants if that costs nothing.
    Load {
        /// A function that [`super::Memory::join`] let in.
        function: FunctionId,
    },
    /// A function is gone; no invocation of it is left.
    Unloaded {
        /// The function.
        function: FunctionId,
    },
    /// The outcome of [`Action::Reserve`].
    Reserved {
        /// The set.
        set: ItemId,
        /// The generation of the action.
        generation: u64,
        /// What the device refused, and why; places behind a refused one were not asked for.
        refused: Option<(Vec<Place>, Arc<str>)>,
    },
    /// Bytes of a set are in host memory: those in front of this offset in the weights.
    Staged {
        /// The set.
        set: ItemId,
        /// The offset.
        end: usize,
    },
    /// There is time to write a piece of a constant. Answered by at most one [`Action::Write`] or
    /// [`Action::Loaded`].
    Advance,
    /// An [`Action::Write`] was carried out.
    Written {
        /// How many bytes.
        bytes: u64,
        /// How long it took.
        took_ns: u64,
    },
    /// The device refused an [`Action::Write`]. Not told where all constants are lost, since
    /// [`Event::ConstantsLost`] follows.
    WriteFailed {
        /// The set.
        set: ItemId,
        /// Why.
        why: Arc<str>,
    },
    /// Kernels of a function cannot read all that it was shown, yet.
    Unmapped {
        /// The function.
        function: FunctionId,
    },
    /// Now they can.
    Mapped {
        /// The functions.
        functions: Vec<FunctionId>,
    },
    /// Fresh memory of an [`Action::Grant`] cannot be cleared; none of the grant was taken. The
    /// task ends.
    GrantFailed {
        /// The invocation.
        task: TaskId,
        /// The grant.
        slots: Vec<Granted>,
    },
    /// Memory of an [`Action::GiveBack`] cannot be cleared, so nobody gets it again.
    NotGivenBack {
        /// The memory.
        place: Place,
    },
    /// All constants on the device are lost, with the executor that held them.
    ConstantsLost,
    /// The device is lost: nothing more is asked of it.
    DeviceLost,
    /// Time passed ([`super::Memory::next_wakeup`]).
    Tick,
}

/// What to do, in order. The outcome of an action is told before the next action is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// An invocation is in. Where it is not ready, [`Action::Ready`] follows some time later.
    Admitted {
        /// The invocation.
        task: TaskId,
        /// It may be prepared at its turn in the scheduler's queue.
        ready: bool,
    },
    /// A cold invocation has all it waits for.
    Ready {
        /// The invocation.
        task: TaskId,
    },
    /// An invocation that was ready, and is not prepared, is cold again.
    Unready {
        /// The invocation.
        task: TaskId,
    },
    /// An invocation's memory is bound: write its inputs.
    Begin {
        /// The invocation.
        task: TaskId,
    },
    /// End an invocation: its constants cannot be loaded.
    Fail {
        /// The invocation.
        task: TaskId,
        /// Why.
        why: Arc<str>,
    },
    /// End an invocation that waits: it fitted when it came, and does not since memory was
    /// withheld.
    Refuse {
        /// The invocation.
        task: TaskId,
        /// What it needs and what there is.
        refusal: Refusal,
    },
    /// Memory for each stage of an invocation.
    Grant {
        /// The invocation.
        task: TaskId,
        /// One per stage.
        slots: Vec<Granted>,
    },
    /// The memory of an invocation is kept for later ones.
    TakeBack {
        /// The invocation.
        task: TaskId,
    },
    /// Clear memory that was kept, and forget the slot.
    GiveBack {
        /// The slot.
        slot: SlotId,
        /// Its memory.
        place: Place,
    },
    /// A session was not used for its idle time; [`Action::GiveStateBack`] follows.
    SessionExpired {
        /// The session.
        session: SessionId,
    },
    /// Clear the memory of a session that ended.
    GiveStateBack {
        /// The session.
        session: SessionId,
        /// Its memory.
        place: Place,
    },
    /// Take device memory for constants of a set.
    Reserve {
        /// The set.
        set: ItemId,
        /// To be told with the outcome: a later reservation of the same set has another.
        generation: u64,
        /// The places, in order.
        places: Vec<Place>,
    },
    /// Give back the device memory of a constant.
    Release {
        /// Where it was.
        place: Place,
    },
    /// Let a tenant's kernels read the constants of a function, as far as they have places
    /// ([`super::Memory::places`]).
    Show {
        /// The function.
        function: FunctionId,
        /// Its tenant.
        tenant: Tenant,
    },
    /// Take from a tenant's kernels what no other function of it has.
    Hide {
        /// The tenant.
        tenant: Tenant,
        /// The constants.
        places: Vec<DeviceOffset>,
    },
    /// Read a set's bytes into host memory.
    Stage {
        /// The set.
        set: ItemId,
        /// What is missing on the device, ascending, in the weights of the set's first function.
        ranges: Vec<Range<usize>>,
        /// Before others.
        urgent: bool,
    },
    /// Nobody waits for a set's bytes any more.
    CancelStage {
        /// The set.
        set: ItemId,
    },
    /// Write bytes of a constant.
    Write {
        /// The set that is being loaded.
        set: ItemId,
        /// The first invocation that waits for it: it is billed.
        task: Option<TaskId>,
        /// Where to.
        to: DeviceOffset,
        /// What, in the weights of the set's first function.
        from: Range<usize>,
    },
    /// Note for accounts: an invocation found a set missing.
    ColdStart {
        /// The invocation.
        task: TaskId,
        /// The set.
        set: ItemId,
    },
    /// Note for accounts: a set is on the device.
    Loaded {
        /// The set.
        set: ItemId,
        /// The invocations that had found it missing and still wait.
        tasks: Vec<TaskId>,
    },
    /// Note for accounts: a set left the device for others.
    Evicted {
        /// The set.
        set: ItemId,
        /// Its bytes.
        bytes: u64,
    },
    /// Note for accounts: a set exists no more.
    Forgotten {
        /// The set.
        set: ItemId,
    },
    /// Note for accounts: constants moved, so that their bytes are divided anew.
    BillsDue,
}

/// Memory of one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The slot.
    pub slot: SlotId,
    /// `None` where it is kept from an earlier invocation.
    pub fresh: Option<Fresh>,
}

/// Memory that belonged to nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fresh {
    /// The memory.
    pub place: Place,
    /// It may hold constants of others, and has to be cleared.
    pub clear: bool,
}

/// Why an invocation is not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It would not fit even if nothing else were on the device.
    OutOfMemory {
        /// Bytes needed, constants included.
        wanted: u64,
        /// Bytes of its constants.
        constants: u64,
        /// Bytes free.
        free: u64,
        /// Bytes that are free, or would be if everything unused went.
        obtainable: u64,
        /// Bytes there are.
        total: u64,
    },
    /// It would not fit its tenant's quota even if nothing else of the tenant were on the device.
    OverQuota {
        /// Bytes needed, constants included.
        wanted: u64,
        /// Bytes of its constants.
        constants: u64,
        /// Bytes of the quota that are free.
        free: u64,
        /// The tenant's quota for this class.
        quota: u64,
    },
}

/// Why a function is not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadRefusal {
    /// Its constants exceed the device's memory.
    OutOfMemory {
        /// Bytes needed.
        wanted: u64,
        /// Bytes free.
        free: u64,
        /// Bytes there are.
        total: u64,
    },
    /// The constants of all functions exceed the overcommit limit.
    OverCommitted {
        /// Bytes that only this function needs.
        wanted: u64,
        /// Bytes of the constants of all functions.
        all: u64,
        /// Bytes allowed.
        limit: u64,
        /// Bytes there are.
        total: u64,
    },
    /// The tenant's quota has no room, ever or beside its other functions.
    OverQuota {
        /// Bytes needed.
        wanted: u64,
        /// Bytes of the quota that are free.
        free: u64,
        /// The tenant's quota.
        quota: u64,
        /// Bytes of the constants of the tenant's functions.
        all: u64,
        /// Bytes they may be, with overcommit.
        limit: u64,
    },
}

/// What a tenant with a quota uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantUse {
    /// The tenant.
    pub tenant: Tenant,
    /// Its quota.
    pub quota: super::quota::TenantBytes,
    /// What it uses now.
    pub used: super::quota::TenantBytes,
    /// The most it ever used.
    pub most: super::quota::TenantBytes,
}

/// The memory of a device.
#[derive(Clone, Copy, Debug)]
pub struct MemorySpec {
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Where the part for constants begins.
    pub constants_base: DeviceOffset,
    /// Bytes of that part; 0 where constants and invocations share one.
    pub constants_bytes: u64,
    /// What a constant takes multiples of.
    pub constants_granule: u64,
    /// Use only so many bytes.
    pub limit_bytes: Option<u64>,
    /// The constants of all functions may be up to this multiple of the memory.
    pub overcommit: f64,
}

/// The order in which invocations get memory: real-time ones first, then by arrival.
pub type Turn = (Class, TaskId);

/// The earlier of two moments that may not be set.
pub(super) fn earlier(a: Option<Nanos>, b: Option<Nanos>) -> Option<Nanos> {
    a.into_iter().chain(b).min()
}
