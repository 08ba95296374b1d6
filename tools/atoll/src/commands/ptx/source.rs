//! Reading of PTX files.

use crate::failure::OrUserError;
use anyhow::{Context, Result};
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// A text, and its name in messages.
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) text: String,
}

/// Reads files; `-` is standard input.
pub(crate) fn read(files: &[PathBuf]) -> Result<Vec<Source>> {
    files.iter().map(|path| read_one(path).or_user_error()).collect()
}

fn read_one(path: &Path) -> Result<Source> {
    let (name, bytes) = if path.as_os_str() == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).context("standard input")?;
        ("standard input".to_owned(), bytes)
    } else {
        let name = path.display().to_string();
        (name.clone(), std::fs::read(path).context(name)?)
    };
    let text = String::from_utf8(bytes).ok().with_context(|| format!("{name} is not UTF-8 text"))?;
    Ok(Source { name, text })
}
