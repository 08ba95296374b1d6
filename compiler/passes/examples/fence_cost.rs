//! Measures the cost of the fence: registers and spills as counted by the assembler, and the run
//! time on this machine's CPU, measured in pairs in one run.
//!
//! `cargo run --release -p atoll-passes --example fence_cost`

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints a table")]

#[path = "../tests/common/mod.rs"]
mod common;

use atoll_passes::{FenceForm, Fencing, PassOptions, transform_with};
use atoll_ptx::Module;
use atoll_target_nvidia::{Ptxas, find_ptxas};
use common::Loaded;
use std::path::Path;
use std::time::{Duration, Instant};

/// Size of the region that holds all buffers.
const REGION_BYTES: usize = 64 << 20;
/// Bytes of each buffer in it.
const BUFFER_BYTES: usize = REGION_BYTES / 4;
/// Number of runs of each form; the fastest one counts.
const RUNS: usize = 15;

/// An argument of a kernel.
enum Arg {
    /// The n-th buffer.
    Buffer(usize),
    Int(u32),
    Float(f32),
}

/// A labelled kernel, at a size with a measurable run time: name, blocks, threads, arguments.
type Row = (&'static str, [u32; 3], [u32; 3], &'static [Arg]);

const ROWS: &[Row] = &[
    ("copy", [8192, 1, 1], [128, 1, 1], &[Arg::Buffer(0), Arg::Buffer(1), Arg::Int(1 << 20)]),
    ("saxpy", [8192, 1, 1], [128, 1, 1], &[Arg::Buffer(0), Arg::Buffer(1), Arg::Buffer(2), Arg::Float(2.0)]),
    ("vector_copy", [4096, 1, 1], [64, 1, 1], &[Arg::Buffer(0), Arg::Buffer(1)]),
    ("stencil", [8192, 1, 1], [128, 1, 1], &[Arg::Buffer(0), Arg::Buffer(1)]),
    ("gather", [4096, 1, 1], [128, 1, 1], &[Arg::Buffer(0), Arg::Buffer(3), Arg::Buffer(1)]),
    ("transpose", [4096, 1, 1], [32, 1, 1], &[Arg::Buffer(0), Arg::Buffer(1)]),
    ("gemm_naive", [256, 1, 1], [256, 1, 1], &[Arg::Buffer(0), Arg::Buffer(1), Arg::Buffer(2), Arg::Int(256)]),
    ("gemm_tiled", [16, 16, 1], [16, 16, 1], &[Arg::Buffer(0), Arg::Buffer(1), Arg::Buffer(2), Arg::Int(256)]),
    ("reduce_tree", [8192, 1, 1], [64, 1, 1], &[Arg::Buffer(0), Arg::Buffer(1)]),
];

/// An allocation with a region aligned to its size.
struct Region {
    memory: Vec<u8>,
    start: usize,
}

impl Region {
    fn new() -> Region {
        // Zeros are valid as small indices and as floats.
        let memory = vec![0; 2 * REGION_BYTES];
        let start = memory.as_ptr().addr().next_multiple_of(REGION_BYTES) - memory.as_ptr().addr();
        Region { memory, start }
    }

    fn base(&self) -> u64 {
        (self.memory.as_ptr().addr() + self.start) as u64
    }

    fn params(&self, args: &[Arg], fenced_at: Option<u32>) -> Vec<u8> {
        let mut params = Vec::new();
        for arg in args {
            let bytes = match arg {
                Arg::Buffer(index) => (self.base() + (index * BUFFER_BYTES) as u64).to_le_bytes().to_vec(),
                Arg::Int(value) => value.to_le_bytes().to_vec(),
                Arg::Float(value) => value.to_le_bytes().to_vec(),
            };
            params.resize(params.len().next_multiple_of(bytes.len()), 0);
            params.extend(bytes);
        }
        if let Some(offset) = fenced_at {
            params.resize(offset as usize, 0);
            let mask = REGION_BYTES as u64 - 1;
            // No access lies in the constants, so loads take the longer path.
            [self.base(), mask, 0, mask].iter().for_each(|word: &u64| params.extend(word.to_le_bytes()));
            params.extend(0_u32.to_le_bytes());
        }
        params
    }
}

fn registers(ptxas: Option<&Ptxas>, module: &Module, name: &str) -> String {
    let Some(ptxas) = ptxas else { return "-".into() };
    match ptxas.assemble(&atoll_ptx::print(module), "sm_80") {
        Ok(report) => report.report.kernels.get(name).map_or("?".into(), |k| format!("{}", k.registers)),
        Err(error) => error.to_string(),
    }
}

/// A module with its only kernel fenced, and the offset of the appended parameters.
fn fenced(module: &Module, form: FenceForm) -> (Module, u32) {
    let mut module = module.clone();
    let options = PassOptions { fence_form: form, ..PassOptions::default() };
    let report = transform_with(&mut module, &["fence_memory"], &options, &mut |_, _| {}).expect("valid");
    match &report.kernels[0].fencing {
        Fencing::Fenced { offset } => (module, *offset),
        other => panic!("{}: {other:?}", report.kernels[0].name),
    }
}

fn main() {
    let ptxas = find_ptxas();
    if ptxas.is_none() {
        eprintln!("no ptxas: registers are left out; set ATOLL_PTXAS");
    }
    println!(
        "| kernel | registers | masked | trapped | host time | masked | trapped |\n|---|---:|---:|---:|---:|---:|---:|"
    );
    let mut region = Region::new();
    for (name, grid, block, args) in ROWS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/idempotence").join(format!("{name}.ptx"));
        let text = std::fs::read_to_string(&path).expect("a labelled kernel");
        let plain = atoll_ptx::parse(&text).expect("its PTX reads well");
        let (masked, offset) = fenced(&plain, FenceForm::Mask);
        let (trapped, _) = fenced(&plain, FenceForm::Trap);
        let modules = [&plain, &masked, &trapped];
        let counts = modules.map(|module| registers(ptxas.as_ref(), module, name));
        let mut forms = Vec::new();
        for (module, at) in modules.into_iter().zip([None, Some(offset), Some(offset)]) {
            let Some(kernel) = Loaded::new(module, name, *block) else {
                return eprintln!("the host target does not support this processor");
            };
            forms.push((kernel, region.params(args, at)));
        }
        let blocks = grid.iter().map(|&extent| u64::from(extent)).product();
        let mut best = [Duration::MAX; 3];
        for _ in 0..RUNS {
            for (best, (kernel, params)) in best.iter_mut().zip(&forms) {
                let start = Instant::now();
                kernel.run(*grid, 0..blocks, 0, params);
                *best = (*best).min(start.elapsed());
            }
        }
        region.memory[region.start..].fill(0);
        let [masked, trapped] = [1, 2].map(|form| best[form].as_secs_f64() / best[0].as_secs_f64());
        let [one, two, three] = &counts;
        println!("| `{name}` | {one} | {two} | {three} | {:.2?} | {masked:.2} | {trapped:.2} |", best[0]);
    }
}
