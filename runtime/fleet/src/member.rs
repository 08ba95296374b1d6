//! The interface through which the fleet uses an engine.

use atoll_core::packing::Divisible;
use atoll_engine::{
    ChainRequest, EngineError, EngineHandle, EngineStatistics, FlushRequest, FunctionInfo, FunctionKey,
    FunctionOptions, Imports, InstanceMemory, InvocationId, InvokeError, MemorySession, Reply, SessionId, ShareClient,
    ShareSpec, SuspendError, SuspendedSession, TraceBatch,
};
use atoll_kgraph::{Bundle, NVIDIA_TARGETS};
use std::sync::Arc;
use std::time::Duration;

/// A session that was opened with the contents of a suspended one; or the error, with the contents.
pub type Reopened = Result<SessionId, Box<(InvokeError, SuspendedSession)>>;

/// A device with its engine, or a test double. The methods are those of [`EngineHandle`].
#[expect(missing_docs, reason = "documented at `EngineHandle`")]
pub trait Member: Send + Sync + 'static {
    /// The device's name, as in `host:0`.
    fn name(&self) -> &str;

    /// Bundle targets that the device runs, best first.
    fn targets(&self) -> &[String];

    /// The kind of the device. Devices of the same kind run a function in the same time.
    fn kind(&self) -> String {
        String::new()
    }

    /// The compute capability of an NVIDIA GPU: 90 is 9.0.
    fn capability(&self) -> Option<u32> {
        None
    }

    /// Bytes of device memory that may be used.
    fn memory_bytes(&self) -> u64 {
        u64::MAX
    }

    fn preload(&self, _function: &FunctionKey) {}

    fn reclaim(&self, _function: &FunctionKey) {}

    fn holds_constants(&self, _function: &FunctionKey) -> bool {
        true
    }

    fn take_residency(&self) -> Vec<(FunctionKey, bool)> {
        Vec::new()
    }

    /// How its compute units are divided among clients with shares.
    fn divisible(&self) -> Divisible {
        Divisible { units: 1, step: 0, lanes_max: 0 }
    }

    /// Access to device memory that clients have exported.
    fn imports(&self) -> Option<Arc<dyn Imports>> {
        None
    }

    fn is_lost(&self) -> bool;
    fn load(&self, bundle: Arc<Bundle>, options: FunctionOptions) -> Result<FunctionInfo, EngineError>;
    fn unload(&self, function: &FunctionKey) -> Result<(), EngineError>;
    fn submit(&self, request: ChainRequest, reply: Reply) -> InvocationId;

    /// Whether the thread that submits a request encodes strings, which may take long.
    fn encodes(&self, _request: &ChainRequest) -> bool {
        false
    }

    fn submit_movable(&self, request: ChainRequest, reply: Reply) -> InvocationId {
        self.submit(request, reply)
    }

    fn cancel(&self, id: InvocationId);
    fn statistics(&self) -> EngineStatistics;

    fn open_session(&self, _function: &FunctionKey, _idle: Duration) -> Result<SessionId, InvokeError> {
        Err(InvokeError::NoSession)
    }

    fn close_session(&self, _session: SessionId) {}

    fn submit_step(&self, _session: SessionId, request: ChainRequest, reply: Reply) -> InvocationId {
        self.submit(request, reply)
    }

    fn open_memory(&self, _function: &FunctionKey, _bytes: u64) -> Result<SessionId, InvokeError> {
        Err(InvokeError::NoSession)
    }

    fn memory_address(&self, _session: SessionId) -> Option<u64> {
        None
    }

    fn submit_flush(&self, _session: SessionId, _request: FlushRequest, reply: Reply) -> InvocationId {
        reply(Err(InvokeError::NoSession));
        InvocationId(u64::MAX)
    }

    fn suspend_session(&self, _session: SessionId, _patience: Duration) -> Result<(), SuspendError> {
        Err(SuspendError::NoSession)
    }

    fn hold_session(&self, _session: SessionId) -> bool {
        false
    }

    fn release_session(&self, _session: SessionId) {}

    fn take_suspended(&self, _session: SessionId) -> Result<SuspendedSession, SuspendError> {
        Err(SuspendError::NoSession)
    }

    fn open_suspended(&self, _function: &FunctionKey, contents: SuspendedSession) -> Reopened {
        Err(Box::new((InvokeError::NoSession, contents)))
    }

    fn memory_sessions(&self) -> Vec<MemorySession> {
        Vec::new()
    }

    fn trace(&self, from: Option<u64>) -> Option<TraceBatch>;

    /// Sets the share of a client, and binds it to compute units if the device has room.
    fn set_share(&self, _client: &ShareClient, _share: ShareSpec) -> Result<(), EngineError> {
        Ok(())
    }

    fn remove_share(&self, _client: &ShareClient) -> bool {
        false
    }

    fn limit_memory(&self, _client: &ShareClient, _limit: Option<InstanceMemory>) {}
}

