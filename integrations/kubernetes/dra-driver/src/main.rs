//! `atoll-dra-driver`: the devices of a daemon for claims of Kubernetes (dynamic resource allocation).
//!
//! The driver publishes the devices of the daemon of its node ([`publish`]), and the scheduler allocates
//! shares of them to claims. Before a pod with a claim starts, the kubelet asks the driver to prepare it
//! ([`plugin`]). The driver reads the allocation and the parameters of the claim ([`claim`]), takes the
//! lease ([`driver`]), and writes what containers get ([`files`]): variables, and a folder with the
//! lease. It renews leases until the kubelet releases the claim.
//!
//! Start reading in [`claims`], which decides what to ask the daemon, and in [`slices`], which decides
//! what to publish. These have no connection and no clock.
//!
//! # Invariants
//!
//! - A claim is stored before a lease is asked for, and until all of its leases are gone. So another
//!   process goes on with it.
//! - The id of a request for a lease is made of the UID of the claim. So requests that are repeated get
//!   one lease.
//! - The daemon decides what is granted. What is published is a hint for the scheduler.

mod api;
mod arguments;
mod claim;
mod claims;
mod config;
mod driver;
mod files;
mod kubelet;
mod names;
mod plugin;
mod proto;
mod publish;
mod quantity;
mod share;
mod slices;

use anyhow::{Context, Result};
use api::Api;
use arguments::Arguments;
use atoll_client::CapacityReport;
use atoll_kubernetes::daemon::{Answer, DaemonClient};
use atoll_kubernetes::request::Ask;
use atoll_kubernetes::{logging, watch};
use clap::Parser;
use driver::Driver;
use files::Files;
use kubelet::Places;
use plugin::Plugin;
use publish::Publisher;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    logging::start(&arguments.log)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(run(arguments));
    // Calls of the kubelet may still wait for the daemon.
    runtime.shutdown_background();
    result
}

/// Runs until a signal asks to end. The leases stay: the next process goes on with them.
async fn run(arguments: Arguments) -> Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let gift = arguments.gift.gift();
    let plugin = kubelet::own_folder(&arguments.plugins_folder);
    let files = Files::new(&plugin, arguments.cdi_folder, gift.clone()).context("the folders of the driver")?;
    let api = Arc::new(Api::new(arguments.api_server.client()?));
    let daemon = DaemonClient::new(arguments.tokens);
    let (asked, url) = (daemon.clone(), gift.url.clone());
    let capacity = watch::watch(move || capacity(&asked, &url))?;
    let driver = Driver::start(files, api.clone(), daemon, arguments.node_name.clone(), gift, capacity.clone())?;
    let publisher = Publisher::new(api, arguments.node_name, arguments.sharing);
    std::thread::Builder::new().name("publish".into()).spawn(move || publisher.run(capacity))?;
    let places = Places { plugin, registry: arguments.registry_folder };
    tokio::select! {
        never = kubelet::run(places, Plugin::new(driver)) => match never {},
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("ended by a signal");
    Ok(())
}

/// The capacity of the daemon, by the token of any namespace that may read it.
fn capacity(daemon: &DaemonClient, url: &str) -> Result<CapacityReport, String> {
    let mut namespaces = daemon.namespaces();
    if namespaces.is_empty() {
        namespaces.push(String::new());
    }
    let mut why = String::new();
    for namespace in namespaces {
        match daemon.ask(url, &namespace, &Ask::Capacity) {
            Ok(Answer::Capacity(report)) => return Ok(report),
            Ok(Answer::Lease(_)) => why = "the answer has no capacity".into(),
            Err(refused) => why = refused.message,
        }
    }
    Err(why)
}
