//! The whole server: bind, load, serve, stop.

use crate::access_log::AccessLog;
use crate::app::App;
use crate::callers::Callers;
use crate::code::CodeGate;
use crate::compiler::CompilerService;
use crate::config::{ControlConfig, ServerConfig, SessionsConfig};
use crate::control::{Control, ControlListener};
use crate::deployed::Deployed;
use crate::graphs::Graphs;
use crate::identity::{Access, Gate, GateError};
use crate::instances::Instances;
use crate::leases::Leases;
use crate::listen::{Bound, Port, Served};
use crate::otlp::Tracer;
use crate::requests::leases::follow as follow_leases;
use crate::scaling::driver;
use crate::service::{Reporter, ServiceManager, SocketError, Sockets};
use crate::{grpc, http, listen, metrics, shutdown};
use atoll_engine::{EngineError, ShareClient, Tenant};
use atoll_fleet::Inference;
use atoll_store::{Store, StoreConfig, StoreError};
use rustix::process::Signal;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// The flag that sets the address of sessions over the network.
const SESSIONS_FLAG: &str = "--sessions";

/// Why a server cannot start or had to exit.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another program listens on the port.
    #[error(
        "port {port} of {host} is in use by another program; stop that program, or choose another port with {flag} (0 \
        for any free port)"
    )]
    PortInUse {
        /// The address.
        host: IpAddr,
        /// The port.
        port: u16,
        /// The flag that sets the port.
        flag: &'static str,
    },
    /// The server cannot listen on the address.
    #[error(
        "cannot listen on {host} port {port}: {source}; choose another address with {}{flag}",
        if *.flag == SESSIONS_FLAG { "" } else { "--host and " }
    )]
    Listen {
        /// The address.
        host: IpAddr,
        /// The port.
        port: u16,
        /// The flag that sets the port.
        flag: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The model repository cannot be read.
    #[error("cannot read the model repository {path}: {source}; set --model-repository to a folder with models")]
    Repository {
        /// The folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Another daemon listens on the control socket.
    #[error(
        "another daemon listens on the control socket {path}; stop it, or choose another socket with --control-socket \
        and another --state"
    )]
    ControlInUse {
        /// The socket.
        path: PathBuf,
    },
    /// The server cannot listen on the control socket.
    #[error(
        "cannot listen on the control socket {path}: {source}; choose another path with --control-socket, or start \
        without a control socket (--no-control)"
    )]
    Control {
        /// The socket.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The sockets of the service manager cannot be used.
    #[error(transparent)]
    Sockets(#[from] SocketError),
    /// Sessions of CUDA programs over the network would send tokens and data unencrypted.
    #[error(
        "sessions at {0} would send tokens and data unencrypted: give the daemon a certificate (--tls-cert, \
         --tls-key), or allow it with --sessions-plain"
    )]
    PlainSessions(SocketAddr),
    /// Sessions of CUDA programs over the network without a control socket.
    #[error("sessions over the network (--sessions) need a control socket, with its folder for state")]
    SessionsWithoutControl,
    /// The keys or certificates cannot be used, or the daemon would listen beyond loopback without any.
    #[error(transparent)]
    Identity(#[from] GateError),
    /// The store of objects and deployed functions cannot be opened.
    #[error("cannot open the store of objects and deployed functions: {0}")]
    Store(#[from] StoreError),
    /// The access log cannot be opened.
    #[error("cannot open the access log {path}: {source}; choose another file with access_log in the configuration")]
    AccessLog {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The thread that sends traces cannot be started.
    #[error("cannot start the thread that sends traces to the collector: {0}")]
    Tracer(io::Error),
    /// A device does not have room for the shares of all tenants in the configuration.
    #[error("[tenant.{tenant}] of the configuration: {source}")]
    Share {
        /// The tenant whose share does not fit.
        tenant: Tenant,
        /// The reason.
        source: EngineError,
    },
    /// The prices of the configuration do not fit the devices.
    #[error("[prices] of the configuration: {0}")]
    Prices(String),
    /// Models of the repository cannot be loaded, and `exit_on_error` is set.
    #[error(
        "{} of the repository cannot be loaded:{}\nfix or remove them, or start without --exit-on-error",
        if .0.len() == 1 { "a model".into() } else { format!("{} models", .0.len()) },
        .0.iter().map(|(name, reason)| format!("\n  {name}: {reason}")).collect::<String>()
    )]
    Models(Vec<(String, String)>),
    /// The ready file cannot be written.
    #[error("cannot write {path}: {source}")]
    ReadyFile {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// A server that has bound its ports and does not serve yet.
pub struct Server {
    app: Arc<App>,
    http: Bound,
    grpc: Option<Bound>,
    metrics: Bound,
    control: Option<(Arc<Control>, ControlListener)>,
    sessions: Option<Bound>,
    config: ServerConfig,
    manager: ServiceManager,
}

/// Reloads the keys and certificates of a running server.
#[derive(Clone)]
pub struct Reloader(Arc<Gate>);

impl Reloader {
    /// Reads the files again. If a file cannot be read, its old content stays in force. Blocks.
    pub fn reload(&self) -> Result<(), GateError> {
        self.0.reload().map(drop)
    }
}

impl Server {
    /// Binds the ports and scans the repository.
    pub async fn bind(
        config: ServerConfig,
        engine: Arc<dyn Inference>,
        compiler: Option<Arc<dyn CompilerService>>,
    ) -> Result<Server, ServeError> {
        Server::bind_with(config, Sockets::default(), engine, compiler).await
    }

    /// Takes the sockets of the service manager, binds the other ports, and scans the repository.
    pub async fn bind_with(
        config: ServerConfig,
        sockets: Sockets,
        engine: Arc<dyn Inference>,
        compiler: Option<Arc<dyn CompilerService>>,
    ) -> Result<Server, ServeError> {
        sockets.check(&config)?;
        let gate = Arc::new(Gate::open(&config.identity, widest_host(&config)?)?);
        let store = config.control.as_ref().map(open_store).transpose()?.map(Arc::new);
        let trust_tenants = config.control.as_ref().is_some_and(|control| control.trust_tenants);
        let deployed = store.as_ref().map(|store| {
            let access = config.identity.access.clone();
            let code = CodeGate::new(compiler.clone(), access.keys.clone(), &config.cache);
            Arc::new(Deployed::new(engine.clone(), store.clone(), trust_tenants, access, code))
        });
        let graphs = store.clone().map(Graphs::new);
        set_tenant_shares(&*engine, &config.identity.access)?;
        let instances = Instances::new(engine.clone(), store.clone());
        let slots = config.identity.access.real_time_slots();
        let leases = store.clone().map(|store| Leases::open(store, engine.clone(), &instances, slots)).transpose()?;
        let app = App::new(&config, engine, compiler, deployed.clone(), graphs, instances, gate);
        let mut app = app.map_err(ServeError::Prices)?;
        app.leases = leases;
        app.access_log = open_access_log(&config.identity.access, &app)?;
        app.tracer = start_tracer(&config, &app)?;
        let app = Arc::new(app);
        app.repository.scan().map_err(|source| ServeError::Repository { path: config.repository.clone(), source })?;
        let http = bind(sockets.http, config.host, config.http_port, "--http-port").await?;
        let grpc = match config.grpc_port {
            Some(port) => Some(bind(sockets.grpc, config.host, port, "--grpc-port").await?),
            None => None,
        };
        let metrics = bind(sockets.metrics, config.host, config.metrics_port, "--metrics-port").await?;
        let control = match (&config.control, store, deployed) {
            (Some(settings), Some(store), Some(deployed)) => {
                let listener = listen_control(sockets.control, settings, config.identity.access.socket_mode)?;
                Some((Arc::new(Control::new(app.clone(), store, deployed, config.sessions)), listener))
            }
            _ => None,
        };
        let sessions = match config.sessions {
            Some(SessionsConfig { address, .. }) => {
                Some(bind(None, address.ip(), address.port(), SESSIONS_FLAG).await?)
            }
            None => None,
        };
        Ok(Server { app, http, grpc, metrics, control, sessions, config, manager: ServiceManager::default() })
    }

    /// Address of the inference protocol over HTTP.
    pub fn http_address(&self) -> io::Result<SocketAddr> {
        self.http.listener.local_addr()
    }

    /// Address of the inference protocol over gRPC; `None` if it is off.
    pub fn grpc_address(&self) -> io::Result<Option<SocketAddr>> {
        self.grpc.as_ref().map(|grpc| grpc.listener.local_addr()).transpose()
    }

    /// Address of the metrics.
    pub fn metrics_address(&self) -> io::Result<SocketAddr> {
        self.metrics.listener.local_addr()
    }

    /// Chooses the service manager that is told the daemon's state; without this call there is none.
    pub fn report_to(&mut self, manager: ServiceManager) {
        self.manager = manager;
    }

    /// Address of sessions of CUDA programs; `None` if there is none.
    pub fn sessions_address(&self) -> io::Result<Option<SocketAddr>> {
        self.sessions.as_ref().map(|sessions| sessions.listener.local_addr()).transpose()
    }

    /// A handle that reloads keys and certificates at any time.
    pub fn reloader(&self) -> Reloader {
        Reloader(self.app.gate.clone())
    }

    /// Serves until `stop` completes, then drains. Requests are served while models are still
    /// loading, except over inherited sockets: there connections wait until the models are loaded.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
        let Server { app, http, grpc, metrics, control, sessions, config, manager } = self;
        // With a handler for SIGXFSZ, exceeding the file size limit is an ordinary write error
        // (like a full disk) instead of a fatal signal. The handler stays until the process exits.
        let _ = signal(SignalKind::from_raw(Signal::XFSZ.as_raw()));
        let addresses = [
            ("http", http.listener.local_addr().ok()),
            ("grpc", grpc.as_ref().and_then(|grpc| grpc.listener.local_addr().ok())),
            ("metrics", metrics.listener.local_addr().ok()),
            ("sessions", sessions.as_ref().and_then(|sessions| sessions.listener.local_addr().ok())),
        ];
        let (stopping, stopped) = watch::channel(false);
        let (opening, opened) = watch::channel(false);
        let reporter = Reporter::new(manager, app.clone());
        let limits = config.connections;
        let callers = Arc::new(Callers::new(config.host, &config.hosts, &config.origins));
        let protocol = http::router(app.clone(), callers.clone());
        let beside = http::beside_metrics(metrics::router(app.clone()), app.clone(), callers.clone());
        let tls = app.gate.tls().cloned();
        let metrics_tls = tls.clone().filter(|tls| tls.covers_metrics());
        let port =
            |bound, served, tls| Port { bound, opened: Some(opened.clone()), served, tls, app: app.clone(), limits };
        let http_port = port(http, Served::Http1(protocol), tls.clone());
        let serve_http = listen::serve(http_port, stopped.clone(), config.drain);
        // Health and metrics are there while models are loading.
        let metrics_port =
            Port { opened: None, limits: limits.of_metrics(), ..port(metrics, Served::Http1(beside), metrics_tls) };
        let serve_metrics = listen::serve(metrics_port, stopped.clone(), config.drain);
        let grpc_port = grpc.map(|grpc| {
            let services = grpc::router(app.clone(), callers, stopped.clone());
            port(grpc, Served::Http2(services), tls.clone())
        });
        let sessions_port = sessions.zip(control.as_ref()).map(|(sessions, (control, _))| {
            // Bound in `bind`, which refuses sessions without a control socket.
            port(sessions, Served::Sessions(control.clone()), tls)
        });
        let serve_other = |port: Option<Port>| {
            let stopped = stopped.clone();
            async move {
                if let Some(port) = port {
                    listen::serve(port, stopped, config.drain).await;
                }
            }
        };
        let (serve_grpc, serve_sessions) = (serve_other(grpc_port), serve_other(sessions_port));
        let reloading = reload_on_hangup(app.clone(), stopped.clone());
        let following = {
            let mut stopped = stopped.clone();
            let app = &app;
            async move {
                tokio::select! {
                    () = app.follow_repository() => {}
                    () = shutdown::stopped(&mut stopped) => {}
                }
            }
        };
        let leasing = {
            let mut stopped = stopped.clone();
            let app = &app;
            async move {
                tokio::select! {
                    () = follow_leases(app) => {}
                    () = shutdown::stopped(&mut stopped) => {}
                }
            }
        };
        let scaling = {
            let mut stopped = stopped.clone();
            let app = &app;
            async move {
                tokio::select! {
                    () = driver::follow(app) => {}
                    () = shutdown::stopped(&mut stopped) => {}
                }
            }
        };
        let reporting = reporter.follow(stopped.clone());
        let serve_control = async {
            if let Some((control, listener)) = control {
                control.serve(listener, stopped, config.drain).await;
            }
        };
        let loading = {
            let (app, reporter) = (app.clone(), &reporter);
            async move {
                app.load_at_start().await;
                let failed = app.repository.failed();
                if config.exit_on_error && !failed.is_empty() {
                    return Err(ServeError::Models(failed));
                }
                if let Some(deployed) = &app.deployed {
                    deployed.restore().await;
                }
                app.set_loaded();
                tracing::info!("startup complete: each model of the repository is loaded or has failed");
                let _ = opening.send(true);
                write_ready_file(config.ready_file.as_deref(), addresses, config.control.as_ref()).await?;
                reporter.ready();
                Ok(())
            }
        };
        let stopping_on_request = async {
            stop.await;
            reporter.stopping();
            app.set_draining();
            let _ = stopping.send(true);
        };
        let serve_ports = async { tokio::join!(serve_http, serve_grpc, serve_metrics, serve_sessions) };
        let background = async { tokio::join!(reloading, following, leasing, scaling, reporting) };
        let serving = async { tokio::join!(serve_ports, serve_control, background, stopping_on_request) };
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            loaded = loading => loaded?,
            _ = serving.as_mut() => {
                app.stage_processes.close();
                return Ok(());
            }
        }
        serving.await;
        app.stage_processes.close();
        Ok(())
    }
}

