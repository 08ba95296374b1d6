//! What a server needs of the devices.

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
    /// What its engine says of it.
    pub info: FunctionInfo,
}

/// The devices, or a double of them.
pub trait Inference: Send + Sync + 'static {
    /// The names of the devices; a [`DeviceId`] is an index into them.
    fn devices(&self) -> &[String];

    /// Brings a function onto the device that is named, or onto the emptiest one. Blocks.
    ///
    /// # Errors
    ///
    /// [`EngineError::UnknownDevice`] if there is no such device, [`EngineError::AlreadyLoaded`] if
    /// any device has a function of this name, and what the device's engine refuses.
    fn load(&self, bundle: Arc<Bundle>, options: FunctionOptions, device: Option<&str>) -> Result<Placed, EngineError>;

    /// Takes a function off its device. Blocks.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotLoaded`] if no device has it.
    fn unload(&self, function: &FunctionKey) -> Result<(), EngineError>;

    /// Calls functions one after the other; all of them must be on one device. The reply is called
    /// exactly once.
    fn submit(&self, request: ChainRequest, reply: Reply) -> InvocationId;

    /// Gives an invocation up.
    fn cancel(&self, id: InvocationId);

    /// Opens a session of a function that keeps state, on the function's device; it is closed when
    /// it was not used for the idle time.
    ///
    /// # Errors
    /// There is no such function, it keeps no state, or its tenant has too many sessions. A double
    /// without sessions refuses.
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

    /// What the engine of each device tells about itself, in the order of [`Inference::devices`].
    /// Blocks for the time of a message to each engine's thread.
    fn statistics(&self) -> Vec<EngineStatistics>;

    /// What happened on a device from a record on, or from now on; `None` where nothing is recorded
    /// any more. Blocks for the time of a message to the engine's thread.
    fn trace(&self, _device: DeviceId, _from: Option<u64>) -> Option<TraceBatch> {
        None
    }
}
