//! Loads ensembles: models that are made of others. An ensemble is a graph of functions whose
//! manifest is made from its configuration.

use super::Repository;
use super::error::LoadError;
use super::exchange::Failure;
use super::labels;
use super::scan::{self, Form, Source};
use super::settings::Settings;
use super::slot::{Slot, State};
use crate::graphs::{DeployedGraph, Ensemble, Functions};
use crate::inference::blocking;
use atoll_engine::FunctionKey;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The version of an ensemble.
const VERSION: u64 = 1;

/// The models and functions that the steps of a source call; none if it is not an ensemble.
pub(super) fn steps(source: &Source) -> Result<Vec<String>, LoadError> {
    if source.form() == Form::Ensemble { models(source) } else { Ok(Vec::new()) }
}

/// The models that an ensemble calls.
fn models(source: &Source) -> Result<Vec<String>, LoadError> {
    scan::ensemble(source).map(|ensemble| ensemble.models).map_err(LoadError::Ensemble)
}

/// The way from an ensemble back to itself, if there is one. `calls` has the models that each
/// ensemble calls.
fn circle(calls: &BTreeMap<String, Vec<String>>, name: &str) -> Option<Vec<String>> {
    let mut ways = vec![vec![name.to_owned()]];
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop() {
        for next in way.last().and_then(|last| calls.get(last)).into_iter().flatten() {
            let longer = [way.as_slice(), std::slice::from_ref(next)].concat();
            if next == name {
                return Some(longer);
            }
            if seen.insert(next.clone()) {
                ways.push(longer);
            }
        }
    }
    None
}

/// The names from which ensembles start and those that they call, each after those that it calls.
fn in_order<'n>(calls: &BTreeMap<String, Vec<String>>, from: impl IntoIterator<Item = &'n String>) -> Vec<String> {
    let (mut ordered, mut seen) = (Vec::new(), BTreeSet::new());
    let mut waiting: Vec<(String, bool)> = from.into_iter().map(|name| (name.clone(), false)).collect();
    while let Some((name, is_called_first)) = waiting.pop() {
        if is_called_first {
            ordered.push(name);
        } else if seen.insert(name.clone()) {
            let called = calls.get(&name).cloned().unwrap_or_default();
            waiting.push((name, true));
            waiting.extend(called.into_iter().map(|called| (called, false)));
        }
    }
    ordered
}

/// The places of ensembles in an order in which each comes after those that it calls. Models have no
/// place.
pub(super) fn places<'s>(sources: impl Iterator<Item = &'s Source>) -> BTreeMap<String, usize> {
    let ensembles = sources.filter(|source| source.form() == Form::Ensemble);
    // One that cannot be read calls nothing.
    let calls: BTreeMap<String, Vec<String>> =
        ensembles.map(|source| (source.name.clone(), models(source).unwrap_or_default())).collect();
    let order = in_order(&calls, calls.keys()).into_iter().filter(|name| calls.contains_key(name));
    order.enumerate().map(|(place, name)| (name, place)).collect()
}

/// Sorts models before ensembles, and ensembles after those that they call.
pub(super) fn sort(sources: &mut [Source]) {
    let places = places(sources.iter());
    sources.sort_by_key(|source| (source.form(), places.get(&source.name).copied()));
}

