//! Inputs and outputs of memory decisions.
//!
//! Some actions may fail on the device. The engine reports their outcomes as events:
//!
//! | action | may fail because | reported as |
//! |---|---|---|
//! | [`Action::Reserve`] | no memory for a constant, or device lost | [`Event::Reserved`] |
//! | [`Action::Grant`] | new memory cannot be cleared | [`Event::GrantFailed`] |
//! | [`Action::Begin`] | inputs cannot be written | [`Event::Prepared`] or [`Event::Ended`] |
//! | [`Action::Write`] | the device refuses bytes | [`Event::Written`], [`Event::WriteFailed`] |
//! | [`Action::MapConstants`] | the executor maps later | [`Event::Unmapped`], [`Event::Mapped`] |
//! | [`Action::FreeSlot`], [`Action::FreeState`] | clearing fails | [`Event::ClearFailed`] |
//! | [`Action::Suspend`] | no host memory, or memory lost | [`Event::Suspended`], [`Event::StaysOnDevice`] |
//!
//! [`Action::Release`], [`Action::UnmapConstants`] and the notes for accounting cannot fail. If
//! [`Action::SaveOutputs`] fails, the outputs are lost, which concerns their consumers only.

use super::refusal::Refusal;
use super::spec::{FunctionId, Granted, InvocationSpec, Place, SessionId, SlotId};
use crate::ids::{DeviceOffset, TaskId};
use crate::residency::ItemId;
use crate::tenant::Tenant;
use std::ops::Range;
use std::sync::Arc;

/// An input of [`super::Memory`].
#[derive(Clone, Debug)]
pub enum Event {
    /// An invocation arrives that [`super::Memory::check`] accepted. Answered with
    /// [`Action::Admitted`].
    Arrived(InvocationSpec),
    /// The scheduler wants an invocation prepared. Answered with [`Action::Begin`], or with
    /// [`Action::Unready`] if there is no memory for it.
    Prepare {
        /// The invocation.
        task: TaskId,
    },
    /// The inputs of an invocation are in place: it keeps its memory and its constants until it
    /// ends.
    Prepared {
        /// The invocation.
        task: TaskId,
    },
    /// An invocation has failed or was cancelled and will end: nothing more is reserved for it.
    Ending {
        /// The invocation.
        task: TaskId,
    },
    /// Outputs in a slot of an invocation are inputs of later invocations: the slot keeps them after
    /// the invocation, until [`Event::ReleaseOutputs`] or [`Action::SaveOutputs`]. [`Event::Ended`]
    /// follows.
    RetainOutputs {
        /// The slot.
        slot: SlotId,
    },
    /// The outputs in a slot are no longer needed, or were saved. Ignored if the slot was freed.
    ReleaseOutputs {
        /// The slot.
        slot: SlotId,
    },
    /// An invocation has ended; none of its launches is on the device. [`Event::Resume`] follows
    /// once all ends are reported.
    Ended {
        /// The invocation.
        task: TaskId,
    },
    /// Memory may have been freed: serves waiting invocations.
    Resume,
    /// A session ends, at once or when its invocations have ended. Ignored if it has already ended.
    /// [`Event::Resume`] follows.
    SessionClosed {
        /// The session.
        session: SessionId,
    },
    /// Suspend a session as soon as none of its invocations is prepared. Answered with
    /// [`Action::Suspend`] then; ignored if the session has no memory or may not be suspended.
    SuspendSession {
        /// The session.
        session: SessionId,
    },
    /// The contents of a session are in host memory: its memory is free. The caller clears it, and
    /// reports [`Event::ClearFailed`] if it cannot, before [`Event::Resume`].
    Suspended {
        /// The session.
        session: SessionId,
    },
    /// An [`Action::Suspend`] failed: the session keeps its memory.
    StaysOnDevice {
        /// The session.
        session: SessionId,
        /// Whether its client is about to use it; [`Event::Released`] follows.
        is_held: bool,
    },
    /// The client of a session that was held does not use it now.
    Released {
        /// The session.
        session: SessionId,
    },
    /// The code of a function is on the device: loads its constants if nothing has to be reclaimed
    /// for them.
    Load {
        /// A function that [`super::Memory::register`] accepted.
        function: FunctionId,
    },
    /// Loads the constants of a function before an invocation needs them, if there is memory that is
    /// free or only has cached constants. Ignored for unknown functions.
    Preload {
        /// The function.
        function: FunctionId,
    },
    /// Reclaims the constants of a function if no invocation needs them. Ignored for unknown
    /// functions.
    Reclaim {
        /// The function.
        function: FunctionId,
    },
    /// A function was unloaded; it has no invocations left.
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
        /// The places that the device refused, and why; places after the first refused one were not
        /// requested.
        refused: Option<(Vec<Place>, Arc<str>)>,
    },
    /// Bytes of a set are in host memory: those before this offset in the weights.
    Staged {
        /// The set.
        set: ItemId,
        /// The offset.
        end: usize,
    },
    /// The engine has time to write a chunk of a constant. Answered with at most one
    /// [`Action::Write`] or [`Action::Loaded`].
    Advance,
    /// An [`Action::Write`] is done.
    Written {
        /// Bytes written.
        bytes: u64,
        /// Duration in nanoseconds.
        took_ns: u64,
    },
    /// The device refused an [`Action::Write`]. Not sent if all constants are lost, since
    /// [`Event::ConstantsLost`] follows.
    WriteFailed {
        /// The set.
        set: ItemId,
        /// The reason.
        why: Arc<str>,
    },
    /// The executor of a function's tenant has not mapped all of the function's constants yet.
    Unmapped {
        /// The function.
        function: FunctionId,
    },
    /// The executor has mapped them.
    Mapped {
        /// The functions.
        functions: Vec<FunctionId>,
    },
    /// New memory of an [`Action::Grant`] cannot be cleared; nothing of the grant was used. The
    /// task ends.
    GrantFailed {
        /// The invocation.
        task: TaskId,
        /// The grant.
        slots: Vec<Granted>,
    },
    /// Freed memory cannot be cleared, so it must not be used again.
    ClearFailed {
        /// The memory.
        place: Place,
    },
    /// All constants on the device are lost, with the executor process that held them.
    ConstantsLost,
    /// The device is lost: no more actions are issued for it.
    DeviceLost,
    /// Time has passed ([`super::Memory::next_wakeup`]).
    Tick,
}

