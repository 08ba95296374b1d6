//! Messages to the service manager: the protocol of `sd_notify`.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

/// How long a message may wait for room in the queue of the service manager.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// The service manager that started the daemon, if it wants to be told the daemon's state.
#[derive(Clone, Debug, Default)]
pub struct ServiceManager {
    channel: Option<Arc<Channel>>,
    watchdog: Option<Duration>,
}

#[derive(Debug)]
struct Channel {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl ServiceManager {
    /// The service manager that the environment names (`NOTIFY_SOCKET`, `WATCHDOG_USEC`,
    /// `WATCHDOG_PID`); none if it names none.
    ///
    /// # Errors
    /// If `NOTIFY_SOCKET` is neither a path nor an abstract name, or no socket can be made.
    pub fn from_environment() -> io::Result<ServiceManager> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let Some(name) = variable("NOTIFY_SOCKET") else { return Ok(ServiceManager::default()) };
        let is_own = variable("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        let micros = variable("WATCHDOG_USEC").filter(|_| is_own).and_then(|micros| micros.parse::<u64>().ok());
        ServiceManager::at(&name, micros.filter(|micros| *micros > 0).map(Duration::from_micros))
    }

    /// The service manager that listens on a socket, a path or an abstract name after `@`, and
    /// expects a sign of life at least this often.
    ///
    /// # Errors
    /// If the name is neither, or no socket can be made.
    pub fn at(name: &str, watchdog: Option<Duration>) -> io::Result<ServiceManager> {
        let address = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None if name.starts_with('/') => SocketAddr::from_pathname(name)?,
            None => {
                let message = format!("NOTIFY_SOCKET is `{name}`, neither a path nor an abstract name");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(SEND_TIMEOUT))?;
        Ok(ServiceManager { channel: Some(Arc::new(Channel { socket, address })), watchdog })
    }

    /// Whether there is a service manager that receives messages.
    pub(super) fn listens(&self) -> bool {
        self.channel.is_some()
    }

    /// The longest time between two signs of life; `None` if the service manager expects none.
    pub(super) fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Sends a message of lines `NAME=VALUE`. A failure is logged.
    pub(super) fn send(&self, message: &str) {
        let Some(channel) = &self.channel else { return };
        if let Err(error) = channel.socket.send_to_addr(message.as_bytes(), &channel.address) {
            tracing::warn!(%error, message, "cannot tell the service manager the daemon's state");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_at_paths_and_abstract_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("atoll-test-{}", std::process::id());
        let receivers = [
            (path.display().to_string(), UnixDatagram::bind(&path).unwrap()),
            (format!("@{name}"), UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap()),
        ];
        for (name, receiver) in receivers {
            ServiceManager::at(&name, None).unwrap().send("READY=1\nSTATUS=well");
            let mut bytes = [0; 64];
            let count = receiver.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..count], b"READY=1\nSTATUS=well", "{name}");
        }
    }

    #[test]
    fn other_kinds_of_addresses_are_refused() {
        let error = ServiceManager::at("vsock:2:1234", None).unwrap_err();
        assert!(error.to_string().contains("`vsock:2:1234`"), "{error}");
        // Without a service manager, messages go nowhere.
        ServiceManager::default().send("READY=1");
    }
}
