//! The engine as other threads see it.

use crate::chain::Chain;
use crate::clock;
use crate::config::{EngineConfig, FunctionInfo, FunctionKey, FunctionOptions};
use crate::doorbell::Doorbell;
use crate::error::{EngineError, InvokeError};
use crate::event::{Command, Submission};
use crate::function::{Function, FunctionId};
use crate::padding_thread::PaddingThread;
use crate::recorder::TraceBatch;
use crate::request::{ChainRequest, InvocationId, InvocationRequest, PendingReply, Reply};
use crate::session::{Session, SessionId, Sessions};
use crate::shared::{Inbox, Shared};
use crate::staging::Stager;
use crate::statistics::EngineStatistics;
use crate::worker::{Parts, Worker};
use atoll_core::residency::{RESIDENCY_POLICIES, residency_policy_by_name};
use atoll_core::{Class, LaneId, Nanos, POLICIES, policy_by_name};
use atoll_device::{Device, DeviceInfo, Lane, LaneSpec};
use atoll_kgraph::Bundle;
use crossbeam_channel::{Sender, bounded, unbounded};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// A device, the thread that drives it, and the functions on it.
#[derive(Debug)]
pub struct Engine {
    handle: EngineHandle,
    thread: Option<JoinHandle<()>>,
    shutdown_grace: Duration,
}

/// Access to an engine. Cheap to clone; outlives the engine, and then answers that it is shutting
/// down.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    shared: Arc<Shared>,
    /// Real-time submissions.
    urgent: Sender<Command>,
    /// Everything else. Unbounded, and yet it cannot grow without bound: submissions hold a place
    /// in the queue of their function, and of the others each caller has one at a time.
    normal: Sender<Command>,
}

impl Engine {
    /// Starts the thread that owns the device from now on.
    pub fn start(device: Box<dyn Device>, config: EngineConfig) -> Result<Engine, EngineError> {
        let policy = policy_by_name(&config.policy).ok_or_else(|| EngineError::UnknownPolicy {
            name: config.policy.clone(),
            known: POLICIES.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", "),
        })?;
        let padding = config.padding.clone().filter(|_| (policy.make)().pads());
        if padding.is_none() && (policy.make)().pads() {
            tracing::warn!(
                policy = policy.name,
                "no compiler is here that makes padding modules: real-time launches run alone, as under `reset`"
            );
        }
        let residency_policy =
            residency_policy_by_name(&config.residency_policy).ok_or_else(|| EngineError::UnknownResidencyPolicy {
                name: config.residency_policy.clone(),
                known: RESIDENCY_POLICIES.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", "),
            })?;
        let doorbell = Doorbell::new().map_err(|source| EngineError::Os { what: "cannot make an eventfd", source })?;
        let shared = Arc::new(Shared {
            doorbell,
            device: device.info().clone(),
            functions: RwLock::default(),
            queue_capacity: config.queue_capacity,
            closed: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            ids: AtomicU64::new(config.device.first_id()),
            sessions: Sessions::default(),
        });
        let ((urgent, urgent_inbox), (normal, normal_inbox)) = (unbounded(), unbounded());
        let inbox = Inbox { urgent: urgent_inbox, normal: normal_inbox };
        let shutdown_grace = config.shutdown_grace;
        let stager = Stager::start(Arc::clone(&shared));
        let stager = stager
            .map_err(|source| EngineError::Os { what: "cannot start the thread that reads constants", source })?;
        let padding =
            padding.map(|service| PaddingThread::start(service, Arc::clone(&shared), normal.clone())).transpose();
        let padding =
            padding.map_err(|source| EngineError::Os { what: "cannot start the thread for padding", source })?;
        let worker = Worker::new(
            device,
            Parts { policy, residency_policy, stager, padding },
            &config,
            Arc::clone(&shared),
            inbox,
        );
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("atoll-engine".into()).spawn(move || {
            let _noted = NotesPanic(of_thread);
            worker.run();
        });
        let thread = thread.map_err(|source| EngineError::Os { what: "cannot start the engine's thread", source })?;
        Ok(Engine { handle: EngineHandle { shared, urgent, normal }, thread: Some(thread), shutdown_grace })
    }

    /// Access for another thread.
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }

    /// Admits nothing more, lets what was admitted go on for [`EngineConfig::shutdown_grace`],
    /// cancels the rest, and ends the thread. Every invocation has been answered
    /// when this returns.
    pub fn shutdown(mut self) {
        self.close(self.shutdown_grace);
    }

    fn close(&mut self, grace: Duration) {
        let Some(thread) = self.thread.take() else { return };
        self.handle.shared.closed.store(true, Ordering::Relaxed);
        self.handle.send(Command::Shutdown { grace });
        if thread.join().is_err() {
            tracing::error!("the engine's thread panicked; its invocations have been answered");
        }
    }
}

