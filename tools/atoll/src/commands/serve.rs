//! `atoll serve`

use crate::cache;
use crate::compiler;
use crate::control::CONTROL_SOCKET_VARIABLE;
use crate::engine::FleetArgs;
use crate::failure::{Blame, users};
use crate::output::{parse_bytes, print};
use crate::symbols::SymbolArgs;
use anyhow::{Context, Result};
use atoll_client::default_socket;
use atoll_server::{Access, ConnectionLimits, ControlConfig, ServeError, Server, ServerConfig, limits, terminated};
use clap::ArgAction;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  atoll serve --model-repository models/
  atoll serve --model-repository models/ --http-port 0 --metrics-port 0 --compute-units 4
  atoll serve --model-repository models/ --config atoll.toml --control-socket /run/atoll/control.sock
  atoll serve --model-repository models/ --device host:0@0-3 --device host:1@4-7
  atoll serve --model-repository models/ --host 0.0.0.0 --policy sequential --log-format json

A repository holds NAME.kg, NAME.onnx (compiled on first load, then cached) or NAME/1/model.onnx.
A file NAME.toml says how a model is served:  class = \"real-time\",  queue_capacity = 64 (for each class)  and  device = \"host:1\", where it is
to be; a model that names no device goes to the one with the least on it.";

/// Serve the models of a folder over HTTP (KServe v2), with metrics for Prometheus.
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Folder with the models
    #[arg(long, value_name = "DIR")]
    model_repository: PathBuf,

    #[command(flatten)]
    symbols: SymbolArgs,

    /// Address to listen on; there is no authentication, so think before you change it
    #[arg(long, default_value_t = IpAddr::from(Ipv4Addr::LOCALHOST))]
    host: IpAddr,

    /// Port for requests; 0 for any that is free
    #[arg(long, default_value_t = 8000)]
    http_port: u16,

    /// Port for metrics; 0 for any that is free
    #[arg(long, default_value_t = 8002)]
    metrics_port: u16,

    /// Folder for compiled models, and for copies of the bundles that are served, which need no
    /// more room where the file system makes reflinks [default: $XDG_CACHE_HOME/atoll/compiled]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,

    /// Largest body of a request, as in 64M
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value_t = limits::BODY_BYTES_MAX_DEFAULT as u64)]
    body_bytes_max: u64,

    /// A name, besides addresses and localhost, by which clients may call the daemon (the header
    /// Host). Beyond loopback any name will do unless one is given
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,

    /// Web pages of this origin may call the daemon, as in `https://dash.example`; others may not
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,

    /// Whether /v2/health/ready waits for every model of the repository: with true, the server is
    /// not ready while one has failed to load (unloading that one gives it up); with false, it
    /// is ready as soon as each is loaded or has failed. As Triton's
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    strict_readiness: bool,

    /// End with an error if a model of the repository cannot be loaded at the start
    #[arg(long)]
    exit_on_error: bool,

    /// How long requests may go on after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    drain_seconds: u64,

    /// Socket for `atoll fn` and `atoll object` [default: $XDG_RUNTIME_DIR/atoll.sock or
    /// /run/atoll.sock]
    #[arg(long, value_name = "PATH", env = CONTROL_SOCKET_VARIABLE, conflicts_with = "no_control")]
    control_socket: Option<PathBuf>,

    /// Serve models over HTTP only
    #[arg(long)]
    no_control: bool,

    /// Folder for deployed functions and objects [default: $XDG_STATE_HOME/atoll]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Who may use the control socket, as which tenant, and how much: an atoll.toml
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Run functions of tenants on a GPU, or with --isolation none, where nothing keeps their
    /// kernels out of each other's memory
    #[arg(long)]
    trust_tenants: bool,

    /// Objects to keep in memory, beside the disk, as in 512M
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value_t = limits::OBJECT_MEMORY_BYTES_DEFAULT)]
    object_memory: u64,

    /// File to write the addresses to once every model is loaded or has failed
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,

    #[command(flatten)]
    devices: FleetArgs,
}

