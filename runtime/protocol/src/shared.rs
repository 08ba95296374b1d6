//! The extension for shared memory: tensors whose elements are in a memory region that client and
//! server share. The client names a region when it registers it.

use crate::datatype::DataType;
use crate::error::ProtocolError;
use crate::parameters::Parameters;
use crate::tensor::{Tensor, check_size};
use serde::{Deserialize, Serialize};

const REGION: &str = "shared_memory_region";
const OFFSET: &str = "shared_memory_offset";
const BYTE_SIZE: &str = "shared_memory_byte_size";

/// Bytes of a registered region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedRange {
    /// The name of the region.
    pub region: String,
    /// Offset of the first byte from the beginning of the region, in bytes.
    pub offset: u64,
    /// Number of bytes.
    pub byte_size: u64,
}

/// A tensor whose elements are in shared memory. It is unchecked: [`Self::check`] checks it before
/// its bytes are read, and [`Self::tensor`] together with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedTensor {
    /// Its name in the model.
    pub name: String,
    /// Type of its elements.
    pub datatype: DataType,
    /// Dimensions, outermost first.
    pub shape: Vec<i64>,
    /// Where its elements are.
    pub range: SharedRange,
}

impl SharedRange {
    /// Reads the parameters of the tensor `name`. `None` if it is not in shared memory.
    ///
    /// # Errors
    /// If a parameter has the wrong type, or only one of region and size is given.
    pub fn of(name: &str, parameters: &Parameters) -> Result<Option<SharedRange>, ProtocolError> {
        let (offset, byte_size) = (parameters.unsigned(OFFSET)?, parameters.unsigned(BYTE_SIZE)?);
        match (parameters.text(REGION)?, byte_size) {
            (None, None) if offset.is_none() => Ok(None),
            (None, _) => {
                let reason = format!("has a size or offset in shared memory, but no {REGION}");
                Err(ProtocolError::tensor(name, reason))
            }
            (Some(_), None) => Err(ProtocolError::tensor(name, format!("has a {REGION}, but no {BYTE_SIZE}"))),
            (Some(region), Some(byte_size)) => {
                Ok(Some(SharedRange { region: region.into(), offset: offset.unwrap_or(0), byte_size }))
            }
        }
    }

    /// Adds the parameters of a tensor.
    pub fn describe(&self, parameters: &mut Parameters) {
        parameters.set(REGION, self.region.as_str());
        parameters.set(BYTE_SIZE, self.byte_size);
        if self.offset > 0 {
            parameters.set(OFFSET, self.offset);
        }
    }
}

impl SharedTensor {
    /// Checks that the range has the size that shape and datatype require. Strings may have any
    /// size.
    ///
    /// # Errors
    /// If the size is different.
    pub fn check(&self) -> Result<(), ProtocolError> {
        check_size(&self.name, self.datatype, &self.shape, self.range.byte_size).map(drop)
    }

    /// The tensor with its bytes, checked like one that was sent in the request.
    ///
    /// # Errors
    /// If the bytes do not match shape and type.
    pub fn tensor(self, bytes: Vec<u8>) -> Result<Tensor, ProtocolError> {
        Tensor::new(self.name, self.datatype, self.shape, bytes)
    }
}

/// The body of `POST /v2/systemsharedmemory/region/NAME/register`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterRequest {
    /// The name of the memory object, as given to `shm_open`.
    #[serde(default)]
    pub key: String,
    /// Offset of the region in the memory object, in bytes.
    #[serde(default)]
    pub offset: u64,
    /// Its size in bytes.
    #[serde(default)]
    pub byte_size: u64,
}

/// A registered region, as `GET /v2/systemsharedmemory/status` lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionStatus {
    /// Its name.
    pub name: String,
    /// The name of the memory object.
    pub key: String,
    /// Offset of the region in the memory object, in bytes.
    pub offset: u64,
    /// Its size in bytes.
    pub byte_size: u64,
}

/// The body of `POST /v2/cudasharedmemory/region/NAME/register`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaRegisterRequest {
    /// The handle of the device memory.
    #[serde(default)]
    pub raw_handle: RawHandle,
    /// The device, as the server's driver numbers it.
    #[serde(default)]
    pub device_id: i64,
    /// Size of the region in bytes.
    #[serde(default)]
    pub byte_size: u64,
}

/// A handle of CUDA IPC in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RawHandle {
    /// The bytes of the handle in Base64.
    #[serde(default)]
    pub b64: String,
}

/// A registered region of CUDA shared memory, as `GET /v2/cudasharedmemory/status` lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaRegionStatus {
    /// Its name.
    pub name: String,
    /// The device, as the server's driver numbers it.
    pub device_id: u64,
    /// Its size in bytes.
    pub byte_size: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Option<SharedRange>, String> {
        SharedRange::of("x", &serde_json::from_str(json).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_range_is_a_region_a_size_and_perhaps_an_offset() {
        let range = |offset| SharedRange { region: "r".into(), offset, byte_size: 8 };
        for (json, expected) in [
            ("{}", None),
            (r#"{"binary_data_size":4}"#, None),
            (r#"{"shared_memory_region":"r","shared_memory_byte_size":8}"#, Some(range(0))),
            (
                concat!(
                    r#"{"shared_memory_region":"r","shared_memory_byte_size":8.0,"#,
                    r#""shared_memory_offset":18446744073709551615}"#
                ),
                Some(range(u64::MAX)),
            ),
        ] {
            assert_eq!(read(json), Ok(expected.clone()), "{json}");
            let mut written = Parameters::default();
            expected.iter().for_each(|range| range.describe(&mut written));
            assert_eq!(SharedRange::of("x", &written), Ok(expected));
        }
        for (json, says) in [
            (r#"{"shared_memory_region":"r"}"#, "no shared_memory_byte_size"),
            (r#"{"shared_memory_byte_size":8}"#, "no shared_memory_region"),
            (r#"{"shared_memory_offset":0}"#, "no shared_memory_region"),
            (r#"{"shared_memory_region":1,"shared_memory_byte_size":8}"#, "1 is not a text"),
            (r#"{"shared_memory_region":"r","shared_memory_byte_size":-1}"#, "-1 is not a non-negative"),
            (r#"{"shared_memory_region":"r","shared_memory_byte_size":"8"}"#, "whole number"),
            (r#"{"shared_memory_region":"r","shared_memory_byte_size":8,"shared_memory_offset":0.5}"#, "0.5 is not"),
            (r#"{"shared_memory_region":"r","shared_memory_byte_size":1e300}"#, "whole number"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(says), "{json}: {error}");
        }
    }
}
