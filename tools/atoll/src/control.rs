//! Flags and errors of commands that use a daemon's control socket.

use crate::failure::users;
use anyhow::Result;
use atoll_client::{Class, Client, ClientError, Tenant, default_socket};
use clap::ValueEnum;
use std::path::PathBuf;

/// Environment variable with the path of the control socket, used if the flag is absent.
pub(crate) const CONTROL_SOCKET_VARIABLE: &str = "ATOLL_CONTROL_SOCKET";

/// Flags of every command that uses the control socket.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ControlArgs {
    /// Control socket of the daemon [default: $XDG_RUNTIME_DIR/atoll.sock or /run/atoll.sock]
    #[arg(long, value_name = "PATH", env = CONTROL_SOCKET_VARIABLE)]
    control_socket: Option<PathBuf>,

    /// Act for this tenant (only root and the daemon's own user may)
    #[arg(long, value_name = "NAME")]
    tenant: Option<Tenant>,
}

/// A service class on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClassName {
    /// Served first
    RealTime,
    /// Uses the remaining capacity
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
    /// Connects to the daemon.
    pub(crate) fn connect(&self) -> Result<Client> {
        let socket = self.control_socket.clone().unwrap_or_else(default_socket);
        Client::connect_as(&socket, self.tenant.clone()).classify()
    }
}

/// Classifies errors of the client.
pub(crate) trait Classify<T> {
    /// Marks the error as the user's mistake if it is one.
    fn classify(self) -> Result<T>;
}

impl<T> Classify<T> for Result<T, ClientError> {
    fn classify(self) -> Result<T> {
        self.map_err(|error| match &error {
            ClientError::Refused(refusal) if refusal.kind.is_clients() => users(error),
            ClientError::File { .. } | ClientError::NoOutput(_) => users(error),
            _ => error.into(),
        })
    }
}
