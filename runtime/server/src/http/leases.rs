//! Leases and capacity.

use super::body::small_json;
use super::identify::Caller;
use crate::app::App;
use crate::requests::error::RequestError;
use crate::requests::leases::{self, LeaseLoad};
use atoll_control::{CapacityReport, LeaseHold, LeaseReport, LeaseSpec};
use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use serde::Deserialize;
use std::sync::Arc;

/// The body of a request about a lease, whose number is in the path.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hold {
    epoch: u64,
    holder: String,
}

pub(super) async fn capacity(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
) -> Result<Json<CapacityReport>, RequestError> {
    Ok(Json(leases::capacity(&app, &caller).await?))
}

pub(super) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
) -> Result<Json<Vec<LeaseReport>>, RequestError> {
    Ok(Json(leases::list(&app, &caller).await?))
}

pub(super) async fn load(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
) -> Result<Json<Vec<LeaseLoad>>, RequestError> {
    Ok(Json(leases::load(&app, &caller).await?))
}

pub(super) async fn grant(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    body: Body,
) -> Result<Json<LeaseReport>, RequestError> {
    let spec: LeaseSpec = small_json(&app, body).await?;
    Ok(Json(leases::grant(&app, &caller, spec).await?))
}

pub(super) async fn renew(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(lease): Path<String>,
    body: Body,
) -> Result<Json<LeaseReport>, RequestError> {
    let hold = hold(&app, &lease, body).await?;
    Ok(Json(leases::renew(&app, &caller, hold).await?))
}

pub(super) async fn take_over(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(lease): Path<String>,
    body: Body,
) -> Result<Json<LeaseReport>, RequestError> {
    let hold = hold(&app, &lease, body).await?;
    Ok(Json(leases::take_over(&app, &caller, hold).await?))
}

pub(super) async fn release(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(lease): Path<String>,
    body: Body,
) -> Result<(), RequestError> {
    let hold = hold(&app, &lease, body).await?;
    Ok(leases::release(&app, &caller, hold).await?)
}

async fn hold(app: &App, lease: &str, body: Body) -> Result<LeaseHold, RequestError> {
    let shown = || lease.chars().take(32).flat_map(char::escape_debug).collect::<String>();
    let lease = lease.parse().map_err(|_| RequestError::bad_request(format!("`{}` is not a lease", shown())))?;
    let Hold { epoch, holder } = small_json(app, body).await?;
    Ok(LeaseHold { lease, epoch, holder })
}
