//! `atoll kernel run`

use super::argument::{Arguments, Memory, Use};
use super::place::{self, Place};
#[cfg(feature = "native")]
use crate::cache;
use crate::device_name::{DeviceName, GpuName};
use crate::failure::{OrUserError, user_error};
use crate::output::{milliseconds, parse_bytes, parse_seconds, print, print_json};
use crate::samples::Distribution;
use crate::tensors::{Summary, summary};
use anyhow::{Context, Result};
#[cfg(any(feature = "native", feature = "cuda"))]
use atoll_device::Fault;
#[cfg(feature = "native")]
use atoll_device::FaultKind;
use atoll_passes::{FenceForm, KernelReport, PassOptions, Rerun, analyze_idempotence, transform_with};
use atoll_protocol::to_f64;
use atoll_ptx::{FunctionKind, Module, Name};
#[cfg(feature = "cuda")]
use atoll_workbench::CudaBench;
use atoll_workbench::{BenchError, Buffer, InterpBench, Kernel, KernelDevice, Launch, Outcome, REPEAT_MAX};
#[cfg(feature = "native")]
use atoll_workbench::{HostBench, HostOptions};
use serde_json::json;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Arguments, in the order of the kernel's parameters:
  --arg u32:1000                   a literal: i8 … i64, u8 … u64, f16, bf16, f32, f64
  --arg in:x.npy                   memory from a file; in:f32:x.bin if it is no .npy file
  --arg in:f32:64x64:random        generated: random, arange, or a number for every element
  --arg inout:y.npy:z.npy          read and written; the result goes to z.npy
  --arg out:f32:1024:c.npy         initially zero; the result goes to c.npy (optional)
  --arg bytes:params.bin           a parameter that is a struct

Examples:
  atoll kernel run saxpy.ptx --entry saxpy --grid 4 --block 256 \\
      --arg in:x.npy --arg inout:y.npy:z.npy --arg f32:2.0 --arg u32:1000
  atoll kernel run gemm.ptx --grid 8,8 --block 16,16 --repeat 100 --json \\
      --arg in:f32:512x512:random --arg in:f32:512x512:random --arg out:f32:512x512 --arg u32:512
  atoll kernel run scan.ptx --grid 1 --block 128 --shared 1K --device interp \\
      --arg inout:u32:128:arange
  atoll kernel run scan.ptx --grid 1 --block 128 --arg inout:u32:128:arange \\
      --pass inject_preempt_flag,shared_to_dynamic";

/// Device memory beyond the buffers, for the progress maps of large grids.
#[cfg(any(feature = "native", feature = "cuda"))]
const SPARE_BYTES: u64 = 64 << 20;

