//! Scans a repository folder.
//!
//! | file | meaning |
//! |---|---|
//! | `NAME.kg` | a bundle |
//! | `NAME.onnx` | a model to compile |
//! | `NAME/1/model.kg`, `NAME/1/model.onnx` | the same in Triton's layout, a folder for each version |
//! | `NAME/1/model.onnx/model.onnx` | the same, with the files of its weights beside it |
//! | `NAME.toml`, `NAME/atoll.toml`, `NAME/config.pbtxt` | settings, see `settings.rs` |
//!
//! If a bundle and an ONNX file have the same name, the bundle is served.

use super::regular::read_at_most;
use super::triton::ensemble;
pub(super) use super::triton::ensemble::Ensemble;
use super::triton::tree::{Message, short};
use super::triton::{json, text};
use crate::limits::{MODELS_MAX, SETTINGS_BYTES_MAX, VERSIONS_MAX};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
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
        folder.and_then(|folder| triton_layout(folder, &self.name).ok()).unwrap_or(self)
    }

    /// Where files lie that the settings name.
    pub(crate) fn files_folder(&self) -> &Path {
        let beside = || self.versions.first().and_then(|version| version.path.parent());
        self.folder.as_deref().or_else(beside).unwrap_or(Path::new(""))
    }
}

/// What a folder has.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Its models, by name.
    pub(super) sources: Vec<Source>,
    /// Folders and links that are no models, and why.
    pub(super) skipped: BTreeSet<Skipped>,
}

/// A folder or a link that is no model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Skipped {
    pub(super) name: String,
    pub(super) why: String,
}

/// All models of a folder, by name.
pub(super) fn scan(folder: &Path) -> io::Result<Vec<Source>> {
    scan_all(folder).map(|scan| scan.sources)
}

/// Why a folder or a link with this name is no model, if there is one.
pub(super) fn why_skipped(folder: &Path, name: &str) -> Option<String> {
    let scan = scan_all(folder).ok()?;
    scan.skipped.into_iter().find(|skipped| skipped.name == name).map(|skipped| skipped.why)
}

/// All models of a folder, by name, and what is no model.
pub(super) fn scan_all(folder: &Path) -> io::Result<Scan> {
    let mut sources: BTreeMap<String, Source> = BTreeMap::new();
    let mut skipped = BTreeSet::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let source = match source(&path) {
            Ok(Some(source)) => source,
            Ok(None) => continue,
            Err(_) if skipped.len() == MODELS_MAX => continue,
            Err(why) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                skipped.insert(Skipped { name, why });
                continue;
            }
        };
        if sources.len() >= MODELS_MAX {
            tracing::warn!(folder = %folder.display(), "more than {MODELS_MAX} models; ignoring the rest");
            break;
        }
        match sources.get(&source.name) {
            Some(other) if other.form() <= source.form() => {}
            _ => drop(sources.insert(source.name.clone(), source)),
        }
    }
    Ok(Scan { sources: sources.into_values().collect(), skipped })
}

/// The model in a file or folder of the repository; `None` for a file of another kind. Hidden files
/// and folders are skipped, since editors and downloads write incomplete files there.
///
/// # Errors
/// Why a folder or a link is no model.
fn source(path: &Path) -> Result<Option<Source>, String> {
    let Some(file_name) = path.file_name() else { return Ok(None) };
    let Some(file_name) = file_name.to_str() else { return Err("its name is not valid UTF-8".into()) };
    if file_name.starts_with('.') {
        return Ok(None);
    }
    if path.is_dir() {
        return triton_layout(path, file_name).map(Some);
    }
    let name = path.file_stem().and_then(|name| name.to_str());
    let (Some(name), Some(form)) = (name, Form::of(path)) else {
        return if is_dangling(path) { Err(DANGLING.into()) } else { Ok(None) };
    };
    let version = VersionFile { number: 1, path: path.into(), form };
    Ok(Some(Source { name: name.into(), versions: vec![version], folder: None, skipped: Vec::new(), config: None }))
}

/// Why a dangling link is skipped.
const DANGLING: &str = "it is a link to a file or folder that does not exist";

