//! The check of a request's tensors against a model.

use super::Model;
use crate::sequences::place::Place;
use crate::tensors::dtype_of;
use atoll_engine::{InputTensor, InvokeError};
use atoll_protocol::{DataType, RequestedOutput, Tensor, TensorMetadata};
use std::num::NonZeroU32;

/// A request whose tensor names match the model. The engine checks datatypes and shapes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fitted {
    /// In the order of the inputs that clients send.
    pub(crate) inputs: Vec<InputTensor>,
    /// In the order of the request.
    pub(crate) outputs: Vec<Wanted>,
}

/// A requested output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Index among the model's outputs.
    pub(crate) index: usize,
    pub(crate) binary: bool,
    pub(crate) classes: Option<usize>,
}

/// Why a request does not match the model. The client is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FitError {
    /// Clients of Triton look for the beginning of the text.
    #[error(
        "unexpected inference {what} '{name}' for model '{model}': the model has no {what} `{name}`; it has {known}"
    )]
    UnknownTensor { model: String, what: &'static str, name: String, known: String },
    #[error(
        "input `{name}` of model `{model}` is optional and cannot be sent: the model has the default of its file as a \
         constant; leave the input out"
    )]
    Default { model: String, name: String },
    #[error("model `{model}` needs input `{missing}`, which is missing in the request")]
    MissingInput { model: String, missing: String },
    #[error("{what} `{name}` is given twice")]
    Twice { what: &'static str, name: String },
    #[error("input `{given}` does not fit model `{model}`, which takes `{known}`")]
    Shape { model: String, given: String, known: String },
    #[error("input `{name}` has {rows} rows, and max_batch_size of the ensemble `{model}` is {limit}; send fewer rows")]
    Rows { model: String, name: String, rows: i64, limit: NonZeroU32 },
    /// The text is Triton's, up to the semicolon.
    #[error(
        "inference request to model '{model}' must specify batch-size 1 due to requirements of sequence batcher; \
         input `{name}` has {rows} rows"
    )]
    RowsOfStep { model: String, name: String, rows: i64 },
}

impl Model {
    /// Sorts the tensors of a request in the order of the inputs that clients send. `binary` applies
    /// to outputs that choose no format.
    pub(crate) fn fit(
        &self,
        tensors: Vec<Tensor>,
        outputs: &[RequestedOutput],
        binary: bool,
    ) -> Result<Fitted, FitError> {
        let mut inputs: Vec<Option<InputTensor>> = self.client_inputs.iter().map(|_| None).collect();
        for tensor in tensors {
            let index = self.input_position(&tensor.name)?;
            if inputs[index].is_some() {
                return Err(FitError::Twice { what: "input", name: tensor.name });
            }
            self.check_rows(&tensor)?;
            let shape = self.inward(index, tensor.datatype, tensor.shape)?;
            inputs[index] = Some(InputTensor { dtype: dtype_of(tensor.datatype), shape, bytes: tensor.bytes });
        }
        if let Some(missing) = inputs.iter().position(Option::is_none) {
            return Err(FitError::MissingInput {
                model: self.name.clone(),
                missing: describe(&self.client_inputs[missing..=missing]),
            });
        }
        Ok(Fitted { inputs: inputs.into_iter().flatten().collect(), outputs: self.wanted(outputs, binary)? })
    }

    /// Adds the control inputs of a request of a sequence to its inputs.
    ///
    /// # Errors
    /// If the model has control inputs and the request has no place in a sequence, or an id that is
    /// no value of its control input.
    pub(crate) fn add_controls(&self, inputs: &mut Vec<InputTensor>, place: Option<&Place>) -> Result<(), InvokeError> {
        if self.controls.is_empty() {
            return Ok(());
        }
        // The text is Triton's, up to the semicolon.
        let none = || {
            InvokeError::BadInput(format!(
                "inference request to model '{}' must specify a non-zero or non-empty correlation ID; set sequence_id",
                self.name
            ))
        };
        let place = place.ok_or_else(none)?;
        for control in &self.controls {
            inputs.insert(control.index, control.tensor(place)?);
        }
        Ok(())
    }

    /// Whether the daemon fills in this input.
    pub(crate) fn is_control(&self, input: &str) -> bool {
        self.controls.iter().any(|control| self.inputs[control.index].name == input)
    }

