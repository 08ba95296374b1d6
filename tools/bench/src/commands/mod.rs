//! `atoll bench`

#[cfg(feature = "compiler")]
mod assembled;
#[cfg(feature = "compiler")]
mod batching;
#[cfg(feature = "native")]
mod branches;
mod cluster;
#[cfg(feature = "native")]
mod coldstart;
#[cfg(feature = "compiler")]
mod daemon;
mod disb;
#[cfg(feature = "compiler")]
mod dkp;
#[cfg(feature = "native")]
mod engine;
mod fast;
#[cfg(feature = "native")]
mod functions;
#[cfg(feature = "compiler")]
mod graphs;
#[cfg(feature = "native")]
mod kernel;
#[cfg(feature = "compiler")]
mod kernels;
mod lanes;
mod latency;
mod load;
#[cfg(feature = "native")]
mod models;
mod overhead;
#[cfg(feature = "cuda")]
mod parts;
#[cfg(feature = "native")]
mod placement;
#[cfg(feature = "compiler")]
mod preempt;
#[cfg(feature = "compiler")]
mod recovery;
mod reef;
#[cfg(feature = "native")]
mod residency;
#[cfg(feature = "compiler")]
mod ring;
mod scaling;
#[cfg(feature = "compiler")]
mod served;
#[cfg(feature = "compiler")]
mod shares;
#[cfg(feature = "compiler")]
mod spin;
#[cfg(feature = "native")]
mod transform;

pub use load::Workload;

#[cfg(feature = "compiler")]
use crate::failure::users;
use crate::report::ReportArgs;
use anyhow::Result;
#[cfg(feature = "compiler")]
use atoll_models::{BuildOptions, build_onnx};
use clap::Subcommand;
#[cfg(feature = "compiler")]
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  atoll bench latency --rt squeezenet.kg --be resnet50.kg --rate 20 --duration 30
  atoll bench lanes --rt squeezenet.kg --hog resnet18.kg
  atoll bench batching
  atoll bench branches
  atoll bench overhead
  atoll bench ring
  atoll bench preempt
  atoll bench scaling --load step,spike
  atoll bench shares --split 10:90 --duration 10
  atoll bench kernel
  atoll bench models --against onnxruntime
  atoll bench transform resnet18
  atoll bench assembled resnet18 kernels.ptx
  atoll bench residency
  atoll bench engine
  atoll bench functions --clients 1,4,16 --plot sharing.svg
  atoll bench coldstart
  atoll bench parts --model densenet201.kg --beside resnet152.kg --device cuda:0
  atoll bench dkp --device cuda:0
  atoll bench disb --device sim:mi50 --profiles reef-mi50
  atoll bench reef --profiles reef-mi50 --figure 12
  atoll bench cluster --thesis
  atoll bench placement --policy cost,balance
  atoll bench graphs --device host:0@0 --device host:1@1
  atoll bench recovery --device host:0@0 --device host:1@1
  atoll bench fast --figure 11";

/// Run benchmarks
///
/// Latency: real-time beside best-effort work (latency), preemption of a full device (preempt),
/// isolation by lanes (lanes) and by GPU partitions (parts), shares of time (shares), parallel
/// branches (branches), overhead of daemon and engine (overhead, engine), requests through shared
/// memory (ring), cold starts (coldstart).
/// Speed: kernels and models beside their peers (kernel, models), cost of passes and dkp modules
/// (transform, assembled, dkp). Policies: residency on recorded mixes (residency), many functions
/// on one device (functions), scheduling on real and simulated devices (disb), placement on
/// simulated clusters (cluster) and beside a real fleet (placement), instances that follow changing
/// loads (scaling), the figures of FaST-GShare and REEF (fast, reef). Serving: batches of requests
/// (batching), graphs of functions (graphs), devices that lose their process (recovery).
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    bench: Bench,

    #[command(flatten)]
    report: ReportArgs,
}

