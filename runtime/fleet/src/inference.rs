//! The interface through which the server uses the devices.

use atoll_core::DeviceId;
use atoll_engine::{
    ChainRequest, EngineError, EngineStatistics, FunctionInfo, FunctionKey, FunctionOptions, InvocationId, InvokeError,
    Reply, SessionId, TraceBatch,
};
use atoll_kgraph::Bundle;
use std::sync::Arc;
use std::time::Duration;

/// A function that was loaded, and where.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The device that it is on.
    pub device: DeviceId,
    /// Its properties, as reported by the engine.
    pub info: FunctionInfo,
}

/// The devices of a daemon, or a test double.
pub trait Inference: Send + Sync + 'static {
    /// The names of the devices; a [`DeviceId`] is an index into them.
    fn devices(&self) -> &[String];

    /// Loads a function on the named device, or on the emptiest one. Blocks.
    ///
    /// # Errors
    ///
    /// [`EngineError::UnknownDevice`] if there is no such device, [`EngineError::AlreadyLoaded`] if
    /// any device has a function of this name, or the error of the device's engine.
    fn load(&self, bundle: Arc<Bundle>, options: FunctionOptions, device: Option<&str>) -> Result<Placed, EngineError>;

    /// Unloads a function. Blocks.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotLoaded`] if no device has it.
    fn unload(&self, function: &FunctionKey) -> Result<(), EngineError>;

    /// Calls functions one after the other; all of them must be on one device. The reply is called
    /// exactly once.
    fn submit(&self, request: ChainRequest, reply: Reply) -> InvocationId;

    /// Cancels an invocation.
    fn cancel(&self, id: InvocationId);

    /// Opens a session of a function that keeps state, on the function's device; it is closed when
    /// it was not used for the idle time.
    ///
    /// # Errors
    /// There is no such function, it keeps no state, or its tenant has too many sessions. A test
    /// double without sessions always fails.
    fn open_session(&self, _function: &FunctionKey, _idle: Duration) -> Result<SessionId, InvokeError> {
        Err(InvokeError::NoSession)
    }

    /// Ends a session, and frees its memory when its running step is over.
    fn close_session(&self, _session: SessionId) {}

    /// Runs the next step of a session: a call of its function. One that fails leaves the session
    /// as it was.
    fn submit_step(&self, _session: SessionId, request: ChainRequest, reply: Reply) -> InvocationId {
        self.submit(request, reply)
    }

    /// The statistics of each device's engine, in the order of [`Inference::devices`].
    /// Blocks for the time of a message to each engine's thread.
    fn statistics(&self) -> Vec<EngineStatistics>;

    /// What happened on a device from a record on, or from now on; `None` if the
    /// recording has stopped. Blocks for the time of a message to the engine's thread.
    fn trace(&self, _device: DeviceId, _from: Option<u64>) -> Option<TraceBatch> {
        None
    }
}
