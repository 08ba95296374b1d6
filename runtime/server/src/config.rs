//! Configuration of a server.

use crate::identity::IdentityConfig;
use crate::limits;
use crate::log_control::LogControl;
use crate::otlp::OtlpConfig;
use crate::places::ConnectionLimits;
use atoll_stages::ProcessGroups;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Weak;
use std::time::Duration;

/// Configuration of the control socket.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Folder for state that survives the daemon: objects and deployed functions.
    pub state: PathBuf,
    /// Bytes of objects kept in memory.
    pub object_memory_bytes: u64,
    /// Whether to run kernels of tenants even if the device does not isolate the memory of tenants.
    /// The daemon's own tenant always runs.
    pub trust_tenants: bool,
}

/// Sessions of CUDA programs over the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionsConfig {
    /// Address to listen on; port 0 for any free port.
    pub address: SocketAddr,
    /// Whether the port may be without TLS beyond loopback.
    pub allow_plain: bool,
    /// How long a session is kept when its client has lost the connection; zero if it ends with the
    /// connection.
    pub keep: Duration,
    /// Most connections of one address.
    pub per_address: u32,
}

/// Who loads and unloads the models of the repository, as Triton's `--model-control-mode`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelControl {
    /// Models are loaded at start, and loaded or unloaded by requests of clients that have the
    /// right.
    Explicit {
        /// The models to load at start; `None` for all.
        load: Option<Vec<String>>,
    },
    /// All models are loaded at start. Requests that load or unload one are refused.
    None,
    /// The folder is scanned at this interval: models are loaded when their files appear or change,
    /// and unloaded when they are gone. Requests that load or unload one are refused.
    Poll {
        /// The interval.
        every: Duration,
    },
}

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Address to listen on. Loopback by default. Beyond loopback the server starts only with
    /// authentication, or if anonymous requests are allowed explicitly.
    pub host: IpAddr,
    /// Port of the inference protocol over HTTP; 0 for any free port.
    pub http_port: u16,
    /// Port of the inference protocol over gRPC; 0 for any free port, `None` for no gRPC.
    pub grpc_port: Option<u16>,
    /// Port of the metrics; 0 for any free port.
    pub metrics_port: u16,
    /// Who may use the server.
    pub identity: IdentityConfig,
    /// Folder with the models.
    pub repository: PathBuf,
    /// Who loads and unloads models. By default as in Triton with `--model-control-mode explicit
    /// --load-model "*"`.
    pub model_control: ModelControl,
    /// Folder for compiled models.
    pub cache: PathBuf,
    /// Folder with the profiles of `atoll profile --grid` that the autoscaler uses; `None` for no
    /// profiles.
    pub profiles: Option<PathBuf>,
    /// Largest body of a request in bytes.
    pub body_bytes_max: usize,
    /// Size of the response cache in bytes. It keeps responses of models whose settings have
    /// `response_cache`. 0 turns it off.
    pub response_cache_bytes: u64,
    /// Limits on the number of connections per port and on their idle time.
    pub connections: ConnectionLimits,
    /// Host names, besides IP addresses and `localhost`, that clients may use in the `Host` header.
    /// If empty, and the server listens beyond loopback, any name is accepted.
    pub hosts: Vec<String>,
    /// Origins (`scheme://host:port`) of web pages that may call the server.
    pub origins: Vec<String>,
    /// If true, the server is ready only if no model of the repository failed to load. If false, it
    /// is ready as soon as each model is loaded or has failed.
    pub strict_readiness: bool,
    /// Whether the server exits if a model of the repository cannot be loaded at startup.
    pub exit_on_error: bool,
    /// How long running requests may continue after the server was asked to stop.
    pub drain: Duration,
    /// The collector that receives traces of requests; `None` for no traces.
    pub otlp: Option<OtlpConfig>,
    /// Changes the level of the log; `None` if requests cannot change it.
    pub log: Option<LogControl>,
    /// Makes control groups for the processes of CPU stages; `None` if the daemon may make none.
    pub stage_groups: Option<Weak<dyn ProcessGroups>>,
    /// The control socket; `None` for no control socket.
    pub control: Option<ControlConfig>,
    /// Sessions of CUDA programs over the network, which need a control socket; `None` for none.
    pub sessions: Option<SessionsConfig>,
    /// File that receives the addresses (`http ADDRESS`, `grpc ADDRESS`, `metrics ADDRESS`,
    /// `sessions ADDRESS`, `control PATH`) once each model of the repository is loaded or has failed.
    pub ready_file: Option<PathBuf>,
}

impl ServerConfig {
    /// Triton's default ports on loopback.
    pub fn new(repository: PathBuf, cache: PathBuf) -> ServerConfig {
        ServerConfig {
            host: Ipv4Addr::LOCALHOST.into(),
            http_port: 8000,
            grpc_port: Some(8001),
            metrics_port: 8002,
            identity: IdentityConfig::own(),
            repository,
            model_control: ModelControl::Explicit { load: None },
            cache,
            profiles: None,
            body_bytes_max: limits::BODY_BYTES_MAX_DEFAULT,
            response_cache_bytes: limits::RESPONSE_CACHE_BYTES_DEFAULT,
            connections: ConnectionLimits::default(),
            hosts: Vec::new(),
            origins: Vec::new(),
            strict_readiness: true,
            exit_on_error: false,
            drain: Duration::from_secs(10),
            otlp: None,
            log: None,
            stage_groups: None,
            control: None,
            sessions: None,
            ready_file: None,
        }
    }
}
