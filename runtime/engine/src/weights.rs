//! Constants in device memory, shared by all functions whose weights are equal.

use crate::memory::{Allocation, Memory};
use atoll_core::DeviceOffset;
use std::collections::BTreeMap;

/// Constants by the digest of their content.
#[derive(Debug, Default)]
pub(crate) struct Weights(BTreeMap<String, Shared>);

#[derive(Debug)]
struct Shared {
    allocation: Allocation,
    users: usize,
}

impl Weights {
    /// One more user of weights that are there.
    pub(crate) fn share(&mut self, digest: &str) -> Option<DeviceOffset> {
        let shared = self.0.get_mut(digest)?;
        shared.users += 1;
        Some(shared.allocation.offset())
    }

    /// Weights that were written, with their first user.
    pub(crate) fn insert(&mut self, digest: &str, allocation: Allocation) {
        let old = self.0.insert(digest.into(), Shared { allocation, users: 1 });
        assert!(old.is_none(), "weights are loaded once");
    }

    /// One user less; the last one gives the memory back.
    pub(crate) fn release(&mut self, digest: &str, memory: &mut Memory) {
        let shared = self.0.get_mut(digest).expect("weights in use are there");
        shared.users -= 1;
        if shared.users == 0
            && let Some(shared) = self.0.remove(digest)
        {
            memory.free(shared.allocation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_user_gives_the_memory_back() {
        let (mut weights, mut memory) = (Weights::default(), Memory::new(1 << 20));
        assert_eq!(weights.share("a"), None);
        let allocation = memory.allocate(1000).expect("room");
        let offset = allocation.offset();
        weights.insert("a", allocation);
        assert_eq!(weights.share("a"), Some(offset));
        weights.release("a", &mut memory);
        assert_eq!(memory.used(), 1024);
        weights.release("a", &mut memory);
        assert_eq!((memory.used(), weights.share("a")), (0, None));
    }
}
