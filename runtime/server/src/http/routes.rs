//! The table of routes: the router is built from it, and the reference page lists it.

use super::{
    dashboard, generate, health, infer, leases, metadata, predict, repository, settings, shared_memory, statistics,
};
use crate::app::App;
use axum::Router;
use axum::routing::{MethodRouter, get, post};
use std::sync::Arc;

/// A route as the reference describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteDescription {
    /// The ports that serve it.
    pub port: RoutePort,
    /// Its methods, as in `GET, POST`.
    pub methods: &'static str,
    /// The path, with variable parts in braces.
    pub path: String,
    /// What the route does, as a sentence.
    pub about: &'static str,
}

/// Ports of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutePort {
    /// The inference port (`--http-port`).
    Http,
    /// The metrics port (`--metrics-port`).
    Metrics,
    /// Both ports.
    Both,
}

struct Route {
    methods: &'static str,
    path: &'static str,
    about: &'static str,
    handler: fn() -> MethodRouter<Arc<App>>,
}

const fn route(
    methods: &'static str,
    path: &'static str,
    about: &'static str,
    handler: fn() -> MethodRouter<Arc<App>>,
) -> Route {
    Route { methods, path, about, handler }
}

/// Routes on both ports.
const HEALTH: &[Route] = &[
    route("GET", "/v2/health/live", "Whether the daemon runs.", || get(health::live)),
    route(
        "GET",
        "/v2/health/ready",
        "Whether the models are loaded and a device is available; status 503 if not.",
        || get(health::ready),
    ),
];

/// Routes of the daemon.
const SERVER: &[Route] = &[
    route("GET", "/v2", "Name, version and extensions of the server.", || get(metadata::server)),
    route("GET", "/v2/", "The same as `/v2`.", || get(metadata::server)),
    route("GET", "/v2/models/stats", "Statistics of all models.", || get(statistics::all)),
    route("POST", "/v2/repository/index", "The models of the repository and their states.", || post(repository::index)),
    route("POST", "/v2/repository/models/{name}/load", "Loads a model, or loads it again.", || post(repository::load)),
    route("POST", "/v2/repository/models/{name}/unload", "Unloads a model.", || post(repository::unload)),
    route(
        "GET",
        "/v2/repository/models/{name}/explain",
        "What the daemon reads of a model's folder, and what it does not honour.",
        || get(repository::explain),
    ),
    route("GET, POST", "/v2/logging", "Settings of the log. A POST of the tenant `local` changes its level.", || {
        get(settings::logging).post(settings::set_logging)
    }),
    route(
        "GET, POST",
        "/v2/trace/setting",
        "Settings of traces. A POST of the tenant `local` changes level and rate.",
        || get(settings::trace).post(settings::set_trace),
    ),
];

/// The first version of the protocol.
const FIRST_VERSION: &[Route] = &[
    route("GET", "/", "Whether the daemon runs: `{\"status\": \"alive\"}`.", || get(predict::alive)),
    route("GET", "/v1/models", "Names of all models.", || get(predict::models)),
    route(
        "GET, POST",
        "/v1/models/{name}",
        "GET: whether the model accepts requests; status 503 if not. POST to `{name}:predict`: runs the model.",
        || get(predict::model).post(predict::predict),
    ),
];

/// Routes for placement engines.
const LEASES: &[Route] = &[
    route("GET", "/v2/capacity", "The capacity of each device, and the part that leases have.", || {
        get(leases::capacity)
    }),
    route(
        "GET, POST",
        "/v2/leases",
        "GET: the leases of the tenant. POST: grants an instance of a function as a lease.",
        || get(leases::list).post(leases::grant),
    ),
    route(
        "GET",
        "/v2/leases/load",
        "The requests of each lease of the tenant: how many, and how long they took.",
        || get(leases::load),
    ),
    route("POST", "/v2/leases/{lease}/renew", "Extends a lease by its time to live.", || post(leases::renew)),
    route("POST", "/v2/leases/{lease}/takeover", "Moves a lease to another holder, with a higher epoch.", || {
        post(leases::take_over)
    }),
    route("POST", "/v2/leases/{lease}/release", "Ends a lease and removes its instance.", || post(leases::release)),
];

/// Routes of the snapshots that the dashboard shows.
const DASHBOARD: &[Route] = &[
    route("GET", "/ui/snapshot", "One snapshot of the dashboard, as JSON.", || get(dashboard::snapshot)),
    route("GET", "/ui/events", "Snapshots of the dashboard, five times a second, as server-sent events.", || {
        get(dashboard::events)
    }),
];

/// The files of the dashboard. They are the same for all users, and a browser requests them without
/// a token.
const PAGE: &[Route] = &[
    route("GET", "/ui", "The dashboard, a page for browsers.", || get(dashboard::page)),
    route("GET", "/ui/", "Redirects to `/ui`.", || get(dashboard::to_page)),
    route("GET", "/ui/{file}", "A file of the page.", || get(dashboard::file)),
];