/// Run one kernel of a PTX file; print its outputs and its run time
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// PTX file
    file: PathBuf,

    /// Kernel to run [default: the only one of the file]
    #[arg(long)]
    entry: Option<String>,

    /// Number of blocks in x, y and z
    #[arg(long, value_name = "X[,Y,Z]", value_parser = parse_dimensions)]
    grid: [u32; 3],

    /// Number of threads per block in x, y and z
    #[arg(long, value_name = "X[,Y,Z]", value_parser = parse_dimensions)]
    block: [u32; 3],

    /// Dynamic shared memory per block
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_bytes)]
    shared: u64,

    /// Argument of the kernel; the syntax is described below
    #[arg(long = "arg", value_name = "ARG")]
    args: Vec<String>,

    /// Device: host (native code on this machine's cores), cuda or cuda:N (an NVIDIA GPU), or
    /// interp (the interpreter: slow, but checks every access)
    #[arg(long, value_name = "DEVICE", default_value_t = Place::On(DeviceName::Host))]
    device: Place,

    /// Number of compute units of the host device [default: one per CPU]
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    threads: u32,

    /// Passes to run first; the launch supplies the parameters that they append (see
    /// `atoll ptx transform --list`)
    #[arg(long = "pass", value_name = "NAME[,NAME…]", value_delimiter = ',')]
    passes: Vec<String>,

    /// Check that every access stays within its buffer; report thread and address of a violation
    /// (slow)
    #[arg(long)]
    check: bool,

    /// Compile the kernel again, ignoring the cache in $XDG_CACHE_HOME/atoll/kernels
    #[arg(long)]
    no_cache: bool,

    /// Abort a launch on the host device after this time
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = parse_seconds)]
    time_limit: f64,

    /// Number of launches; the outputs are those of the first one
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(REPEAT_MAX))
    )]
    repeat: u32,

    /// Seed of random memory
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Number of elements to show per output
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    show: usize,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A successful launch.
struct Ran {
    compile: Duration,
    outcome: Outcome,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut module = read(args)?;
    let entry = entry(&module, args)?;
    let report = transform(&mut module, &entry, args)?;
    let mut arguments = Arguments::parse(&args.args, args.seed)?;
    let shared_bytes = u32::try_from(args.shared)
        .ok()
        .with_context(|| format!("--shared {}: exceeds the limit of all devices", args.shared))
        .or_user_error()?;
    let launch = Launch { grid: args.grid, shared_bytes, args: arguments.args.clone() };
    let kernel = Kernel { module: &module, entry: &entry, report: report.as_ref(), block: args.block };
    let ran = match args.device {
        Place::On(DeviceName::Host) => on_host(&kernel, &launch, &mut arguments.buffers, args),
        Place::On(DeviceName::Cuda(gpu)) => on_gpu(gpu, &kernel, &launch, &mut arguments.buffers, args),
        Place::On(DeviceName::Hip(_)) => Err(place::no_single_kernels()),
        Place::Interp => {
            on(&mut InterpBench::default(), &kernel, &launch, &mut arguments.buffers, args.repeat).or_user_error()
        }
    }?;
    let written: Vec<(&Memory, Vec<f64>, Summary)> = outputs(&arguments, args)?;
    if args.json { print_json(&as_json(args, &entry, &ran, &written)) } else { Ok(print(&text(&ran, &written))?) }
}

/// Runs the requested passes and reports what they refused.
fn transform(module: &mut Module, entry: &str, args: &Args) -> Result<Option<KernelReport>> {
    if args.passes.is_empty() {
        return Ok(None);
    }
    // On the host a comparison is cheaper than a mask, and a trap has a position.
    let fence_form = if args.device == Place::On(DeviceName::Host) { FenceForm::Trap } else { FenceForm::Mask };
    let mut options = PassOptions { fence_form, ..PassOptions::default() };
    options.blocks.insert(Name::new(entry), args.block);
    // Every argument has its own memory here, so buffers do not overlap.
    if module.function(entry).is_some_and(|kernel| !matches!(analyze_idempotence(module, kernel), Rerun::Never(_))) {
        options.may_run_again.insert(Name::new(entry));
    }
    let names: Vec<&str> = args.passes.iter().map(String::as_str).collect();
    let report = transform_with(module, &names, &options, &mut |_, _| {}).or_user_error()?;
    Ok(report.kernels.into_iter().find(|k| k.name == entry))
}

fn read(args: &Args) -> Result<Module> {
    let path = args.file.display();
    let text = std::fs::read_to_string(&args.file).with_context(|| path.to_string()).or_user_error()?;
    let module = atoll_ptx::parse(&text).map_err(|e| user_error(format!("{path}:{e}")))?;
    match atoll_ptx::verify(&module) {
        Ok(()) => Ok(module),
        Err(faults) => Err(user_error(format!("{path} is not valid PTX: {faults}"))),
    }
}

