//! Requests about futures: calls that continue in the background.

use crate::call::{Answer, Call};
use crate::client::{Client, invoke_request};
use crate::error::ClientError;
use crate::graphs::{GraphCall, micros};
use atoll_control as wire;
use atoll_control::{Attachments, DeferredCall, FutureReport, Request};
use std::time::Duration;

impl Client {
    /// Begins a call of functions that continues in the background, also after this connection
    /// closes. Calls of this tenant may name its outputs by [`crate::Content::Future`], before it
    /// ends and until a minute after its end. `future` is a name that no other future of the tenant
    /// has.
    pub fn defer(&mut self, future: &str, call: Call) -> Result<(), ClientError> {
        let (invoke, attachments) = invoke_request(call)?;
        self.begin(future, DeferredCall::Invoke(invoke), attachments)
    }

    /// Begins a call of a graph, like [`Client::defer`].
    pub fn defer_graph(&mut self, future: &str, call: &GraphCall) -> Result<(), ClientError> {
        let (call, attachments) = call.request()?;
        self.begin(future, DeferredCall::InvokeGraph(call), attachments)
    }

    /// Waits until the call of a future ends, and returns its outputs.
    pub fn await_future(&mut self, future: &str) -> Result<Answer, ClientError> {
        self.await_future_within(future, None)
    }

    /// Waits up to this time until the call of a future ends, and returns its outputs. If the time
    /// passes, the call continues, and the refusal is [`crate::RefusalKind::Deadline`].
    pub fn await_future_within(&mut self, future: &str, within: Option<Duration>) -> Result<Answer, ClientError> {
        let request = Request::Await { future: future.into(), timeout_us: within.map(micros) };
        self.invoked(&request, Attachments::default())
    }

    /// The tenant's futures, by name.
    pub fn futures(&mut self) -> Result<Vec<FutureReport>, ClientError> {
        self.reports(None)
    }

    /// Describes a future.
    pub fn future(&mut self, future: &str) -> Result<FutureReport, ClientError> {
        self.reports(Some(future))?.pop().ok_or(ClientError::WrongAnswer)
    }

    /// Cancels the call of a future. Those that name its outputs fail.
    pub fn cancel_future(&mut self, future: &str) -> Result<(), ClientError> {
        self.done(&Request::Cancel { future: future.into() }, Attachments::default())
    }

    /// Drops a future with its outputs. A call that has not ended continues.
    pub fn forget_future(&mut self, future: &str) -> Result<(), ClientError> {
        self.done(&Request::Forget { future: future.into() }, Attachments::default())
    }

    fn begin(&mut self, future: &str, call: DeferredCall, attachments: Attachments) -> Result<(), ClientError> {
        self.done(&Request::Defer { future: future.into(), call }, attachments)
    }

    fn reports(&mut self, future: Option<&str>) -> Result<Vec<FutureReport>, ClientError> {
        match self.ask(&Request::Futures { future: future.map(str::to_owned) })?.0 {
            wire::Answer::Futures { futures } => Ok(futures),
            _ => Err(ClientError::WrongAnswer),
        }
    }

    fn done(&mut self, request: &Request, attachments: Attachments) -> Result<(), ClientError> {
        match self.ask_with(request, attachments)?.0 {
            wire::Answer::Done => Ok(()),
            _ => Err(ClientError::WrongAnswer),
        }
    }
}
