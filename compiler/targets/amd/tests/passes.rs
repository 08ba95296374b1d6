//! What the fence and the checks in loops do in machine code: kernels after these passes run in the
//! interpreter, where an access outside every buffer is a fault. `ATOLL_SEED` selects the attacks.

mod common;

use atoll_amd_interp::{Dispatch, FaultKind, Launch, Memory, Options as RunOptions, Program, RunError, run};
use atoll_kgraph::preempt_params;
use atoll_kgraph::target::fence_params;
use atoll_passes::{FenceForm, Fencing, KernelReport, LoopDecision, PassOptions, transform_with};
use atoll_ptx::Module;
use atoll_target_amd::{Architecture, KernelShape, Options, abi, compile, llvm_ir};

const HOSTILE: [&str; 2] =
    [include_str!("../../../../tests/fence/hostile.ptx"), include_str!("../../../../tests/fence/hostile_sm80.ptx")];

/// Kernels of [`HOSTILE`] that the target takes, in each form.
const HOSTILE_MIN: usize = 12;

/// Address and size of the tenant's region, and of the constants: their sizes are powers of two, and
/// their addresses multiples of these.
const REGION: (u64, usize) = (0x2000_0000_0000, 4096);
const CONSTANTS: (u64, usize) = (0x3000_0000_0000, 256);

/// Dynamic shared memory of every hostile kernel.
const SHARED_BYTES: u32 = 256;

const BLOCK: [u32; 3] = [48, 1, 1];

fn architectures() -> &'static [Architecture] {
    if common::is_full() { &Architecture::ALL } else { &[Architecture::Gfx90a, Architecture::Gfx1100] }
}

/// A number; advances the state.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 7 ^ *state << 13
}

fn transformed(text: &str, passes: &[&str], options: &PassOptions) -> (Module, Vec<KernelReport>) {
    let mut module = atoll_ptx::parse(text).unwrap();
    let report = transform_with(&mut module, passes, options, &mut |_, _| {}).unwrap();
    (module, report.kernels)
}

/// Writes values at offsets of a parameter block.
fn put(params: &mut [u8], values: &[(u32, u64)]) {
    for (offset, value) in values {
        params[*offset as usize..][..8].copy_from_slice(&value.to_le_bytes());
    }
}

/// One attack: a distance, and an address from anywhere.
fn attack(state: &mut u64) -> [u64; 2] {
    let near = next(state) % 64;
    let delta = [near, REGION.1 as u64 - near, near.wrapping_neg(), 1 << (next(state) % 64), next(state)];
    let wild = [REGION.0 + REGION.1 as u64 - near, REGION.0 - near, near, CONSTANTS.0 - near, next(state)];
    [delta[next(state) as usize % 5], wild[next(state) as usize % 5]]
}

/// The trap record after a launch of a fenced kernel. Fails if it accessed anything outside of its
/// memory.
fn launch_fenced(program: &Program, report: &KernelReport, form: FenceForm, [delta, wild]: [u64; 2]) -> [u32; 2] {
    let Fencing::Fenced { offset } = report.fencing else { panic!("{:?}", report.fencing) };
    let mut memory = Memory::new();
    memory.add_at("region", REGION.0, (0..REGION.1).map(|at| at as u8).collect(), true);
    memory.add_at("constants", CONSTANTS.0, (0..CONSTANTS.1).map(|at| at as u8).collect(), false);
    let record = memory.add("trap record", vec![0; abi::TRAP_BYTES as usize]);
    let mut params = vec![0; report.params_bytes.max(offset + fence_params::BYTES + 4) as usize];
    put(&mut params, &[(0, REGION.0), (8, CONSTANTS.0), (16, delta), (24, wild)]);
    put(&mut params, &[(offset + fence_params::BASE, REGION.0), (offset + fence_params::MASK, REGION.1 as u64 - 1)]);
    let constants = [
        (offset + fence_params::CONSTANTS_BASE, CONSTANTS.0),
        (offset + fence_params::CONSTANTS_MASK, CONSTANTS.1 as u64 - 1),
        (offset + fence_params::DYNAMIC_SHARED, u64::from(SHARED_BYTES)),
    ];
    put(&mut params, &constants);
    params.truncate(report.params_bytes as usize);
    let (grid, dynamic_lds) = ([2, 1, 1], SHARED_BYTES + report.shared_bytes);
    let kernarg = abi::kernarg(&params, grid, BLOCK, dynamic_lds, abi::Records { trap: record, print: 0 });
    let launch = Launch { grid, block: BLOCK, dynamic_lds, kernarg };
    match run(&[program], &report.name, &launch, &mut memory, &RunOptions::default()) {
        Ok(_) => {}
        // Masked addresses are also aligned; others may be misaligned within the region.
        Err(RunError::Fault(fault))
            if form == FenceForm::Trap && matches!(fault.kind, FaultKind::Misaligned { .. }) => {}
        Err(error) => panic!("{} fenced by {form:?}, delta {delta:#x}, wild {wild:#x}: {error}", report.name),
    }
    let record = memory.bytes(record).unwrap();
    [abi::TRAP_STATE, abi::TRAP_CODE].map(|at| u32::from_le_bytes(record[at as usize..][..4].try_into().unwrap()))
}