/// An output of [`super::Memory`]. Actions are carried out in order; the outcome of one is reported
/// before the next is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// An invocation is admitted. If it is not ready, [`Action::Ready`] follows later.
    Admitted {
        /// The invocation.
        task: TaskId,
        /// Whether it may be prepared at its turn in the scheduler's queue.
        ready: bool,
    },
    /// A cold invocation has all the constants and memory that it waited for.
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
        /// The reason.
        why: Arc<str>,
    },
    /// End a waiting invocation that no longer fits, because memory was withheld or taken by a
    /// session.
    Refuse {
        /// The invocation.
        task: TaskId,
        /// The memory that it needs and the memory that is available.
        refusal: Refusal,
    },
    /// Memory for each stage of an invocation.
    Grant {
        /// The invocation.
        task: TaskId,
        /// One per stage.
        slots: Vec<Granted>,
    },
    /// Unbind the memory of an invocation; it is kept for later ones.
    Revoke {
        /// The invocation.
        task: TaskId,
    },
    /// Copy the retained outputs of a slot to host memory: other work needs the slot's memory.
    /// [`Action::FreeSlot`] follows.
    SaveOutputs {
        /// The slot.
        slot: SlotId,
    },
    /// Clear kept memory and delete the slot.
    FreeSlot {
        /// The slot.
        slot: SlotId,
        /// Its memory.
        place: Place,
    },
    /// A session was idle for its idle time; [`Action::FreeState`] follows.
    SessionExpired {
        /// The session.
        session: SessionId,
    },
    /// Clear the memory of a session that ended.
    FreeState {
        /// The session.
        session: SessionId,
        /// Its memory.
        place: Place,
    },
    /// Copy the memory of a session to host memory. No launch of it runs until the outcome is
    /// reported, with [`Event::Suspended`] or [`Event::StaysOnDevice`], which may be later. If the
    /// session is closed meanwhile, [`Action::FreeState`] ends the copy, and nothing is reported.
    Suspend {
        /// The session.
        session: SessionId,
        /// Its memory.
        place: Place,
    },
    /// Reserve device memory for constants of a set.
    Reserve {
        /// The set.
        set: ItemId,
        /// To be returned with the outcome; a later reservation of the same set has another
        /// generation.
        generation: u64,
        /// The places, in order.
        places: Vec<Place>,
    },
    /// Release the device memory of a constant.
    Release {
        /// Its memory.
        place: Place,
    },
    /// Let a tenant's kernels read the constants of a function that have places
    /// ([`super::Memory::places`]).
    MapConstants {
        /// The function.
        function: FunctionId,
        /// Its tenant.
        tenant: Tenant,
    },
    /// Unmap constants from a tenant's kernels that no other function of the tenant has.
    UnmapConstants {
        /// The tenant.
        tenant: Tenant,
        /// The offsets of the constants.
        places: Vec<DeviceOffset>,
    },
    /// Read a set's bytes into host memory.
    Stage {
        /// The set.
        set: ItemId,
        /// The ranges missing on the device, ascending, in the weights of the set's first function.
        ranges: Vec<Range<usize>>,
        /// Whether to read it before other sets.
        urgent: bool,
    },
    /// A set's bytes in host memory are no longer needed.
    CancelStage {
        /// The set.
        set: ItemId,
    },
    /// Write bytes of a constant to the device.
    Write {
        /// The set that is being loaded.
        set: ItemId,
        /// The first invocation that waits for it, which is billed.
        task: Option<TaskId>,
        /// The destination.
        to: DeviceOffset,
        /// The source, as a range of the weights of the set's first function.
        from: Range<usize>,
    },
    /// For accounting: an invocation found a set missing.
    ColdStart {
        /// The invocation.
        task: TaskId,
        /// The set.
        set: ItemId,
    },
    /// For accounting: a set is on the device.
    Loaded {
        /// The set.
        set: ItemId,
        /// The invocations that found it missing and still wait.
        tasks: Vec<TaskId>,
    },
    /// For accounting: a set was reclaimed.
    Reclaimed {
        /// The set.
        set: ItemId,
        /// Its bytes.
        bytes: u64,
    },
    /// For accounting: a set no longer exists.
    Forgotten {
        /// The set.
        set: ItemId,
    },
    /// For accounting: shares of constants have changed ([`super::Memory::shares`]).
    ChargesChanged,
}

impl Action {
    /// Whether the set of functions whose constants are on the device, or are being loaded, may
    /// change with this action.
    pub fn moves_constants(&self) -> bool {
        use Action::{CancelStage, ChargesChanged, Forgotten, Loaded, Reclaimed, Reserve};
        matches!(
            self,
            Reserve { .. } | CancelStage { .. } | Loaded { .. } | Reclaimed { .. } | Forgotten { .. } | ChargesChanged
        )
    }
}
