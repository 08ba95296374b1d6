//! State that all request handlers share.

use crate::bodies::{Bodies, ROOM_BYTES_MAX};
use crate::compiler::CompilerService;
use crate::config::ServerConfig;
use crate::deployed::Deployed;
use crate::metrics::Recorder;
use crate::model::Model;
use crate::repository::{FindError, Repository};
use crate::sequences::Sequences;
use atoll_fleet::Inference;
use atoll_protocol::{IndexEntry, MODEL_VERSION, ModelState};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The state of a server.
pub(crate) struct App {
    pub(crate) engine: Arc<dyn Inference>,
    pub(crate) repository: Repository,
    /// Functions deployed over the control socket; `None` if the daemon has no control socket.
    pub(crate) deployed: Option<Arc<Deployed>>,
    pub(crate) recorder: Recorder,
    /// Open sequences of the models that keep state.
    pub(crate) sequences: Arc<Sequences>,
    pub(crate) body_bytes_max: usize,
    /// Longest pause between two parts of a request body.
    pub(crate) body_pause: Duration,
    pub(crate) bodies: Bodies,
    strict_readiness: bool,
    loaded: AtomicBool,
    draining: AtomicBool,
}

impl App {
    pub(crate) fn new(
        config: &ServerConfig,
        engine: Arc<dyn Inference>,
        compiler: Option<Arc<dyn CompilerService>>,
        deployed: Option<Arc<Deployed>>,
    ) -> App {
        App {
            repository: Repository::new(config.repository.clone(), config.cache.clone(), engine.clone(), compiler),
            recorder: Recorder::new(engine.devices().len()),
            sequences: Arc::default(),
            engine,
            deployed,
            // A body larger than the budget of all bodies could never be read.
            body_bytes_max: config.body_bytes_max.min(ROOM_BYTES_MAX),
            body_pause: config.connections.body_pause,
            bodies: Bodies::new(),
            strict_readiness: config.strict_readiness,
            loaded: AtomicBool::new(false),
            draining: AtomicBool::new(false),
        }
    }

    /// The model that serves requests to `name`: a model of the repository, or else a public
    /// deployed function.
    pub(crate) fn find(&self, name: &str, version: Option<&str>) -> Result<Arc<Model>, FindError> {
        let found = self.repository.find(name, version);
        let Err(FindError::Unknown(_)) = &found else { return found };
        let Some(function) = self.deployed.as_ref().and_then(|deployed| deployed.public(name)) else { return found };
        if let Some(version) = version.filter(|version| *version != MODEL_VERSION) {
            return Err(FindError::Version { name: name.into(), version: version.into(), only: MODEL_VERSION.into() });
        }
        function.model.clone().map_err(|reason| FindError::NotReady { name: name.into(), reason })
    }

    /// All models that every client may use.
    pub(crate) fn models(&self) -> Vec<Arc<Model>> {
        let deployed = self.deployed.iter().flat_map(|deployed| deployed.all_public());
        self.repository.ready().into_iter().chain(deployed.filter_map(|function| function.model.clone().ok())).collect()
    }

    /// All models of the repository and all public functions, ready or not, sorted by name.
    pub(crate) fn index(&self) -> io::Result<Vec<IndexEntry>> {
        let mut entries = self.repository.index()?;
        for function in self.deployed.iter().flat_map(|deployed| deployed.all_public()) {
            let (state, reason) = match &function.model {
                Ok(_) => (ModelState::Ready, String::new()),
                Err(reason) => (ModelState::Unavailable, reason.clone()),
            };
            let name = function.key.to_string();
            if !entries.iter().any(|entry| entry.name == name) {
                entries.push(IndexEntry { name, version: MODEL_VERSION.into(), state, reason });
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Whether the server accepts requests: every model of the repository is loaded (or has failed,
    /// if readiness is not strict), and no shutdown was requested. Ignores models that failed and
    /// were unloaded since, and deployed functions.
    pub(crate) fn is_ready(&self) -> bool {
        let loaded = self.loaded.load(Ordering::Relaxed) && !self.draining.load(Ordering::Relaxed);
        loaded && !(self.strict_readiness && self.repository.has_failed())
    }

    pub(crate) fn set_loaded(&self) {
        self.loaded.store(true, Ordering::Relaxed);
    }

    pub(crate) fn set_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }
}
