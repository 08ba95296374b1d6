//! Element types and their names on the wire.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;

/// An element type of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the variants are the protocol's names")]
pub enum DataType {
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Fp16,
    Bf16,
    Fp32,
    Fp64,
    /// Strings: each element is its length (u32, little-endian) followed by its bytes.
    Bytes,
}

/// The name of an unknown element type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown datatype {0}; use one of {names}", names = DataType::names())]
pub struct UnknownDataType(String);

impl DataType {
    /// All types.
    pub const ALL: [DataType; 14] = [
        DataType::Bool,
        DataType::Uint8,
        DataType::Uint16,
        DataType::Uint32,
        DataType::Uint64,
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::Fp16,
        DataType::Bf16,
        DataType::Fp32,
        DataType::Fp64,
        DataType::Bytes,
    ];

    /// Name in requests, answers and metadata.
    pub fn name(self) -> &'static str {
        match self {
            DataType::Bool => "BOOL",
            DataType::Uint8 => "UINT8",
            DataType::Uint16 => "UINT16",
            DataType::Uint32 => "UINT32",
            DataType::Uint64 => "UINT64",
            DataType::Int8 => "INT8",
            DataType::Int16 => "INT16",
            DataType::Int32 => "INT32",
            DataType::Int64 => "INT64",
            DataType::Fp16 => "FP16",
            DataType::Bf16 => "BF16",
            DataType::Fp32 => "FP32",
            DataType::Fp64 => "FP64",
            DataType::Bytes => "BYTES",
        }
    }

    /// Name in a model configuration.
    pub fn config_name(self) -> String {
        match self {
            DataType::Bytes => "TYPE_STRING".into(),
            other => format!("TYPE_{}", other.name()),
        }
    }

    /// Size of an element in bytes; `None` for strings, whose sizes differ.
    pub fn element_bytes(self) -> Option<usize> {
        match self {
            DataType::Bool | DataType::Uint8 | DataType::Int8 => Some(1),
            DataType::Uint16 | DataType::Int16 | DataType::Fp16 | DataType::Bf16 => Some(2),
            DataType::Uint32 | DataType::Int32 | DataType::Fp32 => Some(4),
            DataType::Uint64 | DataType::Int64 | DataType::Fp64 => Some(8),
            DataType::Bytes => None,
        }
    }

    fn names() -> String {
        DataType::ALL.map(DataType::name).join(", ")
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DataType {
    type Err = UnknownDataType;

    fn from_str(name: &str) -> Result<DataType, UnknownDataType> {
        DataType::ALL.into_iter().find(|d| d.name() == name).ok_or_else(|| UnknownDataType(name.into()))
    }
}

impl Serialize for DataType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for DataType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DataType, D::Error> {
        // Deserializes an owned string, because a name with escape sequences cannot be borrowed.
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