/// Marks the device as lost if the thread that owns it panics: nothing can be asked of it any more.
struct NotesPanic(Arc<Shared>);

impl Drop for NotesPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.note_lost();
        }
    }
}

impl Drop for Engine {
    /// An engine that was not shut down cancels what it has.
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

impl EngineHandle {
    /// The device.
    pub fn device_info(&self) -> &DeviceInfo {
        &self.shared.device
    }

    /// Whether the device failed for good.
    pub fn is_lost(&self) -> bool {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Brings a function onto the device. Blocks until it can be invoked; on an error nothing of it
    /// is left.
    pub fn load(&self, bundle: Arc<Bundle>, options: FunctionOptions) -> Result<FunctionInfo, EngineError> {
        // The digests of its constants are made here, so that the engine's thread finds them.
        bundle.constants();
        let id = FunctionId(self.shared.next_id());
        let function = Arc::new(Function::new(id, bundle, options, self.shared.queue_capacity, &self.shared.device)?);
        self.ask(|answer| Command::Load { function, answer }).unwrap_or(Err(EngineError::ShuttingDown))
    }

    /// Takes a function off the device. Invocations that wait are answered with
    /// [`InvokeError::Unloaded`]; blocks until those that run are over and the memory is free.
    pub fn unload(&self, key: &FunctionKey) -> Result<(), EngineError> {
        self.ask(|answer| Command::Unload { key: key.clone(), answer }).unwrap_or(Err(EngineError::ShuttingDown))
    }

    /// Divides the device: functions that are loaded into the lane share its compute units with
    /// nobody but those of other lanes that have them too.
    ///
    /// # Errors
    /// The device cannot be divided, has no such compute units or no queues left, or is lost.
    pub fn open_lane(&self, spec: LaneSpec) -> Result<Lane, EngineError> {
        self.ask(|answer| Command::OpenLane { spec, answer }).unwrap_or(Err(EngineError::ShuttingDown))
    }

    /// Closes a lane. What runs in it is preempted and goes on in the default lane, where functions
    /// of the lane run from now on. Blocks until nothing of it is on the device.
    ///
    /// # Errors
    /// There is no such lane, it is closing, or it is the default one.
    pub fn close_lane(&self, lane: LaneId) -> Result<(), EngineError> {
        self.ask(|answer| Command::CloseLane { lane, answer }).unwrap_or(Err(EngineError::ShuttingDown))
    }

    /// Calls a function. What is wrong with the request is answered before this returns; otherwise
    /// the engine's thread answers.
    pub fn submit(&self, request: InvocationRequest, reply: Reply) -> InvocationId {
        self.submit_chain(request.into(), reply)
    }

    /// Calls functions one after the other. The chain is one invocation: it is admitted, preempted,
    /// cancelled and answered as a whole.
    pub fn submit_chain(&self, request: ChainRequest, reply: Reply) -> InvocationId {
        self.submit_as(request, None, PendingReply::new(reply))
    }

    /// Opens a session of a function that keeps state. Nothing is on the device before its first
    /// step; it is closed when it was not used for the idle time.
    ///
    /// # Errors
    /// There is no such function, it keeps no state, or its tenant has too many sessions.
    pub fn open_session(&self, function: &FunctionKey, idle: Duration) -> Result<SessionId, InvokeError> {
        let function = self.shared.find(function).ok_or(InvokeError::UnknownFunction)?;
        let id = SessionId(self.shared.next_id());
        self.shared.sessions.open(id, function, clock::saturating_nanos(idle))?;
        Ok(id)
    }

    /// Ends a session, and frees its memory when its running step is over.
    pub fn close_session(&self, session: SessionId) {
        self.shared.sessions.remove(session);
        self.send(Command::CloseSession(session));
    }

    /// Runs the next step of a session: a call of its function, whose name in the request does not
    /// count. One that fails leaves the session as it was.
    pub fn submit_step(&self, session: SessionId, request: ChainRequest, reply: Reply) -> InvocationId {
        let begun = self.shared.sessions.find(session).ok_or(InvokeError::NoSession);
        match begun.and_then(|session| session.begin().map(|step| (session, step))) {
            Ok((session, step)) => self.submit_as(request, Some(session), PendingReply::to_step(reply, step)),
            Err(error) => {
                reply(Err(error));
                InvocationId(self.shared.next_id())
            }
        }
    }

    fn submit_as(&self, request: ChainRequest, session: Option<Arc<Session>>, reply: PendingReply) -> InvocationId {
        let submitted = clock::now();
        let id = InvocationId(self.shared.next_id());
        match self.admit(id, request, session, submitted) {
            Ok(submission) => {
                let channel = if submission.class == Class::RealTime { &self.urgent } else { &self.normal };
                // A send that fails drops the reply, which then answers by itself.
                let _ = channel.send(Command::Submit(Box::new(submission), reply));
                self.shared.doorbell.ring();
            }
            Err(error) => reply.send(Err(error)),
        }
        id
    }

    /// Gives an invocation up. It is answered with [`InvokeError::Cancelled`] once nothing of it is
    /// on the device, unless its result is there first.
    pub fn cancel(&self, id: InvocationId) {
        self.send(Command::Cancel(id));
    }

    /// What the engine tells about itself; all zero once it has stopped, and lost if it stopped by
    /// a panic.
    pub fn statistics(&self) -> EngineStatistics {
        let mut statistics = self.ask(|answer| Command::Statistics { answer }).unwrap_or_else(|| {
            let mut stopped = EngineStatistics::default();
            stopped.device.lost =
                self.is_lost().then(|| "the thread that drives it panicked; restart the daemon".into());
            stopped
        });
        // The system is asked here and not by the engine's thread: it looks at every page.
        for function in &mut statistics.functions {
            let bundle = self.shared.find(&function.key).map(|function| Arc::clone(&function.bundle));
            function.memory.constant_host_bytes = bundle.and_then(|bundle| bundle.weights_in_memory()).unwrap_or(0);
        }
        statistics
    }

    /// What happened from a record on ([`TraceBatch::next`] of the batch before; 0 begins with the
    /// oldest that is kept), or from now on; `None` once the engine has stopped.
    pub fn trace(&self, from: Option<u64>) -> Option<TraceBatch> {
        self.ask(|answer| Command::Trace { from, answer })
    }

    /// Every check that needs no look at the device.
    fn admit(
        &self,
        id: InvocationId,
        request: ChainRequest,
        session: Option<Arc<Session>>,
        submitted: Nanos,
    ) -> Result<Submission, InvokeError> {
        if self.shared.closed.load(Ordering::Relaxed) {
            return Err(InvokeError::ShuttingDown);
        }
        let deadline =
            request.deadline.map(|within| Nanos(submitted.0.saturating_add(clock::saturating_nanos(within))));
        let ChainRequest { class, priority, times_launches, .. } = request;
        let chain = Chain::new(request, session.as_deref(), |key| self.shared.find(key))?;
        let class = class.unwrap_or(chain.stages[0].function.class);
        Ok(Submission { id, chain, class, priority, submitted, deadline, times_launches, session, retries: 0 })
    }

    fn send(&self, command: Command) -> bool {
        let sent = self.normal.send(command).is_ok();
        self.shared.doorbell.ring();
        sent
    }

    /// Sends a command and waits for its answer; `None` if the engine stops before it answers.
    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Option<T> {
        let (answer, answered) = bounded(1);
        self.send(command(answer));
        answered.recv().ok()
    }
}
