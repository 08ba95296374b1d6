//! A request that is the bytes of one input, without JSON: Triton's raw binary request.

use super::request::InferRequest;
use crate::datatype::DataType;
use crate::error::ProtocolError;
use crate::model::TensorMetadata;
use crate::parameters::Parameters;
use crate::tensor::Tensor;

impl InferRequest {
    /// The request for a body without JSON ([`crate::JSON_LENGTH_HEADER`] is 0): the body is the
    /// only input of the model, and one open dimension of its shape follows from its length. If
    /// there are more and rows are the first dimension (`has_rows`), the request has one row. A
    /// BYTES input is one string. All outputs are answered in binary.
    ///
    /// # Errors
    /// If the model has other than one input, or its shape does not follow.
    pub fn of_raw(inputs: &[TensorMetadata], has_rows: bool, body: &[u8]) -> Result<InferRequest, ProtocolError> {
        let [input] = inputs else { return Err(ProtocolError::Raw { inputs: inputs.len() }) };
        let TensorMetadata { name, datatype, shape, .. } = input;
        let refused = |reason: String| {
            let hint = "send its shape in JSON, with the header Inference-Header-Content-Length";
            ProtocolError::tensor(name, format!("{reason}; {hint}"))
        };
        let mut shape = shape.clone();
        let is_open = |size: &&mut i64| **size < 0;
        if has_rows && shape.iter().filter(|size| **size < 0).count() > 1 {
            shape.iter_mut().take(1).filter(is_open).for_each(|rows| *rows = 1);
        }
        let (count, bytes) = match datatype.element_bytes() {
            Some(size) if body.len().is_multiple_of(size) => (body.len() / size, body.to_vec()),
            Some(_) => return Err(refused(format!("the {} bytes of the body are no whole {datatype}", body.len()))),
            None => (1, Tensor::string_bytes([body].into_iter())),
        };
        let known: Option<usize> = shape
            .iter()
            .filter(|size| **size >= 0)
            .try_fold(1_usize, |known, size| known.checked_mul(usize::try_from(*size).ok()?));
        let open: Vec<&mut i64> = shape.iter_mut().filter(is_open).collect();
        match (open.len(), known) {
            (0, _) => {}
            (1, Some(known)) if known > 0 && count.is_multiple_of(known) => {
                let size = i64::try_from(count / known).unwrap_or(i64::MAX);
                open.into_iter().for_each(|open| *open = size);
            }
            (_, _) if *datatype == DataType::Bytes => open.into_iter().for_each(|open| *open = 1),
            (1, _) => {
                let reason = format!("{count} elements do not fill whole rows of shape {:?}", input.shape);
                return Err(refused(reason));
            }
            _ => return Err(refused(format!("shape {:?} has several open sizes", input.shape))),
        }
        let mut parameters = Parameters::default();
        parameters.set("binary_data_output", true);
        let inputs = vec![Tensor::new(name.clone(), *datatype, shape, bytes)?];
        Ok(InferRequest { parameters, inputs, ..InferRequest::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(datatype: DataType, shape: &[i64], has_rows: bool, bytes: usize) -> Result<Vec<i64>, String> {
        let input = TensorMetadata { name: "x".into(), datatype, shape: shape.to_vec(), symbols: Vec::new() };
        let request = InferRequest::of_raw(&[input], has_rows, &vec![7; bytes]).map_err(|error| error.to_string())?;
        assert_eq!(request.parameters.boolean("binary_data_output"), Ok(Some(true)));
        Ok(request.inputs[0].shape.clone())
    }

    #[test]
    fn one_open_size_follows_from_the_length() {
        use DataType::{Bytes, Fp32};
        assert_eq!(shape(Fp32, &[2, 2], false, 16), Ok(vec![2, 2]));
        assert_eq!(shape(Fp32, &[-1, 4], true, 32), Ok(vec![2, 4]));
        assert_eq!(shape(Fp32, &[2, -1], false, 32), Ok(vec![2, 4]));
        assert_eq!(shape(Fp32, &[-1, -1], true, 12), Ok(vec![1, 3]));
        assert_eq!(shape(Fp32, &[], false, 4), Ok(vec![]));
        assert_eq!(shape(Bytes, &[-1, 1], true, 5), Ok(vec![1, 1]));
        assert_eq!(shape(Bytes, &[-1, -1], false, 5), Ok(vec![1, 1]));
    }

    #[test]
    fn other_bodies_are_refused_with_the_reason() {
        use DataType::{Bytes, Fp32};
        for (datatype, sizes, bytes, expected) in [
            (Fp32, &[2, 2][..], 12, "needs 16 bytes"),
            (Fp32, &[-1, 4], 17, "are no whole FP32"),
            (Fp32, &[-1, 4], 20, "5 elements do not fill whole rows of shape [-1, 4]"),
            (Fp32, &[-1, 0], 4, "do not fill"),
            (Fp32, &[-1, -1], 4, "has several open sizes"),
            (Bytes, &[2], 4, "it has 1 strings"),
        ] {
            let error = shape(datatype, sizes, false, bytes).unwrap_err();
            assert!(error.contains(expected), "{sizes:?}: {error}");
        }
        let none = InferRequest::of_raw(&[], false, b"").unwrap_err().to_string();
        assert!(none.contains("a model with one input, and this one has 0"), "{none}");
    }
}
