//! The interface of the engine to other threads.

mod movable;
mod reports;

use crate::chain::Chain;
use crate::clock;
use crate::config::{EngineConfig, FunctionInfo, FunctionKey, FunctionOptions};
use crate::doorbell::Doorbell;
use crate::error::{EngineError, InvokeError};
use crate::event::{Command, Submission};
use crate::function::{Function, FunctionId};
use crate::padding_thread::PaddingThread;
use crate::request::{ChainRequest, InvocationId, InvocationRequest, PendingReply, Reply};
use crate::retained::OutputRequests;
use crate::session::{Session, SessionId, Sessions};
use crate::share::{InstanceMemory, ShareClient};
use crate::shared::{Inbox, Shared};
use crate::staging::Stager;
use crate::strings;
use crate::worker::{Parts, Worker};
use atoll_core::residency::{RESIDENCY_POLICIES, residency_policy_by_name};
use atoll_core::tokens::ShareSpec;
use atoll_core::{Class, LaneId, Nanos, POLICIES, policy_by_name};
use atoll_device::{Device, DeviceInfo, Imports, Lane, LaneSpec};
use atoll_kgraph::Bundle;
use crossbeam_channel::{Sender, bounded, unbounded};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// A device, the thread that owns it, and the functions loaded onto it.
#[derive(Debug)]
pub struct Engine {
    handle: EngineHandle,
    thread: Option<JoinHandle<()>>,
    shutdown_grace: Duration,
}

/// Access to an engine. Cheap to clone. It may outlive the engine: it then answers requests with an
/// error that the engine is shutting down.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    pub(crate) shared: Arc<Shared>,
    /// Real-time submissions.
    urgent: Sender<Command>,
    /// All other commands. The channel itself has no bound. Its length has one, since a submission
    /// holds a slot in the queue of its function, and each caller waits for its other commands.
    normal: Sender<Command>,
}

impl Engine {
    /// Starts the thread that owns the device.
    pub fn start(device: Box<dyn Device>, config: EngineConfig) -> Result<Engine, EngineError> {
        let policy = policy_by_name(&config.policy).ok_or_else(|| EngineError::UnknownPolicy {
            name: config.policy.clone(),
            known: POLICIES.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", "),
        })?;
        let padding = config.padding.clone().filter(|_| (policy.make)().pads());
        if padding.is_none() && (policy.make)().pads() {
            tracing::warn!(
                policy = policy.name,
                "there is no compiler for padding modules: real-time launches run unpadded, as under `reset`"
            );
        }
        let residency_policy =
            residency_policy_by_name(&config.residency_policy).ok_or_else(|| EngineError::UnknownResidencyPolicy {
                name: config.residency_policy.clone(),
                known: RESIDENCY_POLICIES.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", "),
            })?;
        let doorbell = Doorbell::new().map_err(|source| EngineError::Os { what: "cannot make an eventfd", source })?;
        let shared = Arc::new(Shared {
            outputs: OutputRequests::new(&doorbell),
            doorbell,
            device: device.info().clone(),
            imports: device.imports(),
            functions: RwLock::default(),
            queue_capacity: config.queue_capacity,
            closed: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            ids: AtomicU64::new(config.device.first_id()),
            memory_bytes: config.memory_limit_bytes.unwrap_or(u64::MAX).min(device.info().memory_bytes),
            residency: Default::default(),
            sessions: Sessions::default(),
            decoding: Arc::default(),
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
        let thread = std::thread::Builder::new().name("atoll-engine".into()).spawn(move || worker.run());
        let thread = thread.map_err(|source| EngineError::Os { what: "cannot start the engine's thread", source })?;
        Ok(Engine { handle: EngineHandle { shared, urgent, normal }, thread: Some(thread), shutdown_grace })
    }

    /// A handle for another thread.
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }

    /// Stops the engine: rejects new invocations, lets admitted ones run for
    /// [`EngineConfig::shutdown_grace`], cancels those that are left, and ends the thread. When
    /// this returns, every invocation has been answered.
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
        self.handle.shared.stop();
    }
}

impl Drop for Engine {
    /// Cancels all invocations of an engine that was not shut down.
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

impl EngineHandle {
    /// Facts about the device.
    pub fn device_info(&self) -> &DeviceInfo {
        &self.shared.device
    }

    /// Access to device memory that clients have exported; `None` if the device cannot open it.
    pub fn imports(&self) -> Option<Arc<dyn Imports>> {
        self.shared.imports.clone()
    }

    /// Bytes of device memory that may be used: those of the device, or the configured limit.
    pub fn memory_bytes(&self) -> u64 {
        self.shared.memory_bytes
    }

    /// Loads the constants of a function before a request needs them, if there is free memory for
    /// them. Does not wait. [`EngineHandle::take_residency`] then says whether they are on the
    /// device.
    pub fn preload(&self, function: &FunctionKey) {
        self.send(Command::Preload { key: function.clone() });
    }

