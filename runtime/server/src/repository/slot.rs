//! The entry of one model: the states of its versions.

use crate::graphs::DeployedGraph;
use crate::model::Model;
use atoll_protocol::ModelState;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// The reason of a model that was not loaded or was unloaded.
pub(super) const NOT_LOADED: &str = "not loaded";

/// The entry of one model.
pub(super) struct Slot {
    /// Held while the model is loaded or unloaded.
    pub(super) changing: tokio::sync::Mutex<()>,
    /// States by version; that of `None` is of the model as a whole, and there while no version has
    /// one. Never empty.
    states: RwLock<BTreeMap<Option<u64>, State>>,
    /// The counter of the repository.
    changes: Arc<AtomicU64>,
}

/// The state of a version.
#[derive(Clone, Default)]
pub(super) enum State {
    /// Unloaded, or never loaded.
    #[default]
    Unloaded,
    /// Being loaded; the text describes the current step.
    Loading(String),
    Ready(Arc<Model>),
    /// An ensemble: a graph that is checked against its models when it is called.
    Graph(Arc<DeployedGraph>),
    Unloading,
    /// The last load failed; the text is the reason.
    Failed(String),
}

impl State {
    pub(super) fn describe(&self) -> (ModelState, String) {
        match self {
            State::Unloaded => (ModelState::Unavailable, NOT_LOADED.into()),
            State::Loading(stage) => (ModelState::Loading, stage.clone()),
            State::Ready(_) | State::Graph(_) => (ModelState::Ready, String::new()),
            State::Unloading => (ModelState::Unloading, "its last requests are being answered".into()),
            State::Failed(reason) => (ModelState::Unavailable, reason.clone()),
        }
    }

    /// Whether it takes requests.
    fn is_served(&self) -> bool {
        matches!(self, State::Ready(_) | State::Graph(_))
    }

    fn model(&self) -> Option<&Arc<Model>> {
        match self {
            State::Ready(model) => Some(model),
            _ => None,
        }
    }
}

impl Slot {
    pub(super) fn new(changes: Arc<AtomicU64>) -> Slot {
        let states = RwLock::new([(None, State::Unloaded)].into());
        Slot { changing: Default::default(), states, changes }
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<Option<u64>, State>> {
        self.states.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<Option<u64>, State>)) {
        let mut states = self.states.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut states);
        if states.is_empty() {
            states.insert(None, State::Unloaded);
        }
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// The states by version, the lowest first.
    pub(super) fn states(&self) -> Vec<(Option<u64>, State)> {
        self.read().iter().map(|(version, state)| (*version, state.clone())).collect()
    }

    /// The state of a version, if it has one.
    pub(super) fn state(&self, version: u64) -> Option<State> {
        self.read().get(&Some(version)).cloned()
    }

    /// Replaces all states by one of the model as a whole.
    pub(super) fn set_whole(&self, state: State) {
        self.change(|states| *states = [(None, state)].into());
    }

    /// Replaces all states by that of one version.
    pub(super) fn set_only(&self, version: u64, state: State) {
        self.change(|states| *states = [(Some(version), state)].into());
    }

    /// Sets the state of a version.
    pub(super) fn set(&self, version: u64, state: State) {
        self.change(|states| {
            states.remove(&None);
            states.insert(Some(version), state);
        });
    }

    /// Sets the state of a version that takes no requests. One that does stays until it is replaced.
    pub(super) fn set_unserved(&self, version: u64, state: State) {
        self.change(|states| {
            if !states.get(&Some(version)).is_some_and(State::is_served) {
                states.remove(&None);
                states.insert(Some(version), state);
            }
        });
    }

    /// Forgets the versions that are neither served nor kept.
    pub(super) fn keep(&self, keeps: impl Fn(u64) -> bool) {
        self.change(|states| states.retain(|version, state| state.is_served() || version.is_none_or(&keeps)));
    }

    /// Serves these versions instead of everything else.
    pub(super) fn serve(&self, models: &BTreeMap<u64, Arc<Model>>) {
        let states = models.iter().map(|(version, model)| (Some(*version), State::Ready(model.clone())));
        self.change(|all| *all = states.collect());
    }

    /// A load failed at a version, or for the model as a whole. What is ready stays, and only the
    /// failure is kept of the others.
    pub(super) fn fail(&self, version: Option<u64>, reason: String) {
        self.change(|states| {
            states.retain(|_, state| state.is_served());
            if version.is_some() || states.is_empty() {
                states.entry(version).or_insert(State::Failed(reason));
            }
        });
    }

    /// The versions that take requests, by their numbers.
    pub(super) fn ready(&self) -> BTreeMap<u64, Arc<Model>> {
        let states = self.read();
        states.iter().filter_map(|(version, state)| Some(((*version)?, state.model()?.clone()))).collect()
    }

    /// The graph of an ensemble.
    pub(super) fn graph(&self) -> Option<Arc<DeployedGraph>> {
        self.read().values().find_map(|state| match state {
            State::Graph(graph) => Some(graph.clone()),
            _ => None,
        })
    }

    /// Whether nothing is loaded, being changed or failed.
    pub(super) fn is_unloaded(&self) -> bool {
        self.read().values().all(|state| matches!(state, State::Unloaded))
    }

    /// Whether a version takes requests.
    pub(super) fn has_ready(&self) -> bool {
        self.read().values().any(State::is_served)
    }

    /// The version that answers requests without one: the highest that is ready.
    pub(super) fn newest(&self) -> Option<Arc<Model>> {
        self.read().values().rev().find_map(State::model).cloned()
    }

    /// Why the model takes no requests: the reason of its highest version.
    pub(super) fn reason(&self) -> String {
        self.read().values().next_back().map_or_else(String::new, |state| state.describe().1)
    }

    /// Why versions failed to load, in the order of their numbers.
    pub(super) fn failures(&self) -> Vec<String> {
        let failure = |state: &State| match state {
            State::Failed(reason) => Some(reason.clone()),
            _ => None,
        };
        self.read().values().filter_map(failure).collect()
    }
}
