//! `atoll bench`

#[cfg(feature = "compiler")]
mod kernel;
mod latency;
mod load;
mod overhead;
#[cfg(feature = "compiler")]
mod transform;

#[cfg(feature = "compiler")]
pub(crate) use load::Workload;

use anyhow::Result;
use clap::Subcommand;

const EXAMPLES: &str = "\
Examples:
  atoll bench latency --rt squeezenet.kg --be resnet50.kg --rate 20 --duration 30
  atoll bench overhead
  atoll bench kernel
  atoll bench transform resnet18";

/// Measure: real-time beside best-effort, what the daemon adds to a request, and kernels beside their peers.
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    #[cfg(feature = "compiler")]
    Kernel(kernel::Args),
    Latency(latency::Args),
    Overhead(overhead::Args),
    #[cfg(feature = "compiler")]
    Transform(transform::Args),
}

pub(crate) fn run(args: Args) -> Result<()> {
    match args.bench {
        #[cfg(feature = "compiler")]
        Bench::Kernel(args) => kernel::run(&args),
        Bench::Latency(args) => latency::run(&args),
        Bench::Overhead(args) => overhead::run(&args),
        #[cfg(feature = "compiler")]
        Bench::Transform(args) => transform::run(&args),
    }
}
