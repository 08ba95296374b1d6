//! Generation of tokens: a request to a decoder runs it once for each token.
//!
//! A decoder is a model that keeps its past keys and values as state. The first step has the prompt
//! of the request. Each further step has the token with the largest logit of the step before. All
//! steps of a request belong to one session, which ends with the request.
//!
//! This module makes the inputs of each step and reads its result; `requests/steps.rs` runs the
//! steps.

use crate::tensors::dtype_of;
use atoll_engine::{InputTensor, InvokeError, OutputTensor};
use atoll_kgraph::SymbolSpec;
use atoll_protocol::{DataType, Parameters, ProtocolError, TensorMetadata, to_f64};
use serde::Deserialize;
use std::num::NonZeroU32;
use std::sync::Arc;

/// The input with the tokens of a step.
const TOKENS: &str = "input_ids";

/// The output of a decoder with the scores of all tokens. If a model has none of this name, its
/// first output is used.
const LOGITS: &str = "logits";

/// The output that clients get.
pub(crate) const GENERATED: &str = "output_ids";

/// Tokens of an answer if the request states no `max_tokens`, as with other servers of language
/// models.
const TOKENS_DEFAULT: u64 = 16;

/// Settings of a model that generates tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GenerationSettings {
    /// Most tokens that a request may ask for; 1024 if absent.
    #[serde(default = "max_tokens_default")]
    pub(crate) max_tokens: NonZeroU32,
    /// The token that ends an answer; requests may name another one. If absent, answers end after
    /// `max_tokens` of the request.
    pub(crate) end_token: Option<u32>,
}

fn max_tokens_default() -> NonZeroU32 {
    NonZeroU32::new(1024).unwrap_or(NonZeroU32::MIN)
}

/// What an input has in each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// The tokens of the step.
    Tokens,
    /// A one for each token of the session.
    Mask,
    /// The positions of the tokens in the session.
    Positions,
    /// What the client sent, by its index among the inputs that clients send.
    Sent(usize),
}

/// How a model generates tokens.
#[derive(Debug)]
pub(crate) struct Decoder {
    settings: GenerationSettings,
    /// The content and the type of each input of the function.
    inputs: Vec<(Content, DataType)>,
    /// The index of the tokens among the inputs that clients send.
    tokens: usize,
    /// Most tokens of a step. Longer prompts are refused before inputs are made for them.
    step_tokens_max: i64,
    /// The index and the type of the output with the logits.
    logits: (usize, DataType),
}

impl Decoder {
    /// Finds the tensors of a decoder among those of a model with these symbols.
    ///
    /// # Errors
    /// If the model is no decoder, with the reason.
    pub(crate) fn of(
        settings: GenerationSettings,
        inputs: &[TensorMetadata],
        outputs: &[TensorMetadata],
        symbols: &[SymbolSpec],
    ) -> Result<Decoder, String> {
        let contents = inputs.iter().enumerate().map(|(at, input)| {
            let sent = inputs[..at].iter().filter(|before| is_sent(before)).count();
            content(input, sent).map(|content| (content, input.datatype))
        });
        let contents = contents.collect::<Result<Vec<_>, String>>()?;
        let tokens = inputs.iter().filter(|input| is_sent(input)).position(|input| input.name == TOKENS);
        let tokens = tokens.ok_or_else(|| {
            format!("generation needs an input `{TOKENS}` with the tokens of a step; the model has {}", names(inputs))
        })?;
        let index = outputs.iter().position(|output| output.name == LOGITS).unwrap_or(0);
        let logits = outputs.get(index).filter(|output| output.shape.len() == 3 && is_float(output.datatype));
        let logits = logits.ok_or_else(|| {
            format!(
                "generation needs an output `{LOGITS}` of floating point with the shape [1, tokens, vocabulary]; the \
                 model has {}",
                names(outputs)
            )
        })?;
        let step_tokens_max =
            inputs.iter().find(|input| input.name == TOKENS).and_then(|it| tokens_max_of(it, symbols));
        Ok(Decoder {
            settings,
            inputs: contents,
            tokens,
            step_tokens_max: step_tokens_max.unwrap_or(i64::MAX),
            logits: (index, logits.datatype),
        })
    }

    /// Those inputs of the model that clients send.
    pub(crate) fn client_inputs(inputs: &[TensorMetadata]) -> Vec<TensorMetadata> {
        inputs.iter().filter(|input| is_sent(input)).cloned().collect()
    }