/// Sets the shares of the tenants in the configuration, on all devices.
fn set_tenant_shares(engine: &dyn Inference, access: &Access) -> Result<(), ServeError> {
    for (tenant, share) in access.shares() {
        let client = ShareClient { tenant: tenant.clone(), instance: None };
        let failed = |source| ServeError::Share { tenant: tenant.clone(), source };
        engine.set_share(&client, None, *share).map_err(failed)?;
    }
    Ok(())
}

/// Reloads keys and certificates and reopens the access log on SIGHUP. If the daemon has none of
/// these, SIGHUP ends the process as usual.
async fn reload_on_hangup(app: Arc<App>, mut stop: watch::Receiver<bool>) {
    if !app.gate.can_reload() && app.access_log.is_none() {
        return;
    }
    let mut hangup = match signal(SignalKind::hangup()) {
        Ok(hangup) => hangup,
        Err(error) => return tracing::error!(%error, "cannot receive SIGHUP; use `atoll auth reload`"),
    };
    loop {
        tokio::select! {
            _ = hangup.recv() => drop(app.reload().await),
            () = shutdown::stopped(&mut stop) => return,
        }
    }
}

fn open_access_log(access: &Access, app: &App) -> Result<Option<AccessLog>, ServeError> {
    let Some(config) = access.access_log() else { return Ok(None) };
    let opened = AccessLog::open(config, app.recorder.access_log_dropped.clone());
    opened.map(Some).map_err(|source| ServeError::AccessLog { path: config.file.clone().unwrap_or_default(), source })
}

