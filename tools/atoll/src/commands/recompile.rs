//! `atoll recompile`, which the daemon starts for bundles of untrusted tenants and for PTX of CUDA
//! programs.

use crate::recompiler;
use anyhow::Result;
use atoll_pipeline::Fences;

/// Compile the bundle in standard input anew, for a daemon; started by `atoll serve`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Targets to compile for
    #[arg(long, value_name = "TARGET", required_unless_present = "ptx")]
    target: Vec<String>,

    /// Bound the accesses of kernels for NVIDIA GPUs as well
    #[arg(long)]
    fence_nvidia: bool,

    /// Answer a question about PTX instead: the input is a line of JSON, then the PTX
    #[arg(long, conflicts_with = "target")]
    ptx: bool,

    /// Private memory that may be used
    #[arg(long, value_name = "BYTES")]
    memory: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let fences = if args.fence_nvidia { Fences::All } else { Fences::NotNvidia };
    recompiler::serve(&args.target, fences, args.memory)
}
