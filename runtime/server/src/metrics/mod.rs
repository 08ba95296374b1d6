//! Metrics: counted where the events happen, described in one table, exported in Prometheus' text
//! format.

mod access_log;
mod batches;
mod codes;
mod cuda;
mod executors;
mod graphs;
mod grpc;
mod hedges;
mod inference;
mod metric;
mod otlp;
mod pool;
mod recorder;
mod responses;
mod rings;
mod scaling;
mod shared_memory;
mod shares;
mod table;
mod text;
mod usage;

pub(crate) use recorder::{CLASSES, Outcome, Recorder};

use crate::app::App;
use crate::inference::blocking;
use access_log::ACCESS_LOG_METRICS;
use atoll_engine::{DeviceId, EngineStatistics};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use cuda::CUDA_METRICS;
use graphs::GRAPH_METRICS;
use grpc::GRPC_METRICS;
use hedges::HEDGE_METRICS;
use metric::{DeviceSnapshot, Metric, Snapshot};
use otlp::OTLP_METRICS;
use pool::POOL_METRICS;
use responses::RESPONSE_METRICS;
use rings::RING_METRICS;
use scaling::SCALING_METRICS;
use shared_memory::SHARED_MEMORY_METRICS;
use shares::SHARE_METRICS;
use std::sync::Arc;
use table::METRICS;

/// The path of the metrics on their port.
pub(crate) const PATH: &str = "/metrics";

/// The metrics route.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new().route(PATH, get(metrics)).with_state(app)
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    match blocking(move || render(&app)).await {
        Some(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn render(app: &App) -> String {
    let (models, graphs) = (app.models(), app.public_graphs());
    let fleet = app.engine.devices_state();
    let device = |(at, (name, mut engine)): (usize, (_, EngineStatistics))| {
        let id = DeviceId(at as u16);
        DeviceSnapshot {
            id,
            name,
            usage: usage::bounded(std::mem::take(&mut engine.usage)),
            engine,
            models: models.iter().filter(|model| model.devices.contains(&id)).cloned().collect(),
            graphs: graphs.iter().filter(|graph| graph.first_device() == id).cloned().collect(),
            recorder: app.recorder.device(id),
            place: fleet.devices.get(at).copied().unwrap_or_default(),
            price_per_s: app.prices.units(at),
        }
    };
    let names = app.engine.devices().iter().map(String::as_str);
    let snapshot = Snapshot {
        devices: names.zip(app.statistics()).enumerate().map(device).collect(),
        states: app.repository.state_counts(),
        copies_bytes: app.repository.copies_bytes(),
        recorder: &app.recorder,
        models: &models,
        responses: &app.responses,
        regions: &app.regions,
        cuda: &app.cuda,
        rings: &app.rings,
        fleet: &fleet,
        desk: app.desk.as_deref(),
        stages: &app.stage_processes.usage(),
        cpu_price_per_s: app.prices.cpu_units(),
        refusals: &app.engine.share_refusals(),
        instances: &app.instances.loads(),
        scaling: &app.scaler.statuses(),
    };
    let mut text = String::new();
    for metric in all_metrics() {
        metric.write(&snapshot, &mut text);
    }
    text
}

fn all_metrics() -> impl Iterator<Item = &'static Metric> {
    let others = [
        POOL_METRICS,
        SHARE_METRICS,
        SCALING_METRICS,
        RESPONSE_METRICS,
        GRAPH_METRICS,
        HEDGE_METRICS,
        GRPC_METRICS,
        ACCESS_LOG_METRICS,
        SHARED_MEMORY_METRICS,
        RING_METRICS,
        OTLP_METRICS,
        CUDA_METRICS,
    ];
    METRICS.iter().chain(others.into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;
    use metric::Kind;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_follow_the_convention() {
        let mut names = HashSet::new();
        for metric in all_metrics() {
            assert!(names.insert(metric.name), "metric {} is listed twice", metric.name);
            assert!(!metric.help.is_empty());
            let counts = matches!(metric.kind, Kind::Counter) && metric.name.starts_with("atoll_");
            assert_eq!(
                metric.name.ends_with("_total"),
                counts,
                "{}: all of our counters, and only they, end in _total",
                metric.name
            );
            let has_unit = metric.name.ends_with("_seconds") || metric.name.ends_with("_rows");
            assert_eq!(has_unit, matches!(metric.kind, Kind::Histogram), "{}", metric.name);
        }
    }
}
