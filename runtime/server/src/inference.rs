//! Asynchronous calls of the engines.

use atoll_engine::{ChainRequest, InvocationId, InvocationResult, InvokeError, Reply};
use atoll_fleet::Inference;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Runs blocking work on the pool of blocking threads. `None` if it panicked; the panic hook has
/// reported the panic.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

/// The result of an invocation whose reply was dropped without an answer, which engines never do.
const LOST: InvokeError = InvokeError::ShuttingDown;

/// Runs an invocation. Cancels it if the future is dropped before the result arrives.
pub(crate) async fn invoke(
    engine: &Arc<dyn Inference>,
    request: ChainRequest,
) -> Result<InvocationResult, InvokeError> {
    invoke_by(engine, |reply| engine.submit(request, reply)).await
}

/// Like [`invoke`], for any way to submit.
pub(crate) async fn invoke_by(
    engine: &Arc<dyn Inference>,
    submit: impl FnOnce(Reply) -> InvocationId,
) -> Result<InvocationResult, InvokeError> {
    let (answer, answered) = oneshot::channel();
    let reply = Box::new(move |result| {
        // Fails only if the receiver was dropped, and then the invocation is cancelled.
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
