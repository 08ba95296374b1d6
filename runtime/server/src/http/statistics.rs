//! Statistics of each model.

use super::identify::Caller;
use super::model_path::ModelPath;
use crate::app::App;
use crate::requests::error::RequestError;
use crate::requests::statistics::statistics;
use atoll_protocol::ModelStatisticsList;
use axum::Json;
use axum::extract::{Extension, Path, State};
use std::sync::Arc;

pub(super) async fn all(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
) -> Result<Json<ModelStatisticsList>, RequestError> {
    statistics(&app, app.models_of(&caller)).await.map(Json)
}

pub(super) async fn model(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(path): Path<ModelPath>,
) -> Result<Json<ModelStatisticsList>, RequestError> {
    statistics(&app, app.find_all(&caller, &path.name, path.version.as_deref())?).await.map(Json)
}
