//! Control inputs: inputs of a model that tell it where a request stands in its sequence, and which
//! sequence that is. Clients do not send them; the daemon fills them in, as Triton's sequence
//! batcher does.

use super::place::{Id, Place};
use crate::tensors::dtype_of;
use atoll_engine::{InputTensor, InvokeError};
use atoll_protocol::{DataType, TensorMetadata};

/// A control input as a configuration declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Control {
    /// The input of the model.
    pub(crate) name: String,
    pub(crate) datatype: DataType,
    pub(crate) content: Content,
}

/// The one element of a control input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// One of two values, as bytes: of a flag that is not set, and of one that is.
    Flag { flag: Flag, values: [Vec<u8>; 2] },
    /// The id of the sequence.
    Id,
}

/// What a control input with two values says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    Starts,
    Ends,
    /// Whether there is a request. There always is one: the daemon runs no empty slots.
    IsReady,
}

/// A control input of a loaded model.
#[derive(Clone, Debug)]
pub(crate) struct ControlInput {
    /// Its index among the inputs of the function.
    pub(crate) index: usize,
    control: Control,
    /// How many dimensions it has. The size of each is 1.
    rank: usize,
}

/// Finds the control inputs among the inputs of a model, in the order of the inputs.
///
/// # Errors
/// If the model has no such input, or one with another data type or with more than one element.
pub(crate) fn find(controls: &[Control], inputs: &[TensorMetadata]) -> Result<Vec<ControlInput>, String> {
    let mut found = controls.iter().map(|control| find_one(control, inputs)).collect::<Result<Vec<_>, String>>()?;
    found.sort_by_key(|control| control.index);
    Ok(found)
}

fn find_one(control: &Control, inputs: &[TensorMetadata]) -> Result<ControlInput, String> {
    let name = &control.name;
    let index = inputs.iter().position(|input| input.name == *name).ok_or_else(|| {
        let known: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
        format!(
            "the control input `{name}` of sequence_batching is no input of the model, which has {}",
            known.join(", ")
        )
    })?;
    let TensorMetadata { datatype, shape, .. } = &inputs[index];
    if *datatype != control.datatype {
        return Err(format!(
            "the control input `{name}` of sequence_batching is declared as {}, and the model has {}",
            control.datatype.config_name(),
            datatype.config_name()
        ));
    }
    if !shape.iter().all(|size| [-1, 1].contains(size)) {
        return Err(format!(
            "the control input `{name}` of sequence_batching has the shape {shape:?} in the model, and it gets one \
             element, with the shape [1], or [1, 1] if max_batch_size is above 0"
        ));
    }
    Ok(ControlInput { index, control: control.clone(), rank: shape.len() })
}

impl ControlInput {
    /// The tensor for a request.
    ///
    /// # Errors
    /// If the id of the sequence is not a value of the input's data type.
    pub(crate) fn tensor(&self, place: &Place) -> Result<InputTensor, InvokeError> {
        let Control { name, datatype, content } = &self.control;
        let bytes = match content {
            Content::Flag { flag, values } => values[usize::from(flag.is_set(place))].clone(),
            Content::Id => place.id.bytes(*datatype).ok_or_else(|| {
                InvokeError::BadInput(format!(
                    "sequence_id {} is no value of the control input `{name}`, which has the data type {datatype}",
                    place.id
                ))
            })?,
        };
        Ok(InputTensor { dtype: dtype_of(*datatype), shape: vec![1; self.rank], bytes })
    }
}

impl Flag {
    fn is_set(self, place: &Place) -> bool {
        match self {
            Flag::Starts => place.starts,
            Flag::Ends => place.ends,
            Flag::IsReady => true,
        }
    }
}

