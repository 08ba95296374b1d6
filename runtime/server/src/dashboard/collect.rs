//! Collects a snapshot of the daemon.

use super::events::Follower;
use super::hub::Collect;
use super::snapshot::{FunctionLatencies, Snapshot};
use crate::app::App;
use crate::metrics::CLASSES;
use crate::model::Model;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Collects snapshots of a daemon, each with the recent events.
pub(crate) fn collector(app: Arc<App>) -> Collect<Snapshot> {
    let mut follower = Follower::default();
    Box::new(move || {
        let engine = &app.engine;
        let events = follower.follow(engine.devices().len(), |device, from| engine.trace(device, from));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Snapshot {
            at_ns: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
            monotonic_ns: monotonic_ns(),
            statistics: app.statistics(),
            fleet: engine.devices_state(),
            prices: app.prices.clone(),
            latencies: latencies(&app),
            events,
            events_lost: follower.lost,
            views: Default::default(),
        }
    })
}

/// The time of the monotonic clock, which trace records use, in nanoseconds.
fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The latencies of all models, functions and graphs, including private ones. Each view keeps only
/// those that its viewer may see.
fn latencies(app: &App) -> Vec<FunctionLatencies> {
    let deployed = app.deployed.iter().flat_map(|deployed| deployed.all());
    let deployed = deployed.filter_map(|function| function.model.clone().ok());
    let graphs = app.graphs.iter().flat_map(|graphs| graphs.all(app)).filter_map(|(_, graph)| graph.ok());
    let of = |model: Arc<Model>| {
        let distributions = CLASSES.into_iter().filter_map(|class| {
            let distribution = model.latencies.distribution(class)?;
            Some(FunctionLatencies { key: model.key.clone(), class, distribution })
        });
        distributions.collect::<Vec<_>>()
    };
    app.repository.ready().into_iter().chain(deployed).chain(graphs).flat_map(of).collect()
}
