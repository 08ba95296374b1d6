//! Random kernels on the host and in the interpreter, compared bit by bit.
//!
//! Forty in every run, others for each `ATOLL_SEED`; ten thousand with `ATOLL_TEST_FULL=1`.
//! `ATOLL_KERNEL_SEED=7` runs a single one, `ATOLL_KERNEL_SEED=1..500` a range.

use atoll_workbench::random_kernel::{ENTRY, RandomKernel};
use atoll_workbench::{HostBench, HostOptions, InterpBench, Kernel, Verdict, compare};
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of kernels, in a normal and in a full run.
const KERNELS: u64 = 40;
const KERNELS_FULL: u64 = 10_000;

/// Number of failures to report.
const FAILURES_MAX: usize = 5;

/// The first seed, if `ATOLL_SEED` is 1.
const FIRST: u64 = 1;

/// How the results of a kernel differ between the two devices, if they do.
fn disagreement(host: &mut HostBench, seed: u64, random: &RandomKernel) -> Option<String> {
    let mut interp = InterpBench::default();
    interp.options.seed = seed % 3;
    let module = match atoll_ptx::parse(&random.ptx()) {
        Ok(module) => module,
        Err(error) => return Some(error.to_string()),
    };
    let inputs = random.inputs();
    let kernel = Kernel { module: &module, entry: ENTRY, report: None, block: inputs.block };
    match compare(host, &mut interp, &kernel, &inputs) {
        Verdict::Equal | Verdict::Close(_) | Verdict::Unordered => None,
        Verdict::Different(difference) => Some(difference.to_string()),
        Verdict::Refused(error) | Verdict::Failed(error) => Some(format!("the host: {error}")),
        Verdict::NoReference(error) => Some(format!("the interpreter: {error}")),
    }
}

#[test]
fn host_and_interpreter_agree_on_random_kernels() {
    let seeds = wanted_seeds();
    let (next, failures) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()));
    let worker = || {
        let mut host = HostBench::start(HostOptions::default()).unwrap();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || failures.lock().unwrap().len() >= FAILURES_MAX {
                return;
            }
            // A panic message of the compiler does not contain the seed.
            let failure = std::panic::catch_unwind(AssertUnwindSafe(|| failure(&mut host, seed)));
            let failure = failure.unwrap_or_else(|_| Some(format!("a panic, with ATOLL_KERNEL_SEED={seed}")));
            failures.lock().unwrap().extend(failure);
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        (0..threads).for_each(|_| drop(scope.spawn(worker)));
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} kernels fail\n\n{}", failures.len(), failures.join("\n\n"));
}

/// The seeds selected by the environment.
fn wanted_seeds() -> Range<u64> {
    let Ok(text) = std::env::var("ATOLL_KERNEL_SEED") else {
        let count = if atoll_tests::full() { KERNELS_FULL } else { KERNELS };
        let first = FIRST.saturating_add(atoll_tests::seed().saturating_sub(1).saturating_mul(count));
        return first..first.saturating_add(count);
    };
    let number = |text: &str| {
        text.parse::<u64>().unwrap_or_else(|_| panic!("ATOLL_KERNEL_SEED is a number or a range, not {text}"))
    };
    match text.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => number(&text)..number(&text) + 1,
    }
}

/// The failure of a seed's kernel, shrunk.
fn failure(host: &mut HostBench, seed: u64) -> Option<String> {
    let random = RandomKernel::new(seed);
    disagreement(host, seed, &random)?;
    let small = random.shrink(&mut |candidate| disagreement(host, seed, candidate).is_some());
    let why = disagreement(host, seed, &small).unwrap_or_default();
    let (before, after, shape) = (random.len(), small.len(), (small.grid, small.block));
    let file = std::env::temp_dir().join(format!("atoll-kernel-{seed}.ptx"));
    // If the file cannot be written, the text below is still sufficient.
    let _ = std::fs::write(&file, small.ptx());
    Some(format!(
        "{why}\nreplay with ATOLL_KERNEL_SEED={seed}; shrunk from {before} to {after} statements, grid and block \
        {shape:?}, in {}:\n{}",
        file.display(),
        small.body()
    ))
}
