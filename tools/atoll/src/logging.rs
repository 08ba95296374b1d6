//! Logs: structured events on standard error.

use crate::cli::{Cli, Command, LogFormat};
use crate::failure::Blame;
use anyhow::Context;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts logging. A daemon tells what it does; everything else speaks up only when something is
/// wrong.
pub(crate) fn start(cli: &Cli) -> anyhow::Result<()> {
    let default = if matches!(cli.command, Command::Serve(_)) { "info" } else { "warn" };
    let filter = EnvFilter::try_new(cli.log.as_deref().unwrap_or(default)).context("--log").blame_user()?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        // What cannot be written, to a full disk perhaps, is lost; complaining about it by the same way would end the
        // thread.
        .log_internal_errors(false);
    match cli.log_format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(())
}
