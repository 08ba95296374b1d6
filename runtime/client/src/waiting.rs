//! Cancels a request while its client waits for the answer.

use crate::client::Client;
use crate::error::ClientError;
use atoll_control::WireError;
use std::fmt;
use std::io::ErrorKind;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Cancels the running request of a connection from another thread.
#[derive(Debug)]
pub struct Interrupter(UnixStream);

impl Interrupter {
    /// Closes the connection, so that the daemon cancels the running request. This request and all
    /// later ones fail with [`ClientError::Closed`] or [`ClientError::Wire`].
    pub fn interrupt(&self) {
        close(&self.0);
    }
}

fn close(socket: &UnixStream) {
    // It fails if the daemon has closed the connection already.
    let _ = socket.shutdown(Shutdown::Both);
}

/// The callback of [`Client::watch`], which decides whether the client keeps waiting.
pub(crate) struct Watch(Box<dyn Fn() -> bool + Send + Sync>);

impl Watch {
    /// Whether a read failed only because its timeout, the interval of the watch, has passed.
    pub(crate) fn has_waited(&self, error: &WireError) -> bool {
        matches!(error, WireError::Io(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
    }

    /// Calls the callback. Closes the connection if it returns false.
    pub(crate) fn check(&self, socket: &UnixStream) -> Result<(), ClientError> {
        if (self.0)() {
            return Ok(());
        }
        close(socket);
        Err(ClientError::Interrupted)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

impl Client {
    /// Returns a handle that cancels a request of this connection from another thread.
    ///
    /// # Errors
    /// The process has no file descriptor left.
    pub fn interrupter(&self) -> Result<Interrupter, ClientError> {
        Ok(Interrupter(self.socket.try_clone()?))
    }

    /// Calls `waits_on` at this interval (above zero) while the client waits for an answer. If it
    /// returns false, the connection is closed, the daemon cancels the request, and the request
    /// fails with [`ClientError::Interrupted`].
    ///
    /// # Errors
    /// If the interval is zero.
    pub fn watch(
        &mut self,
        interval: Duration,
        waits_on: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<(), ClientError> {
        self.socket.set_read_timeout(Some(interval))?;
        self.watch = Some(Watch(Box::new(waits_on)));
        Ok(())
    }
}
