//! Whether a kernel can jump into another kernel by its address. PTX does not define this, but
//! `ptxas` accepts it. The jump may fault, so the probe runs in its own process.

use crate::bench::Bench;
use crate::device::{DeviceWords, ProbeError};
use crate::report::{Findings, Row};
use atoll_cuda::{Arg, Module};

const INDIRECT_ENTRY_PTX: &str = include_str!("../../kernels/indirect_entry.ptx");

const BLOCKS: u32 = 64;
/// The value that the target writes.
const WRITTEN: u32 = 42;

/// Takes the address of a kernel, and jumps there from another kernel with the same parameters.
pub(crate) fn run(bench: &Bench, found: &mut Findings) -> Result<(), ProbeError> {
    let module = Module::load(&bench.context, INDIRECT_ENTRY_PTX.as_bytes())?;
    found.push(Row::text("jump to a kernel", "driver assembles it", "yes"));
    let stream = bench.stream(false)?;
    let (address, out) = (DeviceWords::new(&bench.context, 2)?, DeviceWords::new(&bench.context, BLOCKS as usize)?);
    module.kernel("address_of_target")?.launch(&stream, 1, 1, &[Arg::U64(address.address())])?;
    stream.synchronize()?;
    let words = address.read()?;
    let callee = words.iter().rev().fold(0_u64, |value, &word| value << 32 | u64::from(word));
    found.push(Row::text("jump to a kernel", "address of the kernel", format!("{callee:#x}")));

    module.kernel("jump")?.launch(&stream, BLOCKS, 32, &[Arg::U64(out.address()), Arg::U64(callee)])?;
    stream.synchronize()?;
    let arrived = out.read()?.iter().filter(|&&word| word == WRITTEN).count();
    found.push(Row::text("jump to a kernel", "blocks that arrived", format!("{arrived} of {BLOCKS}")));
    Ok(())
}
