//! `atoll serve`

mod groups;
mod remote;

use super::identity::IdentityArgs;
use crate::cache;
use crate::compiler;
use crate::control::CONTROL_SOCKET_VARIABLE;
use crate::engine::FleetArgs;
use crate::failure::{OrUserError, user_error, users};
use crate::output::{parse_bytes, print};
use crate::symbols::SymbolArgs;
use anyhow::{Context, Result};
use atoll_client::default_socket;
use atoll_executor::ControlGroups;
use atoll_server::{
    ConnectionLimits, ControlConfig, LogControl, ModelControl, OtlpConfig, ServeError, Server, ServerConfig,
    ServiceManager, SessionsConfig, Sockets, limits, terminated,
};
use atoll_stages::ProcessGroups;
use clap::{ArgAction, ValueEnum};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  atoll serve --model-repository models/
  atoll serve --model-repository models/ --http-port 0 --no-grpc --metrics-port 0 --compute-units 4
  atoll serve --model-repository models/ --config atoll.toml --control-socket control.sock
  atoll serve --model-repository models/ --device host:0@0-3 --device host:1@4-7
  atoll serve --model-repository models/ --host 0.0.0.0 --auth-keys keys.json \\
      --tls-cert cert.pem --tls-key key.pem
  atoll serve --model-repository models/ --sessions 0.0.0.0:8003 --auth-keys keys.json \\
      --tls-cert cert.pem --tls-key key.pem
  atoll serve --model-repository models/ --model-control-mode poll --repository-poll-secs 5
  atoll serve --model-repository s3://bucket/models --model-control-mode poll

A repository contains NAME.kg, NAME.onnx (compiled at the first load, then cached) or NAME/1/model.onnx. \
NAME.toml has the settings of a model, such as class = \"real-time\", queue_capacity = 64 (per class) and \
device = \"host:1\" (default: --placement decides).";

