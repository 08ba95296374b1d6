//! Proxy kernels for AMD GPUs: one per occupancy level.
//!
//! # Levels
//! A compute unit gives a wave as many registers as its kernel's descriptor says, so the registers
//! of the launched kernel determine how many waves a SIMD holds. A [`Level`] is a number of waves
//! per SIMD with the most registers that allow it. A proxy kernel takes all registers of its level:
//! any candidate of the level fits, and a candidate that needs fewer loses no occupancy.
//!
//! # The jump
//! A proxy finds the slot of its block in the table of the launch ([`atoll_kgraph::dkp::lay_out`]),
//! as entries for other devices do. It then jumps to the code of the candidate with `s_setpc_b64`.
//! The candidate is a kernel of its own, so it is compiled with exactly the registers that it needs.
//! It finds the registers of the entry as a launch would have set them, because these depend on the
//! architecture only (`atoll_kgraph::amd_abi`): the proxy changes scalar registers behind them, VCC,
//! and one vector register behind the work-item ids. The kernarg segment is the same too.
//!
//! # Smaller blocks
//! A launch has blocks of the size of its largest candidate. The proxy ends the waves that a
//! smaller candidate does not have, and masks the lanes of a half wave. The hardware's barrier does
//! not wait for waves that have ended, so a candidate's barriers wait for its own waves, whatever
//! runs beside it.
//!
//! # Sources
//! Vector registers: the device table. Scalar registers: LLVM's `AMDGPUBaseInfo`
//! (`getTotalNumSGPRs`, `getSGPRAllocGranule`): 800 per SIMD in steps of 16 on GFX9; GFX10 and later
//! give every wave the same number. The interface of the entry: "User Guide for AMDGPU Backend".

use crate::DkpModule;
use crate::device_model::{DeviceModel, amd, rdna};
use crate::occupancy::KernelNeeds;
use crate::register_class::RegisterClass;

/// An AMD architecture as padding sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AmdModel {
    /// Its name: `gfx90a`.
    pub architecture: &'static str,
    /// The compute unit of one of its devices.
    pub device: DeviceModel,
    /// The scalar registers of a SIMD, if they limit occupancy.
    pub scalars: Option<ScalarFile>,
    generation: Generation,
    /// Number of last vector registers that LLVM reserves, for copies of accumulators. Registers are
    /// allocated four at a time, so a proxy takes them even if it does not name them.
    reserved_vectors: u32,
}

/// The scalar registers of a SIMD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScalarFile {
    /// Number of registers.
    pub total: u32,
    /// Allocation granularity of a wave.
    pub granule: u32,
    /// Maximum number of registers of a wave, including VCC and other special ones.
    pub per_wave_max: u32,
}

/// Generations with different spellings of scalar instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Generation {
    /// Waves of 64 lanes.
    Gfx9,
    /// Waves of 32 lanes.
    Gfx10,
    /// `s_load_b512`.
    Gfx11,
    /// `s_wait_kmcnt`.
    Gfx12,
}

/// An occupancy level: a number of waves per SIMD, and the most resources that allow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Waves per SIMD.
    pub waves: u32,
    /// Vector registers of a lane.
    pub vgprs: u32,
    /// Scalar registers of a wave, including VCC and other special ones.
    pub sgprs: u32,
}

/// A kernel that a proxy jumps to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JumpTarget {
    /// Its name in the module.
    pub kernel: String,
    /// The threads of its block, a multiple of 32. Its blocks are linear.
    pub threads: u32,
}

/// A proxy kernel: an inline assembly that never returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// The kernel's name: the entry of launches.
    pub name: String,
    /// The level whose registers it takes.
    pub level: Level,
    /// Bytes of its parameter.
    pub params_bytes: u32,
    /// Maximum number of threads of a block.
    pub threads: u32,
    /// The assembly. `$0` is the address of the kernarg segment, `$1` the block's index in x.
    pub assembly: String,
    /// The constraints of the assembly in LLVM's syntax.
    pub constraints: String,
}

/// The scalar registers of GFX9.
const GFX9_SCALARS: ScalarFile = ScalarFile { total: 800, granule: 16, per_wave_max: 112 };

