//! A model repository on another machine, mirrored into a local folder in the background.

use crate::credentials::CredentialArgs;
use crate::failure::{OrUserError, users};
use anyhow::{Context, Result};
use atoll_remote::{Changes, Options, Remote, RemoteError};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Fetches a repository into a folder below `cache`, and returns the folder. A thread then fetches
/// changes at the interval `every` until the process ends. If the repository cannot be read now, the
/// files of an earlier start are used.
pub(super) fn follow(url: &str, cache: &Path, bytes_max: u64, every: Duration) -> Result<PathBuf> {
    // Where they are missing, an address that needs them says so.
    let tls = CredentialArgs::default().tls().ok();
    let options = Options { tls, bytes_max, ..Options::default() };
    let options = options.with_environment(url, |name| std::env::var(name).ok());
    let mut remote = Remote::open(url, &cache.join("repositories"), options).or_user_error()?;
    let mut problem = None;
    if let Err(error) = remote.sync() {
        if !remote.has_files() {
            return Err(users(error));
        }
        tracing::warn!(%error, "the model repository cannot be read; the files of an earlier start are used");
        problem = Some(error.to_string());
    }
    let folder = remote.folder().to_owned();
    let follow = move || loop {
        std::thread::sleep(every);
        tell(&remote.sync(), &mut problem);
    };
    std::thread::Builder::new().name("repository".into()).spawn(follow).context("a thread cannot be started")?;
    Ok(folder)
}

/// Logs what has changed, each new problem once, and its end.
fn tell(result: &Result<Changes, RemoteError>, problem: &mut Option<String>) {
    match result {
        Ok(Changes { fetched, removed, bytes }) => {
            if problem.take().is_some() {
                tracing::info!("the model repository can be read again");
            }
            if (*fetched, *removed) != (0, 0) {
                tracing::info!(fetched, removed, bytes, "files of the model repository were fetched or removed");
            }
        }
        Err(error) => {
            let text = Some(error.to_string());
            if text != *problem {
                tracing::warn!(%error, "the model repository cannot be read; its files stay as they are");
                *problem = text;
            }
        }
    }
}
