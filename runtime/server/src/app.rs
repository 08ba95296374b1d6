//! State that all request handlers share.

use crate::access_log::AccessLog;
use crate::bodies::{Bodies, ROOM_BYTES_MAX};
use crate::compiler::CompilerService;
use crate::config::{ModelControl, ServerConfig};
use crate::cuda::counts::Counts;
use crate::deployed::Deployed;
use crate::graphs::{BuiltinTurns, DeployedGraph, Desk, Functions, Graphs, StageProcesses};
use crate::identity::{Denial, Gate, Principal, Reason, Reloaded};
use crate::inference::blocking;
use crate::instances::{Instance, Instances};
use crate::leases::Leases;
use crate::limits::FUNCTION_NAME_BYTES_MAX;
use crate::log_control::LogControl;
use crate::metrics::Recorder;
use crate::model::Model;
use crate::otlp::Tracer;
use crate::prices::Prices;
use crate::repository::{FindError, Repository};
use crate::response_cache::ResponseCache;
use crate::rings::registry::Rings;
use crate::running::{Permit, Running};
use crate::scaling::state::Scaler;
use crate::sequences::Sequences;
use crate::shared_memory::Regions;
use atoll_engine::{Class, EngineStatistics, FunctionKey, Tenant};
use atoll_fleet::Inference;
use atoll_protocol::{IndexEntry, MODEL_VERSION, ModelMetadata, ModelState};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// The state of a server.
pub(crate) struct App {
    pub(crate) engine: Arc<dyn Inference>,
    pub(crate) repository: Repository,
    pub(crate) gate: Arc<Gate>,
    /// Functions deployed over the control socket; `None` if the daemon has no control socket.
    pub(crate) deployed: Option<Arc<Deployed>>,
    /// Graphs of functions, deployed over the control socket.
    pub(crate) graphs: Option<Graphs>,
    /// Admits requests of graphs.
    pub(crate) desk: Option<Arc<Desk>>,
    pub(crate) prices: Prices,
    pub(crate) instances: Instances,
    /// Leases of placement engines; `None` if the daemon has no store.
    pub(crate) leases: Option<Leases>,
    /// Instances that follow the load of their models.
    pub(crate) scaler: Scaler,
    pub(crate) recorder: Recorder,
    pub(crate) access_log: Option<AccessLog>,
    /// Sends spans of requests to a collector.
    pub(crate) tracer: Option<Arc<Tracer>>,
    /// Changes the level of the log.
    pub(crate) log: Option<LogControl>,
    /// Open sequences of the models that keep state.
    pub(crate) sequences: Arc<Sequences>,
    pub(crate) body_bytes_max: usize,
    /// Longest pause between two parts of a request body.
    pub(crate) body_pause: Duration,
    pub(crate) bodies: Bodies,
    pub(crate) responses: ResponseCache,
    /// The invocations that tenants have queued or running.
    pub(crate) running: Arc<Running>,
    /// Sessions of CUDA programs.
    pub(crate) cuda: Arc<Counts>,
    /// Regions of shared memory that clients have registered.
    pub(crate) regions: Regions,
    /// Open rings of clients.
    pub(crate) rings: Arc<Rings>,
    /// The right to run a built-in stage of a graph.
    pub(crate) builtin_turns: BuiltinTurns,
    /// The processes that run CPU stages of graphs.
    pub(crate) stage_processes: Arc<StageProcesses>,
    pub(crate) model_control: ModelControl,
    strict_readiness: bool,
    loaded: AtomicBool,
    draining: AtomicBool,
}

