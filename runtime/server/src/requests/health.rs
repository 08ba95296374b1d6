//! Readiness of the server and of models.

use super::error::RequestError;
use crate::app::App;
use crate::identity::Principal;
use crate::inference::blocking;
use crate::repository::FindError;
use atoll_engine::EngineStatistics;

/// Whether the server is ready: all models are loaded (or have failed, if readiness is not strict),
/// and at least one device is available, that is, neither lost nor unready. If one of several
/// devices fails, only models that are on no other device become unready ([`model_is_ready`]).
pub(crate) async fn is_ready(app: &App) -> bool {
    let engine = app.engine.clone();
    let is_available = move || engine.statistics().iter().any(is_available);
    app.is_ready() && blocking(is_available).await.unwrap_or(false)
}

/// Whether a model accepts requests. An error if there is no such model.
pub(crate) async fn model_is_ready(
    app: &App,
    caller: &Principal,
    name: &str,
    version: Option<&str>,
) -> Result<bool, RequestError> {
    match app.find(caller, name, version) {
        Ok(model) => {
            let engine = app.engine.clone();
            let is_available = move || model.on_its_devices(&engine.statistics()).any(is_available);
            Ok(blocking(is_available).await.unwrap_or(false))
        }
        Err(FindError::NotReady { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn is_available(engine: &EngineStatistics) -> bool {
    engine.device.lost.is_none() && !engine.device.is_unready
}
