//! The cache of compiled kernels. The key is made from the LLVM IR, which contains kernel and block
//! shape, and from everything else that determines LLVM's output.

use crate::CpuLevel;
use crate::error::HostError;
use crate::object::{self, Compiled};
use crate::settings;
use atoll_kgraph::{DiskCache, digest_of};

/// Format version of the entries; change it whenever the format changes.
const FORMAT: &[u8] = b"1";
/// Stands for the frame size of an object that has none.
const NO_FRAME: u32 = u32::MAX;

/// Compiles IR, or returns the result from the cache.
pub(crate) fn compile_ir(name: &str, ir: &str, level: CpuLevel, cache: &DiskCache) -> Result<Compiled, HostError> {
    let (major, minor, patch) = inkwell::support::get_llvm_version();
    let llvm = format!("{major}.{minor}.{patch} {:?} {}", settings::ARGUMENTS, object::pipeline_for(ir));
    let key = digest_of([FORMAT, llvm.as_bytes(), level.target_name().as_bytes(), ir.as_bytes()]);
    if let Some(compiled) = cache.read(&key).and_then(|bytes| decode(&bytes)) {
        return Ok(compiled);
    }
    let compiled = object::compile_ir(name, ir, level, false)?;
    // If the cache cannot be written, the next compilation is slower; nothing else is affected.
    let _ = cache.write(&key, &encode(&compiled));
    Ok(compiled)
}

fn encode(compiled: &Compiled) -> Vec<u8> {
    let frame = compiled.frame_bytes.unwrap_or(NO_FRAME);
    [&frame.to_le_bytes(), compiled.object.as_slice()].concat()
}

fn decode(bytes: &[u8]) -> Option<Compiled> {
    let (frame, object) = bytes.split_first_chunk()?;
    let frame_bytes = Some(u32::from_le_bytes(*frame)).filter(|&frame| frame != NO_FRAME);
    Some(Compiled { object: object.to_vec(), optimised: None, frame_bytes })
}