impl App {
    /// The state at the start.
    ///
    /// # Errors
    /// If the configuration has a price for a device that does not exist.
    pub(crate) fn new(
        config: &ServerConfig,
        engine: Arc<dyn Inference>,
        compiler: Option<Arc<dyn CompilerService>>,
        deployed: Option<Arc<Deployed>>,
        graphs: Option<Graphs>,
        instances: Instances,
        gate: Arc<Gate>,
    ) -> Result<App, String> {
        let prices = Prices::of(config.identity.access.prices(), engine.devices())?;
        Ok(App {
            gate,
            desk: Desk::new(engine.clone(), &prices),
            prices,
            repository: Repository::new(config.repository.clone(), config.cache.clone(), engine.clone(), compiler),
            recorder: Recorder::new(engine.devices().len()),
            access_log: None,
            tracer: None,
            log: config.log.clone(),
            sequences: Arc::default(),
            engine,
            deployed,
            graphs,
            instances,
            leases: None,
            scaler: Scaler::new(config.profiles.clone()),
            // A body larger than the budget of all bodies could never be read.
            body_bytes_max: config.body_bytes_max.min(ROOM_BYTES_MAX),
            body_pause: config.connections.body_pause,
            bodies: Bodies::new(),
            responses: ResponseCache::new(config.response_cache_bytes),
            running: Arc::default(),
            cuda: Arc::default(),
            regions: Regions::default(),
            rings: Arc::default(),
            builtin_turns: BuiltinTurns::new(),
            stage_processes: Arc::new(StageProcesses::new(config.stage_groups.clone())),
            model_control: config.model_control.clone(),
            strict_readiness: config.strict_readiness,
            loaded: AtomicBool::new(false),
            draining: AtomicBool::new(false),
        })
    }

    /// The model that serves requests of `principal` to `name`: a model of the repository, or else
    /// a public deployed function or graph. For a model that the principal may not call, the error
    /// is the same as for a model that does not exist.
    pub(crate) fn find(
        &self,
        principal: &Principal,
        name: &str,
        version: Option<&str>,
    ) -> Result<Arc<Model>, FindError> {
        let unknown = |denial: Denial| {
            self.refuse(&denial, principal, Class::BestEffort);
            FindError::Unknown(name.into())
        };
        principal.may_call_name(name).map_err(unknown)?;
        let model = self.find_any(name, version)?;
        // The model found may belong to another tenant than the name suggests.
        principal.may_call(model.key.tenant.as_str(), &model.name).map_err(unknown)?;
        Ok(model)
    }

    /// The models of a name that serve requests of `principal`: the given version, or all versions.
    pub(crate) fn find_all(
        &self,
        principal: &Principal,
        name: &str,
        version: Option<&str>,
    ) -> Result<Vec<Arc<Model>>, FindError> {
        let model = self.find(principal, name, version)?;
        let all = if version.is_none() { self.repository.versions(name) } else { Vec::new() };
        // What was found may be a deployed function, or have been replaced since.
        Ok(if all.iter().any(|other| Arc::ptr_eq(other, &model)) { all } else { vec![model] })
    }

    /// The metadata of a model. Without a version they are those of the newest, with the numbers of
    /// all versions, as Triton's.
    pub(crate) fn metadata(
        &self,
        principal: &Principal,
        name: &str,
        version: Option<&str>,
    ) -> Result<ModelMetadata, FindError> {
        let models = self.find_all(principal, name, version)?;
        // There is at least one.
        let newest = models.last().ok_or_else(|| FindError::Unknown(name.into()))?;
        let versions = models.iter().map(|model| model.version.clone()).collect();
        Ok(ModelMetadata { versions, ..newest.metadata() })
    }

    /// The model that has the key of a function. Unlike [`Functions::stage_model`], it is not another
    /// version that answers while the newest one is exchanged.
    pub(crate) fn function_model(&self, function: &FunctionKey) -> Result<Arc<Model>, String> {
        let model = self.stage_model(&function.tenant, &function.name)?;
        if model.key == *function { Ok(model) } else { Err("is being exchanged".into()) }
    }

