//! A socket with gRPC in a folder of the kubelet.

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

/// Maximum number of connections to a socket. The kubelet opens one.
const CONNECTIONS_MAX: usize = 16;

/// Pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_secs(1);

/// The file at a path: its device, inode and time of change. A new socket may have the inode of the
/// old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(u64, u64, i64, i64);

impl Identity {
    /// `None` if there is no file.
    #[must_use]
    pub fn of(path: &Path) -> Option<Identity> {
        let file = std::fs::symlink_metadata(path).ok()?;
        Some(Identity(file.dev(), file.ino(), file.ctime(), file.ctime_nsec()))
    }
}

/// A socket that serves gRPC. Closed and removed when dropped.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    identity: Option<Identity>,
    _task: JoinSet<()>,
}

impl Socket {
    /// Serves the services of a router, by HTTP/2, at a path. Replaces a file that is there.
    ///
    /// # Errors
    /// Fails if the socket cannot be created.
    pub fn bind(path: PathBuf, router: Router) -> io::Result<Socket> {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        let identity = Identity::of(&path);
        let mut task = JoinSet::new();
        task.spawn(accept(listener, router));
        Ok(Socket { path, identity, _task: task })
    }

    /// Whether the file is still this socket. The kubelet removes all sockets when it starts.
    #[must_use]
    pub fn is_there(&self) -> bool {
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

async fn accept(listener: UnixListener, router: Router) {
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

    #[tokio::test]
    async fn a_socket_knows_whether_its_file_is_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("example.com_share.sock");
        // What a plugin before has left.
        std::fs::write(&path, "").unwrap();
        let first = Socket::bind(path.clone(), Router::new()).unwrap();
        assert!(first.is_there());
        UnixStream::connect(&path).await.unwrap();
        let second = Socket::bind(path.clone(), Router::new()).unwrap();
        assert!(second.is_there() && !first.is_there());
        // The file of the other one stays.
        drop(first);
        assert!(second.is_there());
        drop(second);
        assert!(!path.exists());
        assert!(Socket::bind(folder.path().join("none/a.sock"), Router::new()).is_err());
    }
}