fn start_tracer(config: &ServerConfig, app: &App) -> Result<Option<Arc<Tracer>>, ServeError> {
    let start = |otlp| Tracer::start(otlp, app.engine.clone(), app.recorder.otlp.clone());
    let tracer = config.otlp.as_ref().map(start).transpose().map_err(ServeError::Tracer)?;
    Ok(tracer.map(Arc::new))
}

fn open_store(config: &ControlConfig) -> Result<Store, StoreError> {
    Store::open(&StoreConfig { folder: config.state.clone(), memory_bytes: config.object_memory_bytes })
}

fn listen_control(
    inherited: Option<UnixListener>,
    config: &ControlConfig,
    mode: u32,
) -> Result<ControlListener, ServeError> {
    let path = config.socket.clone();
    let listener = match inherited {
        Some(listener) => ControlListener::adopt(listener, config),
        None => ControlListener::bind(config, mode),
    };
    listener.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ServeError::ControlInUse { path },
        _ => ServeError::Control { path, source },
    })
}

/// The address from which most clients can come: that of sessions, if they are beyond loopback.
fn widest_host(config: &ServerConfig) -> Result<IpAddr, ServeError> {
    let Some(SessionsConfig { address, allow_plain, .. }) = config.sessions else { return Ok(config.host) };
    if config.control.is_none() {
        return Err(ServeError::SessionsWithoutControl);
    }
    if address.ip().is_loopback() {
        return Ok(config.host);
    }
    if config.identity.tls.is_none() && !allow_plain {
        return Err(ServeError::PlainSessions(address));
    }
    Ok(if config.host.is_loopback() { address.ip() } else { config.host })
}

