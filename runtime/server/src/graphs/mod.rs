//! Graphs of functions: their manifests, and their runs.
//!
//! A graph names functions of its tenant. It is checked against their tensors when it is deployed,
//! and again when one of them was replaced. Clients call it like a model. [`atoll_core::graphs`]
//! decides whether a graph is valid, which stage of a run is next, and whether a request with a
//! deadline or a price limit is admitted. `costs.rs` measures the stages, and `desk.rs` reserves
//! devices.
//!
//! Start reading in `run.rs`.

mod budget;
mod builtin;
mod calls;
mod costs;
mod counts;
mod desk;
mod ensemble;
mod intermediates;
mod manifest;
mod nesting;
mod processes;
mod run;
mod stage;
mod turns;
pub(crate) mod work;

pub(crate) use calls::{Answer, StageCall, Stages};
pub(crate) use costs::{CostView, Rejected, rejection};
pub(crate) use counts::Counts;
pub(crate) use desk::{Desk, Limits};
pub(crate) use ensemble::Ensemble;
pub(crate) use manifest::ManifestError;
pub(crate) use processes::{StageProcesses, StageUse};
pub(crate) use run::{Asked, run_graph};
pub(crate) use stage::{Callee, StageWork, Version};
pub(crate) use turns::BuiltinTurns;
pub(crate) use work::GraphWork;

use crate::bodies::Bodies;
use crate::limits::{GRAPH_FILES_TENANT_BYTES_MAX, GRAPHS_PER_TENANT_MAX};
use crate::model::Model;
use crate::names::{BadName, check_name};
use atoll_core::graphs::Stage;
use atoll_engine::{FunctionKey, Tenant};
use atoll_store::{DeploymentKey, Store, StoreError};
use costs::Costs;
use counts::GraphCounts;
use manifest::{Manifest, ManifestStage, Signature, Work};
use nesting::{Called, Expanded};
use stage::{CpuStage, Shared};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Access to the functions that stages call, and to the resources that runs of graphs share.
pub(crate) trait Functions: Sync {
    /// The model that a stage of a tenant's graph calls: a deployed function of the tenant, or, for
    /// the daemon's own tenant, a model of the repository. An error completes the sentence "the
    /// function …".
    fn stage_model(&self, tenant: &Tenant, name: &str) -> Result<Arc<Model>, String>;

    /// The ensemble of the repository that a step of an ensemble calls by this name; `None` if it calls
    /// no ensemble.
    fn ensemble(&self, tenant: &Tenant, name: &str) -> Option<Arc<DeployedGraph>>;

    /// Whether a tenant has a function of this name, callable or not. For the daemon's own tenant,
    /// models of the repository count as functions.
    fn has_function(&self, tenant: &Tenant, name: &str) -> bool;

    /// Whether only its tenant can call a function.
    fn is_private(&self, key: &FunctionKey) -> bool;

    /// The memory budget of requests.
    fn bodies(&self) -> Bodies;

    /// The turns of large built-in stages.
    fn builtin_turns(&self) -> BuiltinTurns;

    /// The processes that run CPU stages.
    fn stage_processes(&self) -> Arc<StageProcesses>;

    /// The desk that admits requests; `None` if there is none.
    fn desk(&self) -> Option<Arc<Desk>>;

    /// A number that changes whenever a function is deployed, replaced or removed. A graph is
    /// checked again only after it has changed.
    fn changes(&self) -> u64;
}

/// Why a graph was not deployed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GraphDeployError {
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Name(#[from] BadName),
    #[error("a function or model already has the name `{0}`; choose another name")]
    Taken(String),
    #[error("tenant `{tenant}` has reached the limit of {GRAPHS_PER_TENANT_MAX} graphs; remove one first")]
    TooMany { tenant: Tenant },
    #[error(
        "the files of tenant `{tenant}`'s graphs would have {bytes} bytes; the limit is \
         {GRAPH_FILES_TENANT_BYTES_MAX}; remove a graph with files first"
    )]
    TooManyFiles { tenant: Tenant, bytes: usize },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The graph as a model, or the reason why it cannot be called.
pub(crate) type Callable = Result<Arc<Model>, String>;

