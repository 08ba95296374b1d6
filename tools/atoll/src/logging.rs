//! Logging: structured events on standard error.

use crate::cli::{Cli, Command, LogFormat};
use crate::failure::OrUserError;
use anyhow::Context;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Initializes logging. The default level is `info` for the daemon and `warn` for all other
/// commands.
pub(crate) fn start(cli: &Cli) -> anyhow::Result<()> {
    let default = if matches!(cli.command, Command::Serve(_)) { "info" } else { "warn" };
    let filter = EnvFilter::try_new(cli.log.as_deref().unwrap_or(default)).context("--log").or_user_error()?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        // Failures to write (for example on a full disk) are ignored: reporting one would fail in
        // the same way and end the thread.
        .log_internal_errors(false);
    match cli.log_format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(())
}
