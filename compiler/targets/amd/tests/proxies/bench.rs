//! Builds code objects with a proxy kernel, and runs them in the interpreter.

use crate::cases::{CANDIDATES, Case};
use atoll_amd_interp::{Dispatch, Launch, Memory, Options as RunOptions, Program, run};
use atoll_kgraph::dkp::{CandidateFacts, Range, lay_out};
use atoll_kgraph::preempt_params;
use atoll_passes::{PassOptions, transform_with};
use atoll_proxy_kernels::{AmdModel, Candidate, DkpModule, Level, candidate_facts, dkp_modules};
use atoll_ptx::Module;
use atoll_target_amd::{
    Architecture, CodeObject, KernelFacts, KernelShape, Options, Proxy, abi, compile, compile_with_proxy,
};

/// Bytes of the parameter of a dkp launch.
pub(crate) const PARAMS_BYTES: u32 = 512;

/// The passes that make a candidate, and before them the one that makes a kernel preemptible.
const PASSES: [&str; 4] = ["inject_preempt_flag", "shared_to_dynamic", "virtualize_block_index", "outline_kernel_body"];

/// The source of all kernels.
fn source() -> Module {
    atoll_ptx::parse(CANDIDATES).unwrap()
}

impl Case {
    /// Threads of a block, with the last warp filled up.
    pub(crate) fn linear(&self) -> u32 {
        self.block.iter().product::<u32>().next_multiple_of(32)
    }

    /// Adds its input, which depends on the seed, and its output; returns their addresses.
    pub(crate) fn buffers(&self, memory: &mut Memory, seed: u32) -> [u64; 2] {
        let [input, output] = self.buffers_of(seed);
        [memory.add("in", input), memory.add("out", output)]
    }

    /// The kernel's own arguments.
    pub(crate) fn arguments(&self, buffers: [u64; 2]) -> Vec<u8> {
        let addresses = buffers.into_iter().flat_map(u64::to_le_bytes);
        addresses.chain(self.integers().into_iter().flat_map(u32::to_le_bytes)).collect()
    }

    /// The output of the kernel in a launch of its own, without any pass.
    pub(crate) fn alone(&self, architecture: Architecture, seed: u32) -> Vec<u8> {
        let shape = KernelShape { name: self.entry.into(), block: self.block };
        let code = compile(&source(), &[shape], architecture, &Options::default()).unwrap();
        let program = Program::load(&code.elf).unwrap();
        let mut memory = Memory::new();
        let buffers = self.buffers(&mut memory, seed);
        let kernarg = abi::kernarg(&self.arguments(buffers), self.grid, self.block, 0, abi::Records::default());
        let launch = Launch { grid: self.grid, block: self.block, dynamic_lds: 0, kernarg };
        run(&[&program], self.entry, &launch, &mut memory, &RunOptions::default()).unwrap();
        memory.bytes(buffers[1]).unwrap().to_vec()
    }

    /// The module after the passes, with the block shape compiled in.
    fn prepared(&self, passes: &[&str]) -> (Module, CandidateFacts) {
        let mut module = source();
        let options = PassOptions { blocks: [(self.entry.into(), self.block)].into(), ..PassOptions::default() };
        let report = transform_with(&mut module, passes, &options, &mut |_, _| {}).unwrap();
        let report = report.kernels.iter().find(|kernel| kernel.name == self.entry).unwrap();
        (module, candidate_facts(report).unwrap())
    }
}

/// A dkp module for some cases: its code, and the facts about it.
pub(crate) struct Padded {
    pub(crate) dkp: DkpModule,
    pub(crate) level: Level,
    pub(crate) code: CodeObject,
    pub(crate) proxy: KernelFacts,
    program: Program,
}

/// The words of a preemptible launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    pub(crate) epoch: u64,
    pub(crate) evicted: u64,
    pub(crate) progress: u64,
}

impl Words {
    pub(crate) fn new(memory: &mut Memory, blocks: u32) -> Words {
        Words {
            epoch: memory.add("epoch", vec![0; 4]),
            evicted: memory.add("evicted", vec![0; 4]),
            progress: memory.add("progress", vec![0; blocks as usize]),
        }
    }
}

impl Padded {
    /// One module with all cases, at the level of the most demanding.
    pub(crate) fn new(cases: &[Case], architecture: Architecture, is_preemptible: bool) -> Padded {
        let registers = level_registers(cases, architecture);
        Padded::modules(cases, &vec![registers; cases.len()], architecture, is_preemptible).remove(0)
    }

    /// The modules of cases that count as kernels with these registers.
    pub(crate) fn modules(
        cases: &[Case],
        registers: &[u32],
        architecture: Architecture,
        is_preemptible: bool,
    ) -> Vec<Padded> {
        let model = AmdModel::find(architecture.name()).unwrap();
        let passes = if is_preemptible { &PASSES[..] } else { &PASSES[1..] };
        let prepared: Vec<_> = cases.iter().map(|case| case.prepared(passes)).collect();
        let candidates: Vec<Candidate<'_>> = (cases.iter().zip(&prepared).zip(registers))
            .map(|((case, (module, facts)), registers)| Candidate {
                module,
                kernel: case.entry,
                facts,
                block: case.block,
                registers: *registers,
                dynamic_shared_bytes: 0,
            })
            .collect();
        let made = dkp_modules(&candidates, &model.device, PARAMS_BYTES);
        assert!(made.refused.is_empty(), "{:?}", made.refused);
        let padded = |dkp: DkpModule| {
            let (code, proxy, level) = compiled(&dkp, model, architecture).unwrap();
            let program = Program::load(&code.elf).unwrap();
            Padded { dkp, level, code, proxy, program }
        };
        made.modules.into_iter().map(padded).collect()
    }