/// The kernel to run.
fn entry(module: &Module, args: &Args) -> Result<String> {
    let names: Vec<&str> =
        module.kernels().filter(|k| k.kind == FunctionKind::Entry).map(|k| k.name.as_str()).collect();
    match (&args.entry, names.as_slice()) {
        (Some(name), names) if names.contains(&name.as_str()) => Ok(name.clone()),
        (None, [only]) => Ok((*only).to_owned()),
        (_, []) => Err(user_error(format!("{} has no kernels", args.file.display()))),
        (None, names) => {
            Err(user_error(format!("the file has several kernels; choose one with --entry: {}", names.join(", "))))
        }
        (Some(name), names) => Err(user_error(format!("the file has no kernel `{name}`; it has {}", names.join(", ")))),
    }
}

/// Runs the kernel as native code. If it faults without a position, runs it again with all accesses
/// checked, to find the thread and the address.
#[cfg(feature = "native")]
fn on_host(kernel: &Kernel<'_>, launch: &Launch, buffers: &mut [Buffer], args: &Args) -> Result<Ran> {
    let memory_bytes = HostBench::bytes_for(buffers) + SPARE_BYTES;
    let time_limit = Duration::from_secs_f64(args.time_limit);
    let options = HostOptions { compute_units: args.threads, memory_bytes, time_limit, check: args.check };
    let before = buffers.to_vec();
    let cache = if args.no_cache { None } else { cache::kernels() };
    let start = |options| Ok::<_, BenchError>(HostBench::start(options)?.with_cache(cache.clone()));
    match on(&mut start(options)?, kernel, launch, buffers, args.repeat) {
        Err(BenchError::Fault { fault, printed })
            if !args.check && matches!(fault.kind, FaultKind::BadAddress { .. }) =>
        {
            buffers.clone_from_slice(&before);
            let checked = on(&mut start(HostOptions { check: true, ..options })?, kernel, launch, buffers, 1);
            match checked {
                Err(BenchError::Fault { fault, printed }) => Err(failed(&fault, &printed, "")),
                _ => Err(failed(&fault, &printed, "; it did not occur again with all accesses checked")),
            }
        }
        Err(BenchError::Fault { fault, printed }) => Err(failed(&fault, &printed, "")),
        other => other.or_user_error(),
    }
}

#[cfg(not(feature = "native"))]
fn on_host(_: &Kernel<'_>, _: &Launch, _: &mut [Buffer], _: &Args) -> Result<Ran> {
    Err(place::without_llvm())
}

/// Runs the kernel on a GPU.
#[cfg(feature = "cuda")]
fn on_gpu(gpu: GpuName, kernel: &Kernel<'_>, launch: &Launch, buffers: &mut [Buffer], args: &Args) -> Result<Ran> {
    if args.check {
        return Err(user_error("--check is not supported on GPUs; omit it, or use --device host or interp"));
    }
    let mut bench = place::cuda_bench(gpu, CudaBench::bytes_for(buffers) + SPARE_BYTES).or_user_error()?;
    match on(&mut bench, kernel, launch, buffers, args.repeat) {
        Err(BenchError::Fault { fault, printed }) => Err(failed(&fault, &printed, "")),
        other => other.or_user_error(),
    }
}

#[cfg(not(feature = "cuda"))]
fn on_gpu(_: GpuName, _: &Kernel<'_>, _: &Launch, _: &mut [Buffer], _: &Args) -> Result<Ran> {
    Err(place::without_gpus())
}

/// The error of a failed kernel. What the kernel printed is still shown.
#[cfg(any(feature = "native", feature = "cuda"))]
fn failed(fault: &Fault, printed: &str, more: &str) -> anyhow::Error {
    match print(printed) {
        Ok(()) => user_error(format!("{fault}{more}")),
        Err(error) => error.into(),
    }
}

fn on<D: KernelDevice>(
    device: &mut D,
    kernel: &Kernel<'_>,
    launch: &Launch,
    buffers: &mut [Buffer],
    repeat: u32,
) -> Result<Ran, BenchError> {
    let start = Instant::now();
    let loaded = device.load(kernel)?;
    let compile = start.elapsed();
    let outcome = device.launch(&loaded, launch, buffers, repeat)?;
    Ok(Ran { compile, outcome })
}

