//! The socket to the server.

use crate::log::log;
use atoll_session::{Address, Lost, Transport};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

/// A connected socket.
#[derive(Debug)]
pub(crate) struct Link(OwnedFd);

impl Link {
    pub(crate) fn connect(address: &Address) -> std::io::Result<Link> {
        Ok(Link(match address {
            Address::Unix(path) => UnixStream::connect(path)?.into(),
            // Tokens and TLS have no place in the program: `atoll run` connects, and passes the
            // bytes on.
            Address::Tcp(_) => {
                let text = "this library connects to Unix sockets only; start the program by `atoll run --server`";
                return Err(std::io::Error::new(std::io::ErrorKind::Unsupported, text));
            }
        }))
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Transport for Link {
    fn send(&mut self, mut bytes: &[u8]) -> Result<(), Lost> {
        while !bytes.is_empty() {
            // Without the flag, a server that has closed the connection would end the program by
            // SIGPIPE.
            match rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(Lost(error.to_string())),
            }
        }
        Ok(())
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<(), Lost> {
        let mut read = 0;
        while read < bytes.len() {
            match rustix::io::read(&self.0, &mut bytes[read..]) {
                Ok(0) => return Err(Lost("the server has closed it".to_owned())),
                Ok(count) => read += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(Lost(error.to_string())),
            }
        }
        Ok(())
    }

    fn note(&mut self, line: &str) {
        log(&line);
    }

    fn receive_to(&mut self, address: u64, bytes: u64) -> Result<(), Lost> {
        let mut read = 0;
        while read < bytes {
            let at = std::ptr::with_exposed_provenance_mut((address + read) as usize);
            // SAFETY: the program passed the address of at least this many bytes as the destination
            // of a copy, and does not use them until it has waited for the copy.
            let count = unsafe { libc::recv(self.raw(), at, (bytes - read) as usize, 0) };
            match u64::try_from(count) {
                Ok(0) => return Err(Lost("the server has closed it".to_owned())),
                Ok(count) => read += count,
                Err(_) => match std::io::Error::last_os_error() {
                    error if error.kind() == std::io::ErrorKind::Interrupted => {}
                    error => return Err(Lost(error.to_string())),
                },
            }
        }
        Ok(())
    }
}