    /// Reclaims the constants of a function if no invocation needs them. Does not wait.
    pub fn reclaim(&self, function: &FunctionKey) {
        self.send(Command::Reclaim { key: function.clone() });
    }

    /// Whether the device is lost. A lost device stays lost.
    pub fn is_lost(&self) -> bool {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Loads a function onto the device. Blocks until the function can be invoked. If the load
    /// fails, the function holds no resources.
    pub fn load(&self, bundle: Arc<Bundle>, options: FunctionOptions) -> Result<FunctionInfo, EngineError> {
        // Computes the digests of the constants on this thread instead of the engine's.
        bundle.constants();
        let id = FunctionId(self.shared.next_id());
        let function = Arc::new(Function::new(id, bundle, options, self.shared.queue_capacity, &self.shared.device)?);
        if function.vocabulary.is_some() {
            let os = |source| EngineError::Os { what: "cannot start the thread that decodes strings", source };
            self.shared.decoding.start().map_err(os)?;
        }
        self.ask(|answer| Command::Load { function, answer }).unwrap_or(Err(EngineError::ShuttingDown))
    }

    /// Unloads a function: rejects new invocations, answers queued ones with
    /// [`InvokeError::Unloaded`], and blocks until running ones have finished and its memory is
    /// free.
    pub fn unload(&self, key: &FunctionKey) -> Result<(), EngineError> {
        self.ask(|answer| Command::Unload { key: key.clone(), answer }).unwrap_or(Err(EngineError::ShuttingDown))
    }

    /// Opens a lane. Functions loaded into it share its compute units only with lanes that have the
    /// same units.
    ///
    /// # Errors
    /// If the device cannot be divided, has no such compute units or no queues left, or is lost.
    pub fn open_lane(&self, spec: LaneSpec) -> Result<Lane, EngineError> {
        self.ask(|answer| Command::OpenLane { spec, answer }).unwrap_or(Err(EngineError::ShuttingDown))
    }

    /// Closes a lane. Its running invocations are preempted and continue in the default lane, where
    /// functions of the lane run from now on. Blocks until none of its launches is on the device.
    ///
    /// # Errors
    /// If the lane does not exist, is already closing, or is the default lane.
    pub fn close_lane(&self, lane: LaneId) -> Result<(), EngineError> {
        self.ask(|answer| Command::CloseLane { lane, answer }).unwrap_or(Err(EngineError::ShuttingDown))
    }

    /// Sets or changes the share of a client in a lane, which must be the lane of its functions.
    /// From now on its invocations in this lane issue launches only while it has a token
    /// ([`atoll_core::tokens`]).
    ///
    /// # Errors
    /// If the lane cannot honour its shares together, does not exist, or the device is lost.
    pub fn set_share(&self, client: ShareClient, lane: LaneId, share: ShareSpec) -> Result<(), EngineError> {
        let lane = Some(lane);
        self.ask(|answer| Command::SetShare { client, lane, share, answer }).unwrap_or(Err(EngineError::ShuttingDown))
    }

    /// Sets or changes the share of a client, and binds the client to compute units if possible. A
    /// client whose partition is less than the device gets a lane with that many units, which it
    /// may share with other clients. Other clients may move to other units. A client that cannot be
    /// bound has its share in the default lane ([`crate::ShareStatistics::unbound`]).
    ///
    /// # Errors
    /// If the device cannot honour its shares together, or is lost. On error nothing has changed.
    pub fn place_share(&self, client: ShareClient, share: ShareSpec) -> Result<(), EngineError> {
        let lane = None;
        self.ask(|answer| Command::SetShare { client, lane, share, answer }).unwrap_or(Err(EngineError::ShuttingDown))
    }

    /// Sets the memory limit of an instance, or removes it. Does not wait: the limit applies to
    /// requests that are submitted afterwards.
    pub fn limit_memory(&self, client: ShareClient, limit: Option<InstanceMemory>) {
        self.send(Command::LimitMemory { client, limit });
    }

    /// Removes the shares of a client; `false` if it has none. Running invocations of an instance
    /// end with [`InvokeError::InstanceRemoved`]; those of a tenant continue.
    pub fn remove_share(&self, client: ShareClient) -> bool {
        self.ask(|answer| Command::RemoveShare { client, answer }).unwrap_or(false)
    }

    /// Calls a function. Invalid requests are answered before this returns; all others by the
    /// engine's thread, or by the thread that decodes large outputs with strings. Encodes the
    /// strings of the request first, which may take a second: call it from a thread that may block
    /// if there are any.
    pub fn submit(&self, request: InvocationRequest, reply: Reply) -> InvocationId {
        self.submit_chain(request.into(), reply)
    }

    /// Calls functions one after the other, as one invocation: it is admitted, preempted, cancelled
    /// and answered as a whole.
    pub fn submit_chain(&self, mut request: ChainRequest, reply: Reply) -> InvocationId {
        match self.with_codes(&mut request, None, reply) {
            Ok(reply) => self.submit_as(request, None, PendingReply::new(reply)),
            Err(id) => id,
        }
    }

    /// Opens a session of a stateful function. The session takes no device memory before its first
    /// step, and is closed once it has been idle for `idle`.
    ///
    /// # Errors
    /// If there is no such function, it keeps no state, or its tenant has too many sessions.
    pub fn open_session(&self, function: &FunctionKey, idle: Duration) -> Result<SessionId, InvokeError> {
        let function = self.shared.find(function).ok_or(InvokeError::UnknownFunction)?;
        let id = SessionId(self.shared.next_id());
        self.shared.sessions.open(id, function, clock::saturating_nanos(idle))?;
        Ok(id)
    }

    /// Closes a session, and frees its memory when its running step has ended.
    pub fn close_session(&self, session: SessionId) {
        self.shared.sessions.remove(session);
        self.send(Command::CloseSession(session));
    }

    /// Runs the next step of a session: one invocation of its function. The function named in the
    /// request is ignored. A step that fails leaves the session's state unchanged.
    pub fn submit_step(&self, session: SessionId, mut request: ChainRequest, reply: Reply) -> InvocationId {
        let begun = self.shared.sessions.find(session).ok_or(InvokeError::NoSession);
        let reply = match self.with_codes(&mut request, begun.as_deref().ok(), reply) {
            Ok(reply) => reply,
            Err(id) => return id,
        };
        match begun.and_then(|session| session.begin().map(|step| (session, step))) {
            Ok((session, step)) => self.submit_as(request, Some(session), PendingReply::to_step(reply, step)),
            Err(error) => {
                reply(Err(error));
                InvocationId(self.shared.next_id())
            }
        }
    }

    /// Encodes the strings of a request. Returns a reply that decodes those of the answer; the id of
    /// the invocation if it was refused.
    fn with_codes(
        &self,
        request: &mut ChainRequest,
        session: Option<&Session>,
        reply: Reply,
    ) -> Result<Reply, InvocationId> {
        let find = |key: &FunctionKey| match session {
            Some(session) => Some(Arc::clone(&session.function)),
            None => self.shared.find(key),
        };
        match strings::encode(request, find) {
            Ok(Some(outputs)) => Ok(outputs.decoding(reply, Arc::clone(&self.shared.decoding))),
            Ok(None) => Ok(reply),
            Err(error) => {
                reply(Err(error));
                Err(InvocationId(self.shared.next_id()))
            }
        }
    }

    fn submit_as(&self, request: ChainRequest, session: Option<Arc<Session>>, reply: PendingReply) -> InvocationId {
        let submitted = clock::now();
        let id = InvocationId(self.shared.next_id());
        match self.admit(id, request, session, submitted) {
            Ok(submission) => self.pass_on(submission, reply),
            Err(error) => reply.send(Err(error)),
        }
        id
    }

    /// Passes a checked invocation to the engine's thread.
    pub(crate) fn pass_on(&self, submission: Submission, reply: PendingReply) {
        let channel = if submission.class == Class::RealTime { &self.urgent } else { &self.normal };
        // If the engine has stopped, the send fails and drops the reply, which then answers with an
        // error.
        let _ = channel.send(Command::Submit(Box::new(submission), reply));
        self.shared.doorbell.ring();
    }

    /// Whether the engine is shutting down.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Relaxed)
    }

