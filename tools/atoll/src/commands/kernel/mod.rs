//! `atoll kernel`

mod argument;
mod compare;
mod place;
mod run;

use anyhow::Result;
use clap::Subcommand;

const EXAMPLES: &str = "\
Examples:
  atoll kernel run saxpy.ptx --entry saxpy --grid 4 --block 256 \\
      --arg in:x.npy --arg inout:y.npy:z.npy --arg f32:2.0 --arg u32:1000
  atoll kernel compare --device cuda:0 --random 1..301 --corpus tests/kernels";

/// Run and compare single PTX kernels
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    kernel: Kernel,
}

#[derive(Debug, Subcommand)]
enum Kernel {
    Run(run::Args),
    Compare(compare::Args),
}

pub(crate) fn run(args: Args) -> Result<()> {
    match args.kernel {
        Kernel::Run(args) => run::run(&args),
        Kernel::Compare(args) => compare::run(&args),
    }
}