/// Takes an inherited socket, or binds one.
async fn bind(
    inherited: Option<std::net::TcpListener>,
    host: IpAddr,
    port: u16,
    flag: &'static str,
) -> Result<Bound, ServeError> {
    let is_inherited = inherited.is_some();
    let listener = match inherited {
        Some(listener) => listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener)),
        None => TcpListener::bind((host, port)).await,
    };
    let listener = listener.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ServeError::PortInUse { host, port, flag },
        _ => ServeError::Listen { host, port, flag, source },
    })?;
    Ok(Bound { listener, is_inherited })
}

/// Writes a temporary file and renames it, so that readers never see a partial file.
async fn write_ready_file(
    path: Option<&Path>,
    addresses: [(&str, Option<SocketAddr>); 4],
    control: Option<&ControlConfig>,
) -> Result<(), ServeError> {
    let Some(path) = path else { return Ok(()) };
    let temporary = path.with_extension("partial");
    let control = control.map_or_else(String::new, |control| format!("control {}\n", control.socket.display()));
    let ports = addresses.iter().filter_map(|(name, address)| Some(format!("{name} {}\n", (*address)?)));
    let text = ports.chain([control]).collect::<String>();
    let written = std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, path));
    written.map_err(|source| ServeError::ReadyFile { path: path.into(), source })
}
