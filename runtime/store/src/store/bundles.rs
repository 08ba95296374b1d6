//! Deployed functions, and the files of their bundles.

use super::Store;
use super::state::State;
use crate::deployment::{Deployment, DeploymentKey};
use crate::error::StoreError;
use crate::index::Change;
use atoll_sealed::{Digest, Sealed};
use std::path::PathBuf;

impl Store {
    /// Writes the file of a bundle. `digest` must be the digest of `content`. The file stays while it
    /// is held, or while a function is deployed from it.
    pub fn write_bundle(&self, content: &Sealed, digest: Digest) -> Result<HeldBundle<'_>, StoreError> {
        let staged = self.bundles.stage_as(content, digest)?;
        let held = self.hold_bundle(digest);
        // The rename may replace the bundle of other functions by an equal one; existing mappings
        // stay valid.
        self.bundles.publish(staged)?;
        Ok(held)
    }

    fn hold_bundle(&self, digest: Digest) -> HeldBundle<'_> {
        *self.lock().held_bundles.entry(digest).or_default() += 1;
        HeldBundle { store: self, digest }
    }

    /// Deletes the file of a bundle unless it is held or a function is deployed from it.
    fn remove_unused_bundle(&self, state: &State, digest: Digest) {
        let is_deployed = state.deployments.values().any(|deployment| deployment.bundle == digest);
        if !is_deployed && !state.held_bundles.contains_key(&digest) {
            self.bundles.remove(&digest);
        }
    }

    /// Path of a bundle.
    pub fn bundle_path(&self, digest: &Digest) -> PathBuf {
        self.bundles.path(digest)
    }

    /// Records a deployed function, replacing the one of the same name.
    pub fn deploy(&self, key: DeploymentKey, deployment: Deployment) -> Result<(), StoreError> {
        let mut state = self.lock();
        state.apply(Change { deploy: vec![(key.clone(), deployment.clone())], ..Change::default() })?;
        if let Some(old) = state.deployments.insert(key, deployment) {
            self.remove_unused_bundle(&state, old.bundle);
        }
        Ok(())
    }

    /// Removes a deployed function. Returns whether it existed.
    pub fn withdraw(&self, key: &DeploymentKey) -> Result<bool, StoreError> {
        let mut state = self.lock();
        if !state.deployments.contains_key(key) {
            return Ok(false);
        }
        state.apply(Change { withdraw: vec![key.clone()], ..Change::default() })?;
        if let Some(old) = state.deployments.remove(key) {
            self.remove_unused_bundle(&state, old.bundle);
        }
        Ok(true)
    }

    /// All deployed functions, by tenant and name.
    pub fn deployments(&self) -> Vec<(DeploymentKey, Deployment)> {
        self.lock().deployments.iter().map(|(key, deployment)| (key.clone(), deployment.clone())).collect()
    }
}

/// Keeps the file of a bundle from being deleted.
#[derive(Debug)]
pub struct HeldBundle<'a> {
    store: &'a Store,
    digest: Digest,
}

impl HeldBundle<'_> {
    /// Its digest.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Path of its file.
    pub fn path(&self) -> PathBuf {
        self.store.bundle_path(&self.digest)
    }
}

impl Drop for HeldBundle<'_> {
    fn drop(&mut self) {
        let mut state = self.store.lock();
        if let Some(count) = state.held_bundles.get_mut(&self.digest) {
            *count -= 1;
            if *count == 0 {
                state.held_bundles.remove(&self.digest);
            }
        }
        self.store.remove_unused_bundle(&state, self.digest);
    }
}
