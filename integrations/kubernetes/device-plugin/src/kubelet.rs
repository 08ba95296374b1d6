//! Registers plugins at the kubelet, and again after each restart of the kubelet.

use crate::plugin::Plugin;
use crate::proto::registration_client::RegistrationClient;
use anyhow::{Context, Result};
use atoll_kubernetes::socket::{Identity, Socket};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::transport::Endpoint;

/// Pause between two checks of the sockets.
const LOOK: Duration = Duration::from_millis(500);

/// Pause before another attempt after a failure.
const RETRY: Duration = Duration::from_secs(5);

/// Time limit of an answer of the kubelet.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Keeps plugins registered at the kubelet. `folder` has the sockets of the kubelet and its plugins.
pub(crate) async fn run(folder: PathBuf, plugins: Vec<Plugin>) -> Infallible {
    for plugin in &plugins {
        plugin.is_known().await;
    }
    loop {
        if let Err(error) = registered(&folder, &plugins).await {
            tracing::warn!("the plugins are not registered: {error:#}");
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Serves and registers plugins. Returns when the kubelet has restarted, which creates its own
/// socket again and removes those of plugins.
async fn registered(folder: &Path, plugins: &[Plugin]) -> Result<()> {
    let kubelet = folder.join("kubelet.sock");
    let mut is_waiting = false;
    let identity = loop {
        if let Some(identity) = Identity::of(&kubelet) {
            break identity;
        }
        if !is_waiting {
            tracing::info!("waiting for the kubelet: there is no {}", kubelet.display());
            is_waiting = true;
        }
        tokio::time::sleep(LOOK).await;
    };
    let bind = |plugin: &Plugin| {
        let place = || format!("{}/{}", folder.display(), plugin.endpoint());
        Socket::bind(folder.join(plugin.endpoint()), plugin.router()).with_context(place)
    };
    let sockets = plugins.iter().map(bind).collect::<Result<Vec<Socket>>>()?;
    for plugin in plugins {
        register(&kubelet, plugin).await.with_context(|| format!("registering {}", plugin.endpoint()))?;
    }
    tracing::info!(resources = plugins.len(), "registered at {}", kubelet.display());
    while Identity::of(&kubelet) == Some(identity) && sockets.iter().all(Socket::is_there) {
        tokio::time::sleep(LOOK).await;
    }
    tracing::info!("the kubelet has restarted");
    Ok(())
}

async fn register(kubelet: &Path, plugin: &Plugin) -> Result<()> {
    let path = kubelet.to_str().context("its path is not UTF-8")?;
    let endpoint = Endpoint::from_shared(format!("unix:{path}"))?.connect_timeout(ANSWER_MAX).timeout(ANSWER_MAX);
    let channel = endpoint.connect().await.with_context(|| format!("connecting to {path}"))?;
    RegistrationClient::new(channel).register(plugin.announcement()).await?;
    Ok(())
}