impl Args {
    fn control(&self) -> Result<ControlConfig> {
        let own_uid = rustix::process::getuid().as_raw();
        let state = match &self.state {
            Some(state) => state.clone(),
            None => cache::state_folder()
                .context(
                    "neither XDG_STATE_HOME nor HOME is set; say where functions and objects are kept with --state",
                )
                .blame_user()?,
        };
        Ok(ControlConfig {
            socket: self.control_socket.clone().unwrap_or_else(default_socket),
            state,
            object_memory_bytes: self.object_memory,
            trust_tenants: self.trust_tenants || self.devices.keeps_tenants_apart(),
            access: self
                .config
                .as_deref()
                .map_or_else(|| Ok(Access::own(own_uid)), |path| Access::read(path, own_uid))
                .blame_user()?,
        })
    }

    fn config(self) -> Result<(ServerConfig, FleetArgs)> {
        let control = if self.no_control { None } else { Some(self.control()?) };
        let cache = match self.cache {
            Some(cache) => cache,
            None => cache::folder("compiled")
                .context("neither XDG_CACHE_HOME nor HOME is set; say where compiled models go with --cache")
                .blame_user()?,
        };
        let config = ServerConfig {
            control,
            host: self.host,
            http_port: self.http_port,
            metrics_port: self.metrics_port,
            body_bytes_max: usize::try_from(self.body_bytes_max).unwrap_or(usize::MAX),
            connections: ConnectionLimits::for_open_files(raise_open_files()),
            hosts: self.allow_host,
            origins: self.allow_origin,
            strict_readiness: self.strict_readiness,
            exit_on_error: self.exit_on_error,
            drain: Duration::from_secs(self.drain_seconds),
            ready_file: self.ready_file,
            ..ServerConfig::new(self.model_repository, cache)
        };
        Ok((config, self.devices))
    }
}

/// Lets the process open as many files as the system allows it, and says how many. The usual limit
/// of 1,024 is for programs that call `select`.
fn raise_open_files() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    // No limit is none in practice.
    if raised.is_ok() { maximum.unwrap_or(u64::MAX) } else { current.unwrap_or(u64::MAX) }
}

pub(crate) fn run(args: Args) -> Result<()> {
    let symbols = args.symbols.ranges()?;
    let (config, devices) = args.config()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("atoll-http").build()?;
    if !config.host.is_loopback() {
        tracing::warn!(host = %config.host, "everybody who reaches this address can use the models and load and unload them");
    }
    let compiler = compiler::service(&devices.device_names(), symbols);
    let fleet =
        devices.start(config.control.as_ref().map(|control| control.access.memory_quotas()).unwrap_or_default())?;
    let served = runtime.block_on(async {
        let control = config
            .control
            .as_ref()
            .map_or_else(String::new, |control| format!("control {}\n", control.socket.display()));
        let server = Server::bind(config, Arc::new(fleet.handle()), compiler).await.map_err(blame)?;
        // Scripts read these lines; people read the log.
        print(&format!("http {}\nmetrics {}\n{control}", server.http_address()?, server.metrics_address()?))?;
        tracing::info!(http = %server.http_address()?, metrics = %server.metrics_address()?, "listening");
        let stop = async {
            if let Err(error) = terminated().await {
                tracing::error!(%error, "signals cannot be received; stopping");
            }
        };
        server.run(stop).await.map_err(blame)
    });
    fleet.shutdown();
    // A compilation may still run on a thread that cannot be stopped; it writes nothing that is half
    // done.
    runtime.shutdown_background();
    served?;
    tracing::info!("stopped");
    Ok(())
}

/// A folder that is not there is the user's mistake; a port that another program has is nobody's.
fn blame(error: ServeError) -> anyhow::Error {
    match error {
        ServeError::Repository { .. } | ServeError::Models(_) => users(error),
        other => other.into(),
    }
}
