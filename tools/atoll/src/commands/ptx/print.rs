//! `atoll ptx print`

use super::source;
use crate::failure::user_error;
use crate::output::print;
use anyhow::Result;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  atoll ptx print kernels.ptx                # reads and prints: the text comes out as it went in
  atoll ptx print --canonical kernels.ptx";

/// Read a file and print it: as it is written, or in one form for all.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// PTX file; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Forget layout, comments and spelling of numbers, so that two texts that say the same look
    /// the same
    #[arg(long)]
    canonical: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    for source in source::read(std::slice::from_ref(&args.file))? {
        let mut module = atoll_ptx::parse(&source.text).map_err(|e| user_error(format!("{}:{e}", source.name)))?;
        if args.canonical {
            module.strip_origins();
        }
        print(&atoll_ptx::print(&module))?;
    }
    Ok(())
}
