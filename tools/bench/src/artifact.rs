//! A model file as it is given on a command line, opened as a bundle.

use crate::compiler;
use crate::device_name::DeviceName;
use crate::failure::{Blame, user_error};
use crate::symbols::ModelArgs;
use atoll_kgraph::Bundle;
use std::path::Path;
use std::sync::Arc;

/// Opens a `.kg` file, or compiles a `.onnx` file for a device and opens what came out.
pub fn open(path: &Path, device: DeviceName) -> anyhow::Result<Arc<Bundle>> {
    open_with(path, device, &ModelArgs::default())
}

/// As [`open`], for an `.onnx` file whose sizes have these ranges.
pub fn open_with(path: &Path, device: DeviceName, symbols: &ModelArgs) -> anyhow::Result<Arc<Bundle>> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("kg") if !symbols.is_empty() => Err(user_error(
            "--symbol, --fix and --state are for .onnx files; a bundle's sizes and states were decided when it was compiled",
        )),
        Some("kg") => Bundle::open(path).blame_user(),
        Some("onnx") => compiled(path, device, symbols),
        _ => Err(user_error(format!("{}: a .kg or .onnx file is expected", path.display()))),
    }
}

/// The bundle stays mapped after its file is gone.
fn compiled(model: &Path, device: DeviceName, symbols: &ModelArgs) -> anyhow::Result<Arc<Bundle>> {
    let folder = tempfile::tempdir()?;
    let bundle = folder.path().join("model.kg");
    compiler::compile_for(device, model, &symbols.options()?, &bundle)?;
    Ok(Bundle::open(&bundle)?)
}
