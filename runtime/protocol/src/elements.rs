//! Tensor elements as JSON and as numbers.

use crate::datatype::DataType;
use crate::error::ProtocolError;
use crate::json::{Float, special};
use crate::limits::DATA_DEPTH_MAX;
use crate::tensor::{push_string, strings};
use half::{bf16, f16};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::value::RawValue;
use std::fmt;

/// Decodes the JSON `data` of a tensor, nested like its shape or flat, into exactly `count`
/// elements.
pub(crate) fn decode(name: &str, datatype: DataType, count: usize, data: &RawValue) -> Result<Vec<u8>, ProtocolError> {
    // An element has at least two characters in JSON (with its separator), so a large shape alone
    // cannot cause a large allocation.
    let likely = count.min(data.get().len() / 2 + 1);
    let mut sink = Sink {
        datatype,
        bytes: Vec::with_capacity(likely * datatype.element_bytes().unwrap_or(8)),
        left: count,
        count,
    };
    let mut deserializer = serde_json::Deserializer::from_str(data.get());
    let read = Elements { sink: &mut sink, depth: 0 }.deserialize(&mut deserializer);
    read.map_err(|e| ProtocolError::tensor(name, format!("cannot read its data: {e}")))?;
    match sink.left {
        0 => Ok(sink.bytes),
        left => Err(ProtocolError::tensor(
            name,
            format!("its data has {} elements, but its shape needs {count}", count - left),
        )),
    }
}

/// Converts numbers to elements; each number must be representable in the type.
pub(crate) fn from_f64(name: &str, datatype: DataType, values: &[f64]) -> Result<Vec<u8>, ProtocolError> {
    let bytes = Vec::with_capacity(values.len() * datatype.element_bytes().unwrap_or(8));
    let mut sink = Sink { datatype, bytes, left: values.len(), count: values.len() };
    for &value in values {
        let is_float = matches!(datatype, DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64);
        // A float without a fraction is accepted for an integer type.
        let pushed: Result<(), serde::de::value::Error> =
            if !is_float && value.fract() == 0.0 { sink.integer(value as i128) } else { sink.float(value) };
        pushed.map_err(|e| ProtocolError::tensor(name, e.to_string()))?;
    }
    Ok(sink.bytes)
}

/// Collects decoded elements.
struct Sink {
    datatype: DataType,
    bytes: Vec<u8>,
    left: usize,
    count: usize,
}

impl Sink {
    fn next<E: serde::de::Error>(&mut self) -> Result<(), E> {
        self.left = self
            .left
            .checked_sub(1)
            .ok_or_else(|| E::custom(format_args!("more than the {} elements of its shape", self.count)))?;
        Ok(())
    }

    fn integer<E: serde::de::Error>(&mut self, value: i128) -> Result<(), E> {
        self.next()?;
        macro_rules! push {
            ($type:ty) => {
                self.bytes.extend_from_slice(&<$type>::try_from(value).map_err(|_| self.misfit(value))?.to_le_bytes())
            };
        }
        match self.datatype {
            DataType::Bool if !matches!(value, 0 | 1) => return Err(self.misfit(value)),
            DataType::Bool | DataType::Uint8 => push!(u8),
            DataType::Uint16 => push!(u16),
            DataType::Uint32 => push!(u32),
            DataType::Uint64 => push!(u64),
            DataType::Int8 => push!(i8),
            DataType::Int16 => push!(i16),
            DataType::Int32 => push!(i32),
            DataType::Int64 => push!(i64),
            DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 => return self.push_float(value as f64),
            DataType::Bytes => return Err(self.misfit(value)),
        }
        Ok(())
    }

    fn float<E: serde::de::Error>(&mut self, value: f64) -> Result<(), E> {
        self.next()?;
        self.push_float(value)
    }

