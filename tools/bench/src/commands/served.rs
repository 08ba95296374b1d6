//! Daemons of this process on one device, with and without TLS.

use crate::credentials::CredentialArgs;
use crate::engine::EngineArgs;
use crate::invoker::{Invoker, Remote};
use anyhow::{Context, Result};
use atoll_engine::{Engine, EngineHandle};
use atoll_fleet::{FleetHandle, Placing};
use atoll_kgraph::ModelOptions;
use atoll_models::{BuildOptions, build_onnx};
use atoll_server::{
    Access, ControlConfig, IdentityConfig, KeyFile, Keys, ServeError, Server, ServerConfig, TlsFiles, limits,
};
use rcgen::{CertificateParams, KeyPair};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Number of token checks that are timed together.
const TOKEN_CHECKS: u32 = 100_000;

/// A running daemon with a client.
pub(super) struct Served {
    pub(super) invoker: Invoker,
    /// Address of the gRPC port.
    pub(super) grpc: SocketAddr,
    url: String,
    credentials: CredentialArgs,
    engine: Engine,
    runtime: Runtime,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl Served {
    /// Starts an engine and a daemon on free ports, with the null model in its repository; with
    /// `tls`, the daemon asks for a token.
    pub(super) fn start(args: &EngineArgs, repository: &Path, folder: &Path, tls: Option<TlsFiles>) -> Result<Served> {
        Served::start_with(args, "null", repository, folder, tls, None)
    }

    /// Like [`Served::start`], with another model, and with a control socket.
    pub(super) fn start_with(
        args: &EngineArgs,
        model: &str,
        repository: &Path,
        folder: &Path,
        tls: Option<TlsFiles>,
        socket: Option<PathBuf>,
    ) -> Result<Served> {
        let engine = args.start()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let mut config = ServerConfig {
            http_port: 0,
            grpc_port: Some(0),
            metrics_port: 0,
            control: socket.map(|socket| ControlConfig {
                socket,
                state: folder.join("state"),
                object_memory_bytes: limits::OBJECT_MEMORY_BYTES_DEFAULT,
                trust_tenants: false,
            }),
            ..ServerConfig::new(repository.into(), folder.join("cache"))
        };
        let (mut credentials, mut scheme) = (CredentialArgs::default(), "http");
        if let Some(tls) = tls {
            let (keys, token_file) = (folder.join("keys.json"), folder.join("token"));
            let token = KeyFile::create(&keys, Default::default(), None, "")?;
            std::fs::write(&token_file, token.to_string())?;
            credentials =
                CredentialArgs { token_file: Some(token_file), tls_ca: Some(tls.certificate.clone()), ..credentials };
            config.identity = IdentityConfig { keys: Some(keys), tls: Some(tls), ..IdentityConfig::own() };
            scheme = "https";
        }
        let fleet = Arc::new(FleetHandle::new(vec![Box::new(engine.handle())], Placing::Home)?);
        let server = runtime.block_on(Server::bind(config, fleet, None))?;
        let url = format!("{scheme}://{}", server.http_address()?);
        let grpc = server.grpc_address()?.context("the daemon has a gRPC port")?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = runtime.spawn(server.run(async { drop(stopped.await) }));
        let invoker = Invoker::Remote(wait_until_ready(&url, model, &credentials)?);
        Ok(Served { invoker, grpc, url, credentials, engine, runtime, stop, serving })
    }

    /// The engine that the daemon uses.
    pub(super) fn engine(&self) -> EngineHandle {
        self.engine.handle()
    }

    /// Another client, of a model that is loaded.
    pub(super) fn connect(&self, model: &str) -> Result<Invoker> {
        Remote::connect(&self.url, model, &self.credentials).map(Invoker::Remote)
    }

    pub(super) fn stop(self) -> Result<()> {
        drop(self.stop);
        self.runtime.block_on(self.serving)??;
        self.engine.shutdown();
        Ok(())
    }
}

/// Compiles the null model. Returns a repository with its bundle, and the bundle.
pub(super) fn null_model(args: &EngineArgs, folder: &Path) -> Result<(PathBuf, PathBuf)> {
    let repository = folder.join("repository");
    std::fs::create_dir(&repository)?;
    let model = folder.join("null.onnx");
    std::fs::write(&model, build_onnx("null", &BuildOptions::default()).context("cannot build the null model")?)?;
    let bundle = repository.join("null.kg");
    crate::compiler::compile_for(args.device_name(), &model, &ModelOptions::default(), &bundle)?;
    Ok((repository, bundle))
}

/// Connects as soon as the daemon, or a peer, has loaded the model.
pub(super) fn wait_until_ready(url: &str, model: &str, credentials: &CredentialArgs) -> Result<Remote> {
    let mut tries = 0;
    loop {
        match Remote::connect(url, model, credentials) {
            Err(error) if tries == 100 => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
            remote => return remote,
        }
        tries += 1;
    }
}

/// A self-signed certificate for loopback.
pub(super) fn certificate(folder: &Path) -> Result<TlsFiles> {
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(vec!["127.0.0.1".into()])?.self_signed(&key)?;
    let files =
        TlsFiles { certificate: folder.join("cert.pem"), key: folder.join("key.pem"), client_ca: None, metrics: false };
    std::fs::write(&files.certificate, certificate.pem())?;
    std::fs::write(&files.key, key.serialize_pem())?;
    Ok(files)
}

/// The mean time to check a token, with 64 keys.
pub(super) fn token_check(folder: &Path) -> Result<Duration> {
    let path = folder.join("checked.json");
    let mut token = None;
    for _ in 0..64 {
        token = Some(KeyFile::create(&path, Default::default(), None, "")?.to_string());
    }
    let token = token.context("there is a token")?;
    let keys = Keys::new(KeyFile::read(&path)?, &Access::own(0));
    let start = Instant::now();
    for _ in 0..TOKEN_CHECKS {
        std::hint::black_box(keys.tenant_of(std::hint::black_box(&token)).context("the token is valid")?);
    }
    Ok(start.elapsed() / TOKEN_CHECKS)
}
