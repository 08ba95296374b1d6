//! A daemon inside the test process, and a client that exposes the bytes on the wire.

mod authority;
mod client;
mod client_memory;
mod double;
pub(crate) mod frames;
pub(crate) mod grpc;
mod model;

pub(crate) use authority::{Authority, Leaf};
pub(crate) use client::{Answer, Connection};
pub(crate) use client_memory::ClientMemory;
pub(crate) use double::{Behaviour, Double};
pub(crate) use model::{
    VOCABULARY, write_bundle, write_changed_bundle, write_decoder_bundle, write_state_bundle, write_steps_bundle,
    write_strings_bundle,
};

use atoll_kgraph::{Bundle, ModelOptions, TargetContents};
use atoll_server::{
    CompileFailure, CompileLimits, CompileProgress, CompilerService, ConnectionLimits, IdentityConfig, ModelControl,
    OtlpConfig, Reloader, ServeError, Server, ServerConfig, ServiceManager,
};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Longest wait for an event, generous enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A running daemon with its own repository.
pub(crate) struct Daemon {
    pub(crate) folder: TempDir,
    pub(crate) engine: Arc<Double>,
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) metrics: SocketAddr,
    /// The connection that reads metrics.
    reader: Mutex<Option<Connection>>,
    reloader: Reloader,
    runtime: Runtime,
    stop: Option<oneshot::Sender<()>>,
    serving: Option<JoinHandle<Result<(), ServeError>>>,
}

/// Options of the daemon that differ from the defaults.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) compiler: Option<Arc<Compiler>>,
    pub(crate) body_bytes_max: Option<usize>,
    pub(crate) drain: Option<Duration>,
    pub(crate) connections: Option<ConnectionLimits>,
    /// Whether strict readiness is off.
    pub(crate) lax_readiness: bool,
    pub(crate) identity: Option<IdentityConfig>,
    pub(crate) model_control: Option<ModelControl>,
    pub(crate) otlp: Option<OtlpConfig>,
    pub(crate) manager: ServiceManager,
}

impl Daemon {
    /// Serves the model `toy`.
    pub(crate) fn start() -> Daemon {
        Daemon::with(Options::default(), |repository| write_bundle(&repository.join("toy.kg")))
    }

