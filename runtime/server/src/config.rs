//! What a server is told when it starts.

use crate::control::ControlConfig;
use crate::limits;
use crate::places::ConnectionLimits;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Address to listen on. Loopback unless told otherwise: there is no authentication yet.
    pub host: IpAddr,
    /// Port of the protocol; 0 for any that is free.
    pub http_port: u16,
    /// Port of the metrics; 0 for any that is free.
    pub metrics_port: u16,
    /// Folder with the models.
    pub repository: PathBuf,
    /// Folder for compiled models.
    pub cache: PathBuf,
    /// Largest body of a request in bytes.
    pub body_bytes_max: usize,
    /// How many connections each port takes, and how long they may do nothing.
    pub connections: ConnectionLimits,
    /// Names, besides addresses and `localhost`, by which clients may call the server (the header
    /// `Host`). Any name where it is empty and the server listens beyond loopback.
    pub hosts: Vec<String>,
    /// Origins (`scheme://host:port`) of web pages that may call the server.
    pub origins: Vec<String>,
    /// Whether the server is ready only while no model of the repository has failed to load;
    /// otherwise as soon as each is loaded or has failed.
    pub strict_readiness: bool,
    /// Whether the server ends when a model of the repository cannot be loaded at the start.
    pub exit_on_error: bool,
    /// How long requests may go on after the server was told to stop.
    pub drain: Duration,
    /// The control socket; none where `None`.
    pub control: Option<ControlConfig>,
    /// A file to write the addresses to (`http ADDRESS`, `metrics ADDRESS`, `control PATH`) once
    /// every model of the repository has been loaded or has failed.
    pub ready_file: Option<PathBuf>,
}

impl ServerConfig {
    /// Triton's ports on loopback.
    pub fn new(repository: PathBuf, cache: PathBuf) -> ServerConfig {
        ServerConfig {
            host: Ipv4Addr::LOCALHOST.into(),
            http_port: 8000,
            metrics_port: 8002,
            repository,
            cache,
            body_bytes_max: limits::BODY_BYTES_MAX_DEFAULT,
            connections: ConnectionLimits::default(),
            hosts: Vec::new(),
            origins: Vec::new(),
            strict_readiness: true,
            exit_on_error: false,
            drain: Duration::from_secs(10),
            control: None,
            ready_file: None,
        }
    }
}