    /// The output that clients get.
    pub(crate) fn client_output() -> TensorMetadata {
        TensorMetadata { name: GENERATED.into(), datatype: DataType::Int64, shape: vec![1, -1], symbols: Vec::new() }
    }

    /// Begins the answer to a request with these inputs, which clients sent.
    ///
    /// # Errors
    /// If the prompt is not one row of tokens, or a parameter has no possible value.
    pub(crate) fn begin(
        self: &Arc<Decoder>,
        sent: Vec<InputTensor>,
        parameters: &Parameters,
    ) -> Result<Generation, ProtocolError> {
        let most = u64::from(self.settings.max_tokens.get());
        let asked = parameters.unsigned("max_tokens")?.unwrap_or(TOKENS_DEFAULT.min(most));
        if !(1..=most).contains(&asked) {
            let reason = format!("{asked} is not in the range of this model, 1 to {most}");
            return Err(ProtocolError::Parameter { name: "max_tokens".into(), reason });
        }
        let end_token = parameters.unsigned("end_token")?.or(self.settings.end_token.map(u64::from));
        let step = self.prompt(&sent)?;
        Ok(Generation {
            decoder: self.clone(),
            sent,
            step,
            past: 0,
            generated: Vec::new(),
            max_tokens: asked as usize,
            // A larger number is no token of any model.
            end_token: end_token.and_then(|token| i64::try_from(token).ok()),
        })
    }

    /// The tokens of the prompt.
    fn prompt(&self, sent: &[InputTensor]) -> Result<Vec<i64>, ProtocolError> {
        let datatype =
            self.inputs.iter().find(|(content, _)| *content == Content::Tokens).map_or(DataType::Int64, |it| it.1);
        let refused = |reason: String| ProtocolError::Tensor { name: TOKENS.into(), reason };
        let Some(tokens) = sent.get(self.tokens) else { return Err(refused("it is missing".into())) };
        if tokens.dtype != dtype_of(datatype) {
            return Err(refused(format!("its type has to be {datatype}")));
        }
        if tokens.shape.len() != 2 || tokens.shape[0] != 1 || tokens.shape[1] < 1 {
            return Err(refused(format!(
                "it has the shape {:?}; a prompt is one row of at least one token, with the shape [1, tokens]",
                tokens.shape
            )));
        }
        if tokens.shape[1] > self.step_tokens_max {
            let (count, most) = (tokens.shape[1], self.step_tokens_max);
            return Err(refused(format!("it has {count} tokens; the model takes at most {most} at once")));
        }
        Ok(integers(datatype, &tokens.bytes))
    }
}

/// The largest number of tokens in an input, if a symbol of the model says it.
fn tokens_max_of(input: &TensorMetadata, symbols: &[SymbolSpec]) -> Option<i64> {
    let name = input.symbols.get(1).filter(|name| !name.is_empty())?;
    symbols.iter().find(|symbol| symbol.name == *name).map(|symbol| symbol.max)
}

/// The content of an input in each step. `sent` is its index among the inputs that clients send.
fn content(input: &TensorMetadata, sent: usize) -> Result<Content, String> {
    let Some(content) = made(&input.name) else { return Ok(Content::Sent(sent)) };
    let TensorMetadata { name, datatype, shape, .. } = input;
    match matches!(datatype, DataType::Int64 | DataType::Int32) && shape.len() == 2 {
        true => Ok(content),
        false => Err(format!(
            "generation fills in the input `{name}`, which has to be INT64 or INT32 with two dimensions, and it is \
             {datatype} with {}",
            shape.len()
        )),
    }
}

/// The content of an input that is made for each step; `None` for other inputs.
fn made(input: &str) -> Option<Content> {
    match input {
        TOKENS => Some(Content::Tokens),
        "attention_mask" => Some(Content::Mask),
        "position_ids" => Some(Content::Positions),
        _ => None,
    }
}

/// Whether clients send an input.
fn is_sent(input: &TensorMetadata) -> bool {
    matches!(made(&input.name), None | Some(Content::Tokens))
}

fn is_float(datatype: DataType) -> bool {
    matches!(datatype, DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64)
}

