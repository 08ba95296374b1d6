//! `atoll-device-plugin`: the shares and the memory of a daemon as resources of its Kubernetes
//! node.
//!
//! The plugin reports to the kubelet how many units of each resource the node has ([`resource`]).
//! The kubelet counts the units that containers take. A container with units gets variables with the
//! size of its lease and the address of the daemon ([`allocation`]). The units are a hint for
//! placement: a container asks for its lease with `atoll lease hold`, and the daemon decides.
//!
//! Start reading in [`kubelet`], which registers plugins at the kubelet; [`plugin`] answers its
//! calls, [`daemon`] asks the daemon.
//!
//! # Invariants
//!
//! - Units are healthy only while the daemon answers and their device takes leases.
//! - Lists, preferences and allocations are computed from the last answer of the daemon alone.
//! - The plugin holds no lease and keeps no state. The kubelet stores allocations.

mod allocation;
mod arguments;
mod daemon;
mod kubelet;
mod plugin;
mod preference;
mod proto;
mod resource;

use anyhow::Result;
use arguments::Arguments;
use atoll_kubernetes::{logging, watch};
use clap::Parser;
use daemon::Daemon;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    logging::start(&arguments.log)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(arguments))
}

/// Runs until a signal asks to end.
async fn run(arguments: Arguments) -> Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut daemon = Daemon::new(arguments.control_socket());
    let capacity = watch::watch(move || daemon.capacity().map_err(|error| error.to_string()))?;
    tokio::select! {
        never = kubelet::run(arguments.kubelet_folder.clone(), arguments.plugins(&capacity)) => match never {},
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("ended by a signal");
    Ok(())
}
