//! `atoll ptx`

mod transform;

use anyhow::Result;
use clap::Subcommand;

const EXAMPLES: &str = "\
Examples:
  atoll ptx transform --list
  atoll ptx transform --pass inject_preempt_flag,shared_to_dynamic kernels.ptx -o preemptible.ptx";

/// Work with files in PTX, the kernel language.
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    ptx: Ptx,
}

#[derive(Debug, Subcommand)]
enum Ptx {
    Transform(transform::Args),
}

pub(crate) fn run(args: Args) -> Result<()> {
    match args.ptx {
        Ptx::Transform(args) => transform::run(&args),
    }
}
