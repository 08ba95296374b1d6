//! Calls of the engines from asynchronous code.

use atoll_engine::{ChainRequest, InvocationId, InvocationResult, InvokeError, Reply};
use atoll_fleet::Inference;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Runs what blocks beside the threads that serve connections. `None` if it panicked, which the
/// panic itself has reported.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

/// The answer to an invocation whose reply was dropped, which an engine never does.
const LOST: InvokeError = InvokeError::ShuttingDown;

/// Calls functions, and takes the call back if the answer is no longer waited for.
pub(crate) async fn invoke(
    engine: &Arc<dyn Inference>,
    request: ChainRequest,
) -> Result<InvocationResult, InvokeError> {
    invoke_by(engine, |reply| engine.submit(request, reply)).await
}

/// The same with a submission of any kind.
pub(crate) async fn invoke_by(
    engine: &Arc<dyn Inference>,
    submit: impl FnOnce(Reply) -> InvocationId,
) -> Result<InvocationResult, InvokeError> {
    let (answer, answered) = oneshot::channel();
    let reply = Box::new(move |result| {
        // Nobody waits any more if this fails, which is why it was cancelled.
        let _ = answer.send(result);
    });
    let mut guard = CancelOnDrop { engine, id: Some(submit(reply)) };
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
