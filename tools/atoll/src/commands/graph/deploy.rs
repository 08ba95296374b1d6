//! Adds the files that a manifest names to the manifest, since the daemon does not read a client's
//! files.

use crate::failure::user_error;
use anyhow::Result;
use atoll_stages::limits::PROGRAM_FILE_BYTES_MAX;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// The part of a manifest that is read here. The daemon checks the rest.
#[derive(Deserialize)]
struct Outline {
    #[serde(default)]
    stage: Vec<Stage>,
    files: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Stage {
    wasm: Option<String>,
    options: Option<BTreeMap<String, Value>>,
}

impl Stage {
    fn file(&self) -> Option<&str> {
        let tokenizer = || self.options.as_ref()?.get("tokenizer")?.as_str();
        self.wasm.as_deref().or_else(tokenizer)
    }
}

/// Returns the manifest with the files that its stages name, as base64 in a table `files`. Their
/// names are relative to `folder`. A manifest that already has this table, or that cannot be
/// parsed, is returned unchanged.
///
/// # Errors
/// A file cannot be read, or is too large.
pub(super) fn with_files(manifest: &str, folder: &Path) -> Result<String> {
    let is_json = manifest.trim_start().starts_with('{');
    let outline: Option<Outline> =
        if is_json { serde_json::from_str(manifest).ok() } else { toml::from_str(manifest).ok() };
    let Some(Outline { stage, files: None }) = outline else { return Ok(manifest.into()) };
    let mut files = BTreeMap::new();
    for name in stage.iter().filter_map(Stage::file) {
        let path = folder.join(name);
        let failed = |error: std::io::Error| user_error(format!("cannot read {}: {error}", path.display()));
        if std::fs::metadata(&path).map_err(failed)?.len() > PROGRAM_FILE_BYTES_MAX as u64 {
            let text = format!("{} is too large; the limit is {PROGRAM_FILE_BYTES_MAX} bytes", path.display());
            return Err(user_error(text));
        }
        files.insert(name, BASE64_STANDARD.encode(std::fs::read(&path).map_err(failed)?));
    }
    if files.is_empty() {
        return Ok(manifest.into());
    }
    if is_json {
        let mut whole: Value = serde_json::from_str(manifest)?;
        whole["files"] = json!(files);
        return Ok(whole.to_string());
    }
    // A JSON string is also a TOML string.
    let lines = files.iter().map(|(name, text)| format!("{} = \"{text}\"\n", json!(name)));
    Ok(format!("{manifest}\n[files]\n{}", lines.collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_added_to_manifests_that_name_some() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a b.wasm"), b"\0asm").unwrap();
        let toml = "[[stage]]\nwasm = \"a b.wasm\"\n[outputs]\n";
        let whole = with_files(toml, folder.path()).unwrap();
        assert_eq!(whole, format!("{toml}\n[files]\n\"a b.wasm\" = \"AGFzbQ==\"\n"));
        assert_eq!(with_files(&whole, folder.path()).unwrap(), whole, "they are there already");
        let json = r#"{"stage": [{"options": {"tokenizer": "a b.wasm"}}]}"#;
        let whole: Value = serde_json::from_str(&with_files(json, folder.path()).unwrap()).unwrap();
        assert_eq!(whole["files"], json!({ "a b.wasm": "AGFzbQ==" }));
        for plain in ["[[stage]]\nfunction = \"f\"\n", "not a manifest", "{"] {
            assert_eq!(with_files(plain, folder.path()).unwrap(), plain);
        }
    }

    #[test]
    fn missing_and_large_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refused = || with_files("[[stage]]\nwasm = \"a.wasm\"\n", folder.path()).unwrap_err().to_string();
        assert!(refused().contains("cannot read"));
        std::fs::write(folder.path().join("a.wasm"), vec![0; PROGRAM_FILE_BYTES_MAX + 1]).unwrap();
        assert!(refused().contains("too large"));
    }
}
