//! `atoll pack`

use crate::commands::compile::{CodeArgs, as_json, as_text};
use crate::compiler::ProgressBars;
use crate::failure::OrUserError;
use crate::output::{print, print_json};
use anyhow::{Context, Result};
use atoll_pipeline::pack;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  atoll pack jacobi.toml
  atoll pack jacobi.toml -o jacobi.kg --target host,nvidia:sm_80 --assemble
  atoll infer --model jacobi.kg --shape x=512

The manifest:
  name = \"jacobi\"
  ptx = [\"jacobi.ptx\"]
  [symbols]
  n = { min = 1, max = 4096 }
  [buffers]
  # kind: input, output, const (with a file), or temp
  x = { kind = \"input\", dtype = \"f32\", shape = [\"n\"] }
  y = { kind = \"output\", dtype = \"f32\", shape = [\"n\"] }
  # kernel, copy, fill, or repeat (with steps)
  [[step]]
  kernel = \"jacobi\"
  grid = [\"ceil(n / 256)\"]
  block = [256]
  # buffers, { buffer, offset }, numbers, expressions
  args = [\"x\", \"y\", \"n\", 0.5]";

/// Make a bundle (.kg) from PTX kernels and a manifest that describes their launches
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Manifest; relative paths in it start at its folder
    #[arg(value_name = "FUNCTION.toml")]
    manifest: PathBuf,

    /// Bundle to write [default: beside the manifest, as .kg]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    #[command(flatten)]
    code: CodeArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let output = args.output.clone().unwrap_or_else(|| args.manifest.with_extension("kg"));
    make(&args.manifest, &output, &args.code, args.json, || format!("cannot pack {}", args.manifest.display()))
}

/// Makes a bundle from a manifest and prints a report. `failed` gives the context of an error.
pub(super) fn make(
    manifest: &Path,
    output: &Path,
    code: &CodeArgs,
    json: bool,
    failed: impl Fn() -> String,
) -> Result<()> {
    let options = code.options_for_ptx()?;
    let bars = ProgressBars::new(manifest);
    let packed = pack(manifest, output, &options, &bars);
    bars.finish();
    let report = packed.with_context(failed).or_user_error()?;
    if json { print_json(&as_json(&report, output)) } else { Ok(print(&as_text(&report, output))?) }
}
