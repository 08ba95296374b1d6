//! Compiled models on disk.
//!
//! A file's name is the digest of the model and of what compiled it, so that nothing has to be invalidated; what is not used for long is removed when there is
//! too much. Daemons may share the folder: files appear whole, by a rename, and removing one that another daemon has mapped does not disturb it.

use super::load::LoadError;
use crate::compiler::{CompileProgress, CompilerService};
use crate::limits::CACHE_BYTES_MAX;
use atoll_kgraph::Bundle;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A bundle is written in one go, in seconds.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);

pub(super) struct CompileCache {
    folder: PathBuf,
    compiler: Option<Arc<dyn CompilerService>>,
}

impl CompileCache {
    pub(super) fn new(folder: PathBuf, compiler: Option<Arc<dyn CompilerService>>) -> CompileCache {
        CompileCache { folder, compiler }
    }

    /// The bundle of an ONNX file, if it was compiled before and is still whole.
    pub(super) fn find(&self, model: &Path) -> Result<Option<Arc<Bundle>>, LoadError> {
        let path = self.path(model, &**self.compiler(model)?)?;
        match Bundle::open(&path) {
            Ok(bundle) => {
                // The time of last use is all that the removal goes by; a folder that cannot be written has nothing removed either.
                let _ = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
                Ok(Some(bundle))
            }
            Err(_) if !path.exists() => Ok(None),
            Err(error) => {
                tracing::warn!(%error, "a cached bundle is damaged and is compiled again");
                let _ = fs::remove_file(&path);
                Ok(None)
            }
        }
    }

    /// Compiles an ONNX file into the cache.
    pub(super) fn compile(&self, model: &Path, progress: &dyn Fn(CompileProgress)) -> Result<Arc<Bundle>, LoadError> {
        let compiler = self.compiler(model)?;
        let path = self.path(model, &**compiler)?;
        fs::create_dir_all(&self.folder).map_err(|source| LoadError::Io { path: self.folder.clone(), source })?;
        compiler.compile(model, &path, progress)?;
        let bundle = Bundle::open(&path)?;
        self.remove_unused(CACHE_BYTES_MAX, &path);
        Ok(bundle)
    }

    fn compiler(&self, model: &Path) -> Result<&Arc<dyn CompilerService>, LoadError> {
        self.compiler.as_ref().ok_or_else(|| LoadError::NoCompiler(model.into()))
    }

    fn path(&self, model: &Path, compiler: &dyn CompilerService) -> Result<PathBuf, LoadError> {
        let digest = digest(model, &compiler.identity()).map_err(|source| LoadError::Io { path: model.into(), source })?;
        Ok(self.folder.join(digest).with_extension("kg"))
    }

    /// Removes what compilations left behind that were killed, and the bundles not used for longest until the rest is small enough; never `keep`.
    fn remove_unused(&self, bytes_max: u64, keep: &Path) {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let (bundles, others): (Vec<PathBuf>, Vec<PathBuf>) = entries.partition(|path| path.extension().is_some_and(|e| e == "kg"));
        others.iter().filter(|path| is_abandoned(path)).for_each(|path| drop(fs::remove_file(path)));
        let mut files: Vec<(SystemTime, u64, PathBuf)> = bundles
            .into_iter()
            .filter_map(|path| {
                let metadata = fs::metadata(&path).ok()?;
                Some((metadata.modified().ok()?, metadata.len(), path))
            })
            .collect();
        files.sort_unstable();
        let mut bytes: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, size, path) in files.iter().filter(|(_, _, path)| path != keep) {
            if bytes <= bytes_max {
                return;
            }
            if fs::remove_file(path).is_ok() {
                bytes -= size;
            }
        }
    }
}

/// Whether a file is the unfinished work of a compilation that no longer runs: none writes for this long.
fn is_abandoned(path: &Path) -> bool {
    let age = fs::metadata(path).and_then(|metadata| metadata.modified()).ok().and_then(|written| written.elapsed().ok());
    path.extension().is_some_and(|e| e == "partial") && age.is_some_and(|age| age > ABANDONED_AFTER)
}

/// Digest of a model and of what compiles it. Weights may lie in files of their own beside the model; size and time of those that ONNX names so by custom
/// stand in for their content, which would take long to read at every start.
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

/// Files beside a model that may hold its weights: `*.data`, `*.onnx_data`, `*.bin`, `*.weights`, ascending.
fn external_data(model: &Path) -> Vec<PathBuf> {
    let folder = model.parent().map(fs::read_dir);
    let entries = folder.and_then(Result::ok).into_iter().flatten().flatten().map(|entry| entry.path());
    let by_custom =
        |path: &PathBuf| path.extension().and_then(|e| e.to_str()).is_some_and(|e| ["data", "onnx_data", "bin", "weights"].contains(&e));
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

    #[test]
    fn what_is_unused_for_longest_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CompileCache::new(folder.path().into(), None);
        let file = |name: &str, age_s: u64| {
            let path = folder.path().join(name);
            std::fs::write(&path, [0; 100]).unwrap();
            File::open(&path).unwrap().set_modified(SystemTime::now() - Duration::from_secs(age_s)).unwrap();
            path
        };
        let [newest, old, oldest, kept, other] =
            [file("a.kg", 1), file("b.kg", 50), file("c.kg", 90), file("d.kg", 100), file("e.txt", 9000)];
        let [running, abandoned] = [file("f.kg.7.partial", 60), file("g.kg.8.partial", 9000)];
        cache.remove_unused(200, &kept);
        let left = [&newest, &old, &oldest, &kept, &other, &running, &abandoned].map(|path| path.exists());
        assert_eq!(left, [true, false, false, true, true, true, false]);
    }
}
