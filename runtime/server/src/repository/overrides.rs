//! What a request to load a model brings along: a configuration, and files, instead of those of the
//! repository. It holds until the model is loaded again.

use super::error::LoadError;
use super::scan::{self, Source};
use crate::limits::{LOAD_FILE_DEPTH_MAX, LOAD_FILES_MAX, SETTINGS_BYTES_MAX};
use crate::names::check_name;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// The beginning of the parameters that have files.
const FILE: &str = "file:";

/// Longest name of a file parameter in a message, in characters.
const NAME_SHOWN_MAX: usize = 80;

/// The beginning of the names of folders with such files.
const FOLDER: &str = "load-";

/// Age from which such a folder belongs to no load any more. Another daemon may use the same cache,
/// and a load with a long compilation takes minutes.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// What a request to load a model brings along.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Overrides {
    /// The configuration, in JSON.
    config: Option<String>,
    /// Files by their path in the folder of the model.
    files: Vec<(String, Vec<u8>)>,
}

/// The value of a load parameter.
pub(crate) enum LoadValue {
    Text(String),
    Bytes(Vec<u8>),
    Other,
}

impl Overrides {
    /// Adds a parameter of a load.
    ///
    /// # Errors
    /// If there is no such parameter, its value has another type, or the load is too large.
    pub(crate) fn add(&mut self, name: String, value: LoadValue) -> Result<(), LoadError> {
        let bad = |reason: String| Err(LoadError::Override(reason));
        match (name.strip_prefix(FILE), value) {
            (None, LoadValue::Text(config)) if name == "config" => {
                if config.len() as u64 > SETTINGS_BYTES_MAX {
                    return bad(format!("`config` has {} bytes; the limit is {SETTINGS_BYTES_MAX}", config.len()));
                }
                self.config = Some(config);
            }
            (None, _) if name == "config" => {
                return bad("Config parameter 'config' must have string type for its value".into());
            }
            (Some(_), LoadValue::Bytes(_)) if self.files.len() == LOAD_FILES_MAX => {
                return bad(format!("a load may have {LOAD_FILES_MAX} files"));
            }
            (Some(file), LoadValue::Bytes(bytes)) => self.files.push((file.to_owned(), bytes)),
            (Some(_), _) => return bad(format!("File parameter '{name}' must have bytes type for its value")),
            (None, _) => {
                return bad(format!("the load parameter `{name}` is not known; there are `config` and `file:PATH`"));
            }
        }
        Ok(())
    }

    /// Whether it brings files along.
    pub(crate) fn has_files(&self) -> bool {
        !self.files.is_empty()
    }

    /// Whether nothing was brought along.
    pub(super) fn is_empty(&self) -> bool {
        self.config.is_none() && self.files.is_empty()
    }

    /// The model as it is to be loaded, and the folder with its files if it has files of its own.
    /// `found` is the model of the repository; `scratch` is where the folder is made.
    ///
    /// # Errors
    /// If the overrides are not valid, or there is no model.
    pub(super) fn source(
        self,
        name: &str,
        found: Option<Source>,
        scratch: &Path,
    ) -> Result<(Source, Option<TempDir>), LoadError> {
        if self.files.is_empty() {
            let source = found.ok_or_else(|| LoadError::Unknown(name.into()))?;
            let again = |folder: &PathBuf| scan::layout_with(folder, name, self.config.as_deref().unwrap_or_default());
            let source = source.folder.as_ref().and_then(|folder| again(folder).ok()).unwrap_or(source);
            return Ok((Source { config: self.config, ..source }, None));
        }
        let missing = "Load parameter 'config' must be specified for model file override";
        let config = self.config.ok_or_else(|| LoadError::Override(missing.into()))?;
        if found.is_none() {
            // A name such as `TENANT:FUNCTION` would hide the function of a tenant.
            check_name(name).map_err(|reason| LoadError::Override(reason.to_string()))?;
        }
        let folder = write(scratch, &self.files)?;
        let source = scan::layout_with(folder.path(), name, &config).map_err(|why| {
            let text = "no version is available: none of the files is VERSION/model.onnx";
            LoadError::Override(format!("{text}; {why}"))
        })?;
        Ok((Source { config: Some(config), ..source }, Some(folder)))
    }
}

