//! The model repository: index, load, unload.

use super::error::{Kind, RequestError};
use crate::app::App;
use crate::config::ModelControl;
use crate::identity::{Principal, Reason};
use crate::inference::blocking;
use crate::repository::LoadError;
use crate::repository::overrides::Overrides;
use atoll_engine::{Class, Tenant};
use atoll_protocol::{IndexEntry, ModelExplanation, ModelState};
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
/// as for a model that does not exist, `unknown`.
pub(crate) fn check(
    app: &App,
    caller: &Principal,
    name: &str,
    unknown: fn(String) -> LoadError,
) -> Result<(), RequestError> {
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
    caller.may_call_name(name).inspect_err(refuse).map_err(|_| unknown(name.into()))?;
    Ok(())
}

/// Loads a model that [`check`] allowed. The load continues even if the client disconnects.
pub(crate) async fn load(
    app: Arc<App>,
    caller: &Principal,
    name: String,
    overrides: Overrides,
) -> Result<(), RequestError> {
    // Models of the repository are the operator's: they compile and run without a tenant's limits.
    if overrides.has_files() && !caller.tenant.is_local() {
        app.recorder.refusals.charge(Reason::ModelControl, caller, Class::BestEffort);
        let text = "only the tenant `local` may load a model from files that the request brings along; deploy a \
                    function instead (`atoll fn deploy`)";
        return Err(RequestError::denied(Reason::ModelControl, text));
    }
    let (loading, asked) = (app.clone(), name.clone());
    let principal = caller.clone();
    let load = tokio::spawn(async move {
        let may = |model: &str| principal.may_call(Tenant::default().as_str(), model).is_ok();
        loading.repository.load(&asked, overrides, &may, &*loading).await
    });
    load.await.map_err(|_| RequestError::panicked())?.map_err(|error| refused_load(&name, error))?;
    let Some(graph) = app.repository.graph(&name) else { return Ok(()) };
    // An ensemble is checked against its models when it is called; its loader wants to know now.
    let checked = blocking(move || graph.callable(&*app).map(drop)).await.ok_or_else(RequestError::panicked)?;
    checked.map_err(|reason| RequestError::bad_request(format!("the ensemble `{name}` cannot be called: {reason}")))
}

/// Why a model was not loaded. Triton's clients look for the first words.
fn refused_load(name: &str, error: LoadError) -> RequestError {
    let mut refused = RequestError::from(error);
    if !refused.message.starts_with("failed to load") {
        refused.message = format!("failed to load '{name}', failed to poll from model repository: {}", refused.message);
    }
    refused
}

/// What the daemon reads of a model's folder, for a caller that may use the model.
pub(crate) async fn explain(
    app: &Arc<App>,
    caller: &Principal,
    name: String,
) -> Result<ModelExplanation, RequestError> {
    let unknown = || RequestError::new(Kind::NotFound, format!("there is no model `{name}` in the repository"));
    let refuse = |denial: &_| app.refuse(denial, caller, Class::BestEffort);
    caller.may_call_name(&name).inspect_err(refuse).map_err(|_| unknown())?;
    let (read, asked) = (app.clone(), name.clone());
    let found = blocking(move || read.repository.explain(&asked)).await.ok_or_else(RequestError::panicked)?;
    let found =
        found.map_err(|e| RequestError::new(Kind::Internal, format!("cannot read the model repository: {e}")))?;
    found.ok_or_else(unknown)
}

/// Unloads a model that [`check`] allowed, and if `dependents` is set the models that it calls as an
/// ensemble, as far as the caller may call them.
pub(crate) async fn unload(
    app: Arc<App>,
    caller: &Principal,
    name: String,
    dependents: bool,
) -> Result<(), RequestError> {
    let caller = caller.clone();
    let unload = tokio::spawn(async move {
        app.repository.unload(&name).await?;
        let may = |name: &str| caller.may_call_name(name).is_ok();
        if dependents { app.repository.unload_called_by(&name, &may).await } else { Ok(()) }
    });
    Ok(unload.await.map_err(|_| RequestError::panicked())??)
}
