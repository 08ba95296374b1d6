//! Runs transformed kernels on the host target, which needs no GPU.
//!
//! Every kernel writes to one buffer and increments counters in it, so a block that runs twice is
//! detected.

#![expect(clippy::print_stderr, reason = "a skipped check must be seen")]

mod common;

use atoll_passes::{Completion, KernelReport, Preemption, TransformOptions, transform};
use common::Loaded;
use std::fs;
use std::path::Path;

/// Words of the buffer that a kernel works on.
const WORDS: usize = 4096;

/// A kernel of `tests/preemption/` and its launch. Its parameters are the buffer's address and a
/// count.
struct Case {
    name: &'static str,
    block: [u32; 3],
    grid: [u32; 3],
    count: u32,
    dynamic_shared_bytes: u32,
    completion: Completion,
}

const CASES: [Case; 7] = [
    Case {
        name: "elementwise",
        block: [64, 1, 1],
        grid: [9, 1, 1],
        count: 500,
        dynamic_shared_bytes: 0,
        completion: Completion::Barrier,
    },
    Case {
        name: "volume",
        block: [4, 4, 2],
        grid: [3, 2, 4],
        count: 30,
        dynamic_shared_bytes: 0,
        completion: Completion::Barrier,
    },
    Case {
        name: "rounds",
        block: [96, 1, 1],
        grid: [5, 1, 1],
        count: 4,
        dynamic_shared_bytes: 0,
        completion: Completion::Barrier,
    },
    Case {
        name: "early_exit",
        block: [128, 1, 1],
        grid: [6, 1, 1],
        count: 70,
        dynamic_shared_bytes: 0,
        completion: Completion::Count,
    },
    Case {
        name: "jump_to_end",
        block: [64, 1, 1],
        grid: [4, 3, 1],
        count: 33,
        dynamic_shared_bytes: 256,
        completion: Completion::Count,
    },
    Case {
        name: "all_exit",
        block: [64, 1, 1],
        grid: [7, 1, 1],
        count: 0,
        dynamic_shared_bytes: 0,
        completion: Completion::Count,
    },
    Case {
        name: "search",
        block: [64, 1, 1],
        grid: [6, 1, 1],
        count: 5,
        dynamic_shared_bytes: 0,
        completion: Completion::Barrier,
    },
];

/// A case, compiled untransformed and transformed.
struct Pair {
    case: &'static Case,
    plain: Loaded,
    transformed: Loaded,
    report: KernelReport,
}

/// The memory of an invocation.
#[derive(Clone, PartialEq, Debug)]
struct Memory {
    data: Vec<u32>,
    progress: Vec<u8>,
    epoch_word: u32,
    evicted_word: u32,
}

impl Pair {
    /// Compiles every case; empty on a machine that cannot run them.
    fn all() -> Vec<Pair> {
        let pairs: Vec<Pair> = CASES.iter().filter_map(Pair::new).collect();
        if pairs.is_empty() {
            eprintln!("SKIPPED: the host target does not support this processor");
        }
        pairs
    }

    fn new(case: &'static Case) -> Option<Pair> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/preemption").join(case.name).with_extension("ptx");
        let mut module = atoll_ptx::parse(&fs::read_to_string(path).expect("the case's kernel")).expect("valid PTX");
        let plain = Loaded::new(&module, case.name, case.block)?;
        let report =
            transform(&mut module, &TransformOptions::default(), &mut |_, _| {}).expect("it can be transformed");
        let transformed = Loaded::new(&module, case.name, case.block)?;
        Some(Pair { case, plain, transformed, report: report.kernels[0].clone() })
    }

    fn blocks(&self) -> u64 {
        self.case.grid.iter().map(|&g| u64::from(g)).product()
    }

    fn memory(&self) -> Memory {
        let data = (0..WORDS as u32).map(|i| i.wrapping_mul(2_654_435_761) >> 16).collect();
        Memory { data, progress: vec![0; self.blocks() as usize], epoch_word: 0, evicted_word: 0 }
    }

    fn own_arguments(&self, memory: &mut Memory) -> Vec<u8> {
        let mut params = (memory.data.as_mut_ptr() as u64).to_le_bytes().to_vec();
        params.extend(self.case.count.to_le_bytes());
        params
    }

