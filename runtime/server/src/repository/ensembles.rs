//! Loads ensembles: models that are made of others. An ensemble is a graph of functions whose
//! manifest is made from its configuration.

use super::Repository;
use super::error::LoadError;
use super::exchange::Failure;
use super::scan::{self, Form, Source};
use super::slot::{Slot, State};
use crate::graphs::DeployedGraph;
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

impl Repository {
    /// The models of the repository that an ensemble calls; none for a model of its own.
    ///
    /// # Errors
    /// If the ensemble contradicts itself, or calls another ensemble.
    pub(super) fn called_by(&self, source: &Source) -> Result<Vec<Source>, LoadError> {
        if source.form() != Form::Ensemble {
            return Ok(Vec::new());
        }
        let called = models(source)?;
        let sources = self.scan().map_err(|source| LoadError::Io { path: self.folder.clone(), source })?;
        let others = sources.iter().filter(|other| other.form() == Form::Ensemble && other.name != source.name);
        // One that cannot be read leads nowhere.
        let calls = others.map(|other| (other.name.clone(), models(other).unwrap_or_default()));
        let calls: BTreeMap<String, Vec<String>> = calls.chain([(source.name.clone(), called.clone())]).collect();
        if let Some(way) = circle(&calls, &source.name) {
            return Err(LoadError::Ensemble(format!("circular dependency between ensembles: {}", way.join(" -> "))));
        }
        if let Some(name) = called.iter().find(|name| calls.contains_key(*name)) {
            let text =
                format!("it calls the ensemble `{name}`, and steps call models; list the steps of `{name}` instead");
            return Err(LoadError::Ensemble(text));
        }
        Ok(sources.into_iter().filter(|other| called.contains(&other.name)).collect())
    }

    /// Serves an ensemble instead of what has its name now.
    pub(super) async fn exchange_graph(&self, slot: &Slot, source: &Source) -> Result<(), Failure> {
        self.called_by(source)?;
        let ensemble = scan::ensemble(source).map_err(LoadError::Ensemble)?;
        let graph = DeployedGraph::of_ensemble(FunctionKey::local(&source.name), &ensemble.manifest);
        let graph = graph.map_err(|error| LoadError::Ensemble(error.to_string()))?;
        for (version, model) in slot.ready() {
            slot.set(version, State::Unloading);
            self.unload_function(&model).await?;
        }
        slot.set_only(VERSION, State::Graph(Arc::new(graph)));
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
}
