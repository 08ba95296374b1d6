//! Memory that graphs allocate.
//!
//! An allocation in a captured stream becomes a node. Its address is decided at the capture, and the
//! memory is taken from the session's then: it belongs to the graphs and executable graphs with the
//! node. A launch makes it live, and a node or a call of the program that frees it ends that. When no
//! graph with the node is left, the memory is freed, or if it is live, it becomes an allocation like
//! any other.

use crate::shim::Shim;
use atoll_session::Code;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// A share in memory of graphs: held by the nodes that allocate it.
#[derive(Debug)]
pub(crate) struct Share {
    /// The address of the memory.
    pub(crate) at: u64,
}

#[derive(Debug)]
struct Block {
    share: Weak<Share>,
    /// Whether a launch has allocated it and nothing has freed it since.
    is_live: bool,
}

/// All memory of graphs, by address.
#[derive(Debug, Default)]
pub(crate) struct GraphMemory(BTreeMap<u64, Block>);

impl GraphMemory {
    /// Whether an address is that of an allocation of a graph.
    pub(crate) fn holds(&self, at: u64) -> bool {
        self.0.contains_key(&at)
    }

    /// Returns an error unless an address is that of an allocation of a graph.
    pub(crate) fn check(&self, at: u64) -> Result<(), Code> {
        if self.holds(at) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    /// Forgets memory that no longer exists, since its context was destroyed.
    pub(crate) fn retain(&mut self, exists: impl Fn(u64) -> bool) {
        self.0.retain(|at, _| exists(*at));
    }

    /// Whether a launch has allocated it and nothing has freed it since.
    pub(crate) fn is_live(&self, at: u64) -> bool {
        self.0.get(&at).is_some_and(|block| block.is_live)
    }

    pub(crate) fn set_live(&mut self, at: u64, is_live: bool) {
        self.0.entry(at).and_modify(|block| block.is_live = is_live);
    }
}

impl Shim {
    /// Takes memory for a node that allocates.
    pub(crate) fn take_graph_memory(&mut self, context: u32, bytes: u64) -> Result<Arc<Share>, Code> {
        let at = self.client.allocate(context, bytes)?;
        let share = Arc::new(Share { at });
        self.graph_memory.0.insert(at, Block { share: Arc::downgrade(&share), is_live: false });
        Ok(share)
    }

    /// Frees the memory of graphs that are gone. What is live becomes an allocation of the program.
    pub(crate) fn sweep_graph_memory(&mut self) -> Result<(), Code> {
        let ended = self.graph_memory.0.iter().filter(|(_, block)| block.share.strong_count() == 0);
        let ended: Vec<(u64, bool)> = ended.map(|(at, block)| (*at, block.is_live)).collect();
        for (at, is_live) in ended {
            self.graph_memory.0.remove(&at);
            // Its context may have been destroyed, and the memory with it.
            if !is_live && self.client.find(at).is_some() {
                self.client.free(at)?;
            }
        }
        Ok(())
    }
}