    /// The instance of a model that a request names; `None` if it names none. An error says what is
    /// wrong with the name.
    pub(crate) fn instance_of(&self, model: &Model, name: Option<&str>) -> Result<Option<Arc<Instance>>, String> {
        let Some(name) = name else { return Ok(None) };
        let key = FunctionKey { tenant: model.key.tenant.clone(), name: name.into() };
        let found = self.instances.find(&key).filter(|instance| instance.function == model.key.name);
        if found.is_some() {
            return Ok(found);
        }
        let known = self.instances.names_of(&model.key);
        let name: String = name.chars().take(FUNCTION_NAME_BYTES_MAX).flat_map(char::escape_debug).collect();
        Err(match known.is_empty() {
            true => format!("function `{}` has no instances, and the request names instance `{name}`", model.key),
            false => format!("function `{}` has no instance `{name}`; it has {}", model.key, known.join(", ")),
        })
    }

    /// Refuses a real-time request for an instance whose lease has no real-time slot.
    pub(crate) fn check_slot(&self, instance: Option<&Instance>, class: Class) -> Result<(), String> {
        match instance.is_none_or(|instance| instance.serves(class)) {
            true => Ok(()),
            false => Err("the instance has a lease without a real-time slot, and the request is real-time; ask for a \
                          lease with real_time_slots, or send a best-effort request"
                .into()),
        }
    }

    fn find_any(&self, name: &str, version: Option<&str>) -> Result<Arc<Model>, FindError> {
        let model = match self.repository.graph(name) {
            Some(ensemble) => ensemble.public(self).unwrap_or_else(|| Err("it calls a private function".into())),
            None => {
                let found = self.repository.find(name, version);
                let Err(FindError::Unknown(_)) = &found else { return found };
                let function = self.deployed.as_ref().and_then(|deployed| deployed.public(name));
                let graph = || self.graphs.as_ref().and_then(|graphs| graphs.public(self, name));
                match function.map(|function| function.model.clone()).or_else(graph) {
                    Some(model) => model,
                    None => return found,
                }
            }
        };
        if let Some(version) = version.filter(|version| *version != MODEL_VERSION) {
            return Err(FindError::Version { name: name.into(), version: version.into(), only: MODEL_VERSION.into() });
        }
        model.map_err(|reason| FindError::NotReady { name: name.into(), reason })
    }

    /// Loads the models that the model control mode loads at start.
    pub(crate) async fn load_at_start(&self) {
        match &self.model_control {
            ModelControl::Explicit { load: Some(names) } => self.repository.load_named(names, self).await,
            ModelControl::Explicit { load: None } | ModelControl::None => self.repository.load_all(self).await,
            ModelControl::Poll { .. } => self.repository.poll(self).await,
        }
    }

    /// Polls the repository for changes if the model control mode is `Poll`; otherwise returns.
    pub(crate) async fn follow_repository(&self) {
        let ModelControl::Poll { every } = self.model_control else { return };
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick completes immediately, and the folder was already read at start.
        ticks.tick().await;
        loop {
            ticks.tick().await;
            self.repository.poll(self).await;
        }
    }

    /// Checks that a principal may call `model` in this class, and that its quota of invocations is
    /// not exhausted. Called for calls over all interfaces. Counts refusals.
    ///
    /// # Errors
    /// [`Denial::Class`] or [`Denial::Invocations`].
    pub(crate) fn admit(&self, principal: &Principal, model: &Model, class: Class) -> Result<Permit, Denial> {
        let count = model.graph.as_ref().map_or(1, |graph| graph.invocations());
        let admitted = principal.may_run(class).and_then(|()| self.running.admit(principal, count));
        admitted.inspect_err(|denial| self.refuse(denial, principal, class))
    }

    /// Counts a request that was refused for lack of a right or quota, and charges it to its tenant.
    pub(crate) fn refuse(&self, denial: &Denial, principal: &Principal, class: Class) {
        self.recorder.refusals.charge(denial.reason(), principal, class);
    }

    /// Counts a request that was refused before its tenant was known.
    pub(crate) fn refuse_unknown(&self, reason: Reason) {
        self.recorder.refusals.note(reason);
    }

