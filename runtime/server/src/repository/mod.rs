//! The models of a folder and the state of each.
//!
//! A model is loaded or unloaded by one request at a time; further ones wait. Inference requests
//! never wait: they use the current state.

mod cache;
mod config_pbtxt;
mod copies;
mod labels;
mod load;
mod poll;
pub(crate) mod scaling;
mod scan;
mod seen;
pub(crate) mod settings;

pub(crate) use load::LoadError;
pub(crate) use settings::Settings;

use crate::compiler::CompilerService;
use crate::limits::MODELS_MAX;
use crate::model::Model;
use atoll_fleet::Inference;
use atoll_protocol::{IndexEntry, ModelState};
use cache::CompileCache;
use copies::BundleCopies;
use scan::Source;
use seen::Seen;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// The models of a folder.
pub(crate) struct Repository {
    folder: PathBuf,
    engine: Arc<dyn Inference>,
    cache: Arc<CompileCache>,
    copies: Arc<BundleCopies>,
    /// All models whose load was ever requested, by name. While this is locked, only a slot's state
    /// may be locked.
    slots: RwLock<BTreeMap<String, Arc<Slot>>>,
    /// One compilation at a time: each uses all cores and much memory.
    compiling: tokio::sync::Semaphore,
    /// State of the scans that follow changes of the folder. Locked during a scan.
    seen: tokio::sync::Mutex<Seen>,
    /// Counts the changes of state of all slots.
    changes: Arc<AtomicU64>,
}

/// The entry of one model.
struct Slot {
    /// Held while the model is loaded or unloaded.
    changing: tokio::sync::Mutex<()>,
    state: RwLock<State>,
    /// The counter of the repository.
    changes: Arc<AtomicU64>,
}

/// The state of a model.
#[derive(Clone, Default)]
enum State {
    /// Unloaded, or never loaded.
    #[default]
    Unloaded,
    /// Being loaded; the text describes the current step.
    Loading(String),
    Ready(Arc<Model>),
    Unloading,
    /// The last load failed; the text is the reason.
    Failed(String),
}

/// Why a model accepts no requests.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FindError {
    #[error("there is no model `{0}`; POST /v2/repository/index lists all models")]
    Unknown(String),
    #[error("model `{name}` has no version `{version}`, only `{only}`")]
    Version { name: String, version: String, only: String },
    #[error("model `{name}` is not ready: {reason}")]
    NotReady { name: String, reason: String },
}

impl Slot {
    fn new(changes: Arc<AtomicU64>) -> Slot {
        Slot { changing: Default::default(), state: RwLock::default(), changes }
    }

    fn state(&self) -> State {
        self.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, state: State) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
        self.changes.fetch_add(1, Ordering::Release);
    }

    fn model(&self) -> Option<Arc<Model>> {
        match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            State::Ready(model) => Some(model.clone()),
            _ => None,
        }
    }
}

impl Slot {
    fn has_failed(&self) -> bool {
        matches!(&*self.state.read().unwrap_or_else(PoisonError::into_inner), State::Failed(_))
    }
}

impl State {
    fn describe(&self) -> (ModelState, String) {
        match self {
            State::Unloaded => (ModelState::Unavailable, "not loaded".into()),
            State::Loading(stage) => (ModelState::Loading, stage.clone()),
            State::Ready(_) => (ModelState::Ready, String::new()),
            State::Unloading => (ModelState::Unloading, "its last requests are being answered".into()),
            State::Failed(reason) => (ModelState::Unavailable, reason.clone()),
        }
    }
}

impl Repository {
    pub(crate) fn new(
        folder: PathBuf,
        cache: PathBuf,
        engine: Arc<dyn Inference>,
        compiler: Option<Arc<dyn CompilerService>>,
    ) -> Repository {
        Repository {
            folder,
            engine,
            copies: Arc::new(BundleCopies::new(cache.clone())),
            cache: Arc::new(CompileCache::new(cache, compiler)),
            slots: RwLock::default(),
            compiling: tokio::sync::Semaphore::new(1),
            seen: tokio::sync::Mutex::default(),
            changes: Arc::default(),
        }
    }