#[test]
fn hostile_kernels_access_nothing_outside_their_region() {
    let rounds = if common::is_full() { 100 } else { 6 };
    let mut state = std::env::var("ATOLL_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    for &architecture in architectures() {
        for form in [FenceForm::Mask, FenceForm::Trap] {
            let (mut taken, mut traps) = (0, 0);
            for text in HOSTILE {
                let options = PassOptions { fence_form: form, ..PassOptions::default() };
                let (module, reports) = transformed(text, &["fence_memory"], &options);
                for report in &reports {
                    let shape = [KernelShape { name: report.name.as_str().into(), block: BLOCK }];
                    if llvm_ir(&module, &shape, architecture, &Options::default()).is_err() {
                        continue;
                    }
                    taken += 1;
                    let code = compile(&module, &shape, architecture, &Options::default()).unwrap();
                    let program = Program::load(&code.elf).unwrap();
                    for _ in 0..rounds {
                        let [state, code] = launch_fenced(&program, report, form, attack(&mut state));
                        let is_trap = (state, code) == (abi::TRAP_COMPLETE, abi::TrapCode::OutOfBounds as u32);
                        assert!(state == 0 || is_trap, "{}: state {state}, code {code}", report.name);
                        traps += u32::from(is_trap);
                    }
                }
            }
            assert!(taken >= HOSTILE_MIN, "{architecture} takes {taken} hostile kernels");
            assert_eq!(traps > 0, form == FenceForm::Trap, "{architecture}: {traps} traps by {form:?}");
        }
    }
}

/// Adds up a buffer in a loop, and stores the sum of each thread.
const LONG_LOOP: &str = ".version 7.8\n.target sm_75\n.address_size 64\n\
    .visible .entry long(.param .u64 values, .param .u64 sums, .param .u32 count)\n{\n\
    \t.reg .pred %p;\n\t.reg .b32 %r<8>;\n\t.reg .b64 %d<8>;\n\
    \tld.param.u64 %d1, [values];\n\tld.param.u64 %d2, [sums];\n\tld.param.u32 %r1, [count];\n\
    \tmov.u32 %r2, %ctaid.x;\n\tmov.u32 %r3, %ntid.x;\n\tmov.u32 %r4, %tid.x;\n\
    \tmad.lo.u32 %r2, %r2, %r3, %r4;\n\tmul.wide.u32 %d3, %r2, 4;\n\tadd.u64 %d2, %d2, %d3;\n\
    \tmov.u32 %r5, 0;\n\tmov.u32 %r6, 0;\n\
    $next:\n\tand.b32 %r7, %r5, 255;\n\tmul.wide.u32 %d4, %r7, 4;\n\tadd.u64 %d4, %d1, %d4;\n\
    \tld.global.u32 %r7, [%d4];\n\tmad.lo.u32 %r6, %r7, %r4, %r6;\n\tadd.u32 %r5, %r5, 1;\n\
    \tsetp.lt.u32 %p, %r5, %r1;\n\t@%p bra $next;\n\
    \tst.global.u32 [%d2], %r6;\n\tret;\n}\n";

const ROUNDS: u32 = 20_000;
const LOOP_BLOCK: [u32; 3] = [96, 1, 1];

/// The buffers of a launch of [`LONG_LOOP`], which is preemptible.
struct Loop {
    memory: Memory,
    sums: u64,
    epoch: u64,
    evicted: u64,
    progress: u64,
    params: Vec<u8>,
    issued_at: usize,
}

