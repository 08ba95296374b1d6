//! Scans a repository folder.
//!
//! | file | meaning |
//! |---|---|
//! | `NAME.kg` | a bundle |
//! | `NAME.onnx` | a model to compile |
//! | `NAME/1/model.kg`, `NAME/1/model.onnx` | the same in Triton's layout; the highest version is served |
//! | `NAME.toml`, `NAME/atoll.toml`, `NAME/config.pbtxt` | settings, see `settings.rs` |
//!
//! If a bundle and an ONNX file have the same name, the bundle is served.

use crate::limits::MODELS_MAX;
use atoll_protocol::MODEL_VERSION;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// A model in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) path: PathBuf,
    pub(crate) form: Form,
    /// The folder of the model, in Triton's layout.
    pub(crate) folder: Option<PathBuf>,
}

/// The form of a model's file. Bundles sort first: they are preferred and loaded first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Form {
    Bundle,
    Onnx,
}

impl Form {
    fn of(path: &Path) -> Option<Form> {
        match path.extension()?.to_str()? {
            "kg" => Some(Form::Bundle),
            "onnx" => Some(Form::Onnx),
            _ => None,
        }
    }
}

/// All models of a folder, by name.
pub(super) fn scan(folder: &Path) -> io::Result<Vec<Source>> {
    let mut sources: BTreeMap<String, Source> = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let Some(source) = source(&path) else { continue };
        if sources.len() >= MODELS_MAX {
            tracing::warn!(folder = %folder.display(), "more than {MODELS_MAX} models; ignoring the rest");
            break;
        }
        match sources.get(&source.name) {
            Some(other) if other.form <= source.form => {}
            _ => drop(sources.insert(source.name.clone(), source)),
        }
    }
    Ok(sources.into_values().collect())
}

/// The model in a file or folder of the repository. Hidden files and folders are skipped, since
/// editors and downloads write incomplete files there.
fn source(path: &Path) -> Option<Source> {
    let file_name = path.file_name()?.to_str()?;
    if file_name.starts_with('.') {
        return None;
    }
    if path.is_dir() {
        return triton_layout(path, file_name);
    }
    let name = path.file_stem()?.to_str()?.to_string();
    Some(Source { name, version: MODEL_VERSION.into(), path: path.into(), form: Form::of(path)?, folder: None })
}

fn triton_layout(folder: &Path, name: &str) -> Option<Source> {
    let entries = std::fs::read_dir(folder).ok()?;
    let version_of = |path: &Path| path.file_name().and_then(|n| n.to_str()).and_then(|n| n.parse::<u64>().ok());
    let versions = entries.flatten().map(|e| e.path()).filter_map(|path| Some((version_of(&path)?, path)));
    let (version, path) = versions.max()?;
    let candidates =
        [(Form::Bundle, "model.kg"), (Form::Onnx, "model.onnx")].map(|(form, file)| (form, path.join(file)));
    let (form, path) = candidates.into_iter().find(|(_, path)| path.is_file())?;
    Some(Source { name: name.into(), version: version.to_string(), path, form, folder: Some(folder.into()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_layouts_are_found_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        for name in [
            "a.onnx",
            "b.kg",
            "b.onnx",
            ".c.kg",
            "d.txt",
            "e/1/model.onnx",
            "e/10/model.kg",
            "e/2/model.onnx",
            "f/model.onnx",
            "g/1/other",
            "a.toml",
        ] {
            file(name);
        }
        let found = scan(folder.path()).unwrap();
        let summary: Vec<_> = found.iter().map(|s| (s.name.as_str(), s.version.as_str(), s.form)).collect();
        assert_eq!(summary, [("a", "1", Form::Onnx), ("b", "1", Form::Bundle), ("e", "10", Form::Bundle)]);
        assert!(scan(&folder.path().join("nowhere")).is_err());
    }
}
