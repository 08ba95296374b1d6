//! Requests that a model runs before it takes others: Triton's `model_warmup`.

use super::error::LoadError;
use super::regular;
use super::settings::{Warmup, WarmupData, WarmupInput};
use crate::limits::WARMUP_BYTES_MAX;
use crate::model::Model;
use crate::sequences::place::Place;
use atoll_engine::InputTensor;
use atoll_protocol::{DataType, Tensor};
use std::path::{Component, Path};

/// The folder, below that of the model, with the files of samples.
const FOLDER: &str = "warmup";

/// The inputs of a sample, in the order of the model.
///
/// # Errors
/// If the sample does not fit the model, or a file cannot be read.
pub(super) fn inputs(model: &Model, folder: &Path, sample: &Warmup) -> Result<Vec<InputTensor>, LoadError> {
    let bad = |reason: String| LoadError::Warmup { sample: sample.name.clone(), reason };
    if let Some(limit) = model.rows_max().filter(|limit| sample.rows > limit.get()) {
        return Err(bad(format!("its batch_size is {}, and max_batch_size is {limit}; lower it", sample.rows)));
    }
    let mut left = WARMUP_BYTES_MAX;
    let mut tensors = Vec::with_capacity(sample.inputs.len());
    // The daemon fills in control inputs, also if the sample has them.
    for input in sample.inputs.iter().filter(|input| !model.is_control(&input.name)) {
        let tensor = tensor(model, folder, sample, input, left).map_err(bad)?;
        model.fit_shape(&tensor.name, tensor.datatype, &tensor.shape).map_err(|error| bad(error.to_string()))?;
        left -= tensor.bytes.len() as u64;
        tensors.push(tensor);
    }
    let mut inputs = model.fit(tensors, &[], true).map_err(|error| bad(error.to_string()))?.inputs;
    model.add_controls(&mut inputs, Some(&Place::alone())).map_err(|error| bad(error.to_string()))?;
    Ok(inputs)
}

fn tensor(model: &Model, folder: &Path, sample: &Warmup, input: &WarmupInput, left: u64) -> Result<Tensor, String> {
    let name = &input.name;
    let datatype = DataType::ALL.into_iter().find(|known| known.config_name() == input.data_type);
    let datatype = datatype
        .ok_or_else(|| format!("input `{name}` has the data type `{}`, which does not exist", input.data_type))?;
    // A string has its length in front.
    let element_bytes = datatype.element_bytes().unwrap_or(size_of::<u32>());
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
    let count = usize::try_from(rows.unwrap_or(1)).unwrap_or(usize::MAX);
    let is_text = datatype == DataType::Bytes;
    // Strings are empty unless a file has them.
    let data = if is_text && input.data == WarmupData::Random { &WarmupData::Zeros } else { &input.data };
    let row = match data {
        WarmupData::File(file) if is_text => {
            let most = left / count.max(1) as u64;
            strings(folder, file, most).map_err(|reason| format!("input `{name}`: {reason}"))?
        }
        WarmupData::Zeros => vec![0; of_row as usize],
        WarmupData::Random if datatype == DataType::Bool => random(of_row).into_iter().map(|byte| byte & 1).collect(),
        WarmupData::Random => random(of_row),
        WarmupData::File(file) => read(folder, file, of_row).map_err(|reason| format!("input `{name}`: {reason}"))?,
    };
    debug_assert!(is_text || row.len() as u64 * count as u64 == bytes);
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
    let read = read_at_most(folder, file, bytes)?;
    match read.len() as u64 == bytes {
        true => Ok(read),
        false => Err(format!("`{file}` has {} bytes, and {bytes} are needed", read.len())),
    }
}

/// The strings in a file in the folder of samples, each with its length in front.
fn strings(folder: &Path, file: &str, most: u64) -> Result<Vec<u8>, String> {
    let read = read_at_most(folder, file, most.saturating_add(1))?;
    match read.len() as u64 <= most {
        true => Ok(read),
        false => Err(format!("`{file}` is larger than {most} bytes, which is what is left")),
    }
}

fn read_at_most(folder: &Path, file: &str, bytes: u64) -> Result<Vec<u8>, String> {
    let is_plain = Path::new(file).components().all(|part| matches!(part, Component::Normal(_)));
    if file.is_empty() || !is_plain {
        return Err(format!("`{file}` is no file in the folder `{FOLDER}` of the model"));
    }
    let path = folder.join(FOLDER).join(file);
    let mut read = regular::read_at_most(&path, bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    read.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_as_many_bytes_as_are_needed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(FOLDER)).unwrap();
        std::fs::write(folder.path().join(FOLDER).join("data"), b"\x01\0\0\0a").unwrap();
        assert_eq!(read(folder.path(), "data", 4).unwrap(), b"\x01\0\0\0");
        assert!(read(folder.path(), "data", 6).unwrap_err().contains("`data` has 5 bytes, and 6 are needed"));
        assert_eq!(strings(folder.path(), "data", 5).unwrap(), b"\x01\0\0\0a");
        assert!(strings(folder.path(), "data", 4).unwrap_err().contains("larger than 4 bytes"));
        for file in ["", "../data", "/data"] {
            assert!(strings(folder.path(), file, 9).unwrap_err().contains("no file in the folder `warmup`"), "{file}");
        }
    }
}