    /// Refuses a finite number that would become infinite in the type.
    fn push_float<E: serde::de::Error>(&mut self, value: f64) -> Result<(), E> {
        let (is_finite, bytes) = match self.datatype {
            DataType::Fp16 => (f16::from_f64(value).is_finite(), &f16::from_f64(value).to_le_bytes()[..]),
            DataType::Bf16 => (bf16::from_f64(value).is_finite(), &bf16::from_f64(value).to_le_bytes()[..]),
            DataType::Fp32 => ((value as f32).is_finite(), &(value as f32).to_le_bytes()[..]),
            DataType::Fp64 => (value.is_finite(), &value.to_le_bytes()[..]),
            _ => return Err(self.misfit(format_args!("{value:?}"))),
        };
        if value.is_finite() && !is_finite {
            return Err(self.misfit(format_args!("{value:?}")));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn misfit<E: serde::de::Error>(&self, value: impl fmt::Display) -> E {
        E::custom(format_args!("{value} is not a valid {}", self.datatype))
    }
}

/// One element, or an array of elements or arrays.
struct Elements<'a> {
    sink: &'a mut Sink,
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Elements<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Elements<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} elements or arrays of them", self.sink.datatype)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        match self.sink.datatype {
            DataType::Bool => self.sink.integer(value.into()),
            _ => Err(self.sink.misfit(value)),
        }
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        self.sink.integer(value.into())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        self.sink.integer(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        self.sink.float(value)
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<(), E> {
        if self.sink.datatype != DataType::Bytes {
            return Err(self.sink.misfit(format_args!("\"{value}\"")));
        }
        self.sink.next()?;
        push_string(&mut self.sink.bytes, value.as_bytes());
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let value = special(&mut map, &self)?;
        self.sink.float(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<(), A::Error> {
        if self.depth == DATA_DEPTH_MAX {
            return Err(A::Error::custom(format_args!("nested deeper than {DATA_DEPTH_MAX} arrays")));
        }
        while sequence.next_element_seed(Elements { sink: self.sink, depth: self.depth + 1 })?.is_some() {}
        Ok(())
    }
}

/// Elements as a flat JSON array, for [`crate::json::to_vec`].
pub(crate) struct JsonElements<'a> {
    pub(crate) datatype: DataType,
    pub(crate) bytes: &'a [u8],
}

/// The first element alone; null if there is none.
pub(crate) struct FirstElement<'a>(pub(crate) JsonElements<'a>);

impl Serialize for JsonElements<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.write(Sequence(serializer))
    }
}

impl Serialize for FirstElement<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.write(First(serializer))
    }
}

/// What is written of a list of elements.
trait Part<S: Serializer> {
    fn write<T: Serialize>(self, elements: impl Iterator<Item = T>) -> Result<S::Ok, S::Error>;
}

struct Sequence<S>(S);

impl<S: Serializer> Part<S> for Sequence<S> {
    fn write<T: Serialize>(self, elements: impl Iterator<Item = T>) -> Result<S::Ok, S::Error> {
        self.0.collect_seq(elements)
    }
}

struct First<S>(S);

impl<S: Serializer> Part<S> for First<S> {
    fn write<T: Serialize>(self, mut elements: impl Iterator<Item = T>) -> Result<S::Ok, S::Error> {
        elements.next().serialize(self.0)
    }
}

impl JsonElements<'_> {
    fn write<S: Serializer>(&self, part: impl Part<S>) -> Result<S::Ok, S::Error> {
        macro_rules! sequence {
            ($type:ty) => {
                part.write(numbers(self.bytes).map(<$type>::from_le_bytes))
            };
        }
        macro_rules! floats {
            ($type:ty) => {
                part.write(numbers(self.bytes).map(|bytes| Float(<$type>::from_le_bytes(bytes))))
            };
        }
        match self.datatype {
            DataType::Bool => part.write(self.bytes.iter().map(|b| *b != 0)),
            DataType::Uint8 => sequence!(u8),
            DataType::Uint16 => sequence!(u16),
            DataType::Uint32 => sequence!(u32),
            DataType::Uint64 => sequence!(u64),
            DataType::Int8 => sequence!(i8),
            DataType::Int16 => sequence!(i16),
            DataType::Int32 => sequence!(i32),
            DataType::Int64 => sequence!(i64),
            DataType::Fp32 => floats!(f32),
            DataType::Fp64 => floats!(f64),
            DataType::Fp16 => part.write(numbers(self.bytes).map(|b| Float(f16::from_le_bytes(b).to_f32()))),
            DataType::Bf16 => part.write(numbers(self.bytes).map(|b| Float(bf16::from_le_bytes(b).to_f32()))),
            DataType::Bytes => part.write(strings(self.bytes).flatten().map(String::from_utf8_lossy)),
        }
    }
}

/// Splits bytes into numbers of `BYTES` bytes. Ignores an incomplete last one.
pub(crate) fn numbers<const BYTES: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; BYTES]> {
    bytes.as_chunks().0.iter().copied()
}