/// Serve the models of a folder over HTTP and gRPC (KServe v2), with metrics for Prometheus
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Folder with models, or the address of one on another machine: s3://BUCKET/PREFIX,
    /// gs://BUCKET/PREFIX or https://HOST/PATH
    #[arg(long, value_name = "DIR")]
    model_repository: PathBuf,

    /// Most bytes of the files of a repository on another machine, which are kept below --cache
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value_t = atoll_remote::BYTES_MAX_DEFAULT)]
    repository_cache_bytes: u64,

    #[command(flatten)]
    symbols: SymbolArgs,

    /// How models are loaded and unloaded, as in Triton. explicit: by --load-model, and by requests
    /// of tenants with model_control; none: all at start; poll: all at start, then loaded and
    /// unloaded as their files appear, change and vanish. With none and poll, requests to load or
    /// unload are refused [default: as Triton's explicit with --load-model "*"]
    #[arg(long, value_name = "MODE")]
    model_control_mode: Option<ModelControlMode>,

    /// Model to load at start, with mode explicit; "*" for all. May be given several times
    /// [default: none with --model-control-mode explicit]
    #[arg(long, value_name = "NAME")]
    load_model: Vec<String>,

    /// Seconds between two scans of the repository, with mode poll, and between two looks for
    /// changes of a repository on another machine
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..))]
    repository_poll_secs: u64,

    /// Address to listen on. Beyond loopback the daemon starts only with --auth-keys,
    /// --tls-client-ca or --allow-anonymous
    #[arg(long, default_value_t = IpAddr::from(Ipv4Addr::LOCALHOST))]
    host: IpAddr,

    /// Port for requests over HTTP; 0 for any free port
    #[arg(long, default_value_t = 8000)]
    http_port: u16,

    /// Port for requests over gRPC; 0 for any free port
    #[arg(long, default_value_t = 8001, conflicts_with = "no_grpc")]
    grpc_port: u16,

    /// Serve HTTP only, without gRPC
    #[arg(long)]
    no_grpc: bool,

    /// Port for metrics; 0 for any free port
    #[arg(long, default_value_t = 8002)]
    metrics_port: u16,

    /// Address for sessions of CUDA programs on other machines (`atoll run --server`), for example
    /// `0.0.0.0:8003`; port 0 for any free port. Clients need the credentials of HTTP clients
    /// [default: sessions of --config, or none]
    #[arg(long, value_name = "ADDRESS", conflicts_with = "no_control")]
    sessions: Option<SocketAddr>,

    /// Let sessions come from other machines without TLS: tokens and data are not encrypted
    /// [default: sessions_plain of --config]
    #[arg(long)]
    sessions_plain: bool,

    #[command(flatten)]
    identity: IdentityArgs,

    /// Folder for compiled models and for copies of served bundles (reflinks where the file system
    /// supports them) [default: $XDG_CACHE_HOME/atoll/compiled]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,

    /// Largest request body over HTTP, and largest message over gRPC, for example 64M
    #[arg(
        long,
        value_name = "BYTES",
        value_parser = parse_bytes,
        default_value_t = limits::BODY_BYTES_MAX_DEFAULT as u64
    )]
    body_bytes_max: u64,

    /// Limit of the memory for kept responses, of models whose settings have response_cache; 0
    /// keeps none. Beyond it the least useful ones are dropped
    #[arg(
        long,
        value_name = "BYTES",
        value_parser = parse_bytes,
        default_value_t = limits::RESPONSE_CACHE_BYTES_DEFAULT
    )]
    response_cache_bytes: u64,

    /// Additional name by which clients may call the daemon (Host, :authority), besides IP
    /// addresses and localhost. If the daemon listens beyond loopback and no name is given, any
    /// name is accepted
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,

    /// Origin of web pages that may call the daemon, for example `https://dash.example`. Other
    /// pages are refused
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,

    /// Meaning of /v2/health/ready, as in Triton. With true, the server is not ready while a model
    /// of the repository has failed to load (unloading that model clears the failure). With false,
    /// it is ready as soon as each model is loaded or has failed
    #[arg(
        long,
        value_name = "BOOL",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = true,
        default_missing_value = "true"
    )]
    strict_readiness: bool,

    /// Exit with an error if a model of the repository cannot be loaded at startup
    #[arg(long)]
    exit_on_error: bool,

    /// How long running requests may continue after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    drain_seconds: u64,

    /// Control socket for `atoll fn`, `atoll object` and other commands [default:
    /// $XDG_RUNTIME_DIR/atoll.sock or /run/atoll.sock]
    #[arg(long, value_name = "PATH", env = CONTROL_SOCKET_VARIABLE, conflicts_with = "no_control")]
    control_socket: Option<PathBuf>,

    /// Serve without a control socket
    #[arg(long)]
    no_control: bool,

    /// Folder for deployed functions and objects [default: $XDG_STATE_HOME/atoll]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Tenants, their users, limits and rights (atoll.toml)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Collector that traces of requests are sent to by OTLP over HTTP, for example
    /// `http://127.0.0.1:4318` [default: otlp_endpoint of --config]
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,

    /// Fraction of the requests without a traceparent that are traced, from 0 to 1; with 0, no
    /// request is traced [default: otlp_sample_rate of --config, or 1]
    #[arg(long, value_name = "RATE")]
    otlp_sample_rate: Option<f64>,

    /// Run functions of tenants even where the memory of tenants is not isolated: on a GPU without
    /// --tenant-memory, or with --isolation none
    #[arg(long)]
    trust_tenants: bool,

    /// Bytes of objects kept in memory (all are on disk), for example 512M
    #[arg(
        long,
        value_name = "BYTES",
        value_parser = parse_bytes,
        default_value_t = limits::OBJECT_MEMORY_BYTES_DEFAULT
    )]
    object_memory: u64,

    /// File that receives the addresses once each model is loaded or has failed
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,

    #[command(flatten)]
    devices: FleetArgs,
}

