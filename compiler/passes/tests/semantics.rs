//! Runs kernels after every pass alone and after all passes together, on the host target, which
//! needs no GPU. The results must be those of the untransformed kernel in two cases: the flag is
//! never raised, or it is raised at random moments and the launch is resumed until it is complete.
//!
//! `ATOLL_SEED` sets the seed; a failure prints it.

#![expect(clippy::print_stderr, reason = "a skipped check must be seen")]

mod common;

use atoll_kgraph::{preempt_params, virtual_params};
use atoll_passes::{KernelReport, NotVirtualized, PASSES, PassOptions, Virtualization, transform_with};
use common::Loaded;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Words of the buffer that a kernel works on.
const WORDS: usize = 1 << 14;

/// A kernel and its launch. Its parameters are the buffer's address and a count.
struct Case {
    folder: &'static str,
    name: &'static str,
    block: [u32; 3],
    grid: [u32; 3],
    count: u32,
    dynamic_shared_bytes: u32,
    /// Whether its blocks may run again after they stopped midway.
    may_run_again: bool,
}

const fn case(folder: &'static str, name: &'static str, block: [u32; 3], grid: [u32; 3], count: u32) -> Case {
    Case { folder, name, block, grid, count, dynamic_shared_bytes: 0, may_run_again: false }
}

const CASES: [Case; 21] = [
    case("preemption", "elementwise", [64, 1, 1], [9, 1, 1], 500),
    case("preemption", "elementwise", [49, 1, 1], [9, 1, 1], 430),
    case("preemption", "volume", [4, 4, 2], [3, 2, 4], 30),
    case("preemption", "rounds", [96, 1, 1], [5, 1, 1], 4),
    case("preemption", "rounds", [98, 1, 1], [5, 1, 1], 4),
    case("preemption", "early_exit", [128, 1, 1], [6, 1, 1], 70),
    case("preemption", "early_exit", [98, 1, 1], [6, 1, 1], 70),
    Case { dynamic_shared_bytes: 256, ..case("preemption", "jump_to_end", [64, 1, 1], [4, 3, 1], 33) },
    case("preemption", "all_exit", [64, 1, 1], [7, 1, 1], 0),
    case("preemption", "search", [64, 1, 1], [6, 1, 1], 5),
    case("semantics", "odd_tile", [7, 7, 1], [3, 4, 1], 5),
    case("semantics", "odd_tile", [14, 14, 1], [3, 2, 1], 3),
    case("semantics", "odd_tile", [8, 4, 1], [3, 2, 1], 3),
    case("semantics", "odd_tile", [98, 1, 1], [2, 2, 1], 3),
    case("semantics", "divisions", [32, 4, 1], [9, 1, 1], 1100),
    case("semantics", "divisions", [49, 2, 1], [9, 1, 1], 800),
    case("semantics", "looped_early_exit", [128, 1, 1], [4, 1, 1], 20),
    Case { may_run_again: true, ..case("semantics", "long_sum", [64, 1, 1], [6, 1, 1], 50_000) },
    Case { may_run_again: true, ..case("semantics", "long_sum", [100, 1, 1], [4, 1, 1], 1000) },
    Case { may_run_again: true, ..case("semantics", "long_while", [96, 1, 1], [5, 1, 1], 30_000) },
    Case { may_run_again: true, ..case("semantics", "long_while", [49, 1, 1], [5, 1, 1], 30_000) },
];

/// A case transformed by some passes, and compiled.
struct Transformed<'c> {
    case: &'c Case,
    passes: Vec<&'static str>,
    report: KernelReport,
    loaded: Loaded,
    /// Grid of the real launch, if indices are virtual.
    real_grid: [u32; 3],
}

/// Number of real blocks before the virtual ones, and after them.
const BLOCKS_AROUND: u32 = 2;

/// The memory of an invocation.
struct Memory {
    data: Vec<u32>,
    progress: Vec<u8>,
    epoch_word: Arc<AtomicU32>,
    evicted_word: AtomicU32,
}

impl Memory {
    fn of(case: &Case) -> Memory {
        let blocks: u32 = case.grid.iter().product();
        Memory {
            data: (0..WORDS as u32).map(|i| i.wrapping_mul(2_654_435_761) >> 16).collect(),
            progress: vec![0; blocks as usize],
            epoch_word: Arc::new(AtomicU32::new(0)),
            evicted_word: AtomicU32::new(0),
        }
    }
}

impl Case {
    fn blocks(&self) -> u64 {
        self.grid.iter().map(|&extent| u64::from(extent)).product()
    }

