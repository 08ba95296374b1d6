//! A model file as it is given on a command line, opened as a bundle.

use crate::compiler;
use crate::device_name::DeviceName;
use crate::failure::{Blame, user_error};
use atoll_kgraph::Bundle;
use std::path::Path;
use std::sync::Arc;

/// Opens a `.kg` file, or compiles a `.onnx` file for a device and opens what came out.
pub fn open(path: &Path, device: DeviceName) -> anyhow::Result<Arc<Bundle>> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("kg") => Bundle::open(path).blame_user(),
        Some("onnx") => compiled(path, device),
        _ => Err(user_error(format!("{}: a .kg or .onnx file is expected", path.display()))),
    }
}

/// The bundle stays mapped after its file is gone.
fn compiled(model: &Path, device: DeviceName) -> anyhow::Result<Arc<Bundle>> {
    let folder = tempfile::tempdir()?;
    let bundle = folder.path().join("model.kg");
    compiler::compile_for(device, model, &bundle)?;
    Ok(Bundle::open(&bundle)?)
}