impl Member for EngineHandle {
    fn name(&self) -> &str {
        &self.device_info().name
    }

    fn targets(&self) -> &[String] {
        &self.device_info().targets
    }

    fn kind(&self) -> String {
        let info = self.device_info();
        let kind = info.name.split(':').next().unwrap_or_default();
        format!("{kind} {} {}", info.compute_units, info.targets.join(" "))
    }

    fn capability(&self) -> Option<u32> {
        // The first target is the best one.
        let info = self.device_info();
        let best = info.targets.first()?;
        NVIDIA_TARGETS.iter().find(|(_, name)| *name == best.as_str()).map(|(capability, _)| *capability)
    }

    fn memory_bytes(&self) -> u64 {
        EngineHandle::memory_bytes(self)
    }

    fn preload(&self, function: &FunctionKey) {
        EngineHandle::preload(self, function);
    }

    fn reclaim(&self, function: &FunctionKey) {
        EngineHandle::reclaim(self, function);
    }

    fn holds_constants(&self, function: &FunctionKey) -> bool {
        EngineHandle::holds_constants(self, function)
    }

    fn take_residency(&self) -> Vec<(FunctionKey, bool)> {
        EngineHandle::take_residency(self)
    }

    fn divisible(&self) -> Divisible {
        atoll_engine::divisible(self.device_info())
    }

    fn imports(&self) -> Option<Arc<dyn Imports>> {
        EngineHandle::imports(self)
    }

    fn is_lost(&self) -> bool {
        EngineHandle::is_lost(self)
    }

    fn load(&self, bundle: Arc<Bundle>, options: FunctionOptions) -> Result<FunctionInfo, EngineError> {
        EngineHandle::load(self, bundle, options)
    }

    fn unload(&self, function: &FunctionKey) -> Result<(), EngineError> {
        EngineHandle::unload(self, function)
    }

    fn submit(&self, request: ChainRequest, reply: Reply) -> InvocationId {
        self.submit_chain(request, reply)
    }

    fn encodes(&self, request: &ChainRequest) -> bool {
        EngineHandle::encodes(self, request)
    }

    fn submit_movable(&self, request: ChainRequest, reply: Reply) -> InvocationId {
        EngineHandle::submit_movable(self, request, reply)
    }

    fn cancel(&self, id: InvocationId) {
        EngineHandle::cancel(self, id);
    }

    fn statistics(&self) -> EngineStatistics {
        EngineHandle::statistics(self)
    }

    fn open_session(&self, function: &FunctionKey, idle: Duration) -> Result<SessionId, InvokeError> {
        EngineHandle::open_session(self, function, idle)
    }

    fn close_session(&self, session: SessionId) {
        EngineHandle::close_session(self, session);
    }

    fn submit_step(&self, session: SessionId, request: ChainRequest, reply: Reply) -> InvocationId {
        EngineHandle::submit_step(self, session, request, reply)
    }

    fn open_memory(&self, function: &FunctionKey, bytes: u64) -> Result<SessionId, InvokeError> {
        EngineHandle::open_memory(self, function, bytes)
    }

    fn memory_address(&self, session: SessionId) -> Option<u64> {
        EngineHandle::memory_address(self, session)
    }

    fn submit_flush(&self, session: SessionId, request: FlushRequest, reply: Reply) -> InvocationId {
        EngineHandle::submit_flush(self, session, request, reply)
    }

    fn suspend_session(&self, session: SessionId, patience: Duration) -> Result<(), SuspendError> {
        EngineHandle::suspend_session(self, session, patience)
    }

    fn hold_session(&self, session: SessionId) -> bool {
        EngineHandle::hold_session(self, session)
    }

    fn release_session(&self, session: SessionId) {
        EngineHandle::release_session(self, session);
    }

    fn take_suspended(&self, session: SessionId) -> Result<SuspendedSession, SuspendError> {
        EngineHandle::take_suspended(self, session)
    }

    fn open_suspended(&self, function: &FunctionKey, contents: SuspendedSession) -> Reopened {
        EngineHandle::open_suspended(self, function, contents)
    }

    fn memory_sessions(&self) -> Vec<MemorySession> {
        EngineHandle::memory_sessions(self)
    }

    fn trace(&self, from: Option<u64>) -> Option<TraceBatch> {
        EngineHandle::trace(self, from)
    }

    fn set_share(&self, client: &ShareClient, share: ShareSpec) -> Result<(), EngineError> {
        self.place_share(client.clone(), share)
    }

    fn remove_share(&self, client: &ShareClient) -> bool {
        EngineHandle::remove_share(self, client.clone())
    }

    fn limit_memory(&self, client: &ShareClient, limit: Option<InstanceMemory>) {
        EngineHandle::limit_memory(self, client.clone(), limit);
    }
}
