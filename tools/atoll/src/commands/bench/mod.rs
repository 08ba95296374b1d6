//! `atoll bench`

#[cfg(feature = "compiler")]
mod assembled;
#[cfg(feature = "compiler")]
mod coldstart;
mod disb;
#[cfg(feature = "compiler")]
mod engine;
#[cfg(feature = "compiler")]
mod functions;
#[cfg(feature = "compiler")]
mod kernel;
mod latency;
mod load;
mod overhead;
#[cfg(feature = "compiler")]
mod preempt;
#[cfg(feature = "compiler")]
mod residency;
#[cfg(feature = "compiler")]
mod transform;

#[cfg(feature = "compiler")]
pub(crate) use load::Workload;

#[cfg(feature = "compiler")]
use crate::failure::users;
use anyhow::Result;
#[cfg(feature = "compiler")]
use atoll_models::{BuildOptions, build_onnx};
use clap::Subcommand;
#[cfg(feature = "compiler")]
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  atoll bench latency --rt squeezenet.kg --be resnet50.kg --rate 20 --duration 30
  atoll bench overhead
  atoll bench preempt
  atoll bench kernel
  atoll bench transform resnet18
  atoll bench assembled resnet18 kernels.ptx
  atoll bench residency
  atoll bench engine
  atoll bench functions --clients 1,4,16 --plot sharing.svg
  atoll bench coldstart
  atoll bench disb --device sim:mi50 --profiles reef-mi50";

/// Measure: real-time beside best-effort, how soon it gets a full device, what the daemon adds to a request and the engine to a kernel, kernels beside their peers, what passes cost, policies on recorded mixes, many functions on one device, cold starts, and policies on simulated devices.
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    #[cfg(feature = "compiler")]
    Assembled(assembled::Args),
    #[cfg(feature = "compiler")]
    Coldstart(coldstart::Args),
    Disb(disb::Args),
    #[cfg(feature = "compiler")]
    Engine(engine::Args),
    #[cfg(feature = "compiler")]
    Functions(functions::Args),
    /// A process that owns a device for one function; `functions` starts and kills it
    #[cfg(feature = "compiler")]
    #[command(hide = true)]
    Worker(functions::WorkerArgs),
    #[cfg(feature = "compiler")]
    Kernel(kernel::Args),
    Latency(latency::Args),
    Overhead(overhead::Args),
    #[cfg(feature = "compiler")]
    Preempt(preempt::Args),
    #[cfg(feature = "compiler")]
    Residency(residency::Args),
    #[cfg(feature = "compiler")]
    Transform(transform::Args),
}

pub(crate) fn run(args: Args) -> Result<()> {
    match args.bench {
        #[cfg(feature = "compiler")]
        Bench::Assembled(args) => assembled::run(&args),
        #[cfg(feature = "compiler")]
        Bench::Coldstart(args) => coldstart::run(&args),
        Bench::Disb(args) => disb::run(&args),
        #[cfg(feature = "compiler")]
        Bench::Engine(args) => engine::run(&args),
        #[cfg(feature = "compiler")]
        Bench::Functions(args) => functions::run(&args),
        #[cfg(feature = "compiler")]
        Bench::Worker(args) => functions::work(&args),
        #[cfg(feature = "compiler")]
        Bench::Kernel(args) => kernel::run(&args),
        Bench::Latency(args) => latency::run(&args),
        Bench::Overhead(args) => overhead::run(&args),
        #[cfg(feature = "compiler")]
        Bench::Preempt(args) => preempt::run(&args),
        #[cfg(feature = "compiler")]
        Bench::Residency(args) => residency::run(&args),
        #[cfg(feature = "compiler")]
        Bench::Transform(args) => transform::run(&args),
    }
}

/// A file, or a model of that name, built here.
#[cfg(feature = "compiler")]
fn model_file(name: &str, folder: &Path) -> Result<PathBuf> {
    if name.ends_with(".onnx") {
        return Ok(name.into());
    }
    let path = folder.join("model.onnx");
    let bytes = build_onnx(name, &BuildOptions::default()).map_err(|e| users(anyhow::anyhow!("{e}")))?;
    std::fs::write(&path, bytes)?;
    Ok(path)
}
