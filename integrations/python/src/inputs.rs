//! Tensors from Python and to Python.

use crate::elements::Elements;
use crate::errors::invalid;
use atoll_client::{DataType, RingInput, Tensor};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;

/// An input as Python passes it: name, type, shape, and an object with the elements as a
/// contiguous buffer.
pub(crate) type Given<'py> = (String, String, Vec<i64>, Bound<'py, PyAny>);

/// An output as Python gets it: name, type, shape and elements.
pub(crate) type Output = (String, &'static str, Vec<i64>, Elements);

/// An input. It keeps the buffer from being freed or resized.
pub(crate) struct Input {
    pub(crate) name: String,
    datatype: DataType,
    shape: Vec<i64>,
    buffer: PyUntypedBuffer,
}

impl Input {
    fn new((name, datatype, shape, data): Given<'_>) -> PyResult<Input> {
        let refused = |message: String| invalid(data.py(), format!("input `{name}`: {message}"));
        let datatype = datatype.parse::<DataType>().map_err(|error| refused(error.to_string()))?;
        let buffer = PyUntypedBuffer::get(&data)?;
        if !buffer.is_c_contiguous() {
            return Err(refused("its elements are not contiguous".into()));
        }
        Ok(Input { name, datatype, shape, buffer })
    }

    pub(crate) fn all(given: Vec<Given<'_>>) -> PyResult<Vec<Input>> {
        given.into_iter().map(Input::new).collect()
    }

    /// The elements, as long as this thread holds the interpreter.
    fn bytes<'a>(&'a self, _attached: Python<'a>) -> &'a [u8] {
        if self.buffer.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: the buffer is contiguous, has this many bytes and stays allocated until it is
        // dropped. This thread holds the interpreter and runs no Python code meanwhile, so no other
        // code of Python writes into it.
        unsafe { std::slice::from_raw_parts(self.buffer.buf_ptr().cast::<u8>(), self.buffer.len_bytes()) }
    }

    /// The input for a ring, which copies the elements into its memory.
    pub(crate) fn borrowed<'a>(&'a self, py: Python<'a>) -> RingInput<'a> {
        RingInput { name: &self.name, datatype: self.datatype, shape: &self.shape, bytes: self.bytes(py) }
    }

    /// A copy of the input.
    pub(crate) fn tensor(&self, py: Python<'_>) -> Tensor {
        Tensor { datatype: self.datatype, shape: self.shape.clone(), bytes: self.bytes(py).to_vec() }
    }
}

/// An output, without a copy of its elements.
pub(crate) fn output(name: String, tensor: Tensor) -> Output {
    (name, tensor.datatype.name(), tensor.shape, Elements::new(tensor.bytes))
}