/// A value of `--model-control-mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModelControlMode {
    None,
    Poll,
    Explicit,
}

impl Args {
    fn model_control(&self) -> Result<ModelControl> {
        let is_all = self.load_model.iter().any(|name| name == "*");
        let named = || if is_all { None } else { Some(self.load_model.clone()) };
        match self.model_control_mode {
            Some(ModelControlMode::None | ModelControlMode::Poll) if !self.load_model.is_empty() => {
                Err(user_error("--load-model needs --model-control-mode explicit; other modes load all models"))
            }
            Some(ModelControlMode::None) => Ok(ModelControl::None),
            Some(ModelControlMode::Poll) => {
                Ok(ModelControl::Poll { every: Duration::from_secs(self.repository_poll_secs) })
            }
            None if self.load_model.is_empty() => Ok(ModelControl::Explicit { load: None }),
            None | Some(ModelControlMode::Explicit) => Ok(ModelControl::Explicit { load: named() }),
        }
    }

    fn control(&self) -> Result<ControlConfig> {
        let state = match &self.state {
            Some(state) => state.clone(),
            None => cache::state_folder()
                .context(
                    "neither XDG_STATE_HOME nor HOME is set; choose a folder for functions and objects with --state",
                )
                .or_user_error()?,
        };
        Ok(ControlConfig {
            socket: self.control_socket.clone().unwrap_or_else(default_socket),
            state,
            object_memory_bytes: self.object_memory,
            trust_tenants: self.trust_tenants,
        })
    }

    fn config(mut self) -> Result<(ServerConfig, FleetArgs)> {
        let model_control = self.model_control()?;
        let mut control = if self.no_control { None } else { Some(self.control()?) };
        let identity = self.identity.identity(self.config.as_deref())?;
        let has_tenants = identity.access.tenant_limits().any(|(tenant, _)| !tenant.is_local());
        if has_tenants && !self.no_control && !self.trust_tenants {
            self.devices.reserve_for_tenants();
        }
        if let Some(control) = &mut control {
            control.trust_tenants |= self.devices.keeps_tenants_apart();
        }
        let cache = match self.cache {
            Some(cache) => cache,
            None => cache::folder("compiled")
                .context("neither XDG_CACHE_HOME nor HOME is set; choose a folder for compiled models with --cache")
                .or_user_error()?,
        };
        let url = self.model_repository.to_str().filter(|text| atoll_remote::is_remote(text)).map(str::to_owned);
        let model_repository = match url {
            Some(url) => {
                let every = Duration::from_secs(self.repository_poll_secs);
                remote::follow(&url, &cache, self.repository_cache_bytes, every)?
            }
            None => self.model_repository,
        };
        let sessions = self.sessions.or(identity.access.sessions()).map(|address| SessionsConfig {
            address,
            allow_plain: self.sessions_plain || identity.access.sessions_plain(),
            keep: identity.access.sessions_keep(),
            per_address: identity.access.sessions_per_address(),
        });
        let configured = identity.access.otlp();
        let endpoint = self.otlp_endpoint.or_else(|| Some(configured?.endpoint.clone()));
        let rate = self.otlp_sample_rate.or_else(|| Some(configured?.sample_rate)).unwrap_or(1.0);
        if endpoint.is_none() && self.otlp_sample_rate.is_some() {
            return Err(user_error("--otlp-sample-rate needs --otlp-endpoint, or otlp_endpoint of --config"));
        }
        let otlp = endpoint.map(|endpoint| OtlpConfig::new(&endpoint, rate).map_err(user_error)).transpose()?;
        let config = ServerConfig {
            control,
            sessions,
            model_control,
            profiles: cache::folder("profiles"),
            identity,
            otlp,
            host: self.host,
            http_port: self.http_port,
            grpc_port: (!self.no_grpc).then_some(self.grpc_port),
            metrics_port: self.metrics_port,
            body_bytes_max: usize::try_from(self.body_bytes_max).unwrap_or(usize::MAX),
            response_cache_bytes: self.response_cache_bytes,
            connections: ConnectionLimits::for_open_files(raise_open_files()),
            hosts: self.allow_host,
            origins: self.allow_origin,
            strict_readiness: self.strict_readiness,
            exit_on_error: self.exit_on_error,
            drain: Duration::from_secs(self.drain_seconds),
            ready_file: self.ready_file,
            ..ServerConfig::new(model_repository, cache)
        };
        Ok((config, self.devices))
    }
}

