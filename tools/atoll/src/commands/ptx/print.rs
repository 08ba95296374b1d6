//! `atoll ptx print`

use super::source;
use crate::failure::user_error;
use crate::output::print;
use anyhow::Result;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  atoll ptx print kernels.ptx                # parses and prints: the output equals the input
  atoll ptx print --canonical kernels.ptx";

/// Parse a file and print it, unchanged or in canonical form
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// PTX file; - reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Normalize layout, comments and number notation, so that equivalent texts become equal
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