/// The result of a check.
struct Checked {
    callable: Callable,
    /// The manifest with the steps of the ensembles that it calls, if it calls any.
    nested: Option<Nested>,
    /// [`Functions::changes`] before the check; `None` before the first check.
    at: Option<u64>,
}

/// An ensemble that calls ensembles.
struct Nested {
    expanded: Expanded,
    /// The ensembles that its steps call, directly or through others, by the names that the steps have.
    called: Vec<(String, Arc<DeployedGraph>)>,
}

/// A deployed graph.
pub(crate) struct DeployedGraph {
    key: FunctionKey,
    pub(crate) manifest: Manifest,
    /// Its configuration, if it is an ensemble.
    ensemble: Option<Ensemble>,
    checked: Mutex<Checked>,
    counts: Arc<GraphCounts>,
}

impl DeployedGraph {
    pub(crate) fn key(&self) -> &FunctionKey {
        &self.key
    }

    /// The graph of an ensemble. It is checked when it is called.
    ///
    /// # Errors
    /// If the manifest is not valid.
    pub(crate) fn of_ensemble(
        key: FunctionKey,
        manifest: &str,
        ensemble: Ensemble,
    ) -> Result<DeployedGraph, ManifestError> {
        let graph = DeployedGraph::new(key, manifest::parse(manifest)?);
        Ok(DeployedGraph { ensemble: Some(ensemble), ..graph })
    }

    /// The graph as a model that may be called over HTTP; `None` if it calls a private function,
    /// which cannot be called over HTTP through a graph either.
    pub(crate) fn public(&self, app: &dyn Functions) -> Option<Callable> {
        let is_private =
            |model: &Model| model.graph.iter().flat_map(|graph| graph.models()).any(|m| app.is_private(&m.key));
        match self.callable(app) {
            Ok(model) if is_private(&model) => None,
            other => Some(other),
        }
    }

    fn new(key: FunctionKey, manifest: Manifest) -> DeployedGraph {
        let checked = Checked { callable: Err("it has not been checked yet".into()), nested: None, at: None };
        DeployedGraph { key, manifest, ensemble: None, checked: Mutex::new(checked), counts: Arc::default() }
    }

    /// The graph as a model. Checks it again if a function was deployed, replaced or removed.
    pub(crate) fn callable(&self, app: &dyn Functions) -> Callable {
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = app.changes();
        if checked.at != Some(changes) {
            if !self.is_current(app, &checked) {
                (checked.callable, checked.nested) = match self.check(app) {
                    Ok((model, nested)) => (Ok(model), nested),
                    Err(error) => (Err(error.to_string()), None),
                };
            }
            checked.at = Some(changes);
        }
        checked.callable.clone()
    }

    /// Whether a callable graph still refers to the present functions.
    fn is_current(&self, app: &dyn Functions, checked: &Checked) -> bool {
        let graph = checked.callable.as_ref().ok().and_then(|model| model.graph.as_ref());
        let manifest = checked.nested.as_ref().map_or(&self.manifest, |nested| &nested.expanded.manifest);
        let are_called = checked.nested.iter().flat_map(|nested| &nested.called).all(|(name, ensemble)| {
            app.ensemble(&self.key.tenant, name).is_some_and(|now| Arc::ptr_eq(&now, ensemble))
        });
        // By the names in the manifest: a model that was found by its name may have the key of a
        // version, if the newest one was being exchanged.
        let is_same = |(name, model): (&String, &Arc<Model>)| {
            app.stage_model(&self.key.tenant, name).is_ok_and(|now| Arc::ptr_eq(&now, model))
        };
        let is_kept = |(stage, work): (&ManifestStage, &StageWork)| match work {
            StageWork::Function(callee) => stage.functions().zip(callee.models()).all(is_same),
            StageWork::Builtin(_) | StageWork::Program(_) => true,
        };
        are_called && graph.is_some_and(|graph| manifest.stages.iter().zip(&graph.works).all(is_kept))
    }

    /// Checks the files of its CPU stages in the process of its tenant. Blocks.
    fn check_programs(&self, app: &dyn Functions, model: &Model) -> Result<(), ManifestError> {
        let Some(graph) = &model.graph else { return Ok(()) };
        for (stage, work) in graph.graph.stages().iter().zip(&graph.works) {
            let StageWork::Program(program) = work else { continue };
            let checked = app.stage_processes().check(&self.key.tenant, &program.numbered());
            let refused = |reason: String| ManifestError::Builtin { stage: stage.name.clone(), reason };
            checked.map_err(|error| refused(error.to_string()))?;
        }
        Ok(())
    }

