//! Reads constants from the files named in a manifest.

use super::manifest::{Buffer, Kind, Manifest};
use super::{PackError, read_bounded};
use atoll_kgraph::DType;
use safetensors::{Dtype, SafeTensors};
use std::collections::{BTreeMap, HashMap};
use std::io::Read as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Largest file of constants in bytes, 64 GiB: less than the memory of a large server.
const CONSTANT_BYTES_MAX: u64 = 64 << 30;

/// The contents of all constants.
pub(super) struct Constants {
    files: BTreeMap<PathBuf, Vec<u8>>,
    /// File and byte range of each constant, by the buffer's name.
    places: HashMap<String, (PathBuf, Range<usize>)>,
}

impl Constants {
    /// Reads each file that constants of the manifest name; each file is read once.
    pub(super) fn read(folder: &Path, manifest: &Manifest) -> Result<Constants, PackError> {
        let mut constants = Constants { files: BTreeMap::new(), places: HashMap::new() };
        let mut by_file: BTreeMap<&Path, Vec<(&str, &Buffer)>> = BTreeMap::new();
        for (name, buffer) in manifest.buffers.iter().filter(|(_, buffer)| buffer.kind == Kind::Const) {
            if let Some(file) = &buffer.file {
                by_file.entry(file).or_default().push((name, buffer));
            }
        }
        for (file, buffers) in by_file {
            constants.read_file(folder, file, &buffers)?;
        }
        Ok(constants)
    }

    /// The bytes of a constant.
    pub(super) fn get(&self, name: &str) -> Option<&[u8]> {
        let (file, range) = self.places.get(name)?;
        self.files.get(file)?.get(range.clone())
    }

    fn read_file(&mut self, folder: &Path, file: &Path, buffers: &[(&str, &Buffer)]) -> Result<(), PackError> {
        let path = folder.join(file);
        let mut bytes = Vec::new();
        read_bounded(&path, CONSTANT_BYTES_MAX, |file| file.read_to_end(&mut bytes))?;
        if file.extension().is_none_or(|extension| extension != "safetensors") {
            let places = buffers.iter().map(|&(name, _)| (name.to_owned(), (file.to_owned(), 0..bytes.len())));
            self.places.extend(places);
        } else {
            let tensors = SafeTensors::deserialize(&bytes).map_err(|e| PackError::at(path.display(), e))?;
            for &(name, buffer) in buffers {
                let tensor = buffer.tensor.as_deref().unwrap_or(name);
                let range = range_of(&tensors, tensor, buffer.dtype, &bytes)
                    .map_err(|e| PackError::at(path.display(), format!("`{tensor}`: {e}")))?;
                self.places.insert(name.to_owned(), (file.to_owned(), range));
            }
        }
        self.files.insert(file.to_owned(), bytes);
        Ok(())
    }
}

/// The byte range of a tensor in its file.
fn range_of(tensors: &SafeTensors<'_>, name: &str, dtype: DType, file: &[u8]) -> Result<Range<usize>, String> {
    let view = tensors.tensor(name).map_err(|e| e.to_string())?;
    if element_type(view.dtype()) != Some(dtype) {
        return Err(format!("it has elements of type {:?}, the buffer is declared as {dtype}", view.dtype()));
    }
    let start = view.data().as_ptr().addr() - file.as_ptr().addr();
    Ok(start..start + view.data().len())
}

fn element_type(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::BOOL => DType::Bool,
        Dtype::U8 => DType::U8,
        Dtype::I8 => DType::I8,
        Dtype::U16 => DType::U16,
        Dtype::I16 => DType::I16,
        Dtype::U32 => DType::U32,
        Dtype::I32 => DType::I32,
        Dtype::U64 => DType::U64,
        Dtype::I64 => DType::I64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::Bf16,
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        Dtype::F8_E4M3 => DType::F8e4m3fn,
        Dtype::F8_E5M2 => DType::F8e5m2,
        Dtype::F8_E8M0 => DType::F8e8m0,
        _ => return None,
    })
}
