//! Strings at the border of the engine: the submitting thread replaces the strings of inputs by
//! their codes and computes the inputs that depend on strings; the reply replaces the codes of
//! outputs by their strings, on a thread of its own if they are large. In between, strings are
//! numbers like any other.

use crate::config::FunctionKey;
use crate::decoding::StringThreads;
use crate::error::InvokeError;
use crate::function::Function;
use crate::request::{ChainRequest, InputTensor, InvocationResult, Reply, StageInput, StageRequest};
use atoll_core::Class;
use atoll_kgraph::strings::{ComputedInput, GivenCodes, Interned, StringError};
use atoll_kgraph::{BufferKind, DType, InputError};
use std::sync::Arc;

/// Largest answer in bytes that the engine's thread decodes itself, which takes it some ten
/// microseconds. Larger ones would delay preemptions.
const DECODED_AT_ONCE_BYTES_MAX: usize = 16 << 10;

/// The strings of a request, for its answer.
pub(crate) struct StringOutputs {
    /// For each tensor of the result, the strings of its call; `None` if it has numbers.
    outputs: Vec<Option<Arc<Interned>>>,
    /// The class of the request.
    class: Class,
}

/// Encodes the strings of a request. Returns the strings for its answer; `None` if the functions
/// that it calls have no strings. Functions that `find` does not find are left to later checks.
pub(crate) fn encode(
    request: &mut ChainRequest,
    find: impl Fn(&FunctionKey) -> Option<Arc<Function>>,
) -> Result<Option<StringOutputs>, InvokeError> {
    // Most functions have no strings, and their requests should not pay for those that have.
    let has_strings = |stage: &StageRequest| find(&stage.function).is_some_and(|it| it.vocabulary.is_some());
    if !request.stages.iter().any(has_strings) {
        return Ok(None);
    }
    let of_first = || find(&request.stages[0].function).map_or(Class::BestEffort, |function| function.class);
    let class = request.class.unwrap_or_else(of_first);
    let mut outputs = Vec::new();
    for stage in &mut request.stages {
        let Some(function) = find(&stage.function) else { return Ok(None) };
        let interned = function.vocabulary.as_ref().map(|vocabulary| Interned::new(Arc::clone(vocabulary)));
        let encoded = interned.map(|interned| {
            check_inputs(stage, &function).map_err(|error| error.to_string())?;
            encode_stage(stage, interned).map_err(|error| error.to_string())
        });
        let interned = encoded.transpose().map_err(|error| {
            function.note_rejected();
            InvokeError::BadInput(format!("function `{}`: {error}", function.key))
        })?;
        let interned = interned.map(Arc::new);
        let count = function.graph().buffers_of(BufferKind::Output).count();
        let of_output = |output: usize| interned.clone().filter(|interned| interned.vocabulary().is_output(output));
        match &stage.outputs {
            Some(wanted) => outputs.extend(wanted.iter().map(|output| of_output(*output))),
            None => outputs.extend((0..count).map(of_output)),
        }
    }
    Ok(outputs.iter().any(Option::is_some).then_some(StringOutputs { outputs, class }))
}

/// Whether [`encode`] may take long: the request has strings, or a function whose inputs are computed.
pub(crate) fn encodes(request: &ChainRequest, find: impl Fn(&FunctionKey) -> Option<Arc<Function>>) -> bool {
    let has_strings = |input: &StageInput| matches!(input, StageInput::Tensor(tensor) if tensor.dtype.is_none());
    let computes = |key: &FunctionKey| find(key).is_some_and(|function| !function.graph().strings.steps.is_empty());
    request.stages.iter().any(|stage| stage.inputs.iter().any(has_strings) || computes(&stage.function))
}

/// Refuses a call that does not give exactly the inputs of clients, since the others are computed
/// and must not come from the client, and a call with numbers instead of strings.
fn check_inputs(stage: &StageRequest, function: &Function) -> Result<(), InputError> {
    let inputs: Vec<_> = function.graph().client_inputs().map(|(_, input)| input).collect();
    if stage.inputs.len() != inputs.len() {
        let takes = inputs.iter().map(|input| input.name.clone()).collect();
        return Err(InputError::Count { given: stage.inputs.len(), takes });
    }
    for (spec, input) in inputs.iter().zip(&stage.inputs) {
        if let StageInput::Tensor(InputTensor { dtype: Some(dtype), shape, .. }) = input
            && spec.dtype == DType::Strings
            && *dtype != DType::Strings
        {
            let (name, found) = (spec.name.clone(), format!("{dtype} {shape:?}"));
            return Err(InputError::Form { name, found, takes: DType::Strings.to_string(), why: String::new() });
        }
    }
    Ok(())
}

fn encode_stage(stage: &mut StageRequest, mut interned: Interned) -> Result<Interned, StringError> {
    for (index, input) in stage.inputs.iter_mut().enumerate() {
        if let StageInput::Tensor(tensor) = input
            && tensor.dtype.is_none()
            && interned.vocabulary().is_input(index)
        {
            tensor.bytes = interned.encode(index, &tensor.bytes)?;
            tensor.dtype = Some(DType::Strings);
        }
    }
    let given: Vec<GivenCodes<'_>> = stage.inputs.iter().map(given).collect();
    let computed = interned.compute(&given)?;
    let tensor = |input: ComputedInput| {
        let dtype = Some(input.dtype);
        StageInput::Tensor(InputTensor { dtype, shape: input.shape, bytes: input.bytes })
    };
    stage.inputs.extend(computed.into_iter().map(tensor));
    Ok(interned)
}

/// An input as steps on strings read it: codes or numbers.
fn given(input: &StageInput) -> GivenCodes<'_> {
    match input {
        StageInput::Tensor(tensor) if tensor.dtype.is_some() => Some((&tensor.shape[..], &tensor.bytes[..])),
        _ => None,
    }
}

impl StringOutputs {
    /// A reply that gets strings instead of their codes.
    pub(crate) fn decoding(self, reply: Reply, threads: Arc<StringThreads>) -> Reply {
        Box::new(move |answer| match answer {
            Ok(result) if self.is_small(&result) => reply(self.decode(result)),
            Ok(result) => threads.run(self.class, Box::new(move || reply(self.decode(result)))),
            Err(error) => reply(Err(error)),
        })
    }

    /// Whether the engine's thread may decode an answer.
    fn is_small(&self, result: &InvocationResult) -> bool {
        let mut left = DECODED_AT_ONCE_BYTES_MAX;
        result.outputs.iter().zip(&self.outputs).all(|(output, interned)| {
            let Some(interned) = interned else { return true };
            let bytes = interned.decoded_bytes(&output.bytes, left);
            left -= bytes.unwrap_or(0);
            bytes.is_some()
        })
    }

    fn decode(&self, mut result: InvocationResult) -> Result<InvocationResult, InvokeError> {
        for (output, interned) in result.outputs.iter_mut().zip(&self.outputs) {
            let Some(interned) = interned else { continue };
            output.bytes = interned.decode(&output.bytes).map_err(|error| match error {
                // The kernels computed it.
                StringError::UnknownCode => InvokeError::Device(error.to_string()),
                error => InvokeError::BadInput(error.to_string()),
            })?;
        }
        Ok(result)
    }
}
