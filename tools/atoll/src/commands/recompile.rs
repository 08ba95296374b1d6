//! `atoll recompile`, which the daemon starts for bundles of untrusted tenants.

use crate::recompiler;
use anyhow::Result;

/// Compile the bundle in standard input anew, for a daemon; started by `atoll serve`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Targets to compile for
    #[arg(long, value_name = "TARGET", required = true)]
    target: Vec<String>,

    /// Private memory that may be used
    #[arg(long, value_name = "BYTES")]
    memory: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    recompiler::serve(&args.target, args.memory)
}