impl Id {
    /// The id as an element of this type; `None` if it is no value of the type.
    fn bytes(&self, datatype: DataType) -> Option<Vec<u8>> {
        let number = match self {
            Id::Number(number) => Some(*number),
            Id::Text(_) | Id::Own(_) => None,
        };
        match datatype {
            DataType::Uint64 => Some(number?.to_le_bytes().to_vec()),
            DataType::Int64 => Some(i64::try_from(number?).ok()?.to_le_bytes().to_vec()),
            DataType::Uint32 => Some(u32::try_from(number?).ok()?.to_le_bytes().to_vec()),
            DataType::Int32 => Some(i32::try_from(number?).ok()?.to_le_bytes().to_vec()),
            DataType::Bytes => {
                let text = match self {
                    Id::Number(number) => number.to_string(),
                    Id::Text(text) => text.clone(),
                    Id::Own(_) => return None,
                };
                let length = u32::try_from(text.len()).ok()?;
                Some([&length.to_le_bytes(), text.as_bytes()].concat())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(name: &str, datatype: DataType, shape: &[i64]) -> TensorMetadata {
        TensorMetadata { name: name.into(), datatype, shape: shape.to_vec(), symbols: Vec::new() }
    }

    fn flag(name: &str, flag: Flag) -> Control {
        let values = [0_i32, 7].map(|value| value.to_le_bytes().to_vec());
        Control { name: name.into(), datatype: DataType::Int32, content: Content::Flag { flag, values } }
    }

    fn id(datatype: DataType) -> Control {
        Control { name: "id".into(), datatype, content: Content::Id }
    }

    fn place(json: &str) -> Place {
        Place::of(&serde_json::from_str(json).unwrap()).unwrap().unwrap()
    }

    #[test]
    fn flags_have_the_values_of_the_configuration() {
        let inputs = ["x", "end", "ready", "start"].map(|name| input(name, DataType::Int32, &[-1, 1]));
        let controls = [flag("start", Flag::Starts), flag("end", Flag::Ends), flag("ready", Flag::IsReady)];
        let found = find(&controls, &inputs).unwrap();
        assert_eq!(found.iter().map(|control| control.index).collect::<Vec<_>>(), [1, 2, 3]);
        let values = |json: &str| {
            let tensors = found.iter().map(|control| control.tensor(&place(json)).unwrap());
            tensors.map(|tensor| (tensor.shape, tensor.bytes[0])).collect::<Vec<_>>()
        };
        let of = |end, ready, start| [end, ready, start].map(|value| (vec![1, 1], value)).to_vec();
        assert_eq!(values(r#"{"sequence_id":5,"sequence_start":true}"#), of(0, 7, 7));
        assert_eq!(values(r#"{"sequence_id":5}"#), of(0, 7, 0));
        assert_eq!(values(r#"{"sequence_id":"a","sequence_end":true}"#), of(7, 7, 0));
    }

    #[test]
    fn an_id_has_the_type_of_its_input_or_is_refused() {
        let bytes = |datatype, json: &str| {
            let found = find(&[id(datatype)], &[input("id", datatype, &[1])]).unwrap();
            found[0].tensor(&place(json)).map(|tensor| tensor.bytes).map_err(|error| error.to_string())
        };
        for datatype in [DataType::Int32, DataType::Uint32] {
            assert_eq!(bytes(datatype, r#"{"sequence_id":9}"#).unwrap(), [9, 0, 0, 0]);
        }
        for datatype in [DataType::Int64, DataType::Uint64] {
            assert_eq!(bytes(datatype, r#"{"sequence_id":9}"#).unwrap(), [9, 0, 0, 0, 0, 0, 0, 0]);
        }
        assert_eq!(bytes(DataType::Bytes, r#"{"sequence_id":"ab"}"#).unwrap(), b"\x02\0\0\0ab");
        assert_eq!(bytes(DataType::Bytes, r#"{"sequence_id":12}"#).unwrap(), b"\x02\0\0\x0012");
        for (datatype, json) in [
            (DataType::Int32, r#"{"sequence_id":2147483648}"#),
            (DataType::Int64, r#"{"sequence_id":18446744073709551615}"#),
            (DataType::Uint64, r#"{"sequence_id":"7"}"#),
        ] {
            let refused = bytes(datatype, json).unwrap_err();
            assert!(refused.contains("is no value of the control input `id`"), "{refused}");
        }
    }

    #[test]
    fn a_control_that_does_not_fit_the_model_is_refused() {
        let start = || [flag("start", Flag::Starts)];
        for (inputs, expected) in [
            (input("x", DataType::Int32, &[1]), "`start` of sequence_batching is no input of the model, which has x"),
            (input("start", DataType::Fp32, &[1]), "is declared as TYPE_INT32, and the model has TYPE_FP32"),
            (input("start", DataType::Int32, &[1, 4]), "has the shape [1, 4] in the model, and it gets one element"),
        ] {
            let refused = find(&start(), &[inputs]).unwrap_err();
            assert!(refused.contains(expected), "{refused}");
        }
    }
}