    fn source(&self) -> atoll_ptx::Module {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(self.folder).join(self.name).with_extension("ptx");
        atoll_ptx::parse(&fs::read_to_string(path).expect("the case's kernel")).expect("valid PTX")
    }

    fn own_arguments(&self, memory: &mut Memory) -> Vec<u8> {
        let mut params = (memory.data.as_mut_ptr() as u64).to_le_bytes().to_vec();
        params.extend(self.count.to_le_bytes());
        params
    }

    /// The results of the untransformed kernel; `None` on a machine that cannot run it.
    fn expected(&self) -> Option<Vec<u32>> {
        let plain = Loaded::new(&self.source(), self.name, self.block)?;
        let mut memory = Memory::of(self);
        let params = self.own_arguments(&mut memory);
        plain.run(self.grid, 0..self.blocks(), self.dynamic_shared_bytes, &params);
        Some(memory.data)
    }
}

impl<'c> Transformed<'c> {
    fn new(case: &'c Case, passes: &[&'static str]) -> Option<Transformed<'c>> {
        let mut module = case.source();
        let mut options = PassOptions { check_every: Some(32), ..PassOptions::default() };
        options.blocks.insert(case.name.into(), case.block);
        if case.may_run_again {
            options.may_run_again.insert(case.name.into());
        }
        let report = transform_with(&mut module, passes, &options, &mut |_, _| {})
            .expect("it can be transformed")
            .kernels
            .remove(0);
        let (mut block, mut real_grid) = (case.block, case.grid);
        if let Virtualization::Virtual(_) = report.virtualization {
            // One warp more than needed.
            block = [block.iter().product::<u32>().next_multiple_of(32) + 32, 1, 1];
            real_grid = [u32::try_from(case.blocks()).expect("few blocks") + 2 * BLOCKS_AROUND, 1, 1];
        }
        let loaded = Loaded::new(&module, case.name, block)?;
        Some(Transformed { case, passes: passes.to_vec(), report, loaded, real_grid })
    }

    fn launch(&self, memory: &mut Memory, issued_epoch: u32) {
        let mut params = self.case.own_arguments(memory);
        if let Some(offset) = self.report.preempt_offset() {
            params.resize(offset as usize, 0);
            let words = [
                memory.epoch_word.as_ptr() as u64,
                memory.evicted_word.as_ptr() as u64,
                memory.progress.as_mut_ptr() as u64,
            ];
            words.into_iter().for_each(|address| params.extend(address.to_le_bytes()));
            params.extend(issued_epoch.to_le_bytes());
            assert_eq!(params.len(), (offset + preempt_params::BYTES) as usize);
        }
        if let Virtualization::Virtual(launch) = &self.report.virtualization {
            params.resize(launch.offset as usize, 0);
            params.extend(BLOCKS_AROUND.to_le_bytes());
            self.case.grid.iter().for_each(|extent| params.extend(extent.to_le_bytes()));
            assert_eq!(launch.block, Some(self.case.block));
            assert_eq!(params.len(), (launch.offset + virtual_params::BYTES_WITHOUT_BLOCK) as usize);
        }
        let blocks = self.real_grid.iter().map(|&extent| u64::from(extent)).product();
        self.loaded.run(self.real_grid, 0..blocks, self.report.shared_bytes + self.case.dynamic_shared_bytes, &params);
    }

    fn is_preemptible(&self) -> bool {
        self.report.preempt_offset().is_some()
    }

    fn describe(&self) -> String {
        format!("{} {:?} after {}", self.case.name, self.case.block, self.passes.join(", "))
    }
}

/// Every pass alone, the passes of models, and all passes.
fn selections() -> Vec<Vec<&'static str>> {
    let names: Vec<&'static str> =
        PASSES.iter().map(|pass| pass.name).filter(|name| !NOT_HERE.contains(name)).collect();
    let mut selections: Vec<Vec<&'static str>> = names.iter().map(|&name| vec![name]).collect();
    selections.push(vec!["check_in_loops", "inject_preempt_flag"]);
    selections.push(vec!["inject_preempt_flag", "shared_to_dynamic"]);
    selections.push(vec!["inject_preempt_flag", "virtualize_block_index"]);
    selections.push(names);
    selections
}

/// Passes that change what a kernel may do; they are tested elsewhere.
const NOT_HERE: [&str; 1] = ["fence_memory"];

