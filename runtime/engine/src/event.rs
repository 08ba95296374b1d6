//! The events that wake the engine's thread.
//!
//! Commands come through two channels; real-time submissions have their own, so that they overtake
//! all other commands. Completions come from the device. Wakeup times come from
//! [`atoll_core::DeviceScheduler::next_wakeup`], from memory decisions, from parked invocations and
//! from a shutdown.

use crate::chain::Chain;
use crate::config::{FunctionInfo, FunctionKey};
use crate::error::EngineError;
use crate::function::{Function, FunctionId};
use crate::padding::PaddingResult;
use crate::recorder::TraceBatch;
use crate::request::{InvocationId, PendingReply};
use crate::session::{Session, SessionId};
use crate::share::{InstanceMemory, ShareClient};
use crate::statistics::EngineStatistics;
use crate::suspension::{MemorySession, SuspendError, SuspendedSession};
use atoll_core::tokens::ShareSpec;
use atoll_core::{Class, LaneId, Nanos, TaskId};
use atoll_device::{Lane, LaneSpec};
use crossbeam_channel::Sender;
use std::sync::Arc;
use std::time::Duration;

/// Commands to the engine's thread.
pub(crate) enum Command {
    /// Run an invocation that passed every check. Legal until shutdown.
    Submit(Box<Submission>, PendingReply),
    /// Cancel an invocation. Legal always; ignored if it has finished.
    Cancel(InvocationId),
    /// Close a session. Legal always; ignored if it is closed.
    CloseSession(SessionId),
    /// Return the address of a CUDA session's memory, which is `None` before its first flush. Legal
    /// always.
    SessionAddress { session: SessionId, answer: Sender<Option<u64>> },
    /// Suspend a CUDA session, or move a suspended one. Legal always.
    Suspension(SuspensionCommand),
    /// Load a function onto the device and publish it. Legal until shutdown.
    Load { function: Arc<Function>, answer: Sender<Result<FunctionInfo, EngineError>> },
    /// Withdraw a function, and unload it when its running invocations have finished. Legal always.
    Unload { key: FunctionKey, answer: Sender<Result<(), EngineError>> },
    /// Load the constants of a function if there is free memory for them. Legal always; ignored on
    /// a lost device and for unknown functions.
    Preload { key: FunctionKey },
    /// Reclaim the constants of a function if no invocation needs them. Legal always; ignored for
    /// unknown functions.
    Reclaim { key: FunctionKey },
    /// Open a lane. Legal always; refused on a lost device.
    OpenLane { spec: LaneSpec, answer: Sender<Result<Lane, EngineError>> },
    /// Close a lane. Legal always; answered when the lane is empty.
    CloseLane { lane: LaneId, answer: Sender<Result<(), EngineError>> },
    /// Set or change the share of a client, in a lane or where the device has room. Legal always;
    /// refused on a lost device.
    SetShare { client: ShareClient, lane: Option<LaneId>, share: ShareSpec, answer: Sender<Result<(), EngineError>> },
    /// Set, change or remove the memory limit of an instance. Legal always.
    LimitMemory { client: ShareClient, limit: Option<InstanceMemory> },
    /// Remove the shares of a client; answers whether it had any. Legal always.
    RemoveShare { client: ShareClient, answer: Sender<bool> },
    /// Result of a padding job. Legal always.
    PaddingResult(Box<PaddingResult>),
    /// Report statistics. Legal always.
    Statistics { answer: Sender<EngineStatistics> },
    /// Return trace records from a position on, or from now on. Legal always.
    Trace { from: Option<u64>, answer: Sender<TraceBatch> },
    /// Shut down, at once or when every invocation has finished. Later commands are ignored.
    Shutdown { grace: Duration },
}

/// A command about suspended sessions.
pub(crate) enum SuspensionCommand {
    /// Move the memory of a session to host memory. Answered when that is done.
    Suspend { session: SessionId, answer: Sender<Result<(), SuspendError>> },
    /// Return the contents of a suspended session, and close it.
    Take { session: SessionId, answer: Sender<Result<SuspendedSession, SuspendError>> },
    /// Take over the contents of a session that was opened with them, for a function.
    Adopt { session: SessionId, owner: FunctionId, contents: SuspendedSession, answer: Sender<()> },
    /// The client of a session that could not be suspended does not use it now.
    Released { session: SessionId },
    /// List the CUDA sessions that have memory.
    List { answer: Sender<Vec<MemorySession>> },
}

/// An invocation that passed all checks of the client's thread.
pub(crate) struct Submission {
    pub(crate) id: InvocationId,
    pub(crate) chain: Chain,
    /// The instance whose share it uses; `None` for the share of its tenant.
    pub(crate) instance: Option<String>,
    pub(crate) class: Class,
    pub(crate) priority: u32,
    pub(crate) submitted: Nanos,
    pub(crate) deadline: Option<Nanos>,
    /// Whether the result includes the time of each launch.
    pub(crate) times_launches: bool,
    /// The session it is a step of.
    pub(crate) session: Option<Arc<Session>>,
    /// Times it was retried because its executor was lost.
    pub(crate) retries: u32,
    /// Whether it is answered instead of retried, since another device can run it.
    pub(crate) may_move: bool,
    /// Whether it may run in a batch with others.
    pub(crate) gathers: bool,
    /// When it should finish, for policies that order by deadlines; `None` for the value of
    /// `deadline`. For a batch, the earliest deadline of its requests.
    pub(crate) due: Option<Nanos>,
}

impl Submission {
    /// Its task in the scheduler.
    pub(crate) fn task(&self) -> TaskId {
        TaskId(self.id.0)
    }

    /// The client whose share it uses.
    pub(crate) fn client(&self) -> ShareClient {
        ShareClient { tenant: self.chain.tenant().clone(), instance: self.instance.clone() }
    }
}