/// Whether a path is a link to nothing.
fn is_dangling(path: &Path) -> bool {
    path.is_symlink() && !path.exists()
}

/// The model in a folder of Triton's layout.
///
/// # Errors
/// Why the folder is no model.
pub(super) fn triton_layout(folder: &Path, name: &str) -> Result<Source, String> {
    layout(folder, name, || config(folder))
}

/// The same for a load that brought along a configuration in JSON, which may name the files of
/// versions. One that cannot be read names none; reading the settings says why.
pub(super) fn layout_with(folder: &Path, name: &str, json: &str) -> Result<Source, String> {
    layout(folder, name, || json::parse(json).ok())
}

fn layout(folder: &Path, name: &str, naming: impl Fn() -> Option<Message>) -> Result<Source, String> {
    let (mut versions, mut skipped) = (Vec::new(), Vec::new());
    // Read at most once, and only where it is needed.
    let named = std::cell::OnceCell::new();
    let entries = std::fs::read_dir(folder).map_err(|error| format!("it cannot be read: {error}"))?;
    for entry in entries.flatten() {
        let path = entry.path();
        let Some(text) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if !text.starts_with(|first: char| first.is_ascii_digit()) || !path.is_dir() {
            continue;
        }
        match version(text, &path, || named.get_or_init(|| file_name(&naming()?)).clone()) {
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
        let config = config(folder);
        if !config.as_ref().is_some_and(ensemble::is_ensemble) {
            return Err(why_no_model(config.as_ref(), &skipped));
        }
        // Triton wants an empty folder for its version.
        skipped.clear();
        versions.push(VersionFile { number: 1, path, form: Form::Ensemble });
    }
    Ok(Source { name: name.into(), versions, folder: Some(folder.into()), skipped, config: None })
}

/// Why a folder without versions is no model.
fn why_no_model(config: Option<&Message>, skipped: &[String]) -> String {
    let of = |field: &str| {
        let text = config.and_then(|config| config.text(field)).filter(|text| !text.is_empty())?;
        Some(format!("; its config.pbtxt has the {field} `{}`", short(text)))
    };
    let kind = of("backend").or_else(|| of("platform")).unwrap_or_default();
    let folders = match skipped.is_empty() {
        true => "it has no folder whose name is a number above 0".to_owned(),
        false => skipped.join(", and "),
    };
    format!("{folders}{kind}; ONNX models (model.onnx) and bundles (model.kg) are served")
}

/// The files of a version, unless the configuration names one. The first that exists is served.
const STANDARD: [&str; 2] = ["model.kg", "model.onnx"];

/// The version in a folder whose name begins with a digit, or why there is none. `named` is the name
/// that the configuration gives to the files of versions.
fn version(text: &str, path: &Path, named: impl Fn() -> Option<String>) -> Result<VersionFile, &'static str> {
    // As Triton: otherwise two folders could be the same version.
    if text.starts_with('0') {
        return Err("its name begins with 0");
    }
    let number = text.parse::<u64>().map_err(|_| "its name is no number")?;
    let path = match named().filter(|name| name != STANDARD[1]) {
        // Also if it does not exist: a load then fails and names it, as with Triton.
        Some(name) => path.join(name),
        None => {
            let [bundle, onnx] = STANDARD.map(|file| path.join(file));
            let has_onnx = onnx.is_file() || onnx.join(STANDARD[1]).is_file();
            match bundle.is_file() {
                true => bundle,
                false if has_onnx => onnx,
                false if is_dangling(&bundle) || is_dangling(&onnx) => return Err("its model is a dangling link"),
                false => return Err("it has neither model.kg nor model.onnx"),
            }
        }
    };
    let form = Form::of(&path).ok_or("its file is neither a bundle (.kg) nor an ONNX model (.onnx)")?;
    // A folder with the model and the files of its weights.
    let path = if form == Form::Onnx && path.is_dir() { path.join(STANDARD[1]) } else { path };
    Ok(VersionFile { number, path, form })
}