/// Routes of one model, below `/v2/models/{name}` and `/v2/models/{name}/versions/{version}`.
const MODEL: &[Route] = &[
    route("GET", "", "Inputs and outputs of the model.", || get(metadata::model)),
    route("GET", "/ready", "Whether the model accepts requests; status 503 if not.", || get(health::model_ready)),
    route("GET", "/config", "The model's configuration in Triton's form.", || get(metadata::config)),
    route("GET", "/stats", "Statistics of the model.", || get(statistics::model)),
    route("GET", "/profile", "Throughput and latency of the model by share of a device, as measured.", || {
        get(metadata::profile)
    }),
    route("POST", "/infer", "Runs the model.", || post(infer::infer)),
    route("POST", "/generate", "Runs the model; inputs and outputs are fields of JSON objects.", || {
        post(generate::generate)
    }),
    route("POST", "/generate_stream", "The same, with each answer as a server-sent event.", || {
        post(generate::generate_stream)
    }),
    route("GET, POST", "/trace/setting", "The same settings, since models have none of their own.", || {
        get(settings::model_trace).post(settings::set_model_trace)
    }),
];

const MODEL_PREFIXES: [&str; 2] = ["/v2/models/{name}", "/v2/models/{name}/versions/{version}"];

/// Routes of system shared memory.
const SHARED_MEMORY: &[Route] = &[
    route("GET", "/status", "The regions of shared memory that the tenant has registered.", || {
        get(shared_memory::status)
    }),
    route("GET", "/region/{region}/status", "The same for one region.", || get(shared_memory::region_status)),
    route("POST", "/region/{region}/register", "Registers a part of a file in `/dev/shm`.", || {
        post(shared_memory::register)
    }),
    route("POST", "/unregister", "Unregisters all regions of the tenant.", || post(shared_memory::unregister_all)),
    route("POST", "/region/{region}/unregister", "Unregisters a region.", || post(shared_memory::unregister)),
];

/// Routes of CUDA shared memory.
const CUDA_MEMORY: &[Route] = &[
    route("GET", "/status", "The regions of CUDA shared memory that the tenant has registered.", || {
        get(shared_memory::cuda_status)
    }),
    route("GET", "/region/{region}/status", "The same for one region.", || get(shared_memory::cuda_region_status)),
    route("POST", "/region/{region}/register", "Registers device memory by a handle of CUDA IPC.", || {
        post(shared_memory::cuda_register)
    }),
    route("POST", "/unregister", "Unregisters all such regions of the tenant.", || {
        post(shared_memory::cuda_unregister_all)
    }),
    route("POST", "/region/{region}/unregister", "Unregisters such a region.", || post(shared_memory::cuda_unregister)),
];

/// The health routes.
pub(super) fn health_routes() -> Router<Arc<App>> {
    build(HEALTH.iter().map(|route| (route.path.to_owned(), route)))
}

/// The routes that are served without authentication.
pub(super) fn page_routes() -> Router<Arc<App>> {
    build(PAGE.iter().map(|route| (route.path.to_owned(), route)))
}

/// All routes of the inference port except health and the files of the dashboard.
pub(super) fn inference_routes() -> Router<Arc<App>> {
    build(paths())
}

fn build(routes: impl Iterator<Item = (String, &'static Route)>) -> Router<Arc<App>> {
    routes.fold(Router::new(), |router, (path, route)| router.route(&path, (route.handler)()))
}

/// The paths of the inference port except health and the files of the dashboard.
fn paths() -> impl Iterator<Item = (String, &'static Route)> {
    let below = |prefix: &'static str, routes: &'static [Route]| {
        routes.iter().map(move |route| (format!("{prefix}{}", route.path), route))
    };
    let server =
        SERVER.iter().chain(FIRST_VERSION).chain(LEASES).chain(DASHBOARD).map(|route| (route.path.to_owned(), route));
    let models = MODEL_PREFIXES.into_iter().flat_map(move |prefix| below(prefix, MODEL));
    let memory = below("/v2/systemsharedmemory", SHARED_MEMORY).chain(below("/v2/cudasharedmemory", CUDA_MEMORY));
    server.chain(models).chain(memory)
}

/// All routes of the daemon, for documentation.
pub fn routes() -> Vec<RouteDescription> {
    let describe =
        |port, path: String, route: &Route| RouteDescription { port, methods: route.methods, path, about: route.about };
    let metrics = RouteDescription {
        port: RoutePort::Metrics,
        methods: "GET",
        path: crate::metrics::PATH.to_owned(),
        about: "Metrics in Prometheus's text format.",
    };
    let health = HEALTH.iter().map(|route| describe(RoutePort::Both, route.path.to_owned(), route));
    let inference = paths().map(|(path, route)| describe(RoutePort::Http, path, route));
    let page = PAGE.iter().map(|route| describe(RoutePort::Http, route.path.to_owned(), route));
    health.chain([metrics]).chain(inference).chain(page).collect()
}