/// Scalar registers on architectures where they do not limit occupancy.
const SCALARS: u32 = 106;

/// VCC and other special registers at the end of a wave's scalar registers.
const SPECIAL_SCALARS: u32 = 6;

/// Number of scalar registers that a proxy names at most. LLVM reserves some of the last ones.
const NAMED_SCALARS: u32 = 96;

/// The first scalar register that a proxy uses, and how many it uses. The registers of the entry
/// and LLVM's stack pointer are below.
const FIRST_SCALAR: u32 = 40;
const SCALARS_USED: u32 = 20;

/// Bytes of the code that selects one candidate.
const SELECTOR_BYTES: u32 = 28;

const fn gfx9(architecture: &'static str, device: DeviceModel) -> AmdModel {
    AmdModel { architecture, device, scalars: Some(GFX9_SCALARS), generation: Generation::Gfx9, reserved_vectors: 0 }
}

const fn later(architecture: &'static str, device: DeviceModel, generation: Generation) -> AmdModel {
    AmdModel { architecture, device, scalars: None, generation, reserved_vectors: 0 }
}

impl AmdModel {
    /// Every architecture that code is compiled for.
    pub const ALL: [AmdModel; 7] = [
        gfx9("gfx906", amd("mi50", 60, 10, [256, 4, 256])),
        AmdModel { reserved_vectors: 1, ..gfx9("gfx908", amd("mi100", 120, 10, [256, 4, 256])) },
        gfx9("gfx90a", amd("mi250", 104, 8, [512, 8, 512])),
        gfx9("gfx942", amd("mi300x", 304, 8, [512, 8, 512])),
        later("gfx1030", rdna("rx-6900", 80, [1024, 16]), Generation::Gfx10),
        later("gfx1100", rdna("rx-7900", 96, [1536, 24]), Generation::Gfx11),
        later("gfx1201", rdna("rx-9070", 56, [1536, 24]), Generation::Gfx12),
    ];