/// The name of the files of versions, if a configuration gives one. One that leads out of a
/// version's folder counts as none.
fn file_name(config: &Message) -> Option<String> {
    let name = config.text("default_model_filename")?;
    let is_plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    (is_plain && !name.is_empty()).then(|| name.to_owned())
}

/// The configuration in a folder, if there is one that can be read.
fn config(folder: &Path) -> Option<Message> {
    let config = read_at_most(&folder.join("config.pbtxt"), SETTINGS_BYTES_MAX).ok()?;
    text::parse(&String::from_utf8(config).ok()?).ok()
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
        // The second one does not have the file that the configuration names.
        let h = vec![(1, Form::Onnx), (2, Form::Onnx)];
        assert!(found[3].versions[1].path.ends_with("h/2/other.onnx"));
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
        let skipped = scan_all(folder.path()).unwrap().skipped;
        let expected = [
            ("f", "no folder whose name is a number"),
            ("g", "the folder `1` is no version: it has neither model.kg"),
            ("i", "its file is neither a bundle"),
        ];
        assert_eq!(skipped.len(), expected.len(), "{skipped:?}");
        for ((name, why), skipped) in expected.into_iter().zip(&skipped) {
            assert!(skipped.name == name && skipped.why.contains(why), "{skipped:?}");
        }
        let brought = Source { config: Some("{}".into()), ..found[3].clone() };
        assert_eq!(brought.clone().now(), brought);
        assert_eq!(found[0].clone().now(), found[0]);
        assert!(scan(&folder.path().join("nowhere")).is_err());
    }
    #[test]
    fn the_file_that_the_configuration_names_is_served_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let version = folder.path().join("1");
        std::fs::create_dir_all(version.join("large.onnx")).unwrap();
        for file in ["model.onnx", "model.kg", "other.onnx", "large.onnx/model.onnx"] {
            std::fs::write(version.join(file), "").unwrap();
        }
        for (name, expected) in [
            ("other.onnx", "1/other.onnx"),
            ("none.onnx", "1/none.onnx"),
            ("large.onnx", "1/large.onnx/model.onnx"),
            ("model.onnx", "1/model.kg"),
            ("", "1/model.kg"),
        ] {
            std::fs::write(folder.path().join("config.pbtxt"), format!("default_model_filename: '{name}'")).unwrap();
            let source = triton_layout(folder.path(), "m").unwrap();
            assert!(source.versions[0].path.ends_with(expected), "{name}: {source:?}");
        }
        let brought = layout_with(folder.path(), "m", r#"{"default_model_filename": "large.onnx"}"#).unwrap();
        assert!(brought.versions[0].path.ends_with("1/large.onnx/model.onnx"), "{brought:?}");
        std::fs::write(folder.path().join("config.pbtxt"), "").unwrap();
        std::fs::remove_file(version.join("model.kg")).unwrap();
        std::fs::remove_file(version.join("model.onnx")).unwrap();
        std::fs::rename(version.join("large.onnx"), version.join("model.onnx")).unwrap();
        let source = triton_layout(folder.path(), "m").unwrap();
        assert!(source.versions[0].path.ends_with("1/model.onnx/model.onnx"), "{source:?}");
    }

    #[test]
    fn what_is_no_model_is_named_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let python = folder.path().join("python");
        std::fs::create_dir_all(python.join("1")).unwrap();
        std::fs::write(python.join("config.pbtxt"), "backend: 'python'").unwrap();
        let linked = folder.path().join("linked/1");
        std::fs::create_dir_all(&linked).unwrap();
        std::os::unix::fs::symlink("/nowhere", linked.join("model.onnx")).unwrap();
        std::os::unix::fs::symlink("/nowhere", folder.path().join("lost")).unwrap();
        for (name, expected) in [
            ("python", "it has neither model.kg nor model.onnx; its config.pbtxt has the backend `python`; ONNX"),
            ("linked", "the folder `1` is no version: its model is a dangling link"),
            ("lost", "a link to a file or folder that does not exist"),
        ] {
            let why = why_skipped(folder.path(), name).unwrap();
            assert!(why.contains(expected), "{why}");
        }
        assert_eq!(why_skipped(folder.path(), "other"), None);
    }
}
