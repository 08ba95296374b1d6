//! Random kernels on the host and in the interpreter, bit for bit.
//!
//! A few hundred in every run, ten thousand with `ATOLL_TEST_FULL=1`. `ATOLL_KERNEL_SEED=7` runs the one that failed, `ATOLL_KERNEL_SEED=1..500` a range.

use atoll_tests::random_kernel::RandomKernel;
use atoll_workbench::{Arg, Buffer, HostBench, HostOptions, InterpBench, Kernel, KernelDevice, Launch};
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many run, and how many in a full run.
const KERNELS: u64 = 200;
const KERNELS_FULL: u64 = 10_000;

/// Failures that are told; a few tell enough.
const FAILURES_MAX: usize = 5;

/// The seed of the first one.
const FIRST: u64 = 1;

/// What a device made of a kernel: the content of the buffers, or why there is none.
fn outcome<D: KernelDevice>(device: &mut D, random: &RandomKernel) -> Result<Vec<Vec<u8>>, String> {
    let module = atoll_ptx::parse(&random.ptx()).map_err(|e| e.to_string())?;
    let kernel = Kernel { module: &module, entry: "k", report: None, block: random.block };
    let buffer = |name: &str, bytes, writable| Buffer { name: name.into(), bytes, writable };
    let mut buffers = vec![
        buffer("input", random.input(), false),
        buffer("cells", random.cells(), true),
        buffer("output", vec![0; random.out_bytes()], true),
    ];
    let launch = Launch { grid: random.grid, shared_bytes: random.shared_bytes(), args: (0..3).map(Arg::buffer).collect() };
    let loaded = device.load(&kernel).map_err(|e| e.to_string())?;
    let result = device.launch(&loaded, &launch, &mut buffers, 1);
    device.unload(loaded);
    result.map_err(|e| e.to_string())?;
    Ok(buffers.into_iter().map(|b| b.bytes).collect())
}

/// What is wrong with a kernel on the two devices, if anything.
fn disagreement(host: &mut HostBench, seed: u64, random: &RandomKernel) -> Option<String> {
    let mut interp = InterpBench::default();
    interp.options.seed = seed % 3;
    let expected = match outcome(&mut interp, random) {
        Ok(buffers) => buffers,
        Err(error) => return Some(format!("the interpreter: {error}")),
    };
    let found = match outcome(host, random) {
        Ok(buffers) => buffers,
        Err(error) => return Some(format!("the host: {error}")),
    };
    let (name, at) = ["input", "cells", "output"].iter().zip(expected.iter().zip(&found)).find_map(|(name, (a, b))| {
        let at = a.iter().zip(b).position(|(a, b)| a != b)?;
        Some((name, at))
    })?;
    let index = ["input", "cells", "output"].iter().position(|n| n == name)?;
    let word = |bytes: &[u8]| bytes[at / 4 * 4..].iter().take(4).rev().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    Some(format!(
        "`{name}` differs at byte {at} (of {} threads): the interpreter has {}, the host {}",
        random.threads(),
        word(&expected[index]),
        word(&found[index])
    ))
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
            // A panic of a compiler would not say which kernel it was.
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

/// The seeds that the environment asks for.
fn wanted_seeds() -> Range<u64> {
    let Ok(text) = std::env::var("ATOLL_KERNEL_SEED") else {
        return FIRST..FIRST + if atoll_tests::full() { KERNELS_FULL } else { KERNELS };
    };
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("ATOLL_KERNEL_SEED is a number or a range, not {text}"));
    match text.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => number(&text)..number(&text) + 1,
    }
}

/// How the kernel of a seed fails, made small.
fn failure(host: &mut HostBench, seed: u64) -> Option<String> {
    let random = RandomKernel::new(seed);
    disagreement(host, seed, &random)?;
    let small = random.shrink(&mut |candidate| disagreement(host, seed, candidate).is_some());
    let why = disagreement(host, seed, &small).unwrap_or_default();
    let (before, after, shape) = (random.len(), small.len(), (small.grid, small.block));
    let file = std::env::temp_dir().join(format!("atoll-kernel-{seed}.ptx"));
    // Without the file the text below still says what matters.
    let _ = std::fs::write(&file, small.ptx());
    Some(format!(
        "{why}\nreplay with ATOLL_KERNEL_SEED={seed}; shrunk from {before} to {after} statements, grid and block {shape:?}, in {}:\n{}",
        file.display(),
        body(&small.ptx())
    ))
}

/// The part of the text that is the kernel's own.
fn body(text: &str) -> &str {
    let begin = text.find("bar.sync 0;\n").map_or(0, |at| at + 12);
    let end = text[begin..].find("\n    bar.sync 0;\n    ld.shared.u32 %a0, [cells]").map_or(text.len(), |at| begin + at);
    &text[begin..end]
}
