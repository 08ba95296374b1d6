//! Manifests of deployed graphs of functions.

use super::Store;
use crate::deployment::DeploymentKey;
use crate::error::StoreError;
use crate::index::Change;

impl Store {
    /// Records a graph, replacing the one of the same name. It is durable when this returns.
    pub fn put_graph(&self, key: DeploymentKey, manifest: String) -> Result<(), StoreError> {
        let mut state = self.lock();
        state.apply(Change { put_graphs: vec![(key.clone(), manifest.clone())], ..Change::default() })?;
        state.graphs.insert(key, manifest);
        Ok(())
    }

    /// Removes a graph. Returns whether it existed.
    pub fn remove_graph(&self, key: &DeploymentKey) -> Result<bool, StoreError> {
        let mut state = self.lock();
        if !state.graphs.contains_key(key) {
            return Ok(false);
        }
        state.apply(Change { drop_graphs: vec![key.clone()], ..Change::default() })?;
        Ok(state.graphs.remove(key).is_some())
    }

    /// Whether there is a graph of this name.
    pub fn has_graph(&self, key: &DeploymentKey) -> bool {
        self.lock().graphs.contains_key(key)
    }

    /// All graphs with their manifests, by tenant and name.
    pub fn graphs(&self) -> Vec<(DeploymentKey, String)> {
        self.lock().graphs.iter().map(|(key, manifest)| (key.clone(), manifest.clone())).collect()
    }
}
