//! Kernels whose blocks only take time.

use anyhow::Result;
use atoll_kgraph::Bundle;
use atoll_pipeline::{CompileOptions, Silent, Target, pack};
use std::sync::Arc;

/// Launch shape of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub(super) blocks: u32,
    pub(super) threads: u32,
}

/// A graph of `kernels` kernels, one after the other. Each of their threads runs a loop of `rounds`
/// iterations.
pub(super) fn spin(target: Target, shape: Shape, kernels: u32, rounds: u32) -> Result<Arc<Bundle>> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("spin.ptx"), include_str!("spin.ptx"))?;
    let (manifest, path) = (folder.path().join("spin.toml"), folder.path().join("spin.kg"));
    let text = format!(
        "name = \"spin\"\nptx = [\"spin.ptx\"]\n[buffers]\ny = {{ kind = \"output\", dtype = \"u32\", shape = [1] \
        }}\n[[step]]\nrepeat = {kernels}\n\
         steps = [{{ kernel = \"spin\", grid = [{}], block = [{}], args = [\"y\", {rounds}], writes = [\"y\"] \
         }}]\n",
        shape.blocks, shape.threads
    );
    std::fs::write(&manifest, text)?;
    let options = CompileOptions { targets: vec![target], ..CompileOptions::default() };
    pack(&manifest, &path, &options, &Silent)?;
    // The bundle stays mapped after its file is deleted.
    Ok(Bundle::open(&path)?)
}
