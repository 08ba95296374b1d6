//! Sequences and optionals as inputs of the model. The number of their tensors is known at compile
//! time: each tensor is an input of its own, named after the list and its position.

use super::error::ImportError;
use super::known_sizes::KnownSizes;
use super::proto::{ElementTypeProto, TensorTypeProto, TypeProto, ValueInfoProto};

/// Largest number of tensors of a sequence that is an input.
const TENSORS_MAX: i64 = 1024;

/// An input of the model.
pub(super) enum Form<'m> {
    Tensor(&'m TensorTypeProto),
    /// A sequence of this many tensors.
    Sequence(&'m TensorTypeProto, usize),
    /// An optional without an element.
    Nothing,
}

/// The form of an input. The number of tensors of a list is the size `NAME.length` of the options.
/// An optional has an element unless its length is 0.
pub(super) fn form<'m>(input: &'m ValueInfoProto, known: &mut KnownSizes<'_>) -> Result<Form<'m>, ImportError> {
    let unsupported = || ImportError::DType { what: format!("input {}", input.name), dtype: "a map".into() };
    let ty = input.r#type.as_ref().ok_or_else(unsupported)?;
    if let Some(tensor) = &ty.tensor_type {
        return Ok(Form::Tensor(tensor));
    }
    if let Some(tensor) = element(ty.sequence_type.as_deref()).and_then(|element| element.tensor_type.as_ref()) {
        return sequence(input, tensor, known);
    }
    let element = element(ty.optional_type.as_deref()).ok_or_else(unsupported)?;
    if let Some(tensor) = &element.tensor_type {
        return match known.length(&input.name)? {
            Some(0) => Ok(Form::Nothing),
            Some(1) | None => Ok(Form::Tensor(tensor)),
            Some(_) => Err(refuse(input, "it is an optional tensor, so its length is 0 or 1")),
        };
    }
    let tensor = self::element(element.sequence_type.as_deref()).and_then(|element| element.tensor_type.as_ref());
    let tensor = tensor.ok_or_else(unsupported)?;
    match known.length(&input.name)? {
        Some(0) => Ok(Form::Nothing),
        _ => sequence(input, tensor, known),
    }
}

fn element(list: Option<&ElementTypeProto>) -> Option<&TypeProto> {
    list?.elem_type.as_deref()
}

fn sequence<'m>(
    input: &ValueInfoProto,
    tensor: &'m TensorTypeProto,
    known: &mut KnownSizes<'_>,
) -> Result<Form<'m>, ImportError> {
    let name = &input.name;
    if tensor.shape.is_none() {
        return Err(refuse(input, "it is a sequence of tensors whose shape the model does not give"));
    }
    match known.length(name)? {
        Some(length @ 0..=TENSORS_MAX) => Ok(Form::Sequence(tensor, length as usize)),
        Some(_) => Err(refuse(input, &format!("a sequence may have at most {TENSORS_MAX} tensors"))),
        None => Err(refuse(
            input,
            &format!("it is a sequence; fix the number of its tensors, for example `--fix {name}.length=2`"),
        )),
    }
}

fn refuse(input: &ValueInfoProto, reason: &str) -> ImportError {
    ImportError::Unsupported { node: input.name.clone(), operator: "input".into(), reason: reason.into() }
}
