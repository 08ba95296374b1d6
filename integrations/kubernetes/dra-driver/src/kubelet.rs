//! The sockets of the driver in the folders of the kubelet.
//!
//! The kubelet watches a folder for sockets of plugins. It asks the one that it finds there who it is,
//! and then calls the other one. After a restart it looks again, so there is nothing to do then.

use crate::names::DRIVER;
use crate::plugin::{Announcement, Plugin};
use anyhow::{Context, Result};
use atoll_kubernetes::socket::Socket;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Pause between two checks of the sockets.
const LOOK: Duration = Duration::from_millis(500);

/// Pause before another attempt after a failure.
const RETRY: Duration = Duration::from_secs(5);

/// Where the sockets are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    /// The driver's own folder, which exists.
    pub(crate) plugin: PathBuf,
    /// The folder that the kubelet watches.
    pub(crate) registry: PathBuf,
}

impl Places {
    fn calls(&self) -> PathBuf {
        self.plugin.join("dra.sock")
    }

    fn announcement(&self) -> PathBuf {
        self.registry.join(format!("{DRIVER}-reg.sock"))
    }
}

/// Serves the kubelet. Sockets that were removed are made again.
pub(crate) async fn run(places: Places, plugin: Plugin) -> Infallible {
    loop {
        if let Err(error) = served(&places, &plugin).await {
            tracing::warn!("the driver does not serve the kubelet: {error:#}");
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Serves until a socket was removed.
async fn served(places: &Places, plugin: &Plugin) -> Result<()> {
    let bind = |path: PathBuf, router| {
        let place = path.display().to_string();
        Socket::bind(path, router).context(place)
    };
    // The one that the kubelet finds is made last.
    let calls = bind(places.calls(), plugin.router())?;
    let announcement = bind(places.announcement(), Announcement::new(&places.calls()).router())?;
    tracing::info!("waiting for the kubelet at {}", places.announcement().display());
    while calls.is_there() && announcement.is_there() {
        tokio::time::sleep(LOOK).await;
    }
    tracing::info!("a socket was removed");
    Ok(())
}

/// The driver's own folder below that of all plugins.
pub(crate) fn own_folder(plugins: &Path) -> PathBuf {
    plugins.join(DRIVER)
}
