//! Requests that a model runs before it takes others: Triton's `model_warmup`.

use super::error::LoadError;
use super::settings::{Warmup, WarmupData, WarmupInput};
use crate::limits::WARMUP_BYTES_MAX;
use crate::model::Model;
use atoll_engine::InputTensor;
use atoll_protocol::{DataType, Tensor};
use std::io::{self, Read};
use std::path::{Component, Path};

/// The folder, below that of the model, with the files of samples.
const FOLDER: &str = "warmup";

/// The inputs of a sample, in the order of the model.
///
/// # Errors
/// If the sample does not fit the model, or a file cannot be read.
pub(super) fn inputs(model: &Model, folder: &Path, sample: &Warmup) -> Result<Vec<InputTensor>, LoadError> {
    let bad = |reason: String| LoadError::Warmup { sample: sample.name.clone(), reason };
    let mut left = WARMUP_BYTES_MAX;
    let mut tensors = Vec::with_capacity(sample.inputs.len());
    for input in &sample.inputs {
        let tensor = tensor(model, folder, sample, input, left).map_err(bad)?;
        left -= tensor.bytes.len() as u64;
        tensors.push(tensor);
    }
    model.fit(tensors, &[], true).map(|fitted| fitted.inputs).map_err(|error| bad(error.to_string()))
}

fn tensor(model: &Model, folder: &Path, sample: &Warmup, input: &WarmupInput, left: u64) -> Result<Tensor, String> {
    let name = &input.name;
    let datatype = DataType::ALL.into_iter().find(|known| known.config_name() == input.data_type);
    let element = datatype.and_then(|datatype| Some((datatype, datatype.element_bytes()?)));
    let (datatype, element_bytes) = element
        .ok_or_else(|| format!("input `{name}` has the data type `{}`, which samples cannot have", input.data_type))?;
    if input.dims.iter().any(|size| *size < 0) {
        return Err(format!("input `{name}` has the variable dims {:?}; give each a size", input.dims));
    }
    let rows = model.has_rows().then_some(i64::from(sample.rows));
    let shape: Vec<i64> = rows.into_iter().chain(input.dims.iter().copied()).collect();
    let product =
        |sizes: &[i64]| sizes.iter().try_fold(element_bytes as u64, |bytes, size| bytes.checked_mul(*size as u64));
    let too_large = || format!("input `{name}` of shape {shape:?} is larger than {left} bytes, which is what is left");
    let bytes = product(&shape).filter(|bytes| *bytes <= left).ok_or_else(too_large)?;
    // All rows are the same, as with Triton.
    let of_row = product(&input.dims).ok_or_else(too_large)?;
    let row = match &input.data {
        WarmupData::Zeros => vec![0; of_row as usize],
        WarmupData::Random if datatype == DataType::Bool => random(of_row).into_iter().map(|byte| byte & 1).collect(),
        WarmupData::Random => random(of_row),
        WarmupData::File(file) => read(folder, file, of_row).map_err(|reason| format!("input `{name}`: {reason}"))?,
    };
    let count = usize::try_from(rows.unwrap_or(1)).unwrap_or(usize::MAX);
    debug_assert_eq!(row.len() as u64 * count as u64, bytes);
    Tensor::new(name.clone(), datatype, shape, row.repeat(count)).map_err(|error| error.to_string())
}

/// Bytes without a pattern, always the same ones.
fn random(bytes: u64) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// The first `bytes` bytes of a file in the folder of samples.
fn read(folder: &Path, file: &str, bytes: u64) -> Result<Vec<u8>, String> {
    let is_plain = Path::new(file).components().all(|part| matches!(part, Component::Normal(_)));
    if file.is_empty() || !is_plain {
        return Err(format!("`{file}` is no file in the folder `{FOLDER}` of the model"));
    }
    let path = folder.join(FOLDER).join(file);
    let mut read = Vec::new();
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    std::fs::File::open(&path).map_err(failed)?.take(bytes).read_to_end(&mut read).map_err(failed)?;
    match read.len() as u64 == bytes {
        true => Ok(read),
        false => Err(format!("{} has {} bytes, and {bytes} are needed", path.display(), read.len())),
    }
}