/// Calls `check` with every case after every selection of passes, and with the expected results.
fn for_all(check: &dyn Fn(&Transformed<'_>, &[u32])) {
    let mut ran = 0;
    for case in &CASES {
        let Some(expected) = case.expected() else { continue };
        for passes in selections() {
            if let Some(transformed) = Transformed::new(case, &passes) {
                check(&transformed, &expected);
                ran += 1;
            }
        }
    }
    if ran == 0 {
        eprintln!("SKIPPED: the host target does not support this processor");
    }
}

#[test]
fn results_are_unchanged() {
    let seed = std::env::var("ATOLL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    for_all(&|transformed, expected| {
        with_the_flag_down(transformed, expected);
        if transformed.is_preemptible() {
            evict_at_random(transformed, expected, seed);
        }
    });
}

fn with_the_flag_down(transformed: &Transformed<'_>, expected: &[u32]) {
    let has_flag = transformed.passes.contains(&"inject_preempt_flag");
    assert_eq!(
        transformed.report.keeps_progress(),
        has_flag,
        "{}: {:?}",
        transformed.describe(),
        transformed.report.preemption
    );
    let mut memory = Memory::of(transformed.case);
    transformed.launch(&mut memory, 0);
    assert!(memory.data == expected, "{} computes something else", transformed.describe());
    assert_eq!(memory.evicted_word.load(Ordering::Relaxed), 0, "{}", transformed.describe());
    if has_flag {
        assert!(memory.progress.iter().all(|&byte| byte == 1), "{}: {:?}", transformed.describe(), memory.progress);
    }
}

/// Launches until the kernel is complete, while another thread raises the epoch at random moments.
fn evict_at_random(transformed: &Transformed<'_>, expected: &[u32], seed: u64) {
    let mut memory = Memory::of(transformed.case);
    let mut random = SplitMix64::seed_from_u64(seed);
    let mut evictions = 0;
    for launch in 0.. {
        let issued = memory.epoch_word.load(Ordering::Relaxed);
        memory.evicted_word.store(0, Ordering::Relaxed);
        let raises = launch < 6;
        let wait = Duration::from_nanos(random.next_u64() % 400_000);
        let over = AtomicBool::new(false);
        let epoch_word = Arc::clone(&memory.epoch_word);
        std::thread::scope(|scope| {
            if raises {
                scope.spawn(|| {
                    std::thread::sleep(wait);
                    if !over.load(Ordering::Relaxed) {
                        epoch_word.store(issued.wrapping_add(1), Ordering::Relaxed);
                    }
                });
            }
            transformed.launch(&mut memory, issued);
            over.store(true, Ordering::Relaxed);
        });
        if memory.evicted_word.load(Ordering::Relaxed) == 0 {
            break;
        }
        evictions += 1;
        assert!(launch < 20, "{} does not end; ATOLL_SEED={seed}", transformed.describe());
    }
    assert!(
        memory.data == expected,
        "{} computes something else after {evictions} evictions; ATOLL_SEED={seed}",
        transformed.describe()
    );
}

#[test]
fn blocks_stop_in_long_loops_and_can_be_run_again() {
    let mut stopped = 0;
    for case in CASES.iter().filter(|case| case.may_run_again) {
        let Some(expected) = case.expected() else { continue };
        for passes in [vec!["check_in_loops"], vec!["check_in_loops", "shared_to_dynamic", "virtualize_block_index"]] {
            let Some(transformed) = Transformed::new(case, &passes) else { continue };
            let mut memory = Memory::of(case);
            let before = memory.data.clone();
            memory.epoch_word.store(1, Ordering::Relaxed);
            transformed.launch(&mut memory, 0);
            assert_eq!(
                memory.evicted_word.load(Ordering::Relaxed),
                1,
                "{} has no check that works",
                transformed.describe()
            );
            assert!(memory.data == before, "{} ran to the end", transformed.describe());
            transformed.launch(&mut memory, 1);
            assert!(memory.data == expected, "{} computes something else", transformed.describe());
            stopped += 1;
        }
    }
    assert!(stopped > 0 || atoll_target_host::CpuLevel::of_this_machine().is_none());
}

#[test]
fn kernels_become_virtual_unless_a_known_reason_forbids_it() {
    for case in &CASES {
        let Some(transformed) = Transformed::new(case, &["inject_preempt_flag", "virtualize_block_index"]) else {
            continue;
        };
        match &transformed.report.virtualization {
            Virtualization::Virtual(launch) => {
                assert_eq!(launch.surplus_lanes_stay, case.block.iter().product::<u32>() % 32 != 0)
            }
            Virtualization::Refused(NotVirtualized::PartialWarp { .. }) => {
                assert_eq!((case.name, case.block[0]), ("early_exit", 98))
            }
            other => panic!("{}: {other:?}", transformed.describe()),
        }
    }
}
