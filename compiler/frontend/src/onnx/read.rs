//! Decodes bytes to protobuf, and tensors to little-endian bytes. All checks of untrusted input
//! that do not depend on an operator are here.

use super::packed;
use super::proto::{DataLocation, DataType, ModelProto, TensorProto};
use crate::onnx::error::ImportError;
use atoll_kgraph::DType;
use prost::Message;
use prost::bytes::Bytes;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Largest model file in bytes: protobuf's limit for a message, 2 GiB.
pub const MODEL_BYTES_MAX: u64 = 1 << 31;
/// Largest tensor in bytes (256 GiB): about the memory of the largest device today.
pub const TENSOR_BYTES_MAX: u64 = 1 << 38;
/// Largest number of dimensions of a tensor in a model; no known model has more than 6.
pub const RANK_MAX: usize = 12;
/// Largest number of terms of a dimension as an expression over symbols. It bounds the time of
/// comparing sizes: broadcasting in a scan can double an expression in each iteration.
pub const SIZE_TERMS_MAX: usize = 1 << 14;

/// Reads and decodes a model file.
pub(super) fn read_model(path: &Path) -> Result<ModelProto, ImportError> {
    let io = |source| ImportError::Io { path: path.into(), source };
    let length = std::fs::metadata(path).map_err(io)?.len();
    if length > MODEL_BYTES_MAX {
        return Err(too_large("the model file", format!("{length} bytes"), format!("{MODEL_BYTES_MAX} bytes")));
    }
    decode_model(Bytes::from(std::fs::read(path).map_err(io)?))
}

/// Decodes a model.
pub(super) fn decode_model(bytes: Bytes) -> Result<ModelProto, ImportError> {
    if bytes.is_empty() {
        return Err(ImportError::Empty);
    }
    ModelProto::decode(bytes).map_err(|error| ImportError::Malformed { reason: error.to_string() })
}

pub(super) fn too_large(what: &str, found: String, limit: String) -> ImportError {
    ImportError::TooLarge { what: what.into(), found, limit }
}

/// The type of ONNX's number `data_type`; `None` for strings and complex numbers.
pub(super) fn stored_dtype_of(data_type: i32) -> Option<DType> {
    dtype_of(data_type).or_else(|| packed::narrow(data_type))
}

/// As [`stored_dtype_of`], and the type of codes for strings: the type of an input.
pub(super) fn input_dtype_of(data_type: i32) -> Option<DType> {
    if data_type == DataType::String as i32 { Some(DType::Strings) } else { stored_dtype_of(data_type) }
}

/// As [`stored_dtype_of`], and `None` for narrow types: a type in which kernels compute.
pub(super) fn dtype_of(data_type: i32) -> Option<DType> {
    Some(match DataType::try_from(data_type).ok()? {
        DataType::Float => DType::F32,
        DataType::Uint8 => DType::U8,
        DataType::Int8 => DType::I8,
        DataType::Uint16 => DType::U16,
        DataType::Int16 => DType::I16,
        DataType::Int32 => DType::I32,
        DataType::Int64 => DType::I64,
        DataType::Bool => DType::Bool,
        DataType::Float16 => DType::F16,
        DataType::Double => DType::F64,
        DataType::Uint32 => DType::U32,
        DataType::Uint64 => DType::U64,
        DataType::Bfloat16 => DType::Bf16,
        _ => return None,
    })
}

/// ONNX's name of a type, for messages.
pub(super) fn dtype_name(data_type: i32) -> String {
    DataType::try_from(data_type).map_or_else(|_| format!("number {data_type}"), |t| format!("{t:?}"))
}

/// A tensor of the model as little-endian bytes; narrow elements have a byte each.
pub(crate) struct Literal {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Arc<[u8]>,
}

/// Decodes a tensor. `folder` is the folder of external data; `None` if the model was not read from
/// a file.
pub(super) fn read_tensor(tensor: &TensorProto, name: &str, folder: Option<&Path>) -> Result<Literal, ImportError> {
    let dtype = stored_dtype_of(tensor.data_type)
        .ok_or_else(|| ImportError::DType { what: format!("tensor {name}"), dtype: dtype_name(tensor.data_type) })?;
    let (shape, bytes_count) = tensor_shape(tensor, name, dtype)?;
    let count = bytes_count / dtype.bytes();
    let stored = packed::stored_bytes(dtype, count);
    let bytes: Arc<[u8]> = if tensor.data_location == DataLocation::External as i32 {
        external_data(tensor, name, stored, folder)?.into()
    } else if !tensor.raw_data.is_empty() {
        Arc::from(&tensor.raw_data[..])
    } else if dtype.is_narrow() {
        packed::typed_data(tensor).into()
    } else {
        typed_data(tensor, dtype).into()
    };
    if bytes.len() as u64 != stored {
        let reason = format!("its shape {shape:?} needs {stored} bytes, it has {}", bytes.len());
        return Err(ImportError::Invalid { place: format!("tensor {name}"), reason });
    }
    let bytes = if dtype.bits() < 8 { packed::unpack(dtype, &bytes, count as usize).into() } else { bytes };
    Ok(Literal { dtype, shape, bytes })
}

