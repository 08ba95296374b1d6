//! Print buffers in host memory: kernels record calls of `printf`, the completion thread formats
//! them.

use atoll_device::{LaunchReport, print_buffer};
use atoll_hip::{Context, HipError, HostWords};
use atoll_kgraph::amd_abi;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Bytes for the records of a launch: about a thousand short lines. Each slot of a device queue may
/// have a buffer.
const CAPACITY: u32 = 64 << 10;

/// Allocates a buffer.
pub(crate) fn buffer(context: &Arc<Context>) -> Result<HostWords, HipError> {
    let words = HostWords::new(context, ((amd_abi::PRINT_RECORDS + CAPACITY) / 4) as usize)?;
    set_capacity(&words);
    Ok(words)
}

/// Moves what a launch has printed to its report, and clears the buffer.
pub(crate) fn take(buffer: &HostWords, kernel: &str, report: &mut LaunchReport) {
    let word = |at: u32| buffer.word((at / 4) as usize);
    let used = u64::from(word(amd_abi::PRINT_USED).load(Acquire))
        | u64::from(word(amd_abi::PRINT_USED + 4).load(Acquire)) << 32;
    let end = amd_abi::PRINT_RECORDS + used.min(CAPACITY.into()) as u32;
    if used == 0 {
        return;
    }
    let content: Vec<u8> = (0..end).step_by(4).flat_map(|at| word(at).load(Acquire).to_le_bytes()).collect();
    print_buffer::append(report, kernel, &content);
    (0..end).step_by(4).for_each(|at| word(at).store(0, Release));
    set_capacity(buffer);
}

fn set_capacity(buffer: &HostWords) {
    buffer.word((amd_abi::PRINT_CAPACITY / 4) as usize).store(CAPACITY, Release);
}