    /// The manifest with the steps of the ensembles that it calls; `None` if it calls none.
    fn nested(&self, app: &dyn Functions) -> Result<Option<Nested>, ManifestError> {
        let Some(ensemble) = &self.ensemble else { return Ok(None) };
        let mut called = Vec::new();
        let mut find = |name: &str| {
            let found = app.ensemble(&self.key.tenant, name)?;
            let own = found.ensemble.as_ref()?;
            called.push((name.to_owned(), found.clone()));
            let (rows, labels) = (own.settings.max_batch_size, own.labels.clone());
            Some(Called { name: found.key.name.clone(), manifest: found.manifest.clone(), rows, labels })
        };
        let expanded = nesting::expand(&self.manifest, ensemble.settings.max_batch_size, &mut find)?;
        Ok((!called.is_empty()).then_some(Nested { expanded, called }))
    }

    /// Checks the graph against its present functions.
    fn check(&self, app: &dyn Functions) -> Result<(Arc<Model>, Option<Nested>), ManifestError> {
        let nested = self.nested(app)?;
        let manifest = nested.as_ref().map_or(&self.manifest, |nested| &nested.expanded.manifest);
        let mut models: BTreeMap<String, Arc<Model>> = BTreeMap::new();
        let signature = |function: &str| -> Result<Signature, String> {
            let model = app.stage_model(&self.key.tenant, function)?;
            if model.keeps_state() {
                return Err("keeps state between calls, which stages of graphs do not".into());
            }
            models.insert(function.into(), model.clone());
            Ok((model.inputs.clone(), model.outputs.clone()))
        };
        let (graph, works) = manifest.check(signature)?;
        let work = |(stage, work): (&Stage, Work)| match work {
            Work::Function(versions) => {
                let models = versions.iter().map(|(function, weight)| (models[function].clone(), *weight)).collect();
                let callee = Callee::new(format!("{}/{}", self.key, stage.name), models);
                callee.map(|callee| StageWork::Function(Arc::new(callee))).ok_or_else(|| ManifestError::Versions {
                    stage: stage.name.clone(),
                    reason: manifest::bad_weights(),
                })
            }
            Work::Builtin(builtin) => Ok(StageWork::Builtin(builtin)),
            Work::Program(program) => Ok(StageWork::Program(Arc::new(CpuStage::new(*program)))),
        };
        let works = graph.stages().iter().zip(works).map(work).collect::<Result<Vec<StageWork>, ManifestError>>()?;
        let shared = Shared {
            bodies: app.bodies(),
            turns: app.builtin_turns(),
            counts: self.counts.clone(),
            tenant: self.key.tenant.clone(),
            processes: app.stage_processes(),
        };
        let costs = Costs::new(app.desk(), self.key.tenant.as_str(), graph.stages().len());
        let work = GraphWork::new(graph, works, shared, costs);
        let mut labels = ensemble::labels(&work);
        labels.extend(nested.iter().flat_map(|nested| nested.expanded.labels.clone()));
        let model = Model::of_graph(self.key.clone(), work).with_labels(labels);
        let model = match &self.ensemble {
            Some(ensemble) => ensemble.apply(model).map_err(ManifestError::Ensemble)?,
            None => model,
        };
        Ok((Arc::new(model), nested))
    }
}

/// All deployed graphs.
pub(crate) struct Graphs {
    store: Arc<Store>,
    graphs: RwLock<BTreeMap<FunctionKey, Arc<DeployedGraph>>>,
}

impl Graphs {
    /// The graphs of a store. Each is checked at its first use, because its functions may not be
    /// loaded yet.
    pub(crate) fn new(store: Arc<Store>) -> Graphs {
        let graph = |(DeploymentKey { tenant, name }, text): (DeploymentKey, String)| {
            let key = FunctionKey { tenant, name };
            match manifest::parse(&text) {
                Ok(manifest) => Some((key.clone(), Arc::new(DeployedGraph::new(key, manifest)))),
                Err(error) => {
                    tracing::error!(graph = %key, %error, "the manifest of a graph cannot be read");
                    None
                }
            }
        };
        let graphs = RwLock::new(store.graphs().into_iter().filter_map(graph).collect());
        Graphs { store, graphs }
    }

