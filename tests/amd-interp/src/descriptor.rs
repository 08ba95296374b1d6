//! Kernel descriptors of 64 bytes, in the layout of LLVM's `AMDGPUUsage` document.

use crate::target::{Accumulators, Generation, Target};

/// Bytes of a descriptor.
pub(crate) const BYTES: usize = 64;

/// The resources that a kernel needs, and the registers that are set when it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Bytes of static LDS.
    pub lds_bytes: u32,
    /// Bytes of scratch per lane, without a dynamic stack.
    pub private_bytes: u32,
    /// Bytes of kernel arguments; 0 if the compiler does not declare them.
    pub kernarg_bytes: u32,
    /// Offset of the code from the descriptor.
    pub entry: i64,
    /// Lanes per wave.
    pub wave_size: u32,
    /// Allocated vector registers.
    pub vgprs: usize,
    /// Allocated accumulation registers.
    pub agprs: usize,
    /// Allocated scalar registers, without VCC and other special ones.
    pub sgprs: usize,
    /// The initial MODE register: rounding and denormals, bit 8 `DX10_CLAMP`, bit 9 `IEEE`.
    pub mode: u32,
    /// The enabled user SGPRs: one bit per kind, in the order of the document.
    pub(crate) user: u32,
    /// Number of user SGPRs; system SGPRs follow them.
    pub(crate) user_sgprs: usize,
    /// Whether a system SGPR has the wave's offset in scratch.
    pub(crate) wave_offset: bool,
    /// Which workgroup ids are in system SGPRs, bit 0 for x.
    pub(crate) group_ids: u32,
    /// Whether a system SGPR has the workgroup info.
    pub(crate) group_info: bool,
    /// Work-item ids that are set: 0 for x, 1 for x and y, 2 for all.
    pub(crate) item_ids: u32,
}

fn word(bytes: &[u8; BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn bits(value: u32, low: u32, count: u32) -> u32 {
    (value >> low) & ((1 << count) - 1)
}

impl Descriptor {
    /// Parses the descriptor of a kernel for `target`.
    pub(crate) fn parse(bytes: &[u8; BYTES], target: &Target) -> Self {
        let (rsrc3, rsrc1, rsrc2) = (word(bytes, 44), word(bytes, 48), word(bytes, 52));
        let properties = word(bytes, 56) & 0xffff;
        let entry = u64::from(word(bytes, 16)) | u64::from(word(bytes, 20)) << 32;
        let gfx9 = target.generation == Generation::Gfx9;
        let wave_size = if !gfx9 && bits(properties, 10, 1) == 1 { 32 } else { 64 };
        let (vgprs, agprs) = vector_registers(target, wave_size, bits(rsrc1, 0, 6), rsrc3);
        let sgprs = if gfx9 { ((bits(rsrc1, 6, 4) as usize / 2 + 1) * 16).min(102) } else { 106 };
        let ieee = if target.generation == Generation::Gfx12 { 1 } else { bits(rsrc1, 23, 1) };
        let clamp = if target.generation == Generation::Gfx12 { 1 } else { bits(rsrc1, 21, 1) };
        Self {
            lds_bytes: word(bytes, 0),
            private_bytes: word(bytes, 4),
            kernarg_bytes: word(bytes, 8),
            entry: entry as i64,
            wave_size,
            vgprs,
            agprs,
            sgprs,
            mode: bits(rsrc1, 12, 8) | clamp << 8 | ieee << 9,
            user: bits(properties, 0, 7),
            user_sgprs: bits(rsrc2, 1, 5) as usize,
            wave_offset: bits(rsrc2, 0, 1) == 1 && !target.architected_flat_scratch,
            group_ids: bits(rsrc2, 7, 3),
            group_info: bits(rsrc2, 10, 1) == 1,
            item_ids: bits(rsrc2, 11, 2),
        }
    }
}

/// Numbers of VGPRs and AGPRs, computed from the granulated count.
fn vector_registers(target: &Target, wave_size: u32, granules: u32, rsrc3: u32) -> (usize, usize) {
    let granules = granules as usize + 1;
    match target.accumulators {
        Accumulators::Unified => {
            let total = granules * 8;
            let vgprs = (bits(rsrc3, 0, 6) as usize + 1) * 4;
            (vgprs.min(total), total.saturating_sub(vgprs))
        }
        Accumulators::Separate => (granules * 4, granules * 4),
        Accumulators::None if wave_size == 32 => ((granules * 8).min(256), 0),
        Accumulators::None => ((granules * 4).min(256), 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_of_gfx90a_splits_the_unified_file() {
        let mut bytes = [0; BYTES];
        bytes[8..12].copy_from_slice(&40u32.to_le_bytes());
        bytes[44..48].copy_from_slice(&3u32.to_le_bytes());
        bytes[48..52].copy_from_slice(&(3u32 | 0xf << 16 | 1 << 23).to_le_bytes());
        let d = Descriptor::parse(&bytes, &Target::of_flags(0x53f).unwrap());
        assert_eq!((d.vgprs, d.agprs, d.wave_size, d.kernarg_bytes), (16, 16, 64, 40));
        assert_eq!(d.mode, 0xf0 | 1 << 9);
    }
}
