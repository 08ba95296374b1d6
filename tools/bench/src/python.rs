//! The Python of peers that are measured beside Atoll.

use crate::failure::{OrUserError, user_error};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The Python interpreter: the one from the flag, else that of `$ATOLL_VENV`, else `python3`.
pub(crate) fn python(flag: Option<&Path>) -> PathBuf {
    let in_venv = || std::env::var_os("ATOLL_VENV").map(|venv| Path::new(&venv).join("bin/python"));
    flag.map(Path::to_owned).or_else(in_venv).unwrap_or_else(|| "python3".into())
}

/// Refuses a Python without these packages, which are separated by commas. `remedy` says where
/// they are.
pub(crate) fn check(python: &Path, packages: &str, remedy: &str) -> Result<()> {
    let output = Command::new(python).args(["-c", &format!("import {packages}")]).output();
    let output = output
        .with_context(|| format!("cannot run {}; choose a Python with --python", python.display()))
        .or_user_error()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim().lines().last().unwrap_or("no message");
    Err(user_error(format!("{} cannot import {packages} ({said}); {remedy}", python.display())))
}
