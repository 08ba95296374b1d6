//! How stages of graphs reach their functions: as requests that name no instance.

use crate::model::Model;
use crate::running::Permit;
use atoll_core::placement::Why;
use atoll_engine::{ChainRequest, Class, DeviceId, InvocationResult, InvokeError};
use std::pin::Pin;
use std::sync::Arc;

/// A call of a function by a stage.
pub(crate) struct StageCall {
    pub(crate) model: Arc<Model>,
    pub(crate) class: Class,
    pub(crate) request: ChainRequest,
    /// The device that runs it and why, if it is given.
    pub(crate) device: Option<(DeviceId, Why)>,
    pub(crate) permit: Permit,
}

/// The answer of a call that is on its way.
pub(crate) type Answer<'a> = Pin<Box<dyn Future<Output = Result<InvocationResult, InvokeError>> + Send + 'a>>;

/// What calls functions for stages.
pub(crate) trait Stages: Send + Sync {
    /// Calls a function. Cancels it if the answer is dropped.
    fn call(&self, call: StageCall) -> Answer<'_>;

    /// Whether a call of a function may be bound to a device because inputs are there: the device
    /// has the function and takes requests, and no instance elsewhere is to serve the call.
    fn may_bind(&self, model: &Model, class: Class, device: DeviceId) -> bool;
}