    /// The model of an architecture.
    pub fn find(architecture: &str) -> Option<&'static AmdModel> {
        const ALL: &[AmdModel] = &AmdModel::ALL;
        ALL.iter().find(|model| model.architecture == architecture)
    }

    /// The occupancy levels, from the fewest vector registers to the most. Numbers of waves that
    /// allow equally many vector registers are one level: the one with the most waves.
    pub fn levels(&self) -> Vec<Level> {
        let level = |class: RegisterClass| {
            let lane = class.registers.next_multiple_of(self.device.registers.granule);
            let DeviceModel { registers, warps_max, .. } = self.device;
            let waves = (registers.per_part / lane).min(warps_max / registers.parts);
            Level { waves, vgprs: class.registers, sgprs: self.scalars_for(waves) }
        };
        RegisterClass::of_device(&self.device).into_iter().map(level).collect()
    }

    /// The level with the most waves whose registers are enough for a kernel.
    pub fn level_of(&self, vgprs: u32, sgprs: u32) -> Option<Level> {
        self.levels().into_iter().find(|level| vgprs <= level.vgprs && sgprs <= level.sgprs)
    }

    /// Waves per SIMD with a kernel: the waves of its level, unless its blocks need so much shared
    /// memory, or are so large, that fewer fit. 0 if a block does not fit.
    ///
    /// `shared_bytes` and `threads` are those of a block.
    pub fn waves_per_simd(&self, level: Level, shared_bytes: u32, threads: u32) -> u32 {
        let needs = KernelNeeds { registers: level.vgprs, shared_bytes, threads };
        self.device.occupancy(needs).warps.div_ceil(self.device.registers.parts).min(level.waves)
    }

    /// Maximum number of scalar registers of a wave if this many waves are on a SIMD.
    fn scalars_for(&self, waves: u32) -> u32 {
        let limit = |file: ScalarFile| (file.total / waves / file.granule * file.granule).min(file.per_wave_max);
        self.scalars.map_or(SCALARS, limit)
    }

    /// The proxy kernel of a module of this architecture; `None` if the module is for another
    /// device.
    pub fn proxy(&self, dkp: &DkpModule) -> Option<Proxy> {
        let level = self.levels().into_iter().find(|level| level.vgprs == dkp.class.registers)?;
        (!dkp.targets.is_empty()).then(|| Proxy {
            name: dkp.facts.entry.clone(),
            level,
            params_bytes: dkp.facts.params_bytes,
            threads: dkp.facts.threads.last().copied().unwrap_or(1),
            assembly: self.assembly(&dkp.facts.entry, &dkp.targets),
            constraints: constraints(level, level.vgprs - 1 - self.reserved_vectors),
        })
    }

    /// Instructions of a proxy kernel that can jump to this number of candidates.
    pub fn proxy_instructions(&self, candidates: usize) -> usize {
        let target = |number| JumpTarget { kernel: format!("candidate_{number}"), threads: self.device.warp_threads };
        let targets: Vec<JumpTarget> = (0..candidates).map(target).collect();
        self.assembly("proxy", &targets).lines().filter(|line| !line.ends_with(':')).count()
    }

    /// The code of a proxy. `s[40:55]` hold the four slots: end, candidate, and two words that the
    /// candidate reads itself. `s56` is the candidate, `s57` the threads of its block, `s[58:59]` an
    /// address of code.
    fn assembly(&self, name: &str, targets: &[JumpTarget]) -> String {
        let (load, wait) = match self.generation {
            Generation::Gfx9 | Generation::Gfx10 => ("s_load_dwordx16", "s_waitcnt lgkmcnt(0)"),
            Generation::Gfx11 => ("s_load_b512", "s_waitcnt lgkmcnt(0)"),
            Generation::Gfx12 => ("s_load_b512", "s_wait_kmcnt 0x0"),
        };
        let (add, add_high) = match self.generation {
            Generation::Gfx12 => ("s_add_co_u32", "s_add_co_ci_u32"),
            _ => ("s_add_u32", "s_addc_u32"),
        };
        let mut text = format!("{load} s[40:55], $0, 0x0\n{wait}\ns_mov_b32 s56, s41\n");
        for slot in 1..4 {
            let (end, candidate) = (FIRST_SCALAR + 4 * (slot - 1), FIRST_SCALAR + 4 * slot + 1);
            text += &format!("s_cmp_ge_u32 $1, s{end}\ns_cselect_b32 s56, s{candidate}, s56\n");
        }
        // A number beyond the candidates is not from `lay_out`: the block ends, and is not marked as
        // done.
        text += &format!("s_cmp_ge_u32 s56, {}\ns_cbranch_scc1 .L{name}_end\n", targets.len());
        // A selector per candidate, all of the same size.
        text += &format!(
            "s_getpc_b64 s[58:59]\n.L{name}_base:\ns_mul_i32 s56, s56, {SELECTOR_BYTES}\n\
             {add} s56, s56, .L{name}_selectors-.L{name}_base\n{add} s58, s58, s56\n{add_high} s59, s59, 0\n\
             s_setpc_b64 s[58:59]\n.L{name}_selectors:\n"
        );
        for JumpTarget { kernel, threads } in targets {
            text += &format!(
                "s_movk_i32 s57, {threads}\ns_getpc_b64 s[58:59]\n{add} s58, s58, {kernel}@rel32@lo+4\n\
                 {add_high} s59, s59, {kernel}@rel32@hi+12\ns_branch .L{name}_jump\n"
            );
        }
        let (vcc, and) = match self.generation {
            Generation::Gfx9 => ("vcc", "s_and_b64 exec, exec, vcc"),
            _ => ("vcc_lo", "s_and_b32 exec_lo, exec_lo, vcc_lo"),
        };
        // Some architectures hold the work-item ids y and z in the upper bits of v0.
        text += &format!(".L{name}_jump:\nv_and_b32_e32 v3, 0x3ff, v0\nv_cmp_gt_u32_e32 {vcc}, s57, v3\n");
        if self.generation == Generation::Gfx12 {
            text += "s_wait_alu 0xfffd\n";
        }
        text += &format!("{and}\ns_cbranch_execz .L{name}_end\ns_setpc_b64 s[58:59]\n.L{name}_end:\ns_endpgm\n");
        text
    }
}

