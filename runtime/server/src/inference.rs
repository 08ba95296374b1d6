//! Asynchronous calls of the engines.

use crate::running::Permit;
use crate::threads::for_tenant;
use atoll_engine::{ChainRequest, InvocationId, InvocationResult, InvokeError, Reply};
use atoll_fleet::Inference;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;

/// Runs blocking work of the daemon itself on the pool of blocking threads. `None` if it panicked; the
/// panic hook has reported the panic. Work for clients has a share of the pool ([`crate::threads`]).
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

/// Waits until a time; forever for `None`.
pub(crate) async fn passed(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// The result of an invocation whose reply was dropped without an answer, which engines never do.
const LOST: InvokeError = InvokeError::ShuttingDown;

/// Runs an invocation. Cancels it if the future is dropped before the result arrives.
pub(crate) async fn invoke(
    engine: &Arc<dyn Inference>,
    permit: &Permit,
    request: ChainRequest,
) -> Result<InvocationResult, InvokeError> {
    invoke_by(engine, permit, request, |engine, request, reply| engine.submit(request, reply)).await
}

/// Like [`invoke`], for any way to submit.
pub(crate) async fn invoke_by(
    engine: &Arc<dyn Inference>,
    permit: &Permit,
    request: ChainRequest,
    submit: impl FnOnce(&dyn Inference, ChainRequest, Reply) -> InvocationId + Send + 'static,
) -> Result<InvocationResult, InvokeError> {
    Pending::submit(engine, permit, request, submit).await?.answer().await
}

/// A submitted invocation. Dropping it before the answer arrives cancels the invocation.
pub(crate) struct Pending {
    engine: Arc<dyn Inference>,
    id: Option<InvocationId>,
    answered: oneshot::Receiver<Result<InvocationResult, InvokeError>>,
}

impl Pending {
    /// Submits an invocation. The permit counts until the engine has answered, at least. The engine
    /// encodes strings and computes the texts of numbers when it is called, which may take long, so
    /// such a request is submitted on the pool of blocking threads. If the future is dropped
    /// meanwhile, the invocation is cancelled once it is submitted.
    ///
    /// # Errors
    /// The engine panicked.
    pub(crate) async fn submit(
        engine: &Arc<dyn Inference>,
        permit: &Permit,
        request: ChainRequest,
        submit: impl FnOnce(&dyn Inference, ChainRequest, Reply) -> InvocationId + Send + 'static,
    ) -> Result<Pending, InvokeError> {
        let blocks = engine.encodes(&request);
        let (engine, counted) = (Arc::clone(engine), permit.clone());
        let submit = move || {
            let (answer, answered) = oneshot::channel();
            let reply = Box::new(move |result| {
                // Before the answer, so that its receiver finds the permit released.
                drop(counted);
                // Sending fails only if the receiver was dropped, which cancels the invocation.
                let _ = answer.send(result);
            });
            let id = submit(&*engine, request, reply);
            Pending { engine, id: Some(id), answered }
        };
        match permit.tenant() {
            _ if !blocks => Ok(submit()),
            Some(tenant) => for_tenant(tenant, submit).await.ok_or(LOST),
            None => blocking(submit).await.ok_or(LOST),
        }
    }

    /// Its id.
    pub(crate) fn id(&self) -> Option<InvocationId> {
        self.id
    }

    /// Waits for the answer.
    pub(crate) async fn answer(mut self) -> Result<InvocationResult, InvokeError> {
        let result = (&mut self.answered).await.unwrap_or(Err(LOST));
        self.id = None;
        result
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.engine.cancel(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_engine::{EngineError, EngineStatistics, FunctionKey, FunctionOptions};
    use atoll_fleet::Placed;
    use atoll_kgraph::Bundle;
    use std::sync::Mutex;
    use std::thread::ThreadId;

    /// Notes the threads that submit requests, and whether submitting takes long.
    struct Device(bool, Mutex<Vec<ThreadId>>);

    impl Inference for Device {
        fn devices(&self) -> &[String] {
            &[]
        }

        fn load(&self, _: Arc<Bundle>, options: FunctionOptions, _: Option<&str>) -> Result<Placed, EngineError> {
            Err(EngineError::NotLoaded(options.key))
        }

        fn unload(&self, function: &FunctionKey) -> Result<(), EngineError> {
            Err(EngineError::NotLoaded(function.clone()))
        }

        fn submit(&self, _: ChainRequest, reply: Reply) -> InvocationId {
            self.1.lock().expect("no panic").push(std::thread::current().id());
            reply(Err(InvokeError::UnknownFunction));
            InvocationId(0)
        }

        fn encodes(&self, _: &ChainRequest) -> bool {
            self.0
        }

        fn cancel(&self, _: InvocationId) {}

        fn statistics(&self) -> Vec<EngineStatistics> {
            Vec::new()
        }
    }

    #[tokio::test]
    async fn requests_that_take_long_to_encode_are_submitted_on_another_thread() {
        for encodes in [false, true] {
            let device = Arc::new(Device(encodes, Mutex::default()));
            let engine: Arc<dyn Inference> = device.clone();
            let request = ChainRequest {
                stages: Vec::new(),
                class: None,
                priority: 0,
                instance: None,
                deadline: None,
                times_launches: false,
            };
            invoke(&engine, &Permit::of_daemon(), request).await.expect_err("it has no function");
            let is_here = device.1.lock().expect("no panic")[..] == [std::thread::current().id()];
            assert_eq!(is_here, !encodes);
        }
    }
}
