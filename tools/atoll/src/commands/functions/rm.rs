//! `atoll fn rm`

use crate::control::{ControlArgs, Told};
use crate::output::{print, print_json};
use anyhow::Result;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  atoll fn rm gemm
  atoll fn rm gemm relu --tenant team-a";

/// Take functions off the device and forget them. Calls that run end first.
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(super) struct Args {
    /// Their names
    #[arg(required = true, value_name = "FUNCTION")]
    functions: Vec<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let mut client = args.control.connect()?;
    for function in &args.functions {
        client.remove_function(function).told()?;
        if !args.json {
            print(&format!("`{function}` is gone\n"))?;
        }
    }
    if args.json { print_json(&json!({ "removed": args.functions })) } else { Ok(()) }
}
