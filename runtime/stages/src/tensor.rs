//! Tensors of calls.

use atoll_protocol::{DataType, strings};
use serde::{Deserialize, Serialize};

/// Element type and shape of a tensor, outermost dimension first; -1 is a size that a call chooses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Form {
    /// The element type.
    pub datatype: DataType,
    /// The sizes.
    pub shape: Vec<i64>,
}

impl Form {
    /// The number of bytes of a tensor of this form. `None` for strings, if a size is not known, or
    /// if the number is too large.
    pub fn bytes(&self) -> Option<usize> {
        let count = self.shape.iter().try_fold(1_usize, |count, &size| count.checked_mul(usize::try_from(size).ok()?));
        count?.checked_mul(self.datatype.element_bytes()?)
    }

    /// Whether a tensor of the form `found` may be used where this form is declared.
    pub fn admits(&self, found: &Form) -> bool {
        let agrees = |(declared, size): (&i64, &i64)| *declared < 0 || declared == size;
        self.datatype == found.datatype
            && self.shape.len() == found.shape.len()
            && self.shape.iter().zip(&found.shape).all(agrees)
    }
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:?}", self.datatype, self.shape)
    }
}

/// A tensor: its form, and its elements in row-major order, little-endian. A string of a BYTES
/// tensor is its length as a 32-bit number, and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The form. All sizes are known.
    pub form: Form,
    /// The elements.
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// The bytes of a file or a text: those of a UINT8 tensor, or of the only string of a BYTES
    /// tensor.
    pub(crate) fn content(&self) -> Result<&[u8], String> {
        if self.form.datatype != DataType::Bytes {
            return Ok(&self.bytes);
        }
        let mut all = strings(&self.bytes);
        match (all.next(), all.next()) {
            (Some(Some(only)), None) => Ok(only),
            _ => Err(format!("its input is {}, and has to be one string", self.form)),
        }
    }

    pub(crate) fn of_floats(shape: Vec<i64>, values: &[f32]) -> Tensor {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor { form: Form { datatype: DataType::Fp32, shape }, bytes }
    }

    pub(crate) fn of_bytes(shape: Vec<i64>, bytes: Vec<u8>) -> Tensor {
        Tensor { form: Form { datatype: DataType::Uint8, shape }, bytes }
    }

    pub(crate) fn of_indices(shape: Vec<i64>, values: &[i64]) -> Tensor {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor { form: Form { datatype: DataType::Int64, shape }, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_or_text_is_a_tensor_of_bytes_or_one_string() {
        let of_strings = |shape: &[i64], bytes: &[u8]| {
            let form = Form { datatype: DataType::Bytes, shape: shape.to_vec() };
            Tensor { form, bytes: bytes.to_vec() }.content().map(<[u8]>::to_vec)
        };
        assert_eq!(Tensor::of_bytes(vec![2], b"ab".to_vec()).content(), Ok(&b"ab"[..]));
        assert_eq!(of_strings(&[1], b"\x02\0\0\0ab"), Ok(b"ab".to_vec()));
        assert_eq!(of_strings(&[1, 1], b"\0\0\0\0"), Ok(Vec::new()));
        for (shape, bytes) in [(0, &b""[..]), (2, &b"\x01\0\0\0a\0\0\0\0"[..]), (1, &b"\x02\0\0\0a"[..])] {
            let refused = of_strings(&[shape], bytes).unwrap_err();
            assert_eq!(refused, format!("its input is BYTES[{shape}], and has to be one string"));
        }
    }
}