impl Loop {
    fn new(report: &KernelReport) -> Loop {
        let offset = report.preempt_params.expect("it is preemptible");
        let mut memory = Memory::new();
        let values = memory.add("values", (0..256_u32).flat_map(|i| (i * i + 1).to_le_bytes()).collect());
        let sums = memory.add("sums", vec![0; 4 * LOOP_BLOCK[0] as usize]);
        let [epoch, evicted, progress] =
            [("epoch", 4), ("evicted", 4), ("progress", 1)].map(|(name, bytes)| memory.add(name, vec![0; bytes]));
        let mut params = vec![0; report.params_bytes.max(offset + preempt_params::BYTES + 8) as usize];
        put(&mut params, &[(0, values), (8, sums), (16, u64::from(ROUNDS))]);
        let words = [
            (offset + preempt_params::EPOCH_WORD, epoch),
            (offset + preempt_params::EVICTED_WORD, evicted),
            (offset + preempt_params::PROGRESS, progress),
        ];
        put(&mut params, &words);
        params.truncate(report.params_bytes as usize);
        Loop {
            memory,
            sums,
            epoch,
            evicted,
            progress,
            params,
            issued_at: (offset + preempt_params::ISSUED_EPOCH) as usize,
        }
    }

    /// Runs its only block. The epoch is raised to 1 after some turns of its waves.
    fn run(&mut self, program: &Program, issued: u32, raised_after: Option<u32>) -> u32 {
        self.params[self.issued_at..][..4].copy_from_slice(&issued.to_le_bytes());
        let kernarg = abi::kernarg(&self.params, [1; 3], LOOP_BLOCK, 0, abi::Records::default());
        let launch = Launch { grid: [1; 3], block: LOOP_BLOCK, dynamic_lds: 0, kernarg };
        let mut dispatch = Dispatch::new(vec![program], "long", launch, &RunOptions::default()).unwrap();
        program.map(&mut self.memory);
        dispatch.attach(&mut self.memory);
        let mut block = dispatch.start(0).expect("a block");
        let mut turns = 0;
        while !dispatch.turn(&mut block, &mut self.memory).unwrap_or_else(|fault| panic!("{fault}")) {
            turns += 1;
            if raised_after == Some(turns) {
                self.memory.bytes_mut(self.epoch).unwrap().copy_from_slice(&1_u32.to_le_bytes());
            }
        }
        dispatch.detach(&mut self.memory);
        program.unmap(&mut self.memory);
        turns
    }

    /// The progress of the block, and the evicted word.
    fn state(&self) -> (u8, u8) {
        (self.memory.bytes(self.progress).unwrap()[0], self.memory.bytes(self.evicted).unwrap()[0])
    }
}

/// A block leaves in the middle of its loop, without its result, and runs again from its start.
#[test]
fn a_block_leaves_in_the_middle_of_a_loop_and_runs_again() {
    let options = PassOptions {
        blocks: [("long".into(), LOOP_BLOCK)].into(),
        may_run_again: ["long".into()].into(),
        ..PassOptions::default()
    };
    let (module, reports) = transformed(LONG_LOOP, &["check_in_loops", "inject_preempt_flag"], &options);
    let report = &reports[0];
    assert!(matches!(report.loops[0].decision, LoopDecision::Checked { .. }), "{:?}", report.loops);
    for &architecture in architectures() {
        let shape = [KernelShape { name: "long".into(), block: LOOP_BLOCK }];
        let code = compile(&module, &shape, architecture, &Options::default()).unwrap();
        let program = Program::load(&code.elf).unwrap();
        let mut undisturbed = Loop::new(report);
        let all = undisturbed.run(&program, 0, None);
        assert_eq!(undisturbed.state(), (1, 0), "{architecture}");
        let expected = undisturbed.memory.bytes(undisturbed.sums).unwrap().to_vec();
        let mut evicted = Loop::new(report);
        let turns = evicted.run(&program, 0, Some(all / 4));
        assert!(turns < all / 2, "{architecture}: it left after {turns} of {all} turns");
        assert_eq!(evicted.state(), (0, 1), "{architecture}");
        assert!(evicted.memory.bytes(evicted.sums).unwrap().iter().all(|byte| *byte == 0), "{architecture}");
        evicted.run(&program, 1, None);
        assert_eq!(evicted.state(), (1, 1), "{architecture}");
        assert!(evicted.memory.bytes(evicted.sums).unwrap() == expected, "{architecture}");
    }
}
