//! A named dense tensor.

use crate::datatype::DataType;
use crate::error::ProtocolError;
use crate::limits::RANK_MAX;

/// Dense, row-major, little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name in the model.
    pub name: String,
    /// Type of its elements.
    pub datatype: DataType,
    /// Dimensions, outermost first.
    pub shape: Vec<i64>,
    /// Its elements.
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// A tensor, checked: the bytes must match shape and type.
    pub fn new(
        name: impl Into<String>,
        datatype: DataType,
        shape: Vec<i64>,
        bytes: Vec<u8>,
    ) -> Result<Tensor, ProtocolError> {
        let name = name.into();
        check_bytes(&name, datatype, &shape, &bytes)?;
        Ok(Tensor { name, datatype, shape, bytes })
    }

    /// A tensor of numbers. Each number must be representable in the type.
    pub fn from_f64(
        name: impl Into<String>,
        datatype: DataType,
        shape: Vec<i64>,
        values: &[f64],
    ) -> Result<Tensor, ProtocolError> {
        let name = name.into();
        let bytes = crate::elements::from_f64(&name, datatype, values)?;
        Tensor::new(name, datatype, shape, bytes)
    }

    /// The bytes of a tensor of strings.
    pub fn string_bytes<'a>(strings: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
        let mut bytes = Vec::new();
        strings.for_each(|string| push_string(&mut bytes, string));
        bytes
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        element_count(&self.name, &self.shape).unwrap_or(0)
    }
}

/// The product of the dimensions.
pub(crate) fn element_count(name: &str, shape: &[i64]) -> Result<usize, ProtocolError> {
    if shape.len() > RANK_MAX {
        return Err(ProtocolError::tensor(name, format!("has {} dimensions; the limit is {RANK_MAX}", shape.len())));
    }
    if let Some(dimension) = shape.iter().find(|d| **d < 0) {
        return Err(ProtocolError::tensor(name, format!("has a negative dimension {dimension} in shape {shape:?}")));
    }
    let count = shape.iter().try_fold(1_usize, |product, &d| product.checked_mul(usize::try_from(d).ok()?));
    count.ok_or_else(|| ProtocolError::tensor(name, format!("the number of elements of shape {shape:?} overflows")))
}

/// Checks the bytes of the tensor `name`: their number, and of BYTES the strings.
///
/// # Errors
/// They do not match the type and the shape.
pub fn check_bytes(name: &str, datatype: DataType, shape: &[i64], bytes: &[u8]) -> Result<(), ProtocolError> {
    let count = check_size(name, datatype, shape, bytes.len() as u64)?;
    if datatype.element_bytes().is_none() { check_strings(name, count, bytes) } else { Ok(()) }
}

/// Checks that elements of this shape have this many bytes, unless they are strings. Returns the
/// number of elements.
pub(crate) fn check_size(name: &str, datatype: DataType, shape: &[i64], bytes: u64) -> Result<usize, ProtocolError> {
    let count = element_count(name, shape)?;
    let Some(size) = datatype.element_bytes() else { return Ok(count) };
    let needed = count.checked_mul(size);
    if needed.map(|needed| needed as u64) != Some(bytes) {
        let expected = needed.map_or("too many bytes to count".into(), |n| format!("{n} bytes"));
        let reason = format!("has {bytes} bytes, but shape {shape:?} of {datatype} needs {expected}");
        return Err(ProtocolError::tensor(name, reason));
    }
    Ok(count)
}

fn check_strings(name: &str, count: usize, bytes: &[u8]) -> Result<(), ProtocolError> {
    let found = strings(bytes).try_fold(0_usize, |n, string| string.map(|_| n + 1));
    if found != Some(count) {
        let problem = found.map_or("its bytes are not a valid sequence of strings".into(), |found| {
            format!("it has {found} strings, but its shape needs {count}")
        });
        return Err(ProtocolError::tensor(name, problem));
    }
    Ok(())
}

/// The strings of a BYTES tensor. Yields `None` for a string that exceeds the data, and then ends.
pub fn strings(bytes: &[u8]) -> impl Iterator<Item = Option<&[u8]>> {
    let mut rest = Some(bytes);
    std::iter::from_fn(move || {
        let now = rest.filter(|bytes| !bytes.is_empty())?;
        let split = now
            .split_first_chunk::<4>()
            .and_then(|(length, tail)| tail.split_at_checked(u32::from_le_bytes(*length) as usize));
        rest = split.map(|(_, tail)| tail);
        Some(split.map(|(string, _)| string))
    })
}

/// Checks that the strings of an output can be written as JSON.
pub(crate) fn check_text(tensor: &Tensor) -> Result<(), ProtocolError> {
    if tensor.datatype != DataType::Bytes {
        return Ok(());
    }
    let is_text = |string: Option<&[u8]>| string.is_none_or(|bytes| std::str::from_utf8(bytes).is_ok());
    match strings(&tensor.bytes).position(|string| !is_text(string)) {
        Some(index) => {
            let reason = format!(
                "its string {index} is not UTF-8, so JSON cannot hold it; request the output with the parameter \
                 binary_data"
            );
            Err(ProtocolError::tensor(&tensor.name, reason))
        }
        None => Ok(()),
    }
}

/// Adds one string to a BYTES tensor.
pub(crate) fn push_string(out: &mut Vec<u8>, string: &[u8]) {
    // A length above 4 GiB cannot occur, since bodies are limited far below.
    let length = u32::try_from(string.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(string);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_tensor_match_its_shape_and_type() {
        assert!(Tensor::new("t", DataType::Fp32, vec![2, 3], vec![0; 24]).is_ok());
        assert!(Tensor::new("t", DataType::Fp32, vec![], vec![0; 4]).is_ok(), "a scalar");
        assert!(Tensor::new("t", DataType::Fp32, vec![0, 3], vec![]).is_ok());
        for (shape, bytes) in
            [(vec![2, 3], 23), (vec![-1, 3], 12), (vec![i64::MAX, 2], 8), (vec![1 << 62], 8), (vec![1; 17], 4)]
        {
            assert!(Tensor::new("t", DataType::Fp32, shape.clone(), vec![0; bytes]).is_err(), "{shape:?}");
        }
    }

    #[test]
    fn strings_are_counted() {
        let mut bytes = Vec::new();
        push_string(&mut bytes, b"one");
        push_string(&mut bytes, b"");
        assert!(Tensor::new("t", DataType::Bytes, vec![2], bytes.clone()).is_ok());
        assert!(Tensor::new("t", DataType::Bytes, vec![3], bytes.clone()).is_err());
        bytes.truncate(5);
        let message = Tensor::new("t", DataType::Bytes, vec![1], bytes).unwrap_err().to_string();
        assert!(message.contains("not a valid sequence"), "{message}");
    }
}
