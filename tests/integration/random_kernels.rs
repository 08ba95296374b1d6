//! Random kernels on the host and in the interpreter, bit for bit.
//!
//! `ATOLL_RANDOM_KERNELS=10000` runs so many, `ATOLL_KERNEL_SEED=…` the one that failed.

use atoll_tests::random_kernel::RandomKernel;
use atoll_workbench::{Arg, Buffer, HostBench, HostOptions, InterpBench, Kernel, KernelDevice, Launch};

/// How many run where nothing else is asked for.
const KERNELS: u64 = 200;

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
    let launch = Launch { grid: random.grid, shared_bytes: 0, args: (0..3).map(Arg::buffer).collect() };
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
        "`{name}` differs at byte {at} (thread {}, byte {} of what it stores): the interpreter has {}, the host {}",
        at / 192,
        at % 192,
        word(&expected[index]),
        word(&found[index])
    ))
}

#[test]
fn host_and_interpreter_agree_on_random_kernels() {
    let number = |name: &str| std::env::var(name).ok().map(|v| v.parse::<u64>().unwrap_or_else(|_| panic!("{name} is no number")));
    let seeds = match number("ATOLL_KERNEL_SEED") {
        Some(seed) => seed..seed + 1,
        None => FIRST..FIRST + number("ATOLL_RANDOM_KERNELS").unwrap_or(KERNELS),
    };
    let mut host = HostBench::start(HostOptions::default()).unwrap();
    let mut failures = Vec::new();
    for seed in seeds {
        let random = RandomKernel::new(seed);
        if disagreement(&mut host, seed, &random).is_none() {
            continue;
        }
        let small = random.shrink(&mut |candidate| disagreement(&mut host, seed, candidate).is_some());
        let why = disagreement(&mut host, seed, &small).unwrap_or_default();
        let (before, after, shape) = (random.len(), small.len(), (small.grid, small.block));
        failures.push(format!(
            "{why}\nreplay with ATOLL_KERNEL_SEED={seed}; shrunk from {before} to {after} statements, grid and block {shape:?}:\n{}",
            body(&small.ptx())
        ));
        // A few tell enough.
        if failures.len() >= 5 {
            break;
        }
    }
    assert!(failures.is_empty(), "{} kernels fail\n\n{}", failures.len(), failures.join("\n\n"));
}

/// The part of the text that is the kernel's own.
fn body(text: &str) -> &str {
    let begin = text.find("bar.sync 0;\n").map_or(0, |at| at + 12);
    let end = text[begin..].find("\n    bar.sync 0;\n    ld.shared.u32 %a0, [cells]").map_or(text.len(), |at| begin + at);
    &text[begin..end]
}
