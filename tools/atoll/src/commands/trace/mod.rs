//! `atoll trace`: records the decisions and activity of a daemon, or the CUDA calls of a program.

#[cfg(feature = "cuda")]
mod cuda;
mod record;

use anyhow::Result;
use clap::Subcommand;

const EXAMPLES: &str = "\
Examples:
  atoll trace record --seconds 5 -o daemon.pftrace
  atoll trace record --past --seconds 0
  atoll trace cuda -o 1.trace -- ./classify image1";

/// Record the activity of a running daemon, to find out why something was slow, or the CUDA calls of
/// a program
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Record(record::Args),
    #[cfg(feature = "cuda")]
    Cuda(cuda::Args),
}

pub(crate) fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Record(args) => record::run(&args),
        #[cfg(feature = "cuda")]
        Command::Cuda(args) => cuda::run(&args),
    }
}
