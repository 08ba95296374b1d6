//! Strings of a model: kernels compute with their codes ([`atoll_kgraph::strings`]). Equal strings
//! have equal codes, so operators that only move elements or compare them for equality work on
//! codes.

use super::error::{ImportError, LowerError, LowerResult};
use super::lowering::Lowering;
use super::proto::TensorProto;
use super::read::{self, Literal};
use crate::tensor::Tensor;
use crate::tensor_graph::ValueId;
use atoll_kgraph::DType;
use atoll_kgraph::limits::{STRING_TABLE_BYTES_MAX, STRING_TABLE_MAX};
use std::collections::HashMap;

/// The codes of the strings in the graph's table.
#[derive(Default)]
pub(super) struct StringCodes {
    codes: HashMap<String, i64>,
    bytes: usize,
}

impl Lowering {
    /// Notes that the graph has strings: its table then has the empty string, whose code is 0.
    pub(super) fn use_strings(&mut self) {
        if self.graph.strings.table.is_empty() {
            self.graph.strings.table.push(String::new());
            self.string_codes.codes.insert(String::new(), 0);
        }
    }

    /// The code of a string that the model names.
    pub(crate) fn string_code(&mut self, text: &str) -> LowerResult<i64> {
        self.use_strings();
        if let Some(code) = self.string_codes.codes.get(text) {
            return Ok(*code);
        }
        let code = self.graph.strings.table.len();
        self.string_codes.bytes += text.len();
        if code >= STRING_TABLE_MAX || self.string_codes.bytes > STRING_TABLE_BYTES_MAX {
            return Err(LowerError::TooLarge {
                what: "the strings of the model, up to a constant".into(),
                found: format!("{} strings with {} bytes", code + 1, self.string_codes.bytes),
                limit: format!("{STRING_TABLE_MAX} strings with {STRING_TABLE_BYTES_MAX} bytes"),
            });
        }
        self.graph.strings.table.push(text.to_owned());
        self.string_codes.codes.insert(text.to_owned(), code as i64);
        Ok(code as i64)
    }

    /// The codes of a list of strings, as a vector.
    pub(crate) fn strings(&mut self, texts: &[String]) -> LowerResult<Tensor> {
        let codes = texts.iter().map(|text| self.string_code(text)).collect::<LowerResult<Vec<i64>>>()?;
        Ok(Tensor::ints(DType::Strings, vec![texts.len()], codes))
    }

    /// A tensor of the model; the elements of one with strings are their codes.
    pub(super) fn stored_tensor(
        &mut self,
        tensor: &TensorProto,
        name: &str,
        folder: Option<&std::path::Path>,
    ) -> Result<Literal, ImportError> {
        if !read::has_strings(tensor) {
            return read::read_tensor(tensor, name, folder);
        }
        let (shape, texts) = read::read_strings(tensor, name)?;
        let codes = self.strings(&texts).map_err(|error| error.at(name, "Constant"))?;
        Ok(Literal { dtype: codes.dtype, shape, bytes: codes.to_bytes() })
    }

    /// A tensor in an attribute; external data is not supported there.
    pub(crate) fn attribute_tensor(&mut self, tensor: &TensorProto, name: &str) -> LowerResult<Literal> {
        self.stored_tensor(tensor, name, None).map_err(LowerError::in_attribute)
    }

    /// Whether the elements of a value are strings.
    pub(crate) fn has_strings(&self, id: ValueId) -> bool {
        self.dtype(id) == DType::Strings
    }
}
