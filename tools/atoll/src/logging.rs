//! Logging: structured events on standard error.

use crate::cli::{Cli, Command, LogFormat};
use crate::failure::OrUserError;
use anyhow::Context;
use atoll_server::LogControl;
use std::io::IsTerminal;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::reload::Handle;

/// Initializes logging. The default level is `info` for the daemon and `warn` for all other
/// commands. Returns a handle that changes the level.
pub(crate) fn start(cli: &Cli) -> anyhow::Result<LogControl> {
    let default = if matches!(cli.command, Command::Serve(_)) { "info" } else { "warn" };
    let directives = cli.log.clone().unwrap_or_else(|| default.into());
    let filter = EnvFilter::try_new(&directives).context("--log").or_user_error()?;
    let level = filter.max_level_hint();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        // Failures to write (for example on a full disk) are ignored: reporting one would fail in
        // the same way and end the thread.
        .log_internal_errors(false);
    Ok(match cli.log_format {
        LogFormat::Text => {
            let builder = builder.with_filter_reloading();
            let control = control(builder.reload_handle(), directives, level);
            builder.init();
            control
        }
        LogFormat::Json => {
            let builder = builder.json().with_filter_reloading();
            let control = control(builder.reload_handle(), directives, level);
            builder.init();
            control
        }
    })
}

/// Sets one level for everything. If it is the highest level of the directives that the program
/// started with, these apply again.
fn control<S: 'static>(handle: Handle<EnvFilter, S>, directives: String, start: Option<LevelFilter>) -> LogControl
where
    Handle<EnvFilter, S>: Send + Sync,
{
    LogControl::new(move |level| {
        let filter = if Some(level) == start { EnvFilter::new(&directives) } else { EnvFilter::new(level.to_string()) };
        handle.reload(filter).map_err(|error| format!("the log cannot be changed: {error}"))
    })
}
