//! Scans a repository folder.
//!
//! | file | meaning |
//! |---|---|
//! | `NAME.kg` | a bundle |
//! | `NAME.onnx` | a model to compile |
//! | `NAME/1/model.kg`, `NAME/1/model.onnx` | the same in Triton's layout, a folder for each version |
//! | `NAME.toml`, `NAME/atoll.toml`, `NAME/config.pbtxt` | settings, see `settings.rs` |
//!
//! If a bundle and an ONNX file have the same name, the bundle is served.

use super::triton::ensemble::{self, Ensemble};
use super::triton::tree::Message;
use super::triton::{json, text};
use crate::limits::{MODELS_MAX, SETTINGS_BYTES_MAX, VERSIONS_MAX};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

/// A model in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) name: String,
    /// Its versions, the lowest first; at least one.
    pub(crate) versions: Vec<VersionFile>,
    /// The folder of the model, in Triton's layout.
    pub(crate) folder: Option<PathBuf>,
    /// Numbered folders that are no versions, and why.
    pub(crate) skipped: Vec<String>,
    /// A configuration in JSON that a load brought along: it counts instead of all files.
    pub(crate) config: Option<String>,
}

/// The file of a version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VersionFile {
    pub(crate) number: u64,
    pub(crate) path: PathBuf,
    pub(crate) form: Form,
}

/// The form of a model's file. Bundles sort first: they are preferred and loaded first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Form {
    Bundle,
    Onnx,
    /// Steps that call other models, in `config.pbtxt`. Loaded last.
    Ensemble,
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

impl Source {
    /// The form of the newest version.
    pub(crate) fn form(&self) -> Form {
        self.versions.last().map_or(Form::Onnx, |version| version.form)
    }

    /// The model as it is in its folder now. Unchanged if the folder is gone, or if a load brought
    /// along a configuration.
    pub(super) fn now(self) -> Source {
        let folder = self.folder.as_ref().filter(|_| self.config.is_none());
        folder.and_then(|folder| triton_layout(folder, &self.name)).unwrap_or(self)
    }

    /// Where files lie that the settings name.
    pub(crate) fn files_folder(&self) -> &Path {
        let beside = || self.versions.first().and_then(|version| version.path.parent());
        self.folder.as_deref().or_else(beside).unwrap_or(Path::new(""))
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
            Some(other) if other.form() <= source.form() => {}
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
    let version = VersionFile { number: 1, path: path.into(), form: Form::of(path)? };
    Some(Source { name, versions: vec![version], folder: None, skipped: Vec::new(), config: None })
}

/// The model in a folder of Triton's layout.
pub(super) fn triton_layout(folder: &Path, name: &str) -> Option<Source> {
    let (mut versions, mut skipped) = (Vec::new(), Vec::new());
    // Read at most once, and only where it is needed.
    let named = std::cell::OnceCell::new();
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let path = entry.path();
        let Some(text) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if !text.starts_with(|first: char| first.is_ascii_digit()) || !path.is_dir() {
            continue;
        }
        match version(text, &path, || named.get_or_init(|| file_name(folder)).clone()) {
            Ok(version) => versions.push(version),
            Err(why) => skipped.push(format!("the folder `{text}` is no version: {why}")),
        }
    }
    versions.sort_unstable();
    skipped.sort_unstable();
    skipped.truncate(VERSIONS_MAX);
    if versions.len() > VERSIONS_MAX {
        tracing::warn!(model = name, "more than {VERSIONS_MAX} versions; ignoring the lowest");
        versions.drain(..versions.len() - VERSIONS_MAX);
    }
    if versions.is_empty() {
        // Without a version there is no model, unless it is made of others.
        let path = folder.join("config.pbtxt");
        config(folder).filter(ensemble::is_ensemble)?;
        // Triton wants an empty folder for its version.
        skipped.clear();
        versions.push(VersionFile { number: 1, path, form: Form::Ensemble });
    }
    Some(Source { name: name.into(), versions, folder: Some(folder.into()), skipped, config: None })
}