    /// Scans the folder for models.
    pub(crate) fn scan(&self) -> io::Result<Vec<Source>> {
        scan::scan(&self.folder)
    }

    /// The loaded model of this name, and of this version if one is given.
    pub(crate) fn find(&self, name: &str, version: Option<&str>) -> Result<Arc<Model>, FindError> {
        let slot = self.slot(name).ok_or_else(|| FindError::Unknown(name.into()))?;
        let model =
            slot.model().ok_or_else(|| FindError::NotReady { name: name.into(), reason: slot.state().describe().1 })?;
        match version {
            Some(version) if version != model.version => {
                Err(FindError::Version { name: name.into(), version: version.into(), only: model.version.clone() })
            }
            _ => Ok(model),
        }
    }

    /// How often the state of a model has changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// All loaded models.
    pub(crate) fn ready(&self) -> Vec<Arc<Model>> {
        self.all_slots().into_iter().filter_map(|(_, slot)| slot.model()).collect()
    }

    /// All models in the folder, and models without a file that are loaded, are changing, or have
    /// failed.
    pub(crate) fn index(&self) -> io::Result<Vec<IndexEntry>> {
        let unloaded = || (ModelState::Unavailable, "not loaded".to_string(), String::new());
        let mut entries: BTreeMap<String, (ModelState, String, String)> =
            self.scan()?.into_iter().map(|source| (source.name, unloaded())).collect();
        for (name, slot) in self.all_slots() {
            let (state, reason) = slot.state().describe();
            let version = slot.model().map_or_else(String::new, |model| model.version.clone());
            // Does not list an unloaded model without a file.
            if entries.contains_key(&name) || reason != "not loaded" {
                entries.insert(name, (state, reason, version));
            }
        }
        Ok(entries
            .into_iter()
            .map(|(name, (state, reason, version))| IndexEntry { name, version, state, reason })
            .collect())
    }

    /// Models that failed to load, by name, with the reasons.
    pub(crate) fn failed(&self) -> Vec<(String, String)> {
        let reason = |(name, slot): (String, Arc<Slot>)| match slot.state() {
            State::Failed(reason) => Some((name, reason)),
            _ => None,
        };
        self.all_slots().into_iter().filter_map(reason).collect()
    }

    /// Whether any model failed to load.
    pub(crate) fn has_failed(&self) -> bool {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.values().any(|slot| slot.has_failed())
    }

    /// Size of the copies of bundles that are being served.
    pub(crate) fn copies_bytes(&self) -> u64 {
        self.copies.bytes()
    }

    /// Number of models in each state.
    pub(crate) fn state_counts(&self) -> Vec<(ModelState, usize)> {
        let states: Vec<ModelState> = self.all_slots().iter().map(|(_, slot)| slot.state().describe().0).collect();
        let all = [ModelState::Ready, ModelState::Loading, ModelState::Unloading, ModelState::Unavailable];
        all.map(|state| (state, states.iter().filter(|s| **s == state).count())).to_vec()
    }

    fn slot(&self, name: &str) -> Option<Arc<Slot>> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    fn all_slots(&self) -> Vec<(String, Arc<Slot>)> {
        self.slots
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .map(|(name, slot)| (name.clone(), slot.clone()))
            .collect()
    }

    /// The slot of a model, created if necessary.
    fn slot_of(&self, name: &str) -> Result<Arc<Slot>, LoadError> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= MODELS_MAX && !slots.contains_key(name) {
            return Err(LoadError::TooManyModels);
        }
        let slot = || Arc::new(Slot::new(self.changes.clone()));
        Ok(slots.entry(name.to_owned()).or_insert_with(slot).clone())
    }
}
