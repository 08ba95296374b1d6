//! Asks the daemon for its capacity over the control socket.

use atoll_client::{CapacityReport, Client, ClientError};
use std::path::PathBuf;

/// The connection to the daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    socket: PathBuf,
    client: Option<Client>,
}

impl Daemon {
    /// Connects with the first request.
    pub(crate) fn new(socket: PathBuf) -> Daemon {
        Daemon { socket, client: None }
    }

    /// Sends one request. A connection that failed is not used again.
    pub(crate) fn capacity(&mut self) -> Result<CapacityReport, ClientError> {
        let mut connected = match self.client.take() {
            Some(connected) => connected,
            None => Client::connect(&self.socket)?,
        };
        let report = connected.capacity()?;
        self.client = Some(connected);
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_without_a_daemon_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let mut daemon = Daemon::new(folder.path().join("none.sock"));
        let error = daemon.capacity().unwrap_err();
        assert!(error.to_string().contains("cannot reach a daemon at"), "{error}");
        assert!(daemon.client.is_none());
    }
}
