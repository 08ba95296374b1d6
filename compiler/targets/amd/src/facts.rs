//! Facts about kernels, read from the metadata of a code object.

use crate::error::AmdError;
use crate::message_pack::{self, Value};
use object::read::elf::{ElfFile64, FileHeader, SectionHeader};
use object::{Endianness, elf};

/// The note of the metadata: its name and type (`NT_AMDGPU_METADATA`).
const NOTE_NAME: &[u8] = b"AMDGPU";
const NOTE_TYPE: u32 = 32;

/// Facts about one compiled kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelFacts {
    /// Its name. The symbol of its kernel descriptor is the name followed by `.kd`.
    pub name: String,
    /// The block shape that it is compiled for.
    pub block: [u32; 3],
    /// Bytes of PTX's parameter block; see [`abi`](crate::abi).
    pub params_bytes: u32,
    /// Bytes of the kernarg segment.
    pub kernarg_bytes: u32,
    /// Vector registers. On gfx90a and gfx942, which have one register file, accumulators are
    /// included.
    pub vgprs: u32,
    /// Accumulator registers (gfx908, gfx90a, gfx942).
    pub agprs: u32,
    /// Scalar registers.
    pub sgprs: u32,
    /// Vector registers that are spilled to scratch memory.
    pub vgpr_spills: u32,
    /// Scalar registers that are spilled to vector registers or scratch memory.
    pub sgpr_spills: u32,
    /// Bytes of static shared memory (LDS), including the words of reductions at barriers.
    pub shared_static_bytes: u32,
    /// Bytes of scratch memory of one thread.
    pub scratch_bytes: u32,
    /// Lanes of a wave.
    pub wave_lanes: u32,
}

/// Reads the facts of all kernels of a code object, without the block shape and
/// [`KernelFacts::params_bytes`].
pub(crate) fn read(code: &[u8]) -> Result<Vec<KernelFacts>, AmdError> {
    let unreadable = |what: &str| AmdError::CodeObject(what.to_owned());
    let note = metadata(code).ok_or_else(|| unreadable("it has no metadata note"))?;
    let document = message_pack::read(&note).ok_or_else(|| unreadable("its metadata is no MessagePack"))?;
    let Some(Value::List(kernels)) = document.get("amdhsa.kernels") else {
        return Err(unreadable("its metadata has no list of kernels"));
    };
    kernels.iter().map(|kernel| of_kernel(kernel).map_err(|what| unreadable(&what))).collect()
}

fn of_kernel(kernel: &Value) -> Result<KernelFacts, String> {
    let name = kernel.get(".name").and_then(Value::text).ok_or("a kernel without a name")?.to_owned();
    let number = |key: &str| {
        let found = kernel.get(key).and_then(Value::number).and_then(|n| u32::try_from(n).ok());
        found.ok_or_else(|| format!("kernel `{name}` has no {key}"))
    };
    // Architectures without accumulators have no such entry.
    let agprs = number(".agpr_count").unwrap_or(0);
    Ok(KernelFacts {
        block: [0; 3],
        params_bytes: 0,
        kernarg_bytes: number(".kernarg_segment_size")?,
        // The count of a unified register file includes the accumulators.
        vgprs: number(".vgpr_count")?,
        agprs,
        sgprs: number(".sgpr_count")?,
        vgpr_spills: number(".vgpr_spill_count")?,
        sgpr_spills: number(".sgpr_spill_count")?,
        shared_static_bytes: number(".group_segment_fixed_size")?,
        scratch_bytes: number(".private_segment_fixed_size")?,
        wave_lanes: number(".wavefront_size")?,
        name,
    })
}

/// The contents of the metadata note.
fn metadata(code: &[u8]) -> Option<Vec<u8>> {
    let file = ElfFile64::<Endianness>::parse(code).ok()?;
    let endian = file.endian();
    let sections = file.elf_header().sections(endian, code).ok()?;
    for section in sections.iter().filter(|s| s.sh_type(endian) == elf::SHT_NOTE) {
        let mut notes = section.notes(endian, code).ok()??;
        while let Ok(Some(note)) = notes.next() {
            if note.name() == NOTE_NAME && note.n_type(endian).0 == NOTE_TYPE {
                return Some(note.desc().to_vec());
            }
        }
    }
    None
}