    /// Checks the rows of an input of an ensemble, or of a model that runs sequences. The engine
    /// checks those of other models.
    fn check_rows(&self, tensor: &Tensor) -> Result<(), FitError> {
        let rows = tensor.shape.first().copied().unwrap_or(0);
        if rows > 1 && self.settings.max_batch_size.is_some() && self.settings.runs_sequences {
            return Err(FitError::RowsOfStep { model: self.name.clone(), name: tensor.name.clone(), rows });
        }
        let limit = self.settings.max_batch_size.filter(|_| self.ensemble.is_some());
        match limit.filter(|limit| rows > i64::from(limit.get())) {
            None => Ok(()),
            Some(limit) => Err(FitError::Rows { model: self.name.clone(), name: tensor.name.clone(), rows, limit }),
        }
    }

    /// Checks the name, datatype and shape of an input before its bytes are read.
    pub(crate) fn fit_shape(&self, name: &str, datatype: DataType, shape: &[i64]) -> Result<(), FitError> {
        let index = self.input_position(name)?;
        let known = &self.client_inputs[index];
        let is_size = |(known, given): (&i64, &i64)| *known < 0 || known == given;
        let fits = known.shape.len() == shape.len() && known.shape.iter().zip(shape).all(is_size);
        if fits && known.datatype == datatype {
            return Ok(());
        }
        Err(self.misfit(index, datatype, shape))
    }

    /// The shape of an input for the function.
    fn inward(&self, input: usize, datatype: DataType, shape: Vec<i64>) -> Result<Vec<i64>, FitError> {
        match self.reshapes.inputs.get(input) {
            Some(Some(reshape)) => reshape.inward(&shape).ok_or_else(|| self.misfit(input, datatype, &shape)),
            _ => Ok(shape),
        }
    }

    fn misfit(&self, input: usize, datatype: DataType, shape: &[i64]) -> FitError {
        let known = &self.client_inputs[input];
        let given = TensorMetadata { datatype, shape: shape.to_vec(), ..known.clone() };
        let describe = |tensor| describe(std::slice::from_ref(tensor));
        FitError::Shape { model: self.name.clone(), given: describe(&given), known: describe(known) }
    }

    fn wanted(&self, outputs: &[RequestedOutput], binary: bool) -> Result<Vec<Wanted>, FitError> {
        if outputs.is_empty() {
            return Ok((0..self.client_outputs.len()).map(|index| Wanted { index, binary, classes: None }).collect());
        }
        let mut wanted: Vec<Wanted> = Vec::with_capacity(outputs.len());
        for output in outputs {
            let index = self.position(&self.client_outputs, "output", &output.name)?;
            if wanted.iter().any(|other| other.index == index) {
                return Err(FitError::Twice { what: "output", name: output.name.clone() });
            }
            wanted.push(Wanted { index, binary: output.binary.unwrap_or(binary), classes: output.classes });
        }
        Ok(wanted)
    }

    /// The position of an input among those that clients send.
    fn input_position(&self, name: &str) -> Result<usize, FitError> {
        let is_default = self.settings.inputs.iter().any(|declared| declared.name == name && declared.optional);
        self.position(&self.client_inputs, "input", name).map_err(|unknown| match is_default {
            true => FitError::Default { model: self.name.clone(), name: name.into() },
            false => unknown,
        })
    }

    fn position(&self, tensors: &[TensorMetadata], what: &'static str, name: &str) -> Result<usize, FitError> {
        tensors.iter().position(|tensor| tensor.name == name).ok_or_else(|| FitError::UnknownTensor {
            model: self.name.clone(),
            what,
            name: name.into(),
            known: describe(tensors),
        })
    }
}

/// Describes tensors for messages, as in `bytes: INT32[-1, 2048], mask: BOOL[]`.
fn describe(tensors: &[TensorMetadata]) -> String {
    let one = |tensor: &TensorMetadata| {
        let shape: Vec<String> = tensor.shape.iter().map(i64::to_string).collect();
        format!("{}: {}[{}]", tensor.name, tensor.datatype, shape.join(", "))
    };
    tensors.iter().map(one).collect::<Vec<_>>().join(", ")
}
