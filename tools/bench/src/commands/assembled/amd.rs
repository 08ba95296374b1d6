//! Machine code for AMD GPUs, by LLVM.

use super::measure::{Assembler, Figures, Made};
use super::sources::Source;
use anyhow::{Context, Result, anyhow};
use atoll_amd_interp::Program;
use atoll_kgraph::KernelFacts;
use atoll_pipeline::{AmdArchitecture, compile_amd};
use atoll_proxy_kernels::AmdModel;
use atoll_ptx::Module;

/// The compiler for an architecture.
pub(super) struct Amd {
    architecture: AmdArchitecture,
    model: &'static AmdModel,
}

impl Amd {
    pub(super) fn new(architecture: AmdArchitecture) -> Result<Amd> {
        let model = AmdModel::find(architecture.name()).context("padding knows every architecture")?;
        Ok(Amd { architecture, model })
    }
}

impl Assembler for Amd {
    fn module(&self, source: &Source) -> Module {
        source.module.clone()
    }

    fn assemble(&self, source: &Source, module: &Module, dynamic_bytes: u32, _: Option<&Made>) -> Result<Made> {
        let name = source.kernel.to_string();
        let mut facts = [KernelFacts { name: name.clone(), block: source.block(), ..KernelFacts::default() }];
        let (elf, _) = compile_amd(module, &mut facts, self.architecture, false)?;
        let amd = facts[0].amd.context("the facts of code for AMD")?;
        let program = Program::load(&elf).map_err(|error| anyhow!("the code object: {error}"))?;
        let kernel = program.kernel(&name).map_err(|error| anyhow!("the code object: {error}"))?;
        let shared_bytes = kernel.descriptor.lds_bytes + dynamic_bytes;
        let level = self.model.level_of(amd.vgprs, amd.sgprs);
        let waves = level.map(|level| self.model.waves_per_simd(level, shared_bytes, source.block_threads()));
        let figures = Figures {
            registers: amd.vgprs,
            spill_bytes: facts[0].spill_bytes.unwrap_or(0),
            instructions: program.instructions_of(kernel),
            warps: waves,
        };
        Ok(Made { figures, inner_loops: Vec::new(), held: false, report: None })
    }
}