    /// The results of the untransformed kernel.
    fn expected(&self) -> Vec<u32> {
        let mut memory = self.memory();
        let params = self.own_arguments(&mut memory);
        self.plain.run(self.case.grid, 0..self.blocks(), self.case.dynamic_shared_bytes, &params);
        memory.data
    }

    /// Launches the transformed kernel, or some of its blocks.
    fn launch(&self, memory: &mut Memory, issued_epoch: u32, blocks: std::ops::Range<u64>) {
        let mut params = self.own_arguments(memory);
        let offset = self.report.preempt_offset().expect("the kernel has the flag") as usize;
        params.resize(offset, 0);
        for address in [
            &raw mut memory.epoch_word as u64,
            &raw mut memory.evicted_word as u64,
            memory.progress.as_mut_ptr() as u64,
        ] {
            params.extend(address.to_le_bytes());
        }
        params.extend(issued_epoch.to_le_bytes());
        let shared_bytes = self.report.shared_bytes + self.case.dynamic_shared_bytes;
        self.transformed.run(self.case.grid, blocks, shared_bytes, &params);
    }
}

#[test]
fn completion_depends_on_the_body() {
    for pair in Pair::all() {
        let Preemption::Injected { completion, .. } = pair.report.preemption else {
            panic!("{} has no flag", pair.case.name)
        };
        assert_eq!(completion, pair.case.completion, "{}", pair.case.name);
    }
}

#[test]
fn without_preemption_every_block_runs_and_sets_its_progress_byte() {
    for pair in Pair::all() {
        // A word that is older, equal, or half the range away does not make blocks leave.
        for (epoch_word, issued_epoch) in [(0, 0), (3, 5), (u32::MAX, 2), (0x8000_0000, 0)] {
            let mut memory = Memory { epoch_word, ..pair.memory() };
            pair.launch(&mut memory, issued_epoch, 0..pair.blocks());
            assert_eq!(memory.data, pair.expected(), "{} computes something else", pair.case.name);
            assert!(memory.progress.iter().all(|&byte| byte == 1), "{}: {:?}", pair.case.name, memory.progress);
            assert_eq!(memory.evicted_word, 0, "{} at {epoch_word}, issued at {issued_epoch}", pair.case.name);
        }
    }
}

#[test]
fn after_preemption_only_the_evicted_word_is_written() {
    for pair in Pair::all() {
        for (epoch_word, issued_epoch) in [(1, 0), (7, 6), (0, u32::MAX), (0x7FFF_FFFF, 0)] {
            let before = Memory { epoch_word, ..pair.memory() };
            let mut memory = before.clone();
            pair.launch(&mut memory, issued_epoch, 0..pair.blocks());
            assert_eq!(
                memory,
                Memory { evicted_word: 1, ..before },
                "{} at {epoch_word}, issued at {issued_epoch}",
                pair.case.name
            );
        }
    }
}

#[test]
fn a_resumed_launch_runs_only_what_is_missing() {
    for pair in Pair::all() {
        for evicted_at in 0..=pair.blocks() {
            let mut memory = pair.memory();
            pair.launch(&mut memory, 0, 0..evicted_at);
            memory.epoch_word = 1;
            pair.launch(&mut memory, 0, evicted_at..pair.blocks());
            assert_eq!(memory.evicted_word, u32::from(evicted_at < pair.blocks()), "{}", pair.case.name);
            let done = memory.progress.iter().filter(|&&byte| byte == 1).count() as u64;
            assert_eq!(done, evicted_at, "{}", pair.case.name);

            memory.evicted_word = 0;
            pair.launch(&mut memory, 1, 0..pair.blocks());
            assert_eq!(memory.evicted_word, 0, "{}", pair.case.name);
            assert_eq!(memory.data, pair.expected(), "{} evicted at block {evicted_at}", pair.case.name);
        }
    }
}

#[test]
fn blocks_that_are_done_do_not_count_as_evicted() {
    for pair in Pair::all() {
        let before = Memory { progress: vec![1; pair.blocks() as usize], epoch_word: 9, ..pair.memory() };
        let mut memory = before.clone();
        pair.launch(&mut memory, 0, 0..pair.blocks());
        assert_eq!(memory, before, "{}", pair.case.name);
    }
}
