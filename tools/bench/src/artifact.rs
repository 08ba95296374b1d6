//! Opens model files from the command line as bundles.

use crate::compiler;
use crate::device_name::DeviceName;
use crate::failure::{OrUserError, user_error};
use crate::symbols::ModelArgs;
use atoll_kgraph::Bundle;
use std::path::Path;
use std::sync::Arc;

/// Opens a `.kg` file, or compiles an `.onnx` file for a device and opens the result.
pub fn open(path: &Path, device: DeviceName) -> anyhow::Result<Arc<Bundle>> {
    open_with(path, device, &ModelArgs::default())
}

/// Like [`open`], with options for an `.onnx` file.
pub fn open_with(path: &Path, device: DeviceName, symbols: &ModelArgs) -> anyhow::Result<Arc<Bundle>> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("kg") if !symbols.is_empty() => Err(user_error(
            "--symbol, --fix and --state apply to .onnx files only; the sizes and states of a bundle are fixed when it \
            is compiled",
        )),
        Some("kg") => Bundle::open(path).or_user_error(),
        Some("onnx") => compiled(path, device, symbols),
        _ => Err(user_error(format!("{}: expected a .kg or .onnx file", path.display()))),
    }
}

/// The bundle stays mapped after its file is deleted.
fn compiled(model: &Path, device: DeviceName, symbols: &ModelArgs) -> anyhow::Result<Arc<Bundle>> {
    let folder = tempfile::tempdir()?;
    let bundle = folder.path().join("model.kg");
    compiler::compile_for(device, model, &symbols.options()?, &bundle)?;
    Ok(Bundle::open(&bundle)?)
}
