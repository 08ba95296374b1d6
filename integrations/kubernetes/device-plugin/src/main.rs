//! `atoll-device-plugin`: the shares and the memory of a daemon as resources of its Kubernetes
//! node.
//!
//! The kubelet learns from it how many units of each resource the node has ([`resource`]), counts
//! what containers take, and gives a container with such units variables that say how large its
//! lease may be and where the daemon is ([`allocation`]). The daemon alone decides what it grants:
//! the units are a hint for placement, and a container asks for its lease with `atoll lease hold`.
//!
//! Start reading in [`kubelet`], which registers plugins at the kubelet; [`plugin`] answers its
//! calls, [`daemon`] watches the daemon.
//!
//! # Invariants
//!
//! - Units are healthy only while the daemon answers and their device takes leases.
//! - What is listed, preferred and allocated is computed from the last answer of the daemon alone.
//! - The plugin holds no lease and keeps no state. The kubelet keeps what was allocated.

mod allocation;
mod arguments;
mod capacity;
mod daemon;
mod kubelet;
mod plugin;
mod preference;
mod proto;
mod resource;
mod socket;

use anyhow::{Context, Result};
use arguments::Arguments;
use clap::Parser;
use std::io::IsTerminal;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let filter = EnvFilter::try_new(&arguments.log).with_context(|| format!("--log {}", arguments.log))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(arguments))
}

/// Runs until a signal asks to end.
async fn run(arguments: Arguments) -> Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let capacity = daemon::watch(arguments.control_socket())?;
    tokio::select! {
        never = kubelet::run(arguments.kubelet_folder.clone(), arguments.plugins(&capacity)) => match never {},
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("ended by a signal");
    Ok(())
}