fn names(tensors: &[TensorMetadata]) -> String {
    let names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// The elements of a tensor of INT32 or INT64.
fn integers(datatype: DataType, bytes: &[u8]) -> Vec<i64> {
    match datatype {
        DataType::Int32 => bytes.as_chunks().0.iter().map(|bytes| i64::from(i32::from_le_bytes(*bytes))).collect(),
        _ => bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect(),
    }
}

/// A tensor of one row of INT32 or INT64.
fn row(datatype: DataType, values: impl ExactSizeIterator<Item = i64>) -> InputTensor {
    let shape = vec![1, values.len() as i64];
    let bytes = match datatype {
        // Tokens and positions of a model that takes INT32 are INT32.
        DataType::Int32 => values.flat_map(|value| (value as i32).to_le_bytes()).collect(),
        _ => values.flat_map(i64::to_le_bytes).collect(),
    };
    InputTensor { dtype: dtype_of(datatype), shape, bytes }
}

/// A token that was generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) id: i64,
    /// Whether the answer ends with it.
    pub(crate) is_last: bool,
}

/// The answer to a request, as far as it is generated.
#[derive(Debug)]
pub(crate) struct Generation {
    decoder: Arc<Decoder>,
    /// The inputs that the client sent.
    sent: Vec<InputTensor>,
    /// The tokens of the next step.
    step: Vec<i64>,
    /// Tokens of the steps before.
    past: usize,
    generated: Vec<i64>,
    /// Most tokens of the answer.
    max_tokens: usize,
    /// The token that ends the answer.
    end_token: Option<i64>,
}

impl Generation {
    /// The inputs of the next step, in the order of the function.
    pub(crate) fn inputs(&self) -> Vec<InputTensor> {
        let count = self.step.len();
        let one = |&(content, datatype): &(Content, DataType)| match content {
            Content::Tokens => row(datatype, self.step.iter().copied()),
            Content::Mask => row(datatype, vec![1; self.past + count].into_iter()),
            Content::Positions => row(datatype, (self.past..self.past + count).map(|at| at as i64)),
            Content::Sent(index) => self.sent[index].clone(),
        };
        self.decoder.inputs.iter().map(one).collect()
    }

    /// Notes the outputs of the step, and returns the token that it generated.
    ///
    /// # Errors
    /// If the model gave no logits, or none that is a number.
    pub(crate) fn note(&mut self, outputs: &[OutputTensor]) -> Result<Token, InvokeError> {
        let (index, datatype) = self.decoder.logits;
        let found = outputs.get(index).and_then(|logits| last_row(logits, datatype));
        let id = found.and_then(|row| largest(&to_f64(datatype, row))).ok_or_else(|| {
            let shape = outputs.get(index).map(|logits| logits.shape.clone()).unwrap_or_default();
            InvokeError::BadInput(format!(
                "the model cannot generate a token: its logits have the shape {shape:?} and no largest value; the \
                 shape has to be [1, tokens, vocabulary], and a value a number"
            ))
        })?;
        self.past += self.step.len();
        self.step = vec![id];
        self.generated.push(id);
        Ok(Token { id, is_last: self.generated.len() >= self.max_tokens || self.end_token == Some(id) })
    }

    /// The output of the answer: all tokens.
    pub(crate) fn output(&self) -> OutputTensor {
        let bytes = self.generated.iter().flat_map(|id| id.to_le_bytes()).collect();
        OutputTensor { shape: vec![1, self.generated.len() as i64], bytes }
    }
}

/// The bytes of the logits of the last token.
fn last_row(logits: &OutputTensor, datatype: DataType) -> Option<&[u8]> {
    let [1, tokens, vocabulary] = logits.shape[..] else { return None };
    if tokens < 1 || vocabulary < 1 {
        return None;
    }
    let row = usize::try_from(vocabulary).ok()?.checked_mul(datatype.element_bytes()?)?;
    let start = usize::try_from(tokens - 1).ok()?.checked_mul(row)?;
    logits.bytes.get(start..start.checked_add(row)?)
}

/// The position of the first of the largest values; `None` if none is a number.
fn largest(values: &[f64]) -> Option<i64> {
    let numbers = values.iter().enumerate().filter(|(_, value)| !value.is_nan());
    let best = numbers.reduce(|best, other| if other.1 > best.1 { other } else { best });
    best.map(|(at, _)| at as i64)
}

#[cfg(test)]
mod tests;
