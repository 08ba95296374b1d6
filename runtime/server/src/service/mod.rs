//! The service manager (systemd): sockets that it passes to the daemon, and messages to it.
//!
//! `sockets.rs` takes the listening sockets of socket activation, `notify.rs` sends the messages of
//! `sd_notify`, and `report.rs` decides when to send which one.

mod notify;
mod report;
mod sockets;

pub use notify::ServiceManager;
pub(crate) use report::Reporter;
pub use sockets::{SocketError, Sockets};
