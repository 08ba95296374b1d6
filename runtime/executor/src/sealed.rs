//! Modules in sealed memory files, as they are sent to executors.

use super::wire::{CODE_BYTES_MAX, FACTS_BYTES_MAX};
use atoll_device::{DeviceError, ModuleImage};
use rustix::fs::{MemfdFlags, SealFlags};
use std::os::fd::OwnedFd;

/// A module in a memory file, which can be sent to several executors.
#[derive(Debug)]
pub(crate) struct SealedModule {
    pub(super) file: OwnedFd,
    pub(super) target: String,
    pub(super) code_bytes: u64,
    pub(super) ptx_bytes: u64,
    pub(super) facts_bytes: u64,
    /// The most scratch memory that one of its kernels needs for each compute unit, in bytes.
    pub(super) scratch_bytes: u32,
}

impl SealedModule {
    pub(crate) fn new(image: ModuleImage<'_>) -> Result<SealedModule, DeviceError> {
        let facts = serde_json::to_vec(image.kernels).map_err(|error| DeviceError::BadModule(error.to_string()))?;
        // Only a GPU's driver compiles PTX.
        let ptx = image.ptx.filter(|_| image.target.starts_with("nvidia-")).unwrap_or_default();
        let (code_bytes, ptx_bytes, facts_bytes) = (image.code.len() as u64, ptx.len() as u64, facts.len() as u64);
        if code_bytes.max(ptx_bytes) > CODE_BYTES_MAX || facts_bytes > FACTS_BYTES_MAX {
            return Err(DeviceError::BadModule(format!(
                "{code_bytes} bytes of code and {facts_bytes} of facts are too many"
            )));
        }
        let file = sealed_file(&[image.code, ptx, &facts])
            .map_err(|source| DeviceError::Os { what: "create memory for a module", source })?;
        let scratch_bytes = image.kernels.iter().map(|kernel| kernel.scratch_bytes).max().unwrap_or(0);
        Ok(SealedModule { file, target: image.target.to_owned(), code_bytes, ptx_bytes, facts_bytes, scratch_bytes })
    }
}

/// Creates a memory file with sealed contents.
fn sealed_file(parts: &[&[u8]]) -> std::io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("atoll-module", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    for part in parts {
        let mut rest = *part;
        while !rest.is_empty() {
            rest = &rest[rustix::io::write(&file, rest)?..];
        }
    }
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
    Ok(file)
}
