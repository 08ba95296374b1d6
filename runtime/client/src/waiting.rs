//! Ends requests while a client waits for their answers.

use crate::client::Client;
use crate::error::ClientError;
use atoll_control::WireError;
use std::fmt;
use std::io::ErrorKind;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Ends the running request of a connection from another thread.
#[derive(Debug)]
pub struct Interrupter(UnixStream);

impl Interrupter {
    /// Closes the connection. The daemon cancels its request, which fails with
    /// [`ClientError::Closed`] or [`ClientError::Wire`], and so do all later ones.
    pub fn interrupt(&self) {
        close(&self.0);
    }
}

fn close(socket: &UnixStream) {
    // It fails if the daemon has closed the connection already.
    let _ = socket.shutdown(Shutdown::Both);
}

/// Tells, from time to time, whether a client waits on.
pub(crate) struct Watch(Box<dyn Fn() -> bool + Send + Sync>);

impl Watch {
    /// Whether this error of a read only means that the interval has passed.
    pub(crate) fn has_waited(&self, error: &WireError) -> bool {
        matches!(error, WireError::Io(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
    }

    /// Closes the connection if the client waits no longer.
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
    /// Returns what ends a request of this connection from another thread.
    ///
    /// # Errors
    /// If the process has no descriptor left.
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