    /// Reads keys and certificates again, and logs the result. Opens the access log again.
    pub(crate) async fn reload(&self) -> Result<Reloaded, String> {
        if let Some(log) = &self.access_log {
            log.reopen();
        }
        let gate = self.gate.clone();
        let reloaded = blocking(move || gate.reload().map_err(|error| error.to_string())).await;
        let reloaded =
            reloaded.unwrap_or_else(|| Err("internal error: reading panicked; please report this bug".into()));
        match &reloaded {
            Ok(Reloaded { keys, tls }) => tracing::info!(keys, tls, "keys and certificates were read again"),
            Err(error) => {
                tracing::error!(error, "cannot reload keys and certificates; the old ones stay in force")
            }
        }
        reloaded
    }

    /// The statistics of all engines, with refused requests charged to their tenants. Blocks.
    pub(crate) fn statistics(&self) -> Vec<EngineStatistics> {
        let mut statistics = self.engine.statistics();
        self.recorder.refusals.bill(&mut statistics);
        statistics
    }

    /// All models and functions, of all tenants, without graphs.
    pub(crate) fn models(&self) -> Vec<Arc<Model>> {
        let deployed = self.deployed.iter().flat_map(|deployed| deployed.all_public());
        let functions = deployed.filter_map(|function| function.model.clone().ok());
        self.repository.ready().into_iter().chain(functions).collect()
    }

    /// All models and functions whose instances are autoscaled, including private functions.
    pub(crate) fn scaled_models(&self) -> Vec<Arc<Model>> {
        let deployed = self.deployed.iter().flat_map(|deployed| deployed.all());
        let functions = deployed.filter_map(|function| function.model.clone().ok());
        self.repository.ready().into_iter().chain(functions).filter(|model| model.scaled.is_some()).collect()
    }

    /// Names of the configuration's `[scaling.NAME]` sections without a deployed function.
    pub(crate) fn unknown_scaled(&self) -> Vec<String> {
        let Some(deployed) = &self.deployed else { return Vec::new() };
        let known: Vec<String> = deployed.all().iter().map(|function| function.key.to_string()).collect();
        deployed.scaled_names().filter(|name| !known.contains(name)).cloned().collect()
    }

    /// All graphs and ensembles that can be called and call no private function.
    pub(crate) fn public_graphs(&self) -> Vec<Arc<Model>> {
        let graphs = self.graphs.iter().flat_map(|graphs| graphs.all_public(self)).map(|(_, model)| model);
        let ensembles = self.repository.graphs().into_iter().filter_map(|graph| graph.public(self));
        graphs.chain(ensembles).filter_map(Result::ok).collect()
    }

    /// All models and graphs that a principal may use.
    pub(crate) fn models_of(&self, principal: &Principal) -> Vec<Arc<Model>> {
        let mut models = self.models();
        models.extend(self.public_graphs());
        models.retain(|model| principal.may_call(model.key.tenant.as_str(), &model.name).is_ok());
        models
    }

