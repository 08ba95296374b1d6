//! Values that belong to a context. NVIDIA's runtime keeps its state for a context there, and frees
//! it when the context is destroyed.

use atoll_cuda_api::types::{CUcontext, c_void};
use std::collections::BTreeMap;

/// A function of the program that frees a value: of the context, the key and the value.
pub(crate) type Destructor = extern "C" fn(CUcontext, *mut c_void, *mut c_void);

/// A value. The key and the value are addresses of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value {
    pub(crate) key: u64,
    pub(crate) value: u64,
    pub(crate) destructor: Option<Destructor>,
}

impl Value {
    /// Frees the value of a context, if the program passed a function for that.
    pub(crate) fn free(self, context: CUcontext) {
        let pointer = |address: u64| std::ptr::with_exposed_provenance_mut(address as usize);
        if let Some(destructor) = self.destructor {
            destructor(context, pointer(self.key), pointer(self.value));
        }
    }
}

/// All values, by the numbers of their contexts and their keys.
#[derive(Debug, Default)]
pub(crate) struct Storage(BTreeMap<(u32, u64), Value>);

impl Storage {
    pub(crate) fn put(&mut self, context: u32, value: Value) {
        self.0.insert((context, value.key), value);
    }

    pub(crate) fn get(&self, context: u32, key: u64) -> Option<u64> {
        self.0.get(&(context, key)).map(|value| value.value)
    }

    pub(crate) fn remove(&mut self, context: u32, key: u64) -> bool {
        self.0.remove(&(context, key)).is_some()
    }

    /// Removes all values of a context.
    pub(crate) fn take(&mut self, context: u32) -> Vec<Value> {
        let values: Vec<Value> = self.0.range((context, 0)..=(context, u64::MAX)).map(|(_, value)| *value).collect();
        self.0.retain(|(of, _), _| *of != context);
        values
    }
}