    pub(crate) fn with(options: Options, fill: impl FnOnce(&Path)) -> Daemon {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("repository")).unwrap();
        fill(&folder.path().join("repository"));
        Daemon::over(folder, options)
    }

    /// Starts a daemon on the folder of an earlier one.
    pub(crate) fn over(folder: TempDir, options: Options) -> Daemon {
        let engine = Arc::new(Double::default());
        let mut config = ServerConfig {
            http_port: 0,
            grpc_port: Some(0),
            metrics_port: 0,
            ready_file: Some(folder.path().join("ready")),
            ..ServerConfig::new(folder.path().join("repository"), folder.path().join("cache"))
        };
        config.body_bytes_max = options.body_bytes_max.unwrap_or(config.body_bytes_max);
        config.connections = options.connections.unwrap_or(config.connections);
        config.strict_readiness = !options.lax_readiness;
        config.identity = options.identity.unwrap_or(config.identity);
        config.model_control = options.model_control.unwrap_or(config.model_control);
        config.otlp = options.otlp;
        config.drain = options.drain.unwrap_or(config.drain);
        let _ = std::fs::remove_file(folder.path().join("ready"));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let compiler = options.compiler.map(|compiler| compiler as Arc<dyn CompilerService>);
        let mut server = runtime.block_on(Server::bind(config, engine.clone(), compiler)).unwrap();
        server.report_to(options.manager);
        let (http, metrics) = (server.http_address().unwrap(), server.metrics_address().unwrap());
        let grpc = server.grpc_address().unwrap().unwrap();
        let reloader = server.reloader();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = runtime.spawn(server.run(async { drop(stopped.await) }));
        let daemon = Daemon {
            folder,
            engine,
            http,
            grpc,
            metrics,
            reader: Mutex::default(),
            reloader,
            runtime,
            stop: Some(stop),
            serving: Some(serving),
        };
        eventually(|| daemon.folder.path().join("ready").exists());
        daemon
    }

    /// Runs the code of a client on the threads of the daemon.
    pub(crate) fn block_on<T>(&self, part: impl Future<Output = T>) -> T {
        self.runtime.block_on(async { tokio::time::timeout(TIMEOUT, part).await.expect("an answer in time") })
    }

    /// Starts the code of a client on the threads of the daemon.
    pub(crate) fn spawn<T: Send + 'static>(&self, part: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime.spawn(part)
    }

    /// Makes the daemon read its keys and certificates again.
    pub(crate) fn reload(&self) -> Result<(), String> {
        self.reloader.reload().map_err(|error| error.to_string())
    }

    pub(crate) fn repository(&self) -> PathBuf {
        self.folder.path().join("repository")
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        Connection::open(self.http).request("GET", path, &[], b"")
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Answer {
        Connection::open(self.http).request("POST", path, &[], body.as_bytes())
    }

    /// Like [`Daemon::get`] or, with a body, [`Daemon::post`], with a token.
    pub(crate) fn ask_as(&self, token: &str, path: &str, body: Option<&str>) -> Answer {
        let headers = [("Authorization", &*format!("Bearer {token}"))];
        let method = if body.is_some() { "POST" } else { "GET" };
        Connection::open(self.http).request(method, path, &headers, body.unwrap_or_default().as_bytes())
    }

    /// The metrics. They are read over one connection as long as the daemon keeps it: with few
    /// places, a new connection for each reading makes room, and that is counted.
    pub(crate) fn metrics(&self) -> String {
        let mut reader = self.reader.lock().unwrap();
        let kept = reader.as_mut().and_then(|connection| connection.try_request("GET", "/metrics"));
        let answer = kept.unwrap_or_else(|| {
            let mut connection = Connection::open(self.metrics);
            let answer = connection.request("GET", "/metrics", &[], b"");
            *reader = Some(connection);
            answer
        });
        answer.text()
    }

    /// Asks the daemon to stop, without waiting.
    pub(crate) fn begin_stop(&mut self) {
        drop(self.stop.take());
    }

    /// Waits until the daemon has stopped.
    pub(crate) fn stopped(&mut self) {
        let serving = self.serving.take().unwrap();
        self.runtime.block_on(serving).unwrap().unwrap();
    }

    /// Stops the daemon and returns its folder.
    pub(crate) fn stop(mut self) -> TempDir {
        self.begin_stop();
        self.stopped();
        self.folder
    }
}

/// Reports that a test, or a part of it, is skipped.
#[allow(clippy::print_stderr, reason = "the runner collects these lines")]
pub(crate) fn skip(reason: &str) {
    eprintln!("SKIPPED: {reason}");
}

/// Waits until the condition holds.
pub(crate) fn eventually(what: impl Fn() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < TIMEOUT, "the condition did not become true in time");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A compiler that produces the toy model for any file, unless its contents ask for a failure.
#[derive(Default)]
pub(crate) struct Compiler {
    pub(crate) runs: AtomicUsize,
}

impl CompilerService for Compiler {
    fn identity(&self) -> String {
        "toy 1".into()
    }

    fn compile(
        &self,
        source: &Path,
        destination: &Path,
        _: &ModelOptions,
        progress: &dyn Fn(CompileProgress),
    ) -> Result<(), CompileFailure> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        progress(CompileProgress { stage: "toying".into(), done: 0, total: 1 });
        match std::fs::read_to_string(source).unwrap().as_str() {
            "bad" => Err(CompileFailure("operator Foo of node bar is not supported".into())),
            "panic" => panic!("a compiler that panics"),
            _ => {
                write_bundle(destination);
                Ok(())
            }
        }
    }

    fn recompile(
        &self,
        _: &Bundle,
        _: CompileLimits,
        _: &dyn Fn(CompileProgress),
    ) -> Result<Vec<TargetContents>, CompileFailure> {
        Err(CompileFailure("the toy compiler compiles models only".into()))
    }
}
