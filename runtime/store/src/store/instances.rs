//! Records of instances of functions. The store does not interpret them.

use super::Store;
use crate::deployment::DeploymentKey;
use crate::error::StoreError;
use crate::index::Change;

impl Store {
    /// Records an instance, replacing the one of the same name. It is durable when this returns.
    pub fn put_instance(&self, key: DeploymentKey, record: String) -> Result<(), StoreError> {
        let mut state = self.lock();
        state.apply(Change { put_instances: vec![(key.clone(), record.clone())], ..Change::default() })?;
        state.instances.insert(key, record);
        Ok(())
    }

    /// Removes an instance. Returns whether it existed.
    pub fn remove_instance(&self, key: &DeploymentKey) -> Result<bool, StoreError> {
        let mut state = self.lock();
        if !state.instances.contains_key(key) {
            return Ok(false);
        }
        state.apply(Change { drop_instances: vec![key.clone()], ..Change::default() })?;
        Ok(state.instances.remove(key).is_some())
    }

    /// All instances with their records, by tenant and name.
    pub fn instances(&self) -> Vec<(DeploymentKey, String)> {
        self.lock().instances.iter().map(|(key, record)| (key.clone(), record.clone())).collect()
    }
}