/// Inputs, and the registers that the assembly changes. The last registers of the level are among
/// them, so that the kernel takes them all.
fn constraints(level: Level, last_vector: u32) -> String {
    let mut text = "s,s,~{vcc},~{scc},~{v3}".to_owned();
    (FIRST_SCALAR..FIRST_SCALAR + SCALARS_USED).for_each(|scalar| text += &format!(",~{{s{scalar}}}"));
    let last_scalar = (level.sgprs - SPECIAL_SCALARS).min(NAMED_SCALARS) - 1;
    text + &format!(",~{{s{last_scalar}}},~{{v{last_vector}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_takes_all_registers_that_its_waves_leave() {
        for model in AmdModel::ALL {
            let simds = model.device.registers.parts;
            for level in model.levels() {
                let needs = |registers| KernelNeeds { registers, shared_bytes: 0, threads: model.device.warp_threads };
                let waves = |registers| model.device.occupancy(needs(registers)).warps / simds;
                assert_eq!(waves(level.vgprs), level.waves, "{} {level:?}", model.architecture);
                assert!(level.vgprs == 256 || waves(level.vgprs + 1) < level.waves, "{} {level:?}", model.architecture);
                let Some(scalars) = model.scalars else { continue };
                assert!(level.sgprs * level.waves <= scalars.total, "{} {level:?}", model.architecture);
            }
        }
    }

    #[test]
    fn the_table_agrees_with_the_devices() {
        for model in AmdModel::ALL {
            let Some(device) = DeviceModel::find(model.device.name) else { continue };
            assert_eq!(*device, model.device);
        }
        assert!(AmdModel::find("gfx803").is_none());
    }

    /// The oldest and the newest spelling of the instructions.
    #[test]
    fn the_assembly_is_the_golden_one() {
        let target = |number, threads| JumpTarget { kernel: format!("atoll_dkp_64_{number}"), threads };
        let of = |name| AmdModel::find(name).unwrap().assembly("atoll_dkp_64", &[target(0, 32), target(1, 256)]);
        assert_eq!(of("gfx906"), include_str!("../tests/dkp/proxy.gfx906.s"));
        assert_eq!(of("gfx1201"), include_str!("../tests/dkp/proxy.gfx1201.s"));
    }

    #[test]
    fn every_candidate_adds_its_selector_to_a_proxy() {
        let gfx906 = AmdModel::find("gfx906").unwrap();
        assert_eq!([0, 1, 3].map(|candidates| gfx906.proxy_instructions(candidates)), [23, 28, 38]);
    }

    /// Scalar registers can limit a kernel with few vector registers.
    #[test]
    fn scalar_registers_lower_the_level() {
        let gfx906 = AmdModel::find("gfx906").unwrap();
        let waves = |vgprs, sgprs| gfx906.level_of(vgprs, sgprs).map(|level| level.waves);
        assert_eq!([waves(24, 80), waves(24, 96), waves(24, 112)], [Some(10), Some(8), Some(7)]);
        assert_eq!([waves(24, 113), waves(257, 16)], [None, None]);
        let gfx1100 = AmdModel::find("gfx1100").unwrap();
        assert_eq!(gfx1100.level_of(24, 106).map(|level| level.waves), Some(16));
    }

    /// REEF divides the shared memory of a compute unit by the size of a block in threads.
    #[test]
    fn shared_memory_and_blocks_lower_the_waves() {
        let gfx906 = AmdModel::find("gfx906").unwrap();
        let level = gfx906.level_of(24, 80).unwrap();
        assert_eq!(gfx906.waves_per_simd(level, 0, 256), 10);
        assert_eq!(gfx906.waves_per_simd(level, 16 << 10, 256), 4);
        assert_eq!(gfx906.waves_per_simd(level, 65 << 10, 256), 0);
        assert_eq!(gfx906.waves_per_simd(gfx906.level_of(256, 80).unwrap(), 0, 1024), 0);
    }
}