/// Writes files into a new folder.
fn write(scratch: &Path, files: &[(String, Vec<u8>)]) -> Result<TempDir, LoadError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source: io::Error| LoadError::Io { path, source }
    };
    fs::create_dir_all(scratch).map_err(failed(scratch))?;
    remove_abandoned(scratch, ABANDONED_AFTER);
    let folder = tempfile::Builder::new().prefix(FOLDER).tempdir_in(scratch).map_err(failed(scratch))?;
    for (file, bytes) in files {
        let path = folder.path().join(checked(file)?);
        // The client knows the name that it gave, and does not need to know the daemon's folders.
        place(&path, bytes).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => {
                LoadError::Override(format!("Invalid file parameter '{}': another one has the same path", named(file)))
            }
            _ => LoadError::Brought { name: named(file), source },
        })?;
    }
    Ok(folder)
}

/// Writes a new file.
fn place(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    File::create_new(path)?.write_all(bytes)
}

/// A file parameter in a message.
fn named(file: &str) -> String {
    let name = format!("{FILE}{}", file.escape_debug());
    if name.chars().count() <= NAME_SHOWN_MAX {
        return name;
    }
    name.chars().take(NAME_SHOWN_MAX).chain(['…']).collect()
}

/// Removes folders of loads during which a daemon was killed.
fn remove_abandoned(scratch: &Path, after: Duration) {
    let entries = fs::read_dir(scratch).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(FOLDER.as_bytes())) {
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        if modified.ok().and_then(|time| time.elapsed().ok()).is_some_and(|age| age >= after) {
            // What cannot be removed now is tried again with the next load.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The path of a file that a load may bring along.
fn checked(file: &str) -> Result<&Path, LoadError> {
    let refused = |why: &str| LoadError::Override(format!("Invalid file parameter '{}' {why}", named(file)));
    let path = inside(file).ok_or_else(|| refused("must stay within model directory"))?;
    if path.components().count() > LOAD_FILE_DEPTH_MAX {
        return Err(refused("is nested too deep"));
    }
    // A bundle has native code, which the daemon runs as its own if it lies in the repository.
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("kg")) {
        return Err(refused("is a bundle; send model.onnx, or put the bundle into the repository"));
    }
    Ok(path)
}

/// A path that leads nowhere else.
fn inside(text: &str) -> Option<&Path> {
    let path = Path::new(text);
    let is_plain = !text.is_empty() && path.components().all(|part| matches!(part, Component::Normal(_)));
    is_plain.then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(parameters: &[(&str, LoadValue)]) -> Result<Overrides, LoadError> {
        let mut overrides = Overrides::default();
        for (name, value) in parameters {
            let value = match value {
                LoadValue::Text(text) => LoadValue::Text(text.clone()),
                LoadValue::Bytes(bytes) => LoadValue::Bytes(bytes.clone()),
                LoadValue::Other => LoadValue::Other,
            };
            overrides.add((*name).to_owned(), value)?;
        }
        Ok(overrides)
    }

    fn text(text: &str) -> LoadValue {
        LoadValue::Text(text.into())
    }

    fn bytes(text: &str) -> LoadValue {
        LoadValue::Bytes(text.into())
    }

    #[test]
    fn parameters_have_types() {
        for (parameter, expected) in [
            (("config", LoadValue::Other), "must have string type"),
            (("config", bytes("{}")), "must have string type"),
            (("file:1/model.onnx", text("x")), "must have bytes type"),
            (("priority", LoadValue::Other), "`priority` is not known"),
        ] {
            let message = of(&[parameter]).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn files_make_a_model_and_stay_in_its_folder() {
        let scratch = tempfile::tempdir().unwrap();
        let scratch = scratch.path().join("new");
        let files = [("config", text("{}")), ("file:2/model.onnx", bytes("x")), ("file:labels.txt", bytes("cat"))];
        let (source, folder) = of(&files).unwrap().source("m", None, &scratch).unwrap();
        assert_eq!((source.name.as_str(), source.versions.len(), source.config.as_deref()), ("m", 1, Some("{}")));
        let labels = source.files_folder().join("labels.txt");
        assert_eq!(std::fs::read_to_string(&labels).unwrap(), "cat");
        drop(folder);
        assert!(!labels.exists());
        for (file, expected) in [
            ("file:../x", "must stay within model directory"),
            ("file:/x", "must stay within model directory"),
            ("file:", "must stay within model directory"),
            ("file:1/model.kg", "is a bundle"),
            ("file:1/MODEL.KG", "is a bundle"),
            ("file:other", "no version is available"),
            ("file:1/2/3/4/5/6/7/8/9", "nested too deep"),
            ("file:1/a/../model.onnx", "must stay within model directory"),
        ] {
            let overrides = of(&[("config", text("{}")), (file, bytes("x"))]).unwrap();
            let message = overrides.source("m", None, &scratch).map(drop).unwrap_err().to_string();
            assert!(message.contains(expected), "{file}: {message}");
        }
        assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0, "nothing is left");
        for name in ["..", "a/b", "", ".hidden", "/x", "vision:toy"] {
            let overrides = of(&[("config", text("{}")), ("file:1/model.onnx", bytes("x"))]).unwrap();
            let message = overrides.source(name, None, &scratch).map(drop).unwrap_err().to_string();
            assert!(message.contains("not a valid name"), "{name}: {message}");
        }
        let alone = of(&[("file:1/model.onnx", bytes("x"))]).unwrap();
        let message = alone.source("m", None, &scratch).map(drop).unwrap_err().to_string();
        assert!(message.contains("'config' must be specified"), "{message}");
        let unknown = of(&[("config", text("{}"))]).unwrap().source("m", None, &scratch).map(drop);
        assert!(matches!(unknown, Err(LoadError::Unknown(_))));
    }

    #[test]
    fn loads_are_limited() {
        let large = " ".repeat(SETTINGS_BYTES_MAX as usize + 1);
        let message = of(&[("config", text(&large))]).unwrap_err().to_string();
        assert!(message.contains("the limit is 1048576"), "{message}");
        let mut overrides = of(&[("config", text("{}"))]).unwrap();
        for file in 0..LOAD_FILES_MAX {
            overrides.add(format!("file:{file}"), bytes("x")).unwrap();
        }
        let message = overrides.add("file:one-more".into(), bytes("x")).unwrap_err().to_string();
        assert!(message.contains("a load may have 256 files"), "{message}");
        let scratch = tempfile::tempdir().unwrap();
        let twice =
            of(&[("config", text("{}")), ("file:1/model.onnx", bytes("x")), ("file:1//model.onnx", bytes("y"))]);
        assert!(matches!(twice.unwrap().source("m", None, scratch.path()).map(drop), Err(LoadError::Override(_))));
    }

    #[test]
    fn abandoned_folders_are_removed_and_others_stay() {
        let scratch = tempfile::tempdir().unwrap();
        let (ours, other) = (scratch.path().join("load-x"), scratch.path().join("other"));
        fs::create_dir_all(ours.join("1")).unwrap();
        fs::create_dir(&other).unwrap();
        remove_abandoned(scratch.path(), ABANDONED_AFTER);
        assert!(ours.exists());
        remove_abandoned(scratch.path(), Duration::ZERO);
        assert!(!ours.exists() && other.exists());
    }
}
