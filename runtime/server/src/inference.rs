//! What the server needs of an engine.

use atoll_engine::{
    ChainRequest, EngineError, EngineHandle, EngineStatistics, FunctionInfo, FunctionKey, FunctionOptions, InvocationId, InvocationResult,
    InvokeError, Reply, TraceBatch,
};
use atoll_kgraph::Bundle;
use std::sync::Arc;
use tokio::sync::oneshot;

/// An engine, or a double of one.
pub trait Inference: Send + Sync + 'static {
    /// Brings a function onto the device. Blocks.
    fn load(&self, bundle: Arc<Bundle>, options: FunctionOptions) -> Result<FunctionInfo, EngineError>;

    /// Takes a function off the device. Blocks.
    fn unload(&self, function: &FunctionKey) -> Result<(), EngineError>;

    /// Calls functions one after the other; the reply is called exactly once.
    fn submit(&self, request: ChainRequest, reply: Reply) -> InvocationId;

    /// Gives an invocation up.
    fn cancel(&self, id: InvocationId);

    /// What the engine tells about itself. Blocks for the time of a message to its thread.
    fn statistics(&self) -> EngineStatistics;

    /// What happened from a record on, or from now on; `None` where nothing is recorded any more. Blocks like [`Inference::statistics`].
    fn trace(&self, _from: Option<u64>) -> Option<TraceBatch> {
        None
    }
}

impl Inference for EngineHandle {
    fn load(&self, bundle: Arc<Bundle>, options: FunctionOptions) -> Result<FunctionInfo, EngineError> {
        EngineHandle::load(self, bundle, options)
    }

    fn unload(&self, function: &FunctionKey) -> Result<(), EngineError> {
        EngineHandle::unload(self, function)
    }

    fn submit(&self, request: ChainRequest, reply: Reply) -> InvocationId {
        EngineHandle::submit_chain(self, request, reply)
    }

    fn cancel(&self, id: InvocationId) {
        EngineHandle::cancel(self, id);
    }

    fn statistics(&self) -> EngineStatistics {
        EngineHandle::statistics(self)
    }

    fn trace(&self, from: Option<u64>) -> Option<TraceBatch> {
        EngineHandle::trace(self, from)
    }
}

/// Runs what blocks beside the threads that serve connections. `None` if it panicked, which the panic itself has reported.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

/// The answer to an invocation whose reply was dropped, which an engine never does.
const LOST: InvokeError = InvokeError::ShuttingDown;

/// Calls functions, and takes the call back if the answer is no longer waited for.
pub(crate) async fn invoke(engine: &Arc<dyn Inference>, request: ChainRequest) -> Result<InvocationResult, InvokeError> {
    let (answer, answered) = oneshot::channel();
    let reply = Box::new(move |result| {
        // Nobody waits any more if this fails, which is why it was cancelled.
        let _ = answer.send(result);
    });
    let mut guard = CancelOnDrop { engine, id: Some(engine.submit(request, reply)) };
    let result = answered.await.unwrap_or(Err(LOST));
    guard.id = None;
    result
}

struct CancelOnDrop<'a> {
    engine: &'a Arc<dyn Inference>,
    id: Option<InvocationId>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.engine.cancel(id);
        }
    }
}
