//! Random kernels in compiled form and in the interpreter of PTX, compared bit by bit.
//!
//! On the host forty in every run, others for each `ATOLL_SEED`; ten thousand with
//! `ATOLL_TEST_FULL=1`. As code for AMD GPUs a dozen, for an architecture that the seed selects, or
//! five hundred for each of three. `ATOLL_KERNEL_SEED=7` runs a single kernel,
//! `ATOLL_KERNEL_SEED=1..500` a range.

use atoll_workbench::random_kernel::{ENTRY, RandomKernel};
use atoll_workbench::{
    AmdArchitecture, AmdBench, HostBench, HostOptions, InterpBench, Kernel, Runner, Verdict, compare,
};
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of kernels on the host, in a normal and in a full run.
const KERNELS: u64 = 40;
const KERNELS_FULL: u64 = 10_000;

/// Number of kernels for an AMD architecture, in a normal and in a full run.
const AMD_KERNELS: u64 = 12;
const AMD_KERNELS_FULL: u64 = 500;

/// The AMD architectures: one of each layout of waves and registers.
pub(crate) const AMD: [AmdArchitecture; 3] =
    [AmdArchitecture::Gfx906, AmdArchitecture::Gfx90a, AmdArchitecture::Gfx1100];

/// Number of failures to report.
const FAILURES_MAX: usize = 5;

/// The first seed, if `ATOLL_SEED` is 1.
const FIRST: u64 = 1;

/// The results of kernels on a device.
#[derive(Default)]
struct Tally {
    agree: u64,
    /// Kernels that use something the target does not support.
    refused: u64,
    failures: Vec<String>,
}

/// Whether a kernel runs on the device, or is refused.
///
/// # Errors
/// How the results of the device and the interpreter differ.
fn agrees(device: &mut dyn Runner, seed: u64, random: &RandomKernel) -> Result<bool, String> {
    let mut interp = InterpBench::default();
    interp.options.seed = seed % 3;
    let module = atoll_ptx::parse(&random.ptx()).map_err(|error| error.to_string())?;
    let inputs = random.inputs();
    let kernel = Kernel { module: &module, entry: ENTRY, report: None, block: inputs.block };
    match compare(device, &mut interp, &kernel, &inputs) {
        Verdict::Equal | Verdict::Close(_) | Verdict::Unordered => Ok(true),
        Verdict::Refused(error) if error.is_unsupported() => Ok(false),
        Verdict::Different(difference) => Err(difference.to_string()),
        Verdict::Refused(error) | Verdict::Failed(error) => Err(format!("the device: {error}")),
        Verdict::NoReference(error) => Err(format!("the interpreter: {error}")),
    }
}

/// Compares the kernels of some seeds, on all CPUs.
fn compare_all(seeds: Range<u64>, start: &(dyn Fn() -> Box<dyn Runner> + Sync)) -> Tally {
    let (next, tally) = (AtomicU64::new(seeds.start), Mutex::new(Tally::default()));
    let worker = || {
        let mut device = start();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || tally.lock().unwrap().failures.len() >= FAILURES_MAX {
                return;
            }
            // A panic message of the compiler does not contain the seed.
            let result = std::panic::catch_unwind(AssertUnwindSafe(|| check(&mut *device, seed)));
            let result = result.unwrap_or_else(|_| Err(format!("a panic, with ATOLL_KERNEL_SEED={seed}")));
            let mut tally = tally.lock().unwrap();
            match result {
                Ok(true) => tally.agree += 1,
                Ok(false) => tally.refused += 1,
                Err(failure) => tally.failures.push(failure),
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        (0..threads).for_each(|_| drop(scope.spawn(worker)));
    });
    let tally = tally.into_inner().unwrap();
    assert!(tally.failures.is_empty(), "{} kernels fail\n\n{}", tally.failures.len(), tally.failures.join("\n\n"));
    tally
}

#[test]
fn host_and_interpreter_agree_on_random_kernels() {
    let count = if atoll_tests::full() { KERNELS_FULL } else { KERNELS };
    let seeds = wanted_seeds(count);
    let tally = compare_all(seeds.clone(), &|| Box::new(HostBench::start(HostOptions::default()).unwrap()));
    assert_eq!(tally.agree, seeds.end - seeds.start);
}

#[test]
fn amd_code_and_interpreter_agree_on_random_kernels() {
    let (architectures, count) = if atoll_tests::full() {
        (AMD.to_vec(), AMD_KERNELS_FULL)
    } else {
        (vec![AMD[(atoll_tests::seed() % 3) as usize]], AMD_KERNELS)
    };
    let seeds = wanted_seeds(count);
    for architecture in architectures {
        let tally = compare_all(seeds.clone(), &|| Box::new(AmdBench::new(architecture)));
        assert!(tally.agree >= tally.refused, "{architecture}: {} of {} are refused", tally.refused, count);
    }
}

/// The seeds selected by the environment.
fn wanted_seeds(count: u64) -> Range<u64> {
    let Ok(text) = std::env::var("ATOLL_KERNEL_SEED") else {
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

/// Compares the kernel of a seed. The error describes the failure, with a shrunk kernel.
fn check(device: &mut dyn Runner, seed: u64) -> Result<bool, String> {
    let random = RandomKernel::new(seed);
    let agreed = agrees(device, seed, &random);
    if agreed.is_ok() {
        return agreed;
    }
    let small = random.shrink(&mut |candidate| agrees(device, seed, candidate).is_err());
    let why = agrees(device, seed, &small).err().unwrap_or_default();
    let (before, after, shape) = (random.len(), small.len(), (small.grid, small.block));
    let file = std::env::temp_dir().join(format!("atoll-kernel-{seed}.ptx"));
    // If the file cannot be written, the text below is still sufficient.
    let _ = std::fs::write(&file, small.ptx());
    Err(format!(
        "{why}\nreplay with ATOLL_KERNEL_SEED={seed}; shrunk from {before} to {after} statements, grid and block \
        {shape:?}, in {}:\n{}",
        file.display(),
        small.body()
    ))
}
