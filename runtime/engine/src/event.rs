//! Everything that can wake the engine's thread.
//!
//! Commands come through two channels, real-time submissions through one of their own, so that they
//! overtake whatever else has queued up. Completions come from the device. Time comes from
//! [`atoll_core::DeviceScheduler::next_wakeup`]. Nothing else does.

use crate::chain::Chain;
use crate::config::{FunctionInfo, FunctionKey};
use crate::error::EngineError;
use crate::function::Function;
use crate::padding::Padded;
use crate::recorder::TraceBatch;
use crate::request::{InvocationId, PendingReply};
use crate::session::{Session, SessionId};
use crate::statistics::EngineStatistics;
use atoll_core::{Class, LaneId, Nanos};
use atoll_device::{Lane, LaneSpec};
use crossbeam_channel::Sender;
use std::sync::Arc;
use std::time::Duration;

/// What other threads ask of the engine's thread.
pub(crate) enum Command {
    /// Run an invocation that passed every check. Legal until shutdown.
    Submit(Box<Submission>, PendingReply),
    /// Forget an invocation. Legal always; ignored if it is over.
    Cancel(InvocationId),
    /// End a session. Legal always; ignored if it has ended.
    CloseSession(SessionId),
    /// Bring a function onto the device and let it be found. Legal until shutdown.
    Load { function: Arc<Function>, answer: Sender<Result<FunctionInfo, EngineError>> },
    /// Let a function no longer be found, and take it off the device when its running invocations
    /// are over. Legal always.
    Unload { key: FunctionKey, answer: Sender<Result<(), EngineError>> },
    /// Divide the device. Legal always; refused on a device that is lost.
    OpenLane { spec: LaneSpec, answer: Sender<Result<Lane, EngineError>> },
    /// Give a lane's compute units back. Legal always; answered when nothing is in the lane any
    /// more.
    CloseLane { lane: LaneId, answer: Sender<Result<(), EngineError>> },
    /// What was made of the functions of a tenant, so that they can share launches. Legal always.
    Padded(Box<Padded>),
    /// Report. Legal always.
    Statistics { answer: Sender<EngineStatistics> },
    /// What happened from a record on, or from now on. Legal always.
    Trace { from: Option<u64>, answer: Sender<TraceBatch> },
    /// End, at once or when every invocation is over. The last command that counts.
    Shutdown { grace: Duration },
}

/// An invocation that passed every check a client's thread can make.
pub(crate) struct Submission {
    pub(crate) id: InvocationId,
    pub(crate) chain: Chain,
    pub(crate) class: Class,
    pub(crate) priority: u32,
    pub(crate) submitted: Nanos,
    pub(crate) deadline: Option<Nanos>,
    /// Whether the answer tells how long each launch took.
    pub(crate) times_launches: bool,
    /// The session that it is a step of.
    pub(crate) session: Option<Arc<Session>>,
    /// Times it was tried again because its executor was lost.
    pub(crate) retries: u32,
}
