//! The model repository: index, load, unload.

use super::error::{Kind, RequestError};
use crate::app::App;
use crate::config::ModelControl;
use crate::identity::{Principal, Reason};
use crate::inference::blocking;
use crate::repository::LoadError;
use atoll_engine::Class;
use atoll_protocol::{IndexEntry, ModelState};
use std::sync::Arc;

/// The models that the caller may use; with `ready`, only those that accept requests.
pub(crate) async fn index(app: &Arc<App>, caller: &Principal, ready: bool) -> Result<Vec<IndexEntry>, RequestError> {
    let (app, caller) = (app.clone(), caller.clone());
    // Reads the folder of the repository, which blocks.
    let index = blocking(move || app.index(&caller)).await.ok_or_else(RequestError::panicked)?;
    let mut index =
        index.map_err(|e| RequestError::new(Kind::Internal, format!("cannot read the model repository: {e}")))?;
    index.retain(|entry| !ready || entry.state == ModelState::Ready);
    Ok(index)
}

/// Checks that models may be loaded and unloaded by request: the tenant has the right, and the
/// model control mode allows it. If the tenant may not even call the model, the error is the same
/// as for a model that does not exist.
pub(crate) fn check(app: &App, caller: &Principal, name: &str) -> Result<(), RequestError> {
    let refuse = |denial: &_| app.refuse(denial, caller, Class::BestEffort);
    caller.may_control_models().inspect_err(refuse)?;
    let mode = match &app.model_control {
        ModelControl::Explicit { .. } => None,
        ModelControl::None => Some("loads its models at start only (--model-control-mode none)"),
        ModelControl::Poll { .. } => Some("follows the files of its repository (--model-control-mode poll)"),
    };
    if let Some(mode) = mode {
        app.refuse_unknown(Reason::ModelControlMode);
        let text = format!("this daemon {mode}; to load and unload models by request, start it with mode explicit");
        return Err(RequestError::denied(Reason::ModelControlMode, text));
    }
    caller.may_call_name(name).inspect_err(refuse).map_err(|_| LoadError::Unknown(name.into()))?;
    Ok(())
}

/// Loads a model that [`check`] allowed. The load continues even if the client disconnects.
pub(crate) async fn load(app: Arc<App>, name: String, has_parameters: bool) -> Result<(), RequestError> {
    if has_parameters {
        return Err(RequestError::bad_request(
            "the load parameters `config` and `file:` are not supported; models are loaded from the repository as they \
            are",
        ));
    }
    let load = tokio::spawn(async move { app.repository.load(&name).await });
    Ok(load.await.map_err(|_| RequestError::panicked())??)
}

/// Unloads a model that [`check`] allowed. Models do not depend on each other, so there are no
/// dependents to unload.
pub(crate) async fn unload(app: Arc<App>, name: String) -> Result<(), RequestError> {
    let unload = tokio::spawn(async move { app.repository.unload(&name).await });
    Ok(unload.await.map_err(|_| RequestError::panicked())??)
}