/// The version in a folder whose name begins with a digit, or why there is none. `named` is the name
/// that the configuration gives to the files of versions.
fn version(text: &str, path: &Path, named: impl Fn() -> Option<String>) -> Result<VersionFile, &'static str> {
    // As Triton: otherwise two folders could be the same version.
    if text.starts_with('0') {
        return Err("its name begins with 0");
    }
    let number = text.parse::<u64>().map_err(|_| "its name is no number")?;
    let standard = ["model.kg", "model.onnx"].map(|file| path.join(file));
    let other = || named().map(|file| path.join(file)).filter(|path| path.is_file());
    let path = standard.into_iter().find(|path| path.is_file()).or_else(other);
    let path = path.ok_or("it has neither model.kg nor model.onnx")?;
    let form = Form::of(&path).ok_or("its file is neither a bundle (.kg) nor an ONNX model (.onnx)")?;
    Ok(VersionFile { number, path, form })
}

/// The name of the files of versions, if the configuration gives one. One that leads out of a
/// version's folder counts as none.
fn file_name(folder: &Path) -> Option<String> {
    let config = config(folder)?;
    let name = config.text("default_model_filename")?;
    let is_plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    (is_plain && !name.is_empty()).then(|| name.to_owned())
}

/// The configuration in a folder, if there is one that can be read.
fn config(folder: &Path) -> Option<Message> {
    let mut config = String::new();
    let path = folder.join("config.pbtxt");
    // Opening a named pipe would block every scan.
    let file = path.is_file().then(|| std::fs::File::open(path)).and_then(Result::ok)?;
    file.take(SETTINGS_BYTES_MAX).read_to_string(&mut config).ok()?;
    text::parse(&config).ok()
}

/// The steps of an ensemble.
///
/// # Errors
/// If its configuration cannot be read, or contradicts itself.
pub(super) fn ensemble(source: &Source) -> Result<Ensemble, String> {
    let config = match &source.config {
        Some(json) => json::parse(json)?,
        None => config(source.files_folder()).ok_or("its config.pbtxt cannot be read")?,
    };
    ensemble::read(&config, &source.name)
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
            "e/2/model.kg",
            "e/03/model.onnx",
            "e/0/model.onnx",
            "e/4/other",
            "e/5x/model.onnx",
            "e/99999999999999999999/model.onnx",
            "e/6",
            "e/notes/model.onnx",
            "f/model.onnx",
            "g/1/other",
            "a.toml",
            "h/1/other.onnx",
            "h/2/model.onnx",
            "i/1/other.txt",
        ] {
            file(name);
        }
        for (model, name) in [("h", "other.onnx"), ("i", "other.txt"), ("g", "../../a.onnx")] {
            let config = format!("default_model_filename: '{name}'");
            std::fs::write(folder.path().join(model).join("config.pbtxt"), config).unwrap();
        }
        let found = scan(folder.path()).unwrap();
        let versions = |source: &Source| -> Vec<(u64, Form)> {
            source.versions.iter().map(|version| (version.number, version.form)).collect()
        };
        let summary: Vec<_> = found.iter().map(|source| (source.name.as_str(), versions(source))).collect();
        let e = vec![(1, Form::Onnx), (2, Form::Bundle), (10, Form::Bundle)];
        let h = vec![(1, Form::Onnx), (2, Form::Onnx)];
        assert_eq!(summary, [("a", vec![(1, Form::Onnx)]), ("b", vec![(1, Form::Bundle)]), ("e", e), ("h", h)]);
        let skipped = &found[2].skipped;
        let expected = [
            ("`03`", "begins with 0"),
            ("`0`", "begins with 0"),
            ("`4`", "neither"),
            ("`5x`", "no number"),
            ("`99999999999999999999`", "no number"),
        ];
        assert_eq!(skipped.len(), expected.len(), "{skipped:?}");
        for ((folder, why), text) in expected.into_iter().zip(skipped) {
            assert!(text.contains(folder) && text.contains(why), "{text}");
        }
        // A scan before a change does not bring removed versions back.
        file("h/5/model.onnx");
        std::fs::remove_dir_all(folder.path().join("h/1")).unwrap();
        assert_eq!(versions(&found[3].clone().now()), [(2, Form::Onnx), (5, Form::Onnx)]);
        let brought = Source { config: Some("{}".into()), ..found[3].clone() };
        assert_eq!(brought.clone().now(), brought);
        assert_eq!(found[0].clone().now(), found[0]);
        assert!(scan(&folder.path().join("nowhere")).is_err());
    }
}
