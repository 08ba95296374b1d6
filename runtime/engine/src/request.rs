//! Requests of clients to the engine, and their results.

use crate::config::FunctionKey;
use crate::error::InvokeError;
use crate::retained::RetainedTensor;
use crate::session::Step;
use atoll_core::{Class, DeviceId, TaskId};
use atoll_kgraph::{DType, InputForm};
use std::time::Duration;

/// An invocation; unique for the life of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InvocationId(pub u64);

/// One call of a function.
#[derive(Clone, Debug)]
pub struct InvocationRequest {
    /// The function.
    pub function: FunctionKey,
    /// The inputs, in the order of the graph's input buffers.
    pub inputs: Vec<InputTensor>,
    /// The class; the function's default if `None`.
    pub class: Option<Class>,
    /// Priority within the class: a lower number is more urgent. Ignored by policies that order by
    /// deadline.
    pub priority: u32,
    /// The instance of the function whose share the request uses. `None` for the share of the
    /// tenant, if it has one.
    pub instance: Option<String>,
    /// The deadline, relative to the submission. Once it has passed, the invocation is evicted from
    /// the device and answered with [`InvokeError::DeadlineExceeded`].
    pub deadline: Option<Duration>,
}

/// Functions called one after the other as one invocation. Later calls may take outputs of earlier
/// ones as inputs; those tensors never leave the device.
#[derive(Clone, Debug)]
pub struct ChainRequest {
    /// The calls, in order; at least one.
    pub stages: Vec<StageRequest>,
    /// The class; the first function's default if `None`.
    pub class: Option<Class>,
    /// As [`InvocationRequest::priority`].
    pub priority: u32,
    /// Like [`InvocationRequest::instance`].
    pub instance: Option<String>,
    /// Like [`InvocationRequest::deadline`], for all calls together.
    pub deadline: Option<Duration>,
    /// Whether the result includes the time of each launch.
    pub times_launches: bool,
}

/// One call in a chain.
#[derive(Clone, Debug)]
pub struct StageRequest {
    /// The function.
    pub function: FunctionKey,
    /// The inputs, in the order of the graph's input buffers.
    pub inputs: Vec<StageInput>,
    /// The outputs to return, as indices in the order of the graph's output buffers; all if `None`.
    pub outputs: Option<Vec<usize>>,
    /// The outputs among them to leave on the device.
    pub retain: Vec<Retain>,
}

/// An output to leave on the device, as an input of later requests of the same tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retain {
    /// Its index in the order of the graph's output buffers.
    pub output: usize,
    /// Whether its bytes are returned as well.
    pub with_bytes: bool,
}

/// The source of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageInput {
    /// The client sends it.
    Tensor(InputTensor),
    /// An output of an earlier call.
    Output {
        /// Index in [`ChainRequest::stages`].
        stage: usize,
        /// Index in the order of the graph's output buffers.
        output: usize,
    },
    /// An earlier request left it on the device. Its contents have to be in host memory
    /// ([`RetainedTensor::save`]) for any other device.
    Retained(RetainedTensor),
}

impl From<InvocationRequest> for ChainRequest {
    fn from(request: InvocationRequest) -> ChainRequest {
        let inputs = request.inputs.into_iter().map(StageInput::Tensor).collect();
        let stage = StageRequest { function: request.function, inputs, outputs: None, retain: Vec::new() };
        let InvocationRequest { class, priority, instance, deadline, .. } = request;
        ChainRequest { stages: vec![stage], class, priority, instance, deadline, times_launches: false }
    }
}

/// A tensor from a client: dense, row-major, little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputTensor {
    /// Element type; `None` for strings.
    pub dtype: Option<DType>,
    /// Dimensions, outermost first.
    pub shape: Vec<i64>,
    /// The elements; each string is preceded by its length, a little-endian u32.
    pub bytes: Vec<u8>,
}

impl InputTensor {
    /// The properties that are checked.
    pub fn form(&self) -> InputForm<'_> {
        InputForm { dtype: self.dtype, shape: &self.shape, bytes: self.bytes.len() as u64, data: Some(&self.bytes) }
    }
}

/// A tensor to a client: dense, row-major, little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputTensor {
    /// Dimensions, outermost first.
    pub shape: Vec<i64>,
    /// The elements; each string is preceded by its length, a little-endian u32.
    pub bytes: Vec<u8>,
}