    /// Cancels an invocation. It is answered with [`InvokeError::Cancelled`] once none of its
    /// launches is on the device, unless it finishes first. One that shares a batch with others is
    /// answered at once; the batch continues for the others.
    pub fn cancel(&self, id: InvocationId) {
        self.send(Command::Cancel(id));
    }

    /// Does all checks that do not need the device.
    fn admit(
        &self,
        id: InvocationId,
        request: ChainRequest,
        session: Option<Arc<Session>>,
        submitted: Nanos,
    ) -> Result<Submission, InvokeError> {
        if self.is_closed() {
            return Err(InvokeError::ShuttingDown);
        }
        let deadline =
            request.deadline.map(|within| Nanos(submitted.0.saturating_add(clock::saturating_nanos(within))));
        let ChainRequest { class, priority, times_launches, .. } = request;
        let instance = request.instance.clone();
        let chain = Chain::new(request, session.as_deref(), |key| self.shared.find(key))?;
        let class = class.unwrap_or(chain.stages[0].function.class);
        let gathers = session.is_none() && !times_launches && chain.gathers(class, deadline.is_some());
        let (retries, may_move, due) = (0, false, None);
        Ok(Submission {
            id,
            chain,
            instance,
            class,
            priority,
            submitted,
            deadline,
            times_launches,
            session,
            retries,
            may_move,
            gathers,
            due,
        })
    }

    pub(crate) fn send(&self, command: Command) -> bool {
        let sent = self.normal.send(command).is_ok();
        self.shared.doorbell.ring();
        sent
    }

    /// Sends a command and waits for its answer; `None` if the engine stops before answering.
    pub(crate) fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Option<T> {
        let (answer, answered) = bounded(1);
        self.send(command(answer));
        answered.recv().ok()
    }
}
