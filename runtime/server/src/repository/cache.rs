//! The cache of compiled models. Each file is named by a digest of the model, its options and the
//! compiler.

use super::error::LoadError;
use crate::compiler::{CompileProgress, CompilerService};
use crate::limits::CACHE_BYTES_MAX;
use atoll_kgraph::{Bundle, DiskCache, ModelOptions};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

pub(super) struct CompileCache {
    files: DiskCache,
    compiler: Option<Arc<dyn CompilerService>>,
}

impl CompileCache {
    pub(super) fn new(folder: PathBuf, compiler: Option<Arc<dyn CompilerService>>) -> CompileCache {
        CompileCache { files: DiskCache::new(folder, "kg", CACHE_BYTES_MAX), compiler }
    }

    /// The cached bundle of an ONNX file; `None` if there is none or it is damaged.
    pub(super) fn find(&self, model: &Path, options: &ModelOptions) -> Result<Option<Arc<Bundle>>, LoadError> {
        let path = self.path(model, options, &**self.compiler(model)?)?;
        match Bundle::open(&path) {
            Ok(bundle) => {
                self.files.touch(&path);
                Ok(Some(bundle))
            }
            Err(_) if !path.exists() => Ok(None),
            Err(error) => {
                tracing::warn!(%error, "a cached bundle is damaged; compiling it again");
                let _ = fs::remove_file(&path);
                Ok(None)
            }
        }
    }

    /// Compiles an ONNX file into the cache.
    pub(super) fn compile(
        &self,
        model: &Path,
        options: &ModelOptions,
        progress: &dyn Fn(CompileProgress),
    ) -> Result<Arc<Bundle>, LoadError> {
        let compiler = self.compiler(model)?;
        let path = self.path(model, options, &**compiler)?;
        self.files.create().map_err(|source| LoadError::Io { path: self.files.folder().into(), source })?;
        compiler.compile(model, &path, options, progress)?;
        let bundle = Bundle::open(&path)?;
        self.files.remove_unused();
        Ok(bundle)
    }

    /// Why the rows of an ONNX model are not independent; `None` if they are, or if it is unknown.
    pub(super) fn why_not_batched(&self, model: &Path, options: &ModelOptions) -> Option<String> {
        self.compiler.as_ref()?.why_not_batched(model, options)
    }

    fn compiler(&self, model: &Path) -> Result<&Arc<dyn CompilerService>, LoadError> {
        self.compiler.as_ref().ok_or_else(|| LoadError::NoCompiler(model.into()))
    }

    fn path(&self, model: &Path, options: &ModelOptions, compiler: &dyn CompilerService) -> Result<PathBuf, LoadError> {
        let digest = digest(model, &format!("{} {options:?}", compiler.identity()))
            .map_err(|source| LoadError::Io { path: model.into(), source })?;
        Ok(self.files.path(&digest))
    }
}

/// Digest of a model and of `identity`, which names the compiler and its options. Weights may be
/// stored in separate files. For files with the customary names, the digest covers size and
/// modification time, since hashing the content at every start would take long.
fn digest(model: &Path, identity: &str) -> io::Result<String> {
    let mut hash = Sha256::new();
    io::copy(&mut File::open(model)?, &mut hash)?;
    hash.update(identity.len().to_le_bytes());
    hash.update(identity);
    for path in external_data(model) {
        let metadata = fs::metadata(&path)?;
        hash.update(path.file_name().map(|n| n.as_encoded_bytes()).unwrap_or_default());
        hash.update(metadata.len().to_le_bytes());
        let age = metadata.modified()?.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        hash.update(age.as_nanos().to_le_bytes());
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Files beside the model that may hold its weights (`*.data`, `*.onnx_data`, `*.bin`,
/// `*.weights`), sorted by name.
pub(super) fn external_data(model: &Path) -> Vec<PathBuf> {
    let folder = model.parent().map(fs::read_dir);
    let entries = folder.and_then(Result::ok).into_iter().flatten().flatten().map(|entry| entry.path());
    let by_custom = |path: &PathBuf| {
        path.extension().and_then(|e| e.to_str()).is_some_and(|e| ["data", "onnx_data", "bin", "weights"].contains(&e))
    };
    let mut paths: Vec<PathBuf> = entries.filter(|path| by_custom(path) && path.is_file()).collect();
    paths.sort_unstable();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_changes_with_model_compiler_and_weights() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("m.onnx");
        std::fs::write(&model, "one").unwrap();
        let first = digest(&model, "a").unwrap();
        assert_eq!(digest(&model, "a").unwrap(), first);
        assert_ne!(digest(&model, "b").unwrap(), first);
        std::fs::write(folder.path().join("m.onnx.data"), "weights").unwrap();
        let with_weights = digest(&model, "a").unwrap();
        assert_ne!(with_weights, first);
        std::fs::write(&model, "two").unwrap();
        assert_ne!(digest(&model, "a").unwrap(), with_weights);
    }
}