/// The result of an invocation.
#[derive(Clone, Debug)]
pub struct InvocationResult {
    /// The outputs, in the order of the graph's output buffers; for a chain the requested ones,
    /// call by call.
    pub outputs: Vec<OutputTensor>,
    /// The outputs that stayed on the device, by index in `outputs`, which has no bytes of them unless
    /// these were asked for. An output that cannot stay, such as one of strings, is only returned.
    pub retained: Vec<(usize, RetainedTensor)>,
    /// Bytes of its inputs that earlier requests had left on the device, and that were copied there.
    pub handed_over_bytes: u64,
    /// How its time was spent.
    pub timing: InvocationTiming,
    /// When it reached the engine's thread, in nanoseconds of the clock of [`LaunchTime`].
    pub entered_ns: u64,
    /// How often its launches were evicted in favour of others.
    pub preemptions: u32,
    /// The device that ran it.
    pub device: DeviceId,
    /// Its task in the trace of the device, or the task of its batch. `None` if no device ran it as
    /// one task.
    pub task: Option<TaskId>,
    /// Its request in the trace of the pool, if the pool chose its device.
    pub placed: Option<TaskId>,
    /// Whether it waited for constants of a function to be loaded.
    pub cold_start: bool,
    /// Time from its arrival at the engine until these constants were loaded; 0 if they were there.
    pub load_ns: u64,
    /// Number of requests that were computed together, including this one.
    pub batch: u32,
    /// The time of each launch, evicted ones included, in the order in which launches ended, up to
    /// [`LAUNCH_TIMES_MAX`](crate::limits::LAUNCH_TIMES_MAX). Empty unless
    /// [`ChainRequest::times_launches`] is set.
    pub launches: Vec<LaunchTime>,
}

/// The time of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchTime {
    /// Index of the call in [`ChainRequest::stages`].
    pub stage: usize,
    /// Index of the node in the function's graph.
    pub node: u32,
    /// Blocks of its grid.
    pub blocks: u64,
    /// Start of its first block, in monotonic nanoseconds.
    pub started_ns: u64,
    /// End of its last block.
    pub ended_ns: u64,
    /// Time that compute units ran its blocks, summed over the compute units, in nanoseconds.
    pub busy_ns: u64,
}

/// How the time of an invocation was spent. The four parts add up to the time from
/// [`crate::EngineHandle::submit`] to the reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InvocationTiming {
    /// Waiting: for its turn, for memory, and for the device once the inputs are in place.
    pub queue_ns: u64,
    /// Binding memory and writing inputs.
    pub input_ns: u64,
    /// From the start of the first block to the end of the last, pauses included.
    pub compute_ns: u64,
    /// From the end of the last block to the reply: handling the completion and reading outputs.
    pub output_ns: u64,
}

/// Receives the result. Called exactly once, on the submitting thread or a thread of the engine, so
/// it must neither block nor panic: pass the result on and return.
pub type Reply = Box<dyn FnOnce(Result<InvocationResult, InvokeError>) + Send>;

/// Ensures that a [`Reply`] is called: if it is dropped unanswered, it answers
/// [`InvokeError::ShuttingDown`]. A step of a session ends before its reply is called.
pub(crate) struct PendingReply(Option<(Reply, Option<Step>)>);

impl PendingReply {
    pub(crate) fn new(reply: Reply) -> PendingReply {
        PendingReply(Some((reply, None)))
    }

    /// The reply of a session's step.
    pub(crate) fn to_step(reply: Reply, step: Step) -> PendingReply {
        PendingReply(Some((reply, Some(step))))
    }

    /// A reply that was already sent.
    pub(crate) fn answered() -> PendingReply {
        PendingReply(None)
    }

    pub(crate) fn send(mut self, answer: Result<InvocationResult, InvokeError>) {
        self.give(answer);
    }

    fn give(&mut self, answer: Result<InvocationResult, InvokeError>) {
        if let Some((reply, step)) = self.0.take() {
            if let Some(step) = step {
                step.end(answer.is_ok());
            }
            reply(answer);
        }
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        self.give(Err(InvokeError::ShuttingDown));
    }
}
