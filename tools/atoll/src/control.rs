//! A daemon over its control socket.

use crate::failure::users;
use anyhow::Result;
use atoll_client::{Class, Client, ClientError, Tenant, default_socket};
use clap::ValueEnum;
use std::path::PathBuf;

/// Names the control socket where no flag does.
pub(crate) const CONTROL_SOCKET_VARIABLE: &str = "ATOLL_CONTROL_SOCKET";

/// Flags of every command that talks to a daemon's control socket.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ControlArgs {
    /// The daemon's control socket [default: $XDG_RUNTIME_DIR/atoll.sock or /run/atoll.sock]
    #[arg(long, value_name = "PATH", env = CONTROL_SOCKET_VARIABLE)]
    control_socket: Option<PathBuf>,

    /// Act for this tenant, which the daemon's own user and root may
    #[arg(long, value_name = "NAME")]
    tenant: Option<Tenant>,
}

/// A class on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClassName {
    /// Gets the device first
    RealTime,
    /// Fills what is left
    BestEffort,
}

impl From<ClassName> for Class {
    fn from(name: ClassName) -> Class {
        match name {
            ClassName::RealTime => Class::RealTime,
            ClassName::BestEffort => Class::BestEffort,
        }
    }
}

impl ControlArgs {
    /// Connects.
    pub(crate) fn connect(&self) -> Result<Client> {
        let socket = self.control_socket.clone().unwrap_or_else(default_socket);
        Client::connect_as(&socket, self.tenant.clone()).told()
    }
}

/// Says whose fault an answer of the daemon is.
pub(crate) trait Told<T> {
    /// The error, marked as the user's if it is.
    fn told(self) -> Result<T>;
}

impl<T> Told<T> for Result<T, ClientError> {
    fn told(self) -> Result<T> {
        self.map_err(|error| match &error {
            ClientError::Refused(refusal) if refusal.kind.is_clients() => users(error),
            ClientError::File { .. } | ClientError::NoOutput(_) => users(error),
            _ => error.into(),
        })
    }
}
