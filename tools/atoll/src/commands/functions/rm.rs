//! `atoll fn rm`

use crate::control::{Classify, ControlArgs};
use crate::output::{print, print_json};
use anyhow::Result;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  atoll fn rm gemm
  atoll fn rm gemm relu --tenant team-a";

/// Unload and delete functions. Running calls finish first
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(super) struct Args {
    /// Names of the functions
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
        client.remove_function(function).classify()?;
        if !args.json {
            print(&format!("removed `{function}`\n"))?;
        }
    }
    if args.json { print_json(&json!({ "removed": args.functions })) } else { Ok(()) }
}
