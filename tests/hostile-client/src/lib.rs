//! Misbehaving clients, for tests of the daemon.
//!
//! - [`hold`]: connections that take places and memory and then send nothing: idle ones, and heads
//!   and bodies that do not end. Also many well-behaved clients that keep their connections.
//! - [`http1`]: requests that two servers would read differently, and clients that close half of
//!   their connection.
//! - [`http2`]: streams that are reset as soon as they are opened, floods of frames, and requests
//!   whose clients keep them from ending.
//! - [`bombs`]: archives that claim more than they hold.
//! - [`control`]: connections to the control socket that send nothing, and frames that never end and
//!   carry descriptors.
//!
//! The program `hostile_client` runs [`control`] as another user. Not here: the checks of the
//! daemon during an attack; see `tests/integration/hostile`.

pub mod bombs;
pub mod control;
pub mod hold;
pub mod http1;
pub mod http2;

use std::io;
use std::net::TcpStream;
use std::time::Duration;

/// How long a client waits for bytes.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Connects, with [`TIMEOUT`] for reading and writing.
///
/// # Errors
/// If there is no server.
pub fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