    /// Checks and stores a graph, replacing the tenant's graph of this name. The caller must hold
    /// the tenant's turn. Blocks.
    pub(crate) fn deploy(
        &self,
        app: &dyn Functions,
        tenant: &Tenant,
        name: Option<String>,
        text: String,
    ) -> Result<Arc<DeployedGraph>, GraphDeployError> {
        let manifest = manifest::parse(&text)?;
        let name = name.unwrap_or_else(|| manifest.name.clone());
        check_name(&name)?;
        if app.has_function(tenant, &name) {
            return Err(GraphDeployError::Taken(name));
        }
        let key = FunctionKey { tenant: tenant.clone(), name };
        let others: Vec<_> = self.of(tenant).into_iter().filter(|graph| graph.key != key).collect();
        if others.len() >= GRAPHS_PER_TENANT_MAX {
            return Err(GraphDeployError::TooMany { tenant: tenant.clone() });
        }
        let files = others.iter().map(|graph| manifest::files::bytes_of(&graph.manifest.files)).sum::<usize>();
        let bytes = files + manifest::files::bytes_of(&manifest.files);
        if bytes > GRAPH_FILES_TENANT_BYTES_MAX {
            return Err(GraphDeployError::TooManyFiles { tenant: tenant.clone(), bytes });
        }
        let graph = DeployedGraph::new(key.clone(), manifest);
        let at = Some(app.changes());
        let (model, nested) = graph.check(app)?;
        if let Some(work) = &model.graph {
            work.costs.check(&work.graph, &work.works).map_err(ManifestError::Graph)?;
        }
        graph.check_programs(app, &model)?;
        let checked = Checked { callable: Ok(model), nested, at };
        let graph = Arc::new(DeployedGraph { checked: Mutex::new(checked), ..graph });
        self.store.put_graph(DeploymentKey { tenant: key.tenant.clone(), name: key.name.clone() }, text)?;
        self.graphs.write().unwrap_or_else(PoisonError::into_inner).insert(key, graph.clone());
        Ok(graph)
    }

    /// Deletes a graph. Returns whether it existed. Blocks.
    pub(crate) fn remove(&self, key: &FunctionKey) -> Result<bool, StoreError> {
        let existed = self.store.remove_graph(&DeploymentKey { tenant: key.tenant.clone(), name: key.name.clone() })?;
        self.graphs.write().unwrap_or_else(PoisonError::into_inner).remove(key);
        Ok(existed)
    }

    pub(crate) fn find(&self, key: &FunctionKey) -> Option<Arc<DeployedGraph>> {
        self.graphs.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// All graphs of a tenant, by name.
    pub(crate) fn of(&self, tenant: &Tenant) -> Vec<Arc<DeployedGraph>> {
        let graphs = self.graphs.read().unwrap_or_else(PoisonError::into_inner);
        graphs.values().filter(|graph| graph.key.tenant == *tenant).cloned().collect()
    }

    /// The graph of this model name: `NAME`, or `TENANT:NAME`.
    pub(crate) fn public(&self, app: &dyn Functions, name: &str) -> Option<Callable> {
        let key = match name.split_once(':') {
            None => FunctionKey::local(name),
            Some((tenant, name)) => FunctionKey { tenant: tenant.parse().ok()?, name: name.into() },
        };
        self.find(&key).filter(|graph| graph.key.to_string() == name)?.public(app)
    }

    /// The graphs that call no private function, as HTTP and gRPC list them, each as a model or with
    /// the reason why it cannot be called.
    pub(crate) fn all_public(&self, app: &dyn Functions) -> Vec<(FunctionKey, Callable)> {
        let keys = self.all(app).into_iter().map(|(key, _)| key);
        keys.filter_map(|key| Some((key.clone(), self.public(app, &key.to_string())?))).collect()
    }

    /// All graphs, each as a model or with the reason why it cannot be called.
    pub(crate) fn all(&self, app: &dyn Functions) -> Vec<(FunctionKey, Callable)> {
        let graphs: Vec<Arc<DeployedGraph>> =
            self.graphs.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        graphs.iter().map(|graph| (graph.key.clone(), graph.callable(app))).collect()
    }
}
