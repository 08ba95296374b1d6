//! The models of a folder, their versions, and the state of each.
//!
//! A model is loaded or unloaded by one request at a time, with all its versions; further ones wait.
//! Inference requests never wait: they use the current state.

mod cache;
mod copies;
mod ensembles;
mod error;
mod exchange;
mod explain;
mod labels;
mod load;
pub(crate) mod overrides;
mod place;
mod poll;
mod regular;
pub(crate) mod scaling;
mod scan;
mod seen;
pub(crate) mod settings;
mod slot;
pub(crate) mod triton;
mod versions;
mod warmup;

pub(crate) use error::LoadError;
pub(crate) use settings::Settings;

use crate::compiler::CompilerService;
use crate::graphs::DeployedGraph;
use crate::limits::MODELS_MAX;
use crate::model::Model;
use atoll_fleet::Inference;
use atoll_protocol::{IndexEntry, ModelState};
use cache::CompileCache;
use copies::BundleCopies;
use scan::Source;
use seen::Seen;
use slot::{NOT_LOADED, Slot, State};
use std::collections::{BTreeMap, BTreeSet};
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
    /// Where folders of loads with files of their own are made.
    scratch: PathBuf,
    /// All models whose load was ever requested, by name. While this is locked, only a slot's states
    /// may be locked.
    slots: RwLock<BTreeMap<String, Arc<Slot>>>,
    /// One compilation at a time: each uses all cores and much memory.
    compiling: tokio::sync::Semaphore,
    /// State of the scans that follow changes of the folder. Locked during a scan.
    seen: tokio::sync::Mutex<Seen>,
    /// Counts the changes of state of all slots.
    changes: Arc<AtomicU64>,
}

/// Why a model accepts no requests. Clients of Triton look for the beginnings of the texts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FindError {
    #[error(
        "Request for unknown model: '{0}' is not found: there is no model `{0}`; POST /v2/repository/index lists all \
        models"
    )]
    Unknown(String),
    #[error(
        "Request for unknown model: '{name}' version {version} is not found: model `{name}` has no version \
        `{version}`, only `{only}`"
    )]
    Version { name: String, version: String, only: String },
    #[error("Request for unknown model: '{name}' has no available versions: model `{name}` is not ready: {reason}")]
    NotReady { name: String, reason: String },
    #[error("Request for unknown model: '{name}' version {version} is not at ready state: {reason}")]
    VersionNotReady { name: String, version: String, reason: String },
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
            scratch: cache.clone(),
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

    /// The loaded model of this name: the given version, or the newest that is ready.
    pub(crate) fn find(&self, name: &str, version: Option<&str>) -> Result<Arc<Model>, FindError> {
        let slot = self.slot(name).ok_or_else(|| FindError::Unknown(name.into()))?;
        let Some(version) = version else {
            return slot.newest().ok_or_else(|| FindError::NotReady { name: name.into(), reason: slot.reason() });
        };
        let number = version.parse::<u64>().ok().filter(|number| number.to_string() == version);
        match number.and_then(|number| slot.state(number)) {
            Some(State::Ready(model)) => Ok(model),
            Some(state) => {
                let reason = state.describe().1;
                Err(FindError::VersionNotReady { name: name.into(), version: version.into(), reason })
            }
            None => {
                let known: Vec<String> =
                    slot.states().iter().filter_map(|(version, _)| *version).map(|known| known.to_string()).collect();
                Err(match known.is_empty() {
                    true => FindError::NotReady { name: name.into(), reason: slot.reason() },
                    false => {
                        FindError::Version { name: name.into(), version: version.into(), only: known.join("`, `") }
                    }
                })
            }
        }
    }

    /// The graph of an ensemble of this name.
    pub(crate) fn graph(&self, name: &str) -> Option<Arc<DeployedGraph>> {
        self.slot(name)?.graph()
    }

    /// The graph of an ensemble that a step calls: `NAME`, or `NAME/1`, since 1 is its only version.
    pub(crate) fn graph_called(&self, function: &str) -> Option<Arc<DeployedGraph>> {
        let (name, version) = function.split_once('/').unwrap_or((function, "1"));
        if version == "1" { self.graph(name) } else { None }
    }

    /// The graphs of all ensembles.
    pub(crate) fn graphs(&self) -> Vec<Arc<DeployedGraph>> {
        self.all_slots().into_iter().filter_map(|(_, slot)| slot.graph()).collect()
    }

    /// The versions of a model that take requests, the lowest first; none if there is no such model.
    pub(crate) fn versions(&self, name: &str) -> Vec<Arc<Model>> {
        self.slot(name).map_or_else(Vec::new, |slot| slot.ready().into_values().collect())
    }

    /// How often the state of a model has changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// All versions of all models that take requests.
    pub(crate) fn ready(&self) -> Vec<Arc<Model>> {
        self.all_slots().into_iter().flat_map(|(_, slot)| slot.ready().into_values()).collect()
    }

    /// All models in the folder, and models without a file that are loaded, are changing, or have
    /// failed: an entry for each version that has a state, by name and version.
    pub(crate) fn index(&self) -> io::Result<Vec<IndexEntry>> {
        let mut found: BTreeSet<String> = self.scan()?.into_iter().map(|source| source.name).collect();
        let mut entries = Vec::new();
        for (name, slot) in self.all_slots() {
            let is_there = found.remove(&name);
            for (version, state) in slot.states() {
                let (state, reason) = state.describe();
                // Does not list an unloaded model without a file.
                if is_there || reason != NOT_LOADED {
                    let version = version.map_or_else(String::new, |version| version.to_string());
                    entries.push(IndexEntry { name: name.clone(), version, state, reason });
                }
            }
        }
        let unloaded = |name| IndexEntry {
            name,
            version: String::new(),
            state: ModelState::Unavailable,
            reason: NOT_LOADED.into(),
        };
        entries.extend(found.into_iter().map(unloaded));
        // Stable, so the versions of a model stay in their order.
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Versions that failed to load, by the name of their model, with the reasons.
    pub(crate) fn failed(&self) -> Vec<(String, String)> {
        let of = |(name, slot): (String, Arc<Slot>)| {
            slot.failures().into_iter().map(move |reason| (name.clone(), reason)).collect::<Vec<_>>()
        };
        self.all_slots().into_iter().flat_map(of).collect()
    }

    /// Whether any version of a model failed to load.
    pub(crate) fn has_failed(&self) -> bool {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.values().any(|slot| !slot.failures().is_empty())
    }

    /// Size of the copies of bundles that are being served.
    pub(crate) fn copies_bytes(&self) -> u64 {
        self.copies.bytes()
    }

    /// Number of versions of models in each state.
    pub(crate) fn state_counts(&self) -> Vec<(ModelState, usize)> {
        let states = self.all_slots().into_iter().flat_map(|(_, slot)| slot.states());
        let states: Vec<ModelState> = states.map(|(_, state)| state.describe().0).collect();
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
            // Unloaded models leave room for others, except those that a load or unload holds.
            slots.retain(|_, slot| Arc::strong_count(slot) > 1 || !slot.is_unloaded());
            if slots.len() >= MODELS_MAX {
                return Err(LoadError::TooManyModels);
            }
        }
        let slot = || Arc::new(Slot::new(self.changes.clone()));
        Ok(slots.entry(name.to_owned()).or_insert_with(slot).clone())
    }
}