/// Elements as numbers, for display. Integers above 2^53 are rounded. Empty for strings.
pub fn to_f64(datatype: DataType, bytes: &[u8]) -> Vec<f64> {
    macro_rules! collect {
        ($type:ty) => {
            numbers(bytes).map(|b| <$type>::from_le_bytes(b) as f64).collect()
        };
    }
    match datatype {
        DataType::Bool | DataType::Uint8 => collect!(u8),
        DataType::Uint16 => collect!(u16),
        DataType::Uint32 => collect!(u32),
        DataType::Uint64 => collect!(u64),
        DataType::Int8 => collect!(i8),
        DataType::Int16 => collect!(i16),
        DataType::Int32 => collect!(i32),
        DataType::Int64 => collect!(i64),
        DataType::Fp32 => collect!(f32),
        DataType::Fp64 => collect!(f64),
        DataType::Fp16 => numbers(bytes).map(|b| f16::from_le_bytes(b).to_f64()).collect(),
        DataType::Bf16 => numbers(bytes).map(|b| bf16::from_le_bytes(b).to_f64()).collect(),
        DataType::Bytes => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(datatype: DataType, count: usize, json: &str) -> Result<Vec<u8>, String> {
        let raw = RawValue::from_string(json.into()).map_err(|e| e.to_string())?;
        decode("t", datatype, count, &raw).map_err(|e| e.to_string())
    }

    #[test]
    fn nested_and_flat_are_the_same() {
        let flat = read(DataType::Int32, 4, "[1,2,3,-4]").unwrap();
        assert_eq!(read(DataType::Int32, 4, "[[1, 2], [3, -4]]"), Ok(flat.clone()));
        assert_eq!(to_f64(DataType::Int32, &flat), [1.0, 2.0, 3.0, -4.0]);
        assert_eq!(
            read(DataType::Fp32, 1, "3").map(|b| to_f64(DataType::Fp32, &b)),
            Ok(vec![3.0]),
            "a scalar needs no array"
        );
    }

    #[test]
    fn values_that_a_type_cannot_hold_are_named() {
        for (datatype, json, expected) in [
            (DataType::Uint8, "[256]", "256 is not a valid UINT8"),
            (DataType::Int32, "[1.5]", "1.5 is not a valid INT32"),
            (DataType::Int8, "[1.0]", "1.0 is not a valid INT8"),
            (DataType::Bool, "[2]", "2 is not a valid BOOL"),
            (DataType::Fp32, "[1e300]", "is not a valid FP32"),
            (DataType::Fp16, "[70000]", "is not a valid FP16"),
            (DataType::Fp32, "[\"x\"]", "\"x\" is not a valid FP32"),
            (DataType::Fp32, "[null]", "null"),
            (DataType::Fp32, "[1,2]", "more than the 1 elements"),
            (DataType::Fp32, "[]", "0 elements, but its shape needs 1"),
            (DataType::Fp32, "{}", "map"),
            (DataType::Fp32, "{\"\":0,\"a\":1}", "map"),
            (DataType::Fp32, "{\"a\":[]}", "map"),
            (DataType::Int32, "[{\"\":0}]", "NaN is not a valid INT32"),
            (DataType::Bytes, "[{\"\":1}]", "inf is not a valid BYTES"),
        ] {
            let message = read(datatype, 1, json).unwrap_err();
            assert!(message.contains(expected), "{json}: {message}");
        }
        let deep = format!("{}1{}", "[".repeat(17), "]".repeat(17));
        assert!(read(DataType::Fp32, 1, &deep).unwrap_err().contains("nested deeper"));
    }

    #[test]
    fn a_large_shape_without_data_allocates_nothing() {
        assert!(read(DataType::Fp64, usize::MAX / 16, "[1]").unwrap_err().contains("has 1 elements"));
    }

    #[test]
    fn every_type_is_written_as_it_was_read() {
        for datatype in DataType::ALL {
            let json = match datatype {
                DataType::Bool => "[true,false]",
                DataType::Bytes => "[\"a\",\"\"]",
                DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 => "[1.5,-0.25]",
                _ => "[1,100]",
            };
            let bytes = read(datatype, 2, json).unwrap();
            let elements = JsonElements { datatype, bytes: &bytes };
            assert_eq!(crate::json::to_vec(&elements).unwrap(), json.as_bytes());
            let first = json.split(',').next().map(|first| &first[1..]).unwrap();
            assert_eq!(crate::json::to_vec(&FirstElement(elements)).unwrap(), first.as_bytes());
        }
    }
}
