//! What the programs of `integrations/kubernetes` share.
//!
//! - [`api_server`] is the client of the API server, [`daemon`] that of daemons over HTTP.
//! - [`hold`] is the lease of one holder: what to ask the daemon next, and what its answers mean.
//!   [`request`] has the requests.
//! - [`watch`] follows the [`capacity`] of a daemon.
//! - [`socket`] serves gRPC at a Unix socket in a folder of the kubelet.
//! - [`logging`] sends logs to standard error.
//! - [`gift`] is what containers get besides their share: variables and mounts.
//!
//! # Invariants
//!
//! - [`hold`], [`capacity`] and [`gift`] have no clock and no connection.
//! - A name from outside becomes part of a path only after it was checked.

pub mod api_server;
pub mod capacity;
pub mod daemon;
pub mod gift;
pub mod hold;
pub mod logging;
pub mod request;
pub mod socket;
pub mod watch;