/// Whether a tensor has strings.
pub(super) fn has_strings(tensor: &TensorProto) -> bool {
    tensor.data_type == DataType::String as i32
}

/// Decodes a tensor with strings.
pub(super) fn read_strings(tensor: &TensorProto, name: &str) -> Result<(Vec<usize>, Vec<String>), ImportError> {
    let invalid = |reason: String| ImportError::Invalid { place: format!("tensor {name}"), reason };
    let (shape, bytes) = tensor_shape(tensor, name, DType::Strings)?;
    let count = bytes / DType::Strings.bytes();
    if tensor.string_data.len() as u64 != count {
        let found = tensor.string_data.len();
        return Err(invalid(format!("its shape {shape:?} needs {count} strings, it has {found}")));
    }
    let text = |bytes: &Bytes| {
        let text = std::str::from_utf8(bytes).map_err(|_| invalid("one of its strings is not UTF-8".into()))?;
        Ok(text.to_owned())
    };
    Ok((shape, tensor.string_data.iter().map(text).collect::<Result<_, ImportError>>()?))
}

fn tensor_shape(tensor: &TensorProto, name: &str, dtype: DType) -> Result<(Vec<usize>, u64), ImportError> {
    let what = format!("tensor {name}");
    if tensor.dims.len() > RANK_MAX {
        return Err(too_large(&what, format!("{} dimensions", tensor.dims.len()), format!("{RANK_MAX} dimensions")));
    }
    let mut bytes = dtype.bytes();
    let mut shape = Vec::with_capacity(tensor.dims.len());
    for dim in &tensor.dims {
        let dim = u64::try_from(*dim).map_err(|_| ImportError::Invalid {
            place: what.clone(),
            reason: format!("dimension {dim} is negative"),
        })?;
        bytes = bytes.checked_mul(dim).filter(|b| *b <= TENSOR_BYTES_MAX).ok_or_else(|| {
            too_large(&what, format!("of shape {:?}", tensor.dims), format!("{TENSOR_BYTES_MAX} bytes"))
        })?;
        shape.push(dim as usize);
    }
    Ok((shape, bytes))
}

/// The elements of a tensor that uses the typed fields; `onnx.proto3` defines which type uses which
/// field.
fn typed_data(tensor: &TensorProto, dtype: DType) -> Vec<u8> {
    let narrow = |bytes: usize| tensor.int32_data.iter().flat_map(|v| v.to_le_bytes()[..bytes].to_vec()).collect();
    match dtype {
        DType::F32 => tensor.float_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::F64 => tensor.double_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::I64 => tensor.int64_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::U64 => tensor.uint64_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::U32 => tensor.uint64_data.iter().flat_map(|v| (*v as u32).to_le_bytes()).collect(),
        _ => narrow(dtype.bytes() as usize),
    }
}

fn external_data(
    tensor: &TensorProto,
    name: &str,
    bytes_count: u64,
    folder: Option<&Path>,
) -> Result<Vec<u8>, ImportError> {
    let refuse = |reason: String| ImportError::ExternalData { tensor: name.into(), reason };
    let entry = |key: &str| tensor.external_data.iter().find(|e| e.key == key).map(|e| e.value.as_str());
    let number = |key: &str, default: u64| {
        entry(key).map_or(Ok(default), |text| {
            text.parse().map_err(|_| refuse(format!("its {key} is {text:?}, which is not a number")))
        })
    };
    let location = entry("location").ok_or_else(|| refuse("it does not name a file".into()))?;
    let folder = folder.ok_or_else(|| {
        refuse(format!("the model was given as bytes, so there is no folder to look for {location:?} in"))
    })?;
    let path = inside(folder, location).map_err(refuse)?;
    let (offset, length) = (number("offset", 0)?, number("length", bytes_count)?);
    if length != bytes_count {
        return Err(refuse(format!("its length is {length} bytes, but its shape needs {bytes_count}")));
    }
    let missing = |source| ImportError::ExternalDataMissing { tensor: name.into(), path: path.clone(), source };
    let mut file = File::open(&path).map_err(missing)?;
    let file_bytes = file.metadata().map_err(missing)?.len();
    if offset.checked_add(length).is_none_or(|end| end > file_bytes) {
        return Err(refuse(format!(
            "bytes {offset} to {offset}+{length} are outside {} of {file_bytes} bytes",
            path.display()
        )));
    }
    let mut bytes = vec![0; length as usize];
    file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_exact(&mut bytes)).map_err(missing)?;
    Ok(bytes)
}

/// The path of `location` inside `folder`; an error if it is outside, also through a link.
fn inside(folder: &Path, location: &str) -> Result<PathBuf, String> {
    let relative = Path::new(location);
    if location.is_empty() || !relative.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir)) {
        return Err(format!("its file {location:?} is not a relative path inside the model's folder"));
    }
    let path = folder.join(relative);
    // A file that does not exist is reported when it is opened.
    match (path.canonicalize(), folder.canonicalize()) {
        (Ok(real), Ok(root)) if !real.starts_with(&root) => {
            Err(format!("its file {location:?} is a link to a place outside the model's folder"))
        }
        _ => Ok(path),
    }
}