    /// The models of the repository, public functions and graphs that a principal may use, ready or
    /// not, sorted by name.
    pub(crate) fn index(&self, principal: &Principal) -> io::Result<Vec<IndexEntry>> {
        let local = Tenant::default();
        let mut entries = self.repository.index()?;
        entries.retain(|entry| principal.may_call(local.as_str(), &entry.name).is_ok());
        for graph in self.repository.graphs() {
            // An ensemble is ready as long as its models are.
            let reason = match graph.public(self) {
                Some(Ok(_)) => continue,
                Some(Err(reason)) => reason,
                None => "it calls a private function".into(),
            };
            for entry in entries.iter_mut().filter(|entry| entry.name == graph.key().name) {
                (entry.state, entry.reason) = (ModelState::Unavailable, reason.clone());
            }
        }
        let functions = self.deployed.iter().flat_map(|deployed| deployed.all_public());
        let functions = functions.map(|function| (function.key.clone(), function.model.clone()));
        let graphs = self.graphs.iter().flat_map(|graphs| graphs.all_public(self));
        for (key, model) in functions.chain(graphs) {
            let name = key.to_string();
            if principal.may_call(key.tenant.as_str(), &name).is_err() {
                continue;
            }
            let (state, reason) = match model {
                Ok(_) => (ModelState::Ready, String::new()),
                Err(reason) => (ModelState::Unavailable, reason),
            };
            if !entries.iter().any(|entry| entry.name == name) {
                entries.push(IndexEntry { name, version: MODEL_VERSION.into(), state, reason });
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Whether the server is ready: every model of the repository is loaded (or has failed, if
    /// readiness is not strict), and no shutdown was requested. Ignores deployed functions, and
    /// models that failed and were unloaded since.
    pub(crate) fn is_ready(&self) -> bool {
        let loaded = self.loaded.load(Ordering::Relaxed) && !self.draining.load(Ordering::Relaxed);
        loaded && !(self.strict_readiness && self.repository.has_failed())
    }

    /// Whether each model of the repository was loaded or has failed, and deployed functions are
    /// restored.
    pub(crate) fn has_loaded(&self) -> bool {
        self.loaded.load(Ordering::Relaxed)
    }

    pub(crate) fn set_loaded(&self) {
        self.loaded.store(true, Ordering::Relaxed);
    }

    /// Whether a shutdown was requested.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(crate) fn set_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }
}

impl Functions for App {
    fn has_function(&self, tenant: &Tenant, name: &str) -> bool {
        let key = FunctionKey { tenant: tenant.clone(), name: name.into() };
        let is_deployed = self.deployed.as_ref().is_some_and(|deployed| deployed.find(&key).is_some());
        is_deployed || (tenant.is_local() && !matches!(self.repository.find(name, None), Err(FindError::Unknown(_))))
    }

    fn ensemble(&self, tenant: &Tenant, name: &str) -> Option<Arc<DeployedGraph>> {
        let key = FunctionKey { tenant: tenant.clone(), name: name.into() };
        let is_function = self.deployed.as_ref().is_some_and(|deployed| deployed.find(&key).is_some());
        if is_function || !tenant.is_local() { None } else { self.repository.graph_called(name) }
    }

    fn is_private(&self, key: &FunctionKey) -> bool {
        let deployed = self.deployed.as_ref().and_then(|deployed| deployed.find(key));
        deployed.is_some_and(|function| function.deployment.private)
    }

    fn stage_model(&self, tenant: &Tenant, name: &str) -> Result<Arc<Model>, String> {
        let key = FunctionKey { tenant: tenant.clone(), name: name.into() };
        if let Some(function) = self.deployed.as_ref().and_then(|deployed| deployed.find(&key)) {
            return function.model.clone().map_err(|reason| format!("is not loaded: {reason}"));
        }
        if tenant.is_local() && self.repository.graph(name).is_some() {
            return Err("is an ensemble, and stages call models".into());
        }
        // A version that is not the newest has the key `NAME/VERSION`.
        let (name, version) = name.split_once('/').map_or((name, None), |(name, version)| (name, Some(version)));
        match self.repository.find(name, version) {
            Ok(model) if tenant.is_local() => Ok(model),
            Err(FindError::NotReady { reason, .. } | FindError::VersionNotReady { reason, .. })
                if tenant.is_local() =>
            {
                Err(format!("is not loaded: {reason}"))
            }
            _ => Err("is not deployed".into()),
        }
    }

    fn bodies(&self) -> Bodies {
        self.bodies.clone()
    }

    fn builtin_turns(&self) -> BuiltinTurns {
        self.builtin_turns.clone()
    }

    fn stage_processes(&self) -> Arc<StageProcesses> {
        self.stage_processes.clone()
    }

    fn desk(&self) -> Option<Arc<Desk>> {
        self.desk.clone()
    }

    fn changes(&self) -> u64 {
        self.repository.changes() + self.deployed.as_ref().map_or(0, |deployed| deployed.changes())
    }
}
