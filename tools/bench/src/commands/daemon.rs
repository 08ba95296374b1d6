//! A daemon of this process with a fleet of devices, for benchmarks over HTTP.

use crate::credentials::CredentialArgs;
use crate::engine::FleetArgs;
use crate::invoker::{Invoker, Remote};
use anyhow::Result;
use atoll_engine::{MemoryQuotas, SuspensionConfig};
use atoll_fleet::Fleet;
use atoll_server::{ServeError, Server, ServerConfig};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Tries to reach the daemon until a model is loaded.
const TRIES_MAX: usize = 500;

/// A running daemon.
pub(super) struct Daemon {
    url: String,
    pub(super) fleet: Fleet,
    runtime: Runtime,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl Daemon {
    /// Starts devices and a daemon on free ports, without gRPC.
    pub(super) fn start(fleet: &FleetArgs, config: ServerConfig) -> Result<Daemon> {
        let fleet = fleet.start(MemoryQuotas::default(), SuspensionConfig::default(), None)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let config = ServerConfig { http_port: 0, grpc_port: None, metrics_port: 0, ..config };
        let server = runtime.block_on(Server::bind(config, Arc::new(fleet.handle()), None))?;
        let url = format!("http://{}", server.http_address()?);
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = runtime.spawn(server.run(async { drop(stopped.await) }));
        Ok(Daemon { url, fleet, runtime, stop, serving })
    }

    /// Connects as soon as the daemon has loaded the model.
    pub(super) fn connect(&self, model: &str) -> Result<Invoker> {
        let mut tries = 0;
        loop {
            match Remote::connect(&self.url, model, &CredentialArgs::default()) {
                Err(error) if tries == TRIES_MAX => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
                Ok(remote) => return Ok(Invoker::Remote(remote)),
            }
            tries += 1;
        }
    }

    pub(super) fn stop(self) -> Result<()> {
        drop(self.stop);
        self.runtime.block_on(self.serving)??;
        self.fleet.shutdown();
        Ok(())
    }
}
