//! Logs on standard error.

use anyhow::{Context, Result};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Begins to log what passes the filter of `--log`: a level, or filters by module.
///
/// # Errors
/// If the filter is malformed.
pub fn start(filter: &str) -> Result<()> {
    let filter = EnvFilter::try_new(filter).with_context(|| format!("--log {filter}"))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .init();
    Ok(())
}