/// Raises the limit of open files to the maximum and returns it. The usual limit of 1,024 exists
/// for programs that call `select`.
fn raise_open_files() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    // An unlimited value counts as the largest number.
    if raised.is_ok() { maximum.unwrap_or(u64::MAX) } else { current.unwrap_or(u64::MAX) }
}

pub(crate) fn run(args: Args, log: LogControl) -> Result<()> {
    // Before threads start.
    let sockets = Sockets::from_environment().map_err(users)?;
    let manager = ServiceManager::from_environment().context("the service manager cannot be told the state")?;
    let symbols = args.symbols.ranges()?;
    let (mut config, devices) = args.config()?;
    config.log = Some(log);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.enable_all().thread_name("atoll-http").max_blocking_threads(limits::BLOCKING_THREADS_MAX);
    let runtime = runtime.build()?;
    let compiler = compiler::service(&devices.device_names(), symbols, devices.fences_gpus());
    // Kept until the daemon ends: what drops it removes the groups.
    let groups = groups::enter(&config.identity.access);
    config.stage_groups = groups.as_ref().map(|groups| {
        let groups: Weak<ControlGroups> = Arc::downgrade(groups);
        groups as Weak<dyn ProcessGroups>
    });
    let access = &config.identity.access;
    let fleet = devices.start(access.memory_quotas(), access.sessions_suspension(), groups.clone())?;
    let served = runtime.block_on(async {
        let control = config
            .control
            .as_ref()
            .map_or_else(String::new, |control| format!("control {}\n", control.socket.display()));
        let server = Server::bind_with(config, sockets, Arc::new(fleet.handle()), compiler).await;
        let mut server = server.map_err(classify)?;
        server.report_to(manager);
        // Scripts read these lines from standard output; people read the log.
        let (http, grpc, metrics) = (server.http_address()?, server.grpc_address()?, server.metrics_address()?);
        let grpc_line = grpc.map_or_else(String::new, |address| format!("grpc {address}\n"));
        let sessions = server.sessions_address()?;
        let sessions_line = sessions.map_or_else(String::new, |address| format!("sessions {address}\n"));
        print(&format!("http {http}\n{grpc_line}metrics {metrics}\n{sessions_line}{control}"))?;
        let (grpc, sessions) = (grpc.map(tracing::field::display), sessions.map(tracing::field::display));
        tracing::info!(%http, grpc, %metrics, sessions, "listening");
        let stop = async {
            if let Err(error) = terminated().await {
                tracing::error!(%error, "cannot receive signals; stopping");
            }
        };
        server.run(stop).await.map_err(classify)
    });
    fleet.shutdown();
    // A compilation may still run on a thread that cannot be stopped. It never leaves a partial
    // file behind.
    runtime.shutdown_background();
    served?;
    tracing::info!("stopped");
    Ok(())
}

/// Classifies errors: a missing repository or a broken model is the user's mistake; a port in use
/// is not.
fn classify(error: ServeError) -> anyhow::Error {
    match error {
        ServeError::Repository { .. }
        | ServeError::Models(_)
        | ServeError::Sockets(_)
        | ServeError::Identity(_)
        | ServeError::PlainSessions(_)
        | ServeError::SessionsWithoutControl
        | ServeError::Share { .. }
        | ServeError::Prices(_) => users(error),
        other => other.into(),
    }
}
