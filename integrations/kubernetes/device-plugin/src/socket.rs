//! A plugin's socket in the folder of the kubelet.

use crate::plugin::Plugin;
use crate::proto::device_plugin_server::DevicePluginServer;
use axum::Router;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

/// Connections to a socket. The kubelet has one.
const CONNECTIONS_MAX: usize = 16;

/// Pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_secs(1);

/// Which file is at a path: its device, number and time of change. A socket that was made anew may
/// have the number of the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity(u64, u64, i64, i64);

impl Identity {
    /// `None` if there is no file.
    pub(crate) fn of(path: &Path) -> Option<Identity> {
        let file = std::fs::symlink_metadata(path).ok()?;
        Some(Identity(file.dev(), file.ino(), file.ctime(), file.ctime_nsec()))
    }
}

/// A socket with a plugin. Closed and removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    identity: Option<Identity>,
    _task: JoinSet<()>,
}

impl Socket {
    /// Serves a plugin at its place in a folder, in place of what is there.
    ///
    /// # Errors
    /// Fails if the folder takes no socket.
    pub(crate) fn bind(folder: &Path, plugin: Plugin) -> io::Result<Socket> {
        let path = folder.join(plugin.endpoint());
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        let identity = Identity::of(&path);
        let mut task = JoinSet::new();
        task.spawn(accept(listener, plugin));
        Ok(Socket { path, identity, _task: task })
    }

    /// Whether the file is still that of this socket. The kubelet removes all when it starts.
    pub(crate) fn is_there(&self) -> bool {
        self.identity.is_some() && Identity::of(&self.path) == self.identity
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.is_there() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

async fn accept(listener: UnixListener, plugin: Plugin) {
    let router = Router::new().route_service("/v1beta1.DevicePlugin/{rpc}", DevicePluginServer::new(plugin));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if connections.len() < CONNECTIONS_MAX => {
                    connections.spawn(serve(stream, router.clone()));
                }
                Ok(_) => tracing::warn!("a connection was closed: {CONNECTIONS_MAX} are open"),
                Err(error) => {
                    tracing::warn!("a connection could not be accepted: {error}");
                    tokio::time::sleep(PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: UnixStream, router: Router) {
    let served = http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = served.await {
        tracing::debug!("a connection of the kubelet broke: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::Gift;
    use crate::resource::{Resource, Unit};
    use std::sync::Arc;
    use tokio::sync::watch;

    #[tokio::test]
    async fn a_socket_knows_whether_its_file_is_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let (_sender, capacity) = watch::channel(Arc::default());
        let resource = Resource { name: "example.com/share".into(), unit: Unit::Share };
        let plugin = Plugin::new(resource, capacity, Arc::new(Gift::default()));
        let path = folder.path().join("example.com_share.sock");
        // What a plugin before has left.
        std::fs::write(&path, "").unwrap();
        let first = Socket::bind(folder.path(), plugin.clone()).unwrap();
        assert!(first.is_there());
        UnixStream::connect(&path).await.unwrap();
        let second = Socket::bind(folder.path(), plugin.clone()).unwrap();
        assert!(second.is_there() && !first.is_there());
        // The file of the other one stays.
        drop(first);
        assert!(second.is_there());
        drop(second);
        assert!(!path.exists());
        assert!(Socket::bind(&folder.path().join("none"), plugin).is_err());
    }
}
