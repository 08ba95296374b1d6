//! `atoll import`

use crate::commands::compile::CodeArgs;
use crate::failure::OrUserError;
use anyhow::{Context, Result, anyhow};
use std::path::{Path, PathBuf};

/// Name of the manifest in an exported folder.
const MANIFEST: &str = "manifest.json";
/// Number of bytes of a file that are examined to recognize its type.
const HEAD_BYTES_MAX: u64 = 4096;

const EXAMPLES: &str = "\
Examples:
  python3 tools/export/from_tvm.py squeezenet.onnx -o squeezenet    # where TVM is installed
  atoll import squeezenet                                           # makes squeezenet.kg
  atoll import squeezenet -o s.kg --target host,nvidia:sm_80 --json
  atoll infer --model squeezenet.kg --input data=x.npy

The folder contains manifest.json, kernels in PTX, and constants. Exporters for TVM, Triton, IREE and REEF are \
in tools/export. To write another exporter, see the description of the manifest in docs/guide/import.md.";

/// Make a bundle (.kg) from the output of another compiler, as written by an exporter
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Folder with a manifest.json, or the manifest itself
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    /// Bundle to write [default: beside the folder, as .kg]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    #[command(flatten)]
    code: CodeArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let failed = || format!("cannot import {}", args.folder.display());
    let manifest = manifest_of(&args.folder).with_context(failed).or_user_error()?;
    let output = args.output.clone().unwrap_or_else(|| default_output(&manifest));
    super::pack::make(&manifest, &output, &args.code, args.json, failed)
}

/// `net.kg` beside the folder `net` of the manifest.
fn default_output(manifest: &Path) -> PathBuf {
    let folder = manifest.parent().and_then(|folder| folder.canonicalize().ok());
    folder.filter(|folder| folder.file_name().is_some()).unwrap_or_else(|| manifest.to_owned()).with_extension("kg")
}

/// The manifest at a path. The error says what is there instead, and what to do with it.
fn manifest_of(path: &Path) -> Result<PathBuf> {
    if path.is_dir() {
        let manifest = path.join(MANIFEST);
        return if manifest.is_file() { Ok(manifest) } else { Err(no_manifest(path)?) };
    }
    let head = head(path)?;
    match instead_of(path, &head) {
        Some(hint) => Err(anyhow!(hint)),
        None if path.extension().is_some_and(|extension| extension == "json") => Ok(path.to_owned()),
        None => Err(anyhow!(
            "not a folder with a {MANIFEST}, and not a manifest; the exporters in tools/export write such folders"
        )),
    }
}

fn head(path: &Path) -> Result<Vec<u8>> {
    use std::io::Read as _;
    let mut head = Vec::new();
    std::fs::File::open(path)?.take(HEAD_BYTES_MAX).read_to_end(&mut head)?;
    Ok(head)
}

fn no_manifest(folder: &Path) -> Result<anyhow::Error> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    files.sort();
    let hint = files.iter().filter(|file| file.is_file()).find_map(|file| {
        let hint = instead_of(file, &head(file).ok()?)?;
        Some(format!("the folder has no {MANIFEST}, but {}: {hint}", file.display()))
    });
    Ok(anyhow!(
        hint.unwrap_or_else(|| format!("the folder has no {MANIFEST}; the exporters in tools/export write one"))
    ))
}

/// What to do with a file of another compiler, recognized by its name and first bytes.
fn instead_of(path: &Path, head: &[u8]) -> Option<&'static str> {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let says = |word: &str| head.windows(word.len()).any(|part| part == word.as_bytes());
    Some(match extension {
        "onnx" => "an ONNX model; use `atoll compile`",
        "toml" => "a manifest of PTX functions; use `atoll pack`",
        "vmfb" => {
            "an IREE module, which has no readable launch schedule; export the model with tools/export/from_iree.py"
        }
        "so" => {
            "a compiled library; if it is a TVM model, export the ONNX file or the module with tools/export/from_tvm.py"
        }
        "hsaco" | "co" => {
            "a code object for AMD GPUs, but kernels must be PTX; compile the source for NVIDIA GPUs (for REEF, use \
            tools/export/from_reef.py)"
        }
        "cubin" | "fatbin" => "machine code for NVIDIA GPUs, but kernels must be PTX",
        // Exporters write the field `format` first.
        "json" if says("\"format\"") => return None,
        "json" if says("\"storage\"") => "a REEF schedule; export it with tools/export/from_reef.py",
        "json" if says("\"arg_nodes\"") || says("\"nodes\"") => {
            "a graph of TVM's graph executor, which does not describe kernel launches; export the model with \
            tools/export/from_tvm.py and a current TVM"
        }
        _ => return None,
    })
}