    /// A case's blocks `first..first + blocks` as a range of a launch.
    pub(crate) fn range(
        &self,
        candidate: usize,
        case: &Case,
        buffers: [u64; 2],
        words: Option<(Words, u32)>,
        [first, blocks]: [u32; 2],
    ) -> Range {
        let facts = &self.dkp.facts.candidates[candidate].facts;
        let mut arguments = case.arguments(buffers);
        if let Some((words, issued)) = words {
            let at = arguments.len().next_multiple_of(8);
            arguments.resize(at + preempt_params::BYTES as usize, 0);
            let mut put = |offset: u32, bytes: &[u8]| {
                arguments[at + offset as usize..][..bytes.len()].copy_from_slice(bytes);
            };
            put(preempt_params::EPOCH_WORD, &words.epoch.to_le_bytes());
            put(preempt_params::EVICTED_WORD, &words.evicted.to_le_bytes());
            put(preempt_params::PROGRESS, &words.progress.to_le_bytes());
            put(preempt_params::ISSUED_EPOCH, &issued.to_le_bytes());
        }
        arguments.resize(facts.params_bytes as usize, 0);
        Range { candidate, arguments, grid: case.grid, first, blocks }
    }

    fn launch(&self, ranges: &[Range]) -> Launch {
        let laid_out = lay_out(&self.dkp.facts, ranges).unwrap();
        let (grid, block) = ([laid_out.blocks, 1, 1], [self.dkp.facts.threads[laid_out.size], 1, 1]);
        let kernarg = abi::kernarg(&laid_out.params, grid, block, laid_out.shared_bytes, abi::Records::default());
        Launch { grid, block, dynamic_lds: laid_out.shared_bytes, kernarg }
    }

    /// Runs some ranges in one launch.
    pub(crate) fn run(&self, ranges: &[Range], memory: &mut Memory, seed: u64) {
        let options = RunOptions { seed, resident: 3, ..RunOptions::default() };
        run(&[&self.program], &self.dkp.facts.entry, &self.launch(ranges), memory, &options)
            .unwrap_or_else(|e| panic!("{}: {e}", self.dkp.facts.entry));
    }

    /// Runs some ranges after the number of the first candidate was changed.
    pub(crate) fn run_forged(&self, ranges: &[Range], memory: &mut Memory, candidate: u32) -> Result<(), String> {
        let mut launch = self.launch(ranges);
        launch.kernarg[4..8].copy_from_slice(&candidate.to_le_bytes());
        let ran = run(&[&self.program], &self.dkp.facts.entry, &launch, memory, &RunOptions::default());
        ran.map(drop).map_err(|error| error.to_string())
    }

    /// Runs some ranges, one block after the other, and raises an epoch before one of them.
    pub(crate) fn run_until(&self, ranges: &[Range], memory: &mut Memory, raised_before: u32, epoch: u64) {
        let mut dispatch =
            Dispatch::new(vec![&self.program], &self.dkp.facts.entry, self.launch(ranges), &RunOptions::default())
                .unwrap();
        self.program.map(memory);
        dispatch.attach(memory);
        let mut started = 0;
        while let Some(mut block) = dispatch.start(0) {
            if started == raised_before {
                memory.bytes_mut(epoch).unwrap().copy_from_slice(&1u32.to_le_bytes());
            }
            started += 1;
            while !dispatch.turn(&mut block, memory).unwrap_or_else(|fault| panic!("{fault}")) {}
        }
        dispatch.detach(memory);
    }
}

/// The vector registers of the level of the most demanding case.
pub(crate) fn level_registers(cases: &[Case], architecture: Architecture) -> u32 {
    let model = AmdModel::find(architecture.name()).unwrap();
    let of_case = |case: &Case| {
        let (module, _) = case.prepared(&PASSES);
        let shape = KernelShape { name: case.entry.into(), block: [case.linear(), 1, 1] };
        let kernel = compile(&module, &[shape], architecture, &Options::default()).unwrap().kernels.remove(0);
        model.level_of(kernel.vgprs, kernel.sgprs).unwrap().vgprs
    };
    cases.iter().map(of_case).max().unwrap()
}

/// Compiles a module with its proxy.
pub(crate) fn compiled(
    dkp: &DkpModule,
    model: &AmdModel,
    architecture: Architecture,
) -> Result<(CodeObject, KernelFacts, Level), atoll_target_amd::AmdError> {
    let proxy = model.proxy(dkp).unwrap();
    let level = proxy.level;
    let shapes: Vec<KernelShape> = dkp
        .targets
        .iter()
        .map(|target| KernelShape { name: target.kernel.as_str().into(), block: [target.threads, 1, 1] })
        .collect();
    let options = Options { vgprs_max: Some(level.vgprs), ..Options::default() };
    let proxy = Proxy {
        name: proxy.name,
        params_bytes: proxy.params_bytes,
        threads: proxy.threads,
        assembly: proxy.assembly,
        constraints: proxy.constraints,
    };
    let (code, facts) = compile_with_proxy(&dkp.module, &shapes, &proxy, architecture, &options)?;
    Ok((code, facts, level))
}
