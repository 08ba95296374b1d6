//! Packs kernels in PTX and a short manifest into a bundle: functions that are not models.
//!
//! ```toml
//! name = "scale_and_add"
//! ptx = ["scale.ptx", "add.ptx"]             # relative to this file
//!
//! [symbols]
//! n = { min = 1, max = 1048576 }
//!
//! [buffers]
//! x = { kind = "input", dtype = "f32", shape = ["n"] }
//! y = { kind = "output", dtype = "f32", shape = ["n"] }
//! t = { kind = "temp", dtype = "f32", shape = ["n"] }
//! w = { kind = "const", dtype = "f32", shape = [256], file = "w.safetensors" }
//!
//! [[step]]
//! kernel = "scale"                           # grid, block, and one argument per parameter
//! grid = ["ceil(n / 256)"]
//! block = [256]
//! shared = 1024                              # dynamic shared memory in bytes
//! args = ["x", "t", "n", 0.5]
//!
//! [[step]]
//! repeat = 10
//! steps = [{ kernel = "add", grid = ["ceil(n / 256)"], block = [256], args = ["t", { buffer = "w", offset = 512 }] }]
//!
//! [[step]]
//! copy = { from = "t", to = "y" }
//!
//! [[step]]
//! fill = { to = "t", value = 0 }             # every element
//! ```
//!
//! An analysis of the kernels finds the buffers that each step reads and writes; they determine the
//! dependencies and the memory plan. If the analysis cannot follow an address, the step lists the
//! buffers (`reads = […]`, `writes = […]`). An argument takes the type of its parameter. It is an
//! expression over symbols, a number, the name of a buffer, a buffer with a byte offset, or the
//! bytes of the parameter, in which addresses of buffers may be.
//!
//! Exporters of other compilers write the same content as JSON, in `manifest.json`. Either form may
//! also contain `format` (1), `producer`, and `kernels`, which gives aliases to kernels whose name
//! several files define:
//!
//! ```json
//! {"format": 1, "producer": "triton 3.9.0", "name": "mlp", "ptx": ["a.ptx", "b.ptx"],
//!  "kernels": {"wide": {"ptx": "b.ptx", "entry": "matmul"}},
//!  "buffers": {"x": {"kind": "input", "dtype": "f16", "shape": [64, 64]}},
//!  "steps": [{"kernel": "wide", "grid": [4, 4], "block": [128], "shared": 8192,
//!             "args": ["x", {"bytes": "003c"}]}]}
//! ```
//!
//! The steps of packing: `manifest` parses the manifest, `constants` reads files of constants,
//! `merge` merges the PTX files, `kernels` collects the launched kernels and their shapes, `graph`
//! builds the kernel graph. From there on a function is compiled like a model.

mod arguments;
mod constants;
mod expression;
mod graph;
mod kernels;
pub(crate) mod launch;
mod manifest;
mod merge;
mod place;

use crate::builder::{BundleBuilder, CompileReport};
use crate::error::CompileError;
use crate::observer::Clock;
use crate::observer::Observer;
use crate::options::CompileOptions;
use crate::stage::Stage;
use crate::targets::Target;
use constants::Constants;
use kernels::KernelSet;
use manifest::{MANIFEST_BYTES_MAX, Manifest};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// An error in a manifest, or in a file that it names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct PackError {
    place: String,
    reason: String,
}

impl PackError {
    fn at(place: impl ToString, reason: impl ToString) -> PackError {
        PackError { place: place.to_string(), reason: reason.to_string() }
    }
}

/// Packs a function into a bundle: its manifest, and the PTX and constant files that it names.
pub fn pack(
    manifest: &Path,
    output: &Path,
    options: &CompileOptions,
    observer: &dyn Observer,
) -> Result<CompileReport, CompileError> {
    let mut clock = Clock::new(observer, 3 + 3 * options.targets.len().max(Target::defaults().len()));
    let folder = manifest.parent().unwrap_or(Path::new("."));
    let (manifest, mut kernels, constants) = clock.stage(Stage::Import, || Ok(read(manifest, folder)?))?;
    let planned = clock.stage(Stage::Schedule, || Ok(graph::build(&manifest, &mut kernels, &constants)?))?;
    let mut kernels = crate::Kernels { launches: planned.launches, ..kernels.finish() };
    crate::transfers::add(&planned.graph, &mut kernels)?;
    let weights =
        planned.graph.buffers.iter().filter_map(|buffer| Some((buffer.weights_offset?, constants.get(&buffer.name)?)));
    let weights = weights.collect();
    let mut bundle = BundleBuilder::new(&planned.graph, weights);
    let by_default = if options.targets.is_empty() { Target::defaults_for(kernels.declared_sm()) } else { Vec::new() };
    for &target in options.targets.iter().chain(&by_default) {
        bundle.add(kernels.clone(), target, options, &mut clock, observer)?;
    }
    bundle.write(output, clock)
}

fn read(path: &Path, folder: &Path) -> Result<(Manifest, KernelSet, Constants), PackError> {
    let manifest = Manifest::parse(path, &read_text(path, MANIFEST_BYTES_MAX)?)?;
    let kernels = KernelSet::read(folder, &manifest)?;
    let constants = Constants::read(folder, &manifest)?;
    Ok((manifest, kernels, constants))
}

fn read_text(path: &Path, bytes_max: u64) -> Result<String, PackError> {
    let mut text = String::new();
    read_bounded(path, bytes_max, |file| file.read_to_string(&mut text))?;
    Ok(text)
}

/// Reads a file of at most `bytes_max` bytes.
fn read_bounded(
    path: &Path,
    bytes_max: u64,
    read: impl FnOnce(&mut std::io::Take<File>) -> std::io::Result<usize>,
) -> Result<(), PackError> {
    let failed = |e: std::io::Error| PackError::at(path.display(), e);
    let mut file = File::open(path).map_err(failed)?.take(bytes_max + 1);
    match read(&mut file).map_err(failed)? as u64 {
        bytes if bytes > bytes_max => Err(PackError::at(path.display(), format!("larger than {bytes_max} bytes"))),
        _ => Ok(()),
    }
}
