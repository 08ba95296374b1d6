//! Live variables: variables whose value may still be read.

use crate::limits::MAX_LIVE_PAIRS;

/// The lists of live variables would exceed [`MAX_LIVE_PAIRS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {MAX_LIVE_PAIRS} live registers, summed over the starts of all basic blocks")]
pub struct TooManyLive;

/// The nodes that read or write each variable.
#[derive(Clone, Debug)]
pub struct Mentions {
    /// Nodes that may read it before they write it.
    read_first: Vec<Vec<usize>>,
    /// Nodes that certainly write it.
    written: Vec<Vec<usize>>,
}

impl Mentions {
    /// No mentions yet of so many variables.
    pub fn new(variables: usize) -> Mentions {
        let none = vec![Vec::new(); variables];
        Mentions { read_first: none.clone(), written: none }
    }

    /// Adds a read. All mentions in a node are added in order, before those in the next node.
    pub fn read(&mut self, node: usize, variable: usize) {
        if self.written[variable].last() != Some(&node) && self.read_first[variable].last() != Some(&node) {
            self.read_first[variable].push(node);
        }
    }

    /// Adds a write that replaces the old value in any case.
    pub fn write(&mut self, node: usize, variable: usize) {
        if self.written[variable].last() != Some(&node) {
            self.written[variable].push(node);
        }
    }
}

/// The variables that are live at the start of each node.
///
/// Stored as one list per node: most variables live in few nodes, so bit sets over all variables
/// and all nodes would be far larger.
#[derive(Clone, Debug)]
pub struct Liveness {
    /// Sorted by variable.
    at_start: Vec<Vec<u32>>,
}

impl Liveness {
    /// Computes liveness, in time proportional to the number of pairs of a node and a live
    /// variable.
    ///
    /// # Errors
    /// Returns [`TooManyLive`] if the lists would need too much memory.
    pub fn of<P: Iterator<Item = usize>>(
        nodes: usize,
        mentions: Mentions,
        predecessors: impl Fn(usize) -> P,
    ) -> Result<Liveness, TooManyLive> {
        let Mentions { read_first, written } = mentions;
        let mut at_start: Vec<Vec<u32>> = vec![Vec::new(); nodes];
        // The last variable, among those processed so far, that each node certainly writes.
        let mut writes = vec![usize::MAX; nodes];
        let mut pairs = 0;
        for (variable, mut work) in read_first.into_iter().enumerate() {
            written[variable].iter().for_each(|&node| writes[node] = variable);
            while let Some(node) = work.pop() {
                if at_start[node].last() == Some(&(variable as u32)) {
                    continue;
                }
                at_start[node].push(variable as u32);
                pairs += 1;
                if pairs > MAX_LIVE_PAIRS {
                    return Err(TooManyLive);
                }
                work.extend(predecessors(node).filter(|&from| writes[from] != variable));
            }
        }
        Ok(Liveness { at_start })
    }

    /// Whether a variable is live at the start of a node.
    pub fn contains(&self, node: usize, variable: usize) -> bool {
        self.at_start[node].binary_search(&(variable as u32)).is_ok()
    }

    /// The variables that are live at the start of a node, sorted.
    pub fn at(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        self.at_start[node].iter().map(|&variable| variable as usize)
    }
}
