//! `atoll pack`

use crate::cache;
use crate::commands::compile::{as_json, as_text, targets};
use crate::compiler::ProgressBars;
use crate::failure::Blame;
use crate::output::{print, print_json};
use anyhow::{Context, Result};
use atoll_pipeline::{CompileOptions, pack};
use std::path::PathBuf;

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
  x = { kind = \"input\", dtype = \"f32\", shape = [\"n\"] }             # input, output, const (with a file), temp
  y = { kind = \"output\", dtype = \"f32\", shape = [\"n\"] }
  [[step]]                                                        # kernel, copy, or repeat with steps
  kernel = \"jacobi\"
  grid = [\"ceil(n / 256)\"]
  block = [256]
  args = [\"x\", \"y\", \"n\", 0.5]                                 # buffers, { buffer, offset }, numbers, expressions";

/// Make a bundle (.kg) of kernels in PTX and a manifest that says how they are launched.
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The manifest; files that it names are looked for beside it
    #[arg(value_name = "FUNCTION.toml")]
    manifest: PathBuf,

    /// Where to write the bundle [default: beside the manifest, as .kg]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// What to compile for, as for `atoll compile` [default: host,nvidia:sm_75]
    #[arg(long, value_name = "TARGETS", value_delimiter = ',')]
    target: Vec<String>,

    /// Put NVIDIA kernels through ptxas: checks them, counts registers and spills, and adds machine code
    #[arg(long)]
    assemble: bool,

    /// Compile every kernel anew, whether or not its code is kept in $XDG_CACHE_HOME/atoll/kernels
    #[arg(long)]
    no_cache: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let kernel_cache = if args.no_cache { None } else { cache::kernels() };
    let options = CompileOptions { assemble: args.assemble, targets: targets(&args.target)?, kernel_cache, ..CompileOptions::default() };
    let output = args.output.clone().unwrap_or_else(|| args.manifest.with_extension("kg"));
    let bars = ProgressBars::new(&args.manifest);
    let packed = pack(&args.manifest, &output, &options, &bars);
    bars.finish();
    let report = packed.with_context(|| format!("cannot pack {}", args.manifest.display())).blame_user()?;
    if args.json { print_json(&as_json(&report, &output)) } else { Ok(print(&as_text(&report, &output))?) }
}