/// Saves and summarizes the outputs.
fn outputs<'a>(arguments: &'a Arguments, args: &Args) -> Result<Vec<(&'a Memory, Vec<f64>, Summary)>> {
    let written = arguments.memory.iter().filter(|m| m.usage != Use::In);
    let looked_at = written.map(|memory| {
        let tensor = memory.tensor(&arguments.buffers)?;
        memory.save(&tensor)?;
        let first = &tensor.bytes[..tensor.bytes.len().min(args.show * tensor.datatype.element_bytes().unwrap_or(1))];
        Ok((memory, to_f64(tensor.datatype, first), summary(&tensor, 0)))
    });
    looked_at.collect()
}

fn as_json(args: &Args, entry: &str, ran: &Ran, written: &[(&Memory, Vec<f64>, Summary)]) -> serde_json::Value {
    let outputs: Vec<_> = written
        .iter()
        .map(|(memory, first, s)| {
            json!({
                "buffer": memory.index, "datatype": s.datatype, "shape": s.shape, "first": first,
                "min": s.min, "max": s.max, "mean": s.mean, "not_finite": s.not_finite, "file": memory.file,
            })
        })
        .collect();
    json!({
        "kernel": entry,
        "device": args.device.to_string(),
        "grid": args.grid,
        "block": args.block,
        "compile_milliseconds": milliseconds(ran.compile),
        "milliseconds": ran.outcome.times.iter().map(|t| milliseconds(*t)).collect::<Vec<_>>(),
        "printed": ran.outcome.printed,
        "outputs": outputs,
    })
}

fn text(ran: &Ran, written: &[(&Memory, Vec<f64>, Summary)]) -> String {
    let mut text = ran.outcome.printed.clone();
    // Writing to a string cannot fail.
    for (memory, first, s) in written {
        let shape: Vec<String> = s.shape.iter().map(i64::to_string).collect();
        let _ = write!(text, "buffer {}: {}[{}]", memory.index, s.datatype, shape.join("x"));
        let _ = write!(text, "  min {}  max {}  mean {:.6}", s.min, s.max, s.mean);
        if s.not_finite > 0 {
            let _ = write!(text, "  {} NaN or infinite", s.not_finite);
        }
        let first: Vec<String> = first.iter().map(f64::to_string).collect();
        let _ = writeln!(text, "\n  first  {}", first.join(" "));
        if let Some(file) = &memory.file {
            let _ = writeln!(text, "  written to {}", file.display());
        }
    }
    let _ = write!(text, "compiled in {:.1} ms; ", milliseconds(ran.compile));
    match ran.outcome.times.as_slice() {
        [time] => drop(writeln!(text, "ran {:.4} ms", milliseconds(*time))),
        times => {
            let d = Distribution::of(times);
            let best = times.iter().min().copied().unwrap_or_default();
            let _ = writeln!(
                text,
                "ran {} times: best {:.4} ms, p50 {:.4} ms, p99 {:.4} ms",
                d.count,
                milliseconds(best),
                d.p50_ms,
                d.p99_ms
            );
        }
    }
    text
}

/// Parses `256`, `16,16` or `8,8,4`; `x` may separate the numbers as well.
fn parse_dimensions(text: &str) -> Result<[u32; 3], String> {
    let mut dimensions = [1; 3];
    let sizes: Vec<&str> = text.split([',', 'x']).collect();
    if sizes.len() > 3 {
        return Err("at most three dimensions are allowed".into());
    }
    for (dimension, size) in dimensions.iter_mut().zip(sizes) {
        *dimension =
            size.trim().parse().ok().filter(|n| *n > 0).ok_or_else(|| format!("`{size}` is not a positive number"))?;
    }
    Ok(dimensions)
}
