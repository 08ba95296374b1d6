//! The architectures: their encodings, registers and kernel descriptors.

/// Families of instruction encodings, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Generation {
    /// gfx9, CDNA included.
    Gfx9,
    /// RDNA 1 and 2.
    Gfx10,
    /// RDNA 3.
    Gfx11,
    /// RDNA 4.
    Gfx12,
}

/// An architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// LLVM's name of the processor.
    pub name: &'static str,
    /// `EF_AMDGPU_MACH` in the flags of the ELF header.
    pub machine: u32,
    /// Its family.
    pub generation: Generation,
    /// Whether v0 has the work-item ids x, y and z in 10 bits each. Otherwise they are in v0, v1
    /// and v2.
    pub packed_ids: bool,
    /// How AGPRs are allocated.
    pub accumulators: Accumulators,
    /// Whether the hardware sets the base of flat scratch. Otherwise the kernel does.
    pub architected_flat_scratch: bool,
    /// Whether a 16-bit result of an instruction with one or two sources sets the upper half to
    /// zero.
    pub zeroes_upper_half: bool,
}

/// How an architecture allocates AGPRs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulators {
    /// It has none.
    None,
    /// As many as VGPRs, in a separate file.
    Separate,
    /// In one file with the VGPRs, from `ACCUM_OFFSET` on.
    Unified,
}

const fn target(
    name: &'static str,
    machine: u32,
    generation: Generation,
    packed_ids: bool,
    accumulators: Accumulators,
    architected_flat_scratch: bool,
) -> Target {
    let zeroes_upper_half = matches!(generation, Generation::Gfx9);
    Target { name, machine, generation, packed_ids, accumulators, architected_flat_scratch, zeroes_upper_half }
}

/// All architectures, with the values of LLVM's `AMDGPUUsage` document.
const TARGETS: &[Target] = &[
    target("gfx900", 0x2c, Generation::Gfx9, false, Accumulators::None, false),
    target("gfx906", 0x2f, Generation::Gfx9, false, Accumulators::None, false),
    target("gfx908", 0x30, Generation::Gfx9, false, Accumulators::Separate, false),
    target("gfx90a", 0x3f, Generation::Gfx9, true, Accumulators::Unified, false),
    target("gfx942", 0x4c, Generation::Gfx9, true, Accumulators::Unified, true),
    target("gfx950", 0x4f, Generation::Gfx9, true, Accumulators::Unified, true),
    target("gfx1010", 0x33, Generation::Gfx10, false, Accumulators::None, false),
    target("gfx1030", 0x36, Generation::Gfx10, false, Accumulators::None, false),
    target("gfx1100", 0x41, Generation::Gfx11, true, Accumulators::None, true),
    target("gfx1101", 0x46, Generation::Gfx11, true, Accumulators::None, true),
    target("gfx1102", 0x47, Generation::Gfx11, true, Accumulators::None, true),
    target("gfx1200", 0x48, Generation::Gfx12, true, Accumulators::None, true),
    target("gfx1201", 0x4e, Generation::Gfx12, true, Accumulators::None, true),
];

impl Target {
    /// The architecture of a code object's ELF header.
    pub fn of_flags(flags: u32) -> Option<Target> {
        TARGETS.iter().find(|t| t.machine == flags & 0xff).copied()
    }
}
