//! The interface through which the server uses the devices.

use atoll_core::DeviceId;
use atoll_engine::{
    ChainRequest, EngineError, EngineStatistics, FunctionInfo, FunctionKey, FunctionOptions, InvocationId, InvokeError,
    Reply, SessionId, TraceBatch,
};
use atoll_kgraph::Bundle;
use std::sync::Arc;
use std::time::Duration;

/// A loaded function and its device.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The device that it is on.
    pub device: DeviceId,
    /// Its properties, as reported by the engine.
    pub info: FunctionInfo,
}

/// The devices of a daemon, or a test double.
pub trait Inference: Send + Sync + 'static {
    /// The names of the devices, indexed by [`DeviceId`].
    fn devices(&self) -> &[String];

    /// Loads a function on the named device, or on the emptiest one. Blocks.
    ///
    /// # Errors
    ///
    /// [`EngineError::UnknownDevice`] if there is no such device, [`EngineError::AlreadyLoaded`] if
    /// any device has a function with this name, or the error of the device's engine.
    fn load(&self, bundle: Arc<Bundle>, options: FunctionOptions, device: Option<&str>) -> Result<Placed, EngineError>;

    /// Unloads a function. Blocks.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotLoaded`] if no device has it.
    fn unload(&self, function: &FunctionKey) -> Result<(), EngineError>;

    /// Invokes a chain of functions, one after the other. All of them must be on one device. The
    /// reply is called exactly once.
    fn submit(&self, request: ChainRequest, reply: Reply) -> InvocationId;

    /// Cancels an invocation.
    fn cancel(&self, id: InvocationId);

    /// Opens a session of a stateful function, on the function's device. The session is closed once
    /// it has been idle for `idle`.
    ///
    /// # Errors
    /// If there is no such function, it keeps no state, or its tenant has too many sessions. A test
    /// double without sessions always fails.
    fn open_session(&self, _function: &FunctionKey, _idle: Duration) -> Result<SessionId, InvokeError> {
        Err(InvokeError::NoSession)
    }

    /// Closes a session. Its memory is freed when its running step has ended.
    fn close_session(&self, _session: SessionId) {}

    /// Runs the next step of a session: one invocation of its function. A failed step leaves the
    /// session's state unchanged.
    fn submit_step(&self, _session: SessionId, request: ChainRequest, reply: Reply) -> InvocationId {
        self.submit(request, reply)
    }

    /// The statistics of each device's engine, in the order of [`Inference::devices`].
    /// Blocks until each engine's thread has answered.
    fn statistics(&self) -> Vec<EngineStatistics>;

    /// The trace records of a device, starting at record `from`, or with the next one. `None` if
    /// recording has stopped. Blocks until the engine's thread has answered.
    fn trace(&self, _device: DeviceId, _from: Option<u64>) -> Option<TraceBatch> {
        None
    }
}