#[derive(Debug, Subcommand)]
enum Bench {
    #[cfg(feature = "compiler")]
    Assembled(assembled::Args),
    #[cfg(feature = "compiler")]
    Batching(batching::Args),
    #[cfg(feature = "native")]
    Branches(branches::Args),
    Cluster(cluster::Args),
    #[cfg(feature = "native")]
    Coldstart(coldstart::Args),
    Disb(disb::Args),
    #[cfg(feature = "compiler")]
    Dkp(dkp::Args),
    #[cfg(feature = "native")]
    Engine(engine::Args),
    Fast(fast::Args),
    #[cfg(feature = "native")]
    Functions(functions::Args),
    #[cfg(feature = "compiler")]
    Graphs(graphs::Args),
    /// Serve one function exclusively; started by `bench functions`
    #[cfg(feature = "native")]
    #[command(hide = true)]
    Worker(functions::WorkerArgs),
    #[cfg(feature = "native")]
    Kernel(kernel::Args),
    Lanes(lanes::Args),
    /// Keep a model busy; started by `bench lanes`
    #[command(hide = true)]
    Hog(lanes::HogArgs),
    Latency(latency::Args),
    #[cfg(feature = "native")]
    Models(models::Args),
    Overhead(overhead::Args),
    #[cfg(feature = "cuda")]
    Parts(parts::Args),
    #[cfg(feature = "native")]
    Placement(placement::Args),
    #[cfg(feature = "compiler")]
    Preempt(preempt::Args),
    #[cfg(feature = "compiler")]
    Recovery(recovery::Args),
    Reef(reef::Args),
    #[cfg(feature = "native")]
    Residency(residency::Args),
    #[cfg(feature = "compiler")]
    Ring(ring::Args),
    Scaling(Box<scaling::Args>),
    #[cfg(feature = "compiler")]
    Shares(shares::Args),
    #[cfg(feature = "native")]
    Transform(transform::Args),
}

/// Runs `atoll bench`.
pub fn run(args: &Args) -> Result<()> {
    let report = args.report.begin()?;
    let findings = match &args.bench {
        #[cfg(feature = "compiler")]
        Bench::Assembled(args) => assembled::run(args),
        #[cfg(feature = "compiler")]
        Bench::Batching(args) => batching::run(args),
        #[cfg(feature = "native")]
        Bench::Branches(args) => branches::run(args),
        Bench::Cluster(args) => cluster::run(args),
        #[cfg(feature = "native")]
        Bench::Coldstart(args) => coldstart::run(args),
        Bench::Disb(args) => disb::run(args),
        #[cfg(feature = "compiler")]
        Bench::Dkp(args) => dkp::run(args),
        #[cfg(feature = "native")]
        Bench::Engine(args) => engine::run(args),
        Bench::Fast(args) => fast::run(args),
        #[cfg(feature = "native")]
        Bench::Functions(args) => functions::run(args),
        #[cfg(feature = "compiler")]
        Bench::Graphs(args) => graphs::run(args),
        #[cfg(feature = "native")]
        Bench::Worker(args) => return functions::work(args),
        #[cfg(feature = "native")]
        Bench::Kernel(args) => kernel::run(args),
        Bench::Lanes(args) => lanes::run(args),
        Bench::Hog(args) => return lanes::hog(args),
        Bench::Latency(args) => latency::run(args),
        #[cfg(feature = "native")]
        Bench::Models(args) => models::run(args),
        Bench::Overhead(args) => overhead::run(args),
        #[cfg(feature = "cuda")]
        Bench::Parts(args) => parts::run(args),
        #[cfg(feature = "native")]
        Bench::Placement(args) => placement::run(args),
        #[cfg(feature = "compiler")]
        Bench::Preempt(args) => preempt::run(args),
        #[cfg(feature = "compiler")]
        Bench::Recovery(args) => recovery::run(args),
        Bench::Reef(args) => reef::run(args),
        #[cfg(feature = "native")]
        Bench::Residency(args) => residency::run(args),
        #[cfg(feature = "compiler")]
        Bench::Ring(args) => ring::run(args),
        Bench::Scaling(args) => scaling::run(args),
        #[cfg(feature = "compiler")]
        Bench::Shares(args) => shares::run(args),
        #[cfg(feature = "native")]
        Bench::Transform(args) => transform::run(args),
    };
    report.finish(findings?)
}

/// An `.onnx` file, or a built model of that name; its batch size is a symbol if it is `symbolic`.
#[cfg(feature = "compiler")]
fn model_file(name: &str, folder: &Path, symbolic: bool) -> Result<PathBuf> {
    if name.ends_with(".onnx") {
        return Ok(name.into());
    }
    let path = folder.join("model.onnx");
    let bytes = build_onnx(name, &BuildOptions { symbolic, ..BuildOptions::default() })
        .map_err(|e| users(anyhow::anyhow!("{e}")))?;
    std::fs::write(&path, bytes)?;
    Ok(path)
}
