//! `atoll ptx`

mod check;
mod print;
mod source;
mod stats;
mod transform;

use anyhow::Result;
use clap::Subcommand;

const EXAMPLES: &str = "\
Examples:
  atoll ptx check kernels.ptx
  atoll ptx stats kernels.ptx --json
  atoll ptx transform --list
  atoll ptx transform --pass inject_preempt_flag,shared_to_dynamic kernels.ptx -o preemptible.ptx";

/// Check, print, analyze and transform PTX files
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    ptx: Ptx,
}

#[derive(Debug, Subcommand)]
enum Ptx {
    Check(check::Args),
    Print(print::Args),
    Stats(stats::Args),
    Transform(transform::Args),
}

pub(crate) fn run(args: Args) -> Result<()> {
    match args.ptx {
        Ptx::Check(args) => check::run(&args),
        Ptx::Print(args) => print::run(&args),
        Ptx::Stats(args) => stats::run(&args),
        Ptx::Transform(args) => transform::run(&args),
    }
}
