//! What a client of the engine sends and gets.

use crate::config::FunctionKey;
use crate::error::InvokeError;
use crate::session::Step;
use atoll_core::Class;
use atoll_kgraph::{DType, InputForm};
use std::time::Duration;

/// Names an invocation for as long as the engine lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InvocationId(pub u64);

/// One call of a function.
#[derive(Clone, Debug)]
pub struct InvocationRequest {
    /// The function.
    pub function: FunctionKey,
    /// The inputs, in the order of the graph's input buffers.
    pub inputs: Vec<InputTensor>,
    /// The class; the function's own where `None`.
    pub class: Option<Class>,
    /// Of two invocations of a class the one with the lower number is more urgent, except where the
    /// policy goes by deadlines.
    pub priority: u32,
    /// How long from now on the result is wanted. When it has passed, the invocation is answered
    /// with [`InvokeError::DeadlineExceeded`] and the device is given to others.
    pub deadline: Option<Duration>,
}

/// Functions called one after the other as one invocation, of which later ones may take outputs of
/// earlier ones. Such a tensor never leaves the device.
#[derive(Clone, Debug)]
pub struct ChainRequest {
    /// The calls, in order; at least one.
    pub stages: Vec<StageRequest>,
    /// The class; the first function's own where `None`.
    pub class: Option<Class>,
    /// As [`InvocationRequest::priority`].
    pub priority: u32,
    /// As in [`InvocationRequest::deadline`], for all calls together.
    pub deadline: Option<Duration>,
    /// Whether the answer is to tell how long each launch took.
    pub times_launches: bool,
}

/// One call in a chain.
#[derive(Clone, Debug)]
pub struct StageRequest {
    /// The function.
    pub function: FunctionKey,
    /// The inputs, in the order of the graph's input buffers.
    pub inputs: Vec<StageInput>,
    /// The outputs that are to come back, as indices in the order of the graph's output buffers;
    /// all where `None`.
    pub outputs: Option<Vec<usize>>,
}

/// Where a call takes an input from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageInput {
    /// The client sends it.
    Tensor(InputTensor),
    /// An earlier call made it: the index of the call and of its output.
    Output {
        /// Index in [`ChainRequest::stages`].
        stage: usize,
        /// Index in the order of the graph's output buffers.
        output: usize,
    },
}

impl From<InvocationRequest> for ChainRequest {
    fn from(request: InvocationRequest) -> ChainRequest {
        let inputs = request.inputs.into_iter().map(StageInput::Tensor).collect();
        let stage = StageRequest { function: request.function, inputs, outputs: None };
        let InvocationRequest { class, priority, deadline, .. } = request;
        ChainRequest { stages: vec![stage], class, priority, deadline, times_launches: false }
    }
}

/// A tensor from a client: dense, row-major, little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputTensor {
    /// Type of its elements; `None` for strings, which no function takes.
    pub dtype: Option<DType>,
    /// Dimensions, outermost first.
    pub shape: Vec<i64>,
    /// Its elements.
    pub bytes: Vec<u8>,
}

impl InputTensor {
    /// What is checked of it.
    pub fn form(&self) -> InputForm<'_> {
        InputForm { dtype: self.dtype, shape: &self.shape, bytes: self.bytes.len() as u64, data: Some(&self.bytes) }
    }
}

/// A tensor to a client: dense, row-major, little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputTensor {
    /// Dimensions, outermost first.
    pub shape: Vec<i64>,
    /// Its elements.
    pub bytes: Vec<u8>,
}

/// What a call gives.
#[derive(Clone, Debug)]
pub struct InvocationResult {
    /// The outputs, in the order of the graph's output buffers; of a chain those that were asked
    /// for, call by call.
    pub outputs: Vec<OutputTensor>,
    /// Where the time went.
    pub timing: InvocationTiming,
    /// When it reached the engine's thread, and with it the scheduler, by the clock of
    /// [`LaunchTime`].
    pub entered_ns: u64,
    /// How often its launches were told to leave the device for others.
    pub preemptions: u32,
    /// What each launch took, in the order of their ends, those that left early included; empty
    /// unless [`ChainRequest::times_launches`].
    pub launches: Vec<LaunchTime>,
}

/// What a launch took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchTime {
    /// Index of the call in [`ChainRequest::stages`].
    pub stage: usize,
    /// Index of the node in the function's graph.
    pub node: u32,
    /// Blocks of its grid.
    pub blocks: u64,
    /// When its first block started, in monotonic nanoseconds.
    pub started_ns: u64,
    /// When its last block ended.
    pub ended_ns: u64,
    /// How long compute units ran blocks of it, summed over the compute units, in nanoseconds.
    pub busy_ns: u64,
}

/// Where the time of an invocation went; the four add up to the time from
/// [`crate::EngineHandle::submit`] to the reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InvocationTiming {
    /// Waiting: for its turn, for memory, and for the device after the inputs were in place.
    pub queue_ns: u64,
    /// Binding memory and writing inputs.
    pub input_ns: u64,
    /// From the start of the first block to the end of the last, pauses included.
    pub compute_ns: u64,
    /// Reading outputs, and hearing of the end.
    pub output_ns: u64,
}

/// Takes the answer. Called exactly once, on the submitting thread or on the engine's, so it must
/// neither block nor panic: hand the answer on and return.
pub type Reply = Box<dyn FnOnce(Result<InvocationResult, InvokeError>) + Send>;

/// Keeps the promise of [`Reply`]: an answer that nobody gave by the time this is dropped is
/// [`InvokeError::ShuttingDown`]. A step of a session is over before its answer is given.
pub(crate) struct PendingReply(Option<(Reply, Option<Step>)>);

impl PendingReply {
    pub(crate) fn new(reply: Reply) -> PendingReply {
        PendingReply(Some((reply, None)))
    }

    /// The answer to a step.
    pub(crate) fn to_step(reply: Reply, step: Step) -> PendingReply {
        PendingReply(Some((reply, Some(step))))
    }

    /// Of which nothing is expected.
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