impl Repository {
    /// The models and ensembles of the repository that an ensemble calls, directly or through others,
    /// each after those that it calls itself; none for a model of its own.
    ///
    /// # Errors
    /// If the ensemble contradicts itself, or calls itself through others.
    pub(super) fn called_by(&self, source: &Source) -> Result<Vec<Source>, LoadError> {
        if source.form() != Form::Ensemble {
            return Ok(Vec::new());
        }
        let called = models(source)?;
        let sources = self.scan().map_err(|source| LoadError::Io { path: self.folder.clone(), source })?;
        let others = sources.iter().filter(|other| other.form() == Form::Ensemble && other.name != source.name);
        // One that cannot be read leads nowhere.
        let calls = others.map(|other| (other.name.clone(), models(other).unwrap_or_default()));
        let calls: BTreeMap<String, Vec<String>> = calls.chain([(source.name.clone(), called)]).collect();
        if let Some(way) = circle(&calls, &source.name) {
            return Err(LoadError::Ensemble(format!("circular dependency between ensembles: {}", way.join(" -> "))));
        }
        let mut order = in_order(&calls, [&source.name]);
        order.retain(|name| *name != source.name);
        let mut sources: BTreeMap<String, Source> =
            sources.into_iter().map(|source| (source.name.clone(), source)).collect();
        Ok(order.iter().filter_map(|name| sources.remove(name)).collect())
    }

    /// Serves an ensemble instead of what has its name now. One that its models do not fit is only
    /// put there if nothing is served; it is ready as soon as they do.
    pub(super) async fn exchange_graph(
        &self,
        slot: &Slot,
        source: &Source,
        settings: Settings,
        functions: &dyn Functions,
    ) -> Result<(), Failure> {
        self.called_by(source)?;
        let scan::Ensemble { manifest, scheduling, .. } = scan::ensemble(source).map_err(LoadError::Ensemble)?;
        let (folder, files) = (source.files_folder().to_owned(), settings.labels.clone());
        let outputs: Vec<String> = settings.outputs.iter().map(|output| output.name.clone()).collect();
        let read = move || labels::read(&folder, &files, &outputs);
        let labels = blocking(read).await.ok_or(LoadError::Panicked)?.map_err(LoadError::from)?;
        let ensemble = Ensemble { settings, labels, scheduling };
        let graph = DeployedGraph::of_ensemble(FunctionKey::local(&source.name), &manifest, ensemble);
        let graph = graph.map_err(|error| LoadError::Ensemble(error.to_string()))?;
        let old = slot.ready();
        let is_served = !old.is_empty() || slot.graph().is_some_and(|graph| graph.callable(functions).is_ok());
        match graph.callable(functions) {
            Ok(_) => tracing::info!(model = source.name, "ready"),
            Err(reason) if is_served => return Err(LoadError::Ensemble(reason).into()),
            Err(reason) => tracing::error!(model = source.name, reason, "the ensemble cannot be called"),
        }
        slot.set_only(VERSION, State::Graph(Arc::new(graph)));
        for model in old.values() {
            self.unload_ended(model).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_back_are_found_and_others_end() {
        let calls = |text: &str| -> BTreeMap<String, Vec<String>> {
            let one = |line: &str| {
                let (name, called) = line.split_once(':').unwrap();
                (name.to_owned(), called.split_whitespace().map(str::to_owned).collect())
            };
            text.split(';').map(one).collect()
        };
        let way = |text: &str| circle(&calls(text), "a").map(|way| way.join(" "));
        assert_eq!(way("a:b c;b:d;c:d"), None);
        assert_eq!(way("a:a").as_deref(), Some("a a"));
        assert_eq!(way("a:x b;b:c;c:x a").as_deref(), Some("a b c a"));
        assert_eq!(way("a:b;b:c;c:b"), None, "a circle beside the way");
    }

    #[test]
    fn what_is_called_comes_first() {
        let calls = |calls: &[(&str, &str)]| -> BTreeMap<String, Vec<String>> {
            calls.iter().map(|(name, called)| ((*name).into(), called.split(' ').map(String::from).collect())).collect()
        };
        let order = |all: &[(&str, &str)], from: &[&str]| {
            in_order(&calls(all), &from.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).join(" ")
        };
        assert_eq!(order(&[("a", "d b"), ("b", "c m"), ("d", "b")], &["a"]), "m c b d a");
        assert_eq!(order(&[("a", "b"), ("b", "a")], &["a", "b"]), "a b", "a circle ends");
    }
}
