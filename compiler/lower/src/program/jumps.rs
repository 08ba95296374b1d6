//! Jumps that lead through empty blocks.

use super::{BlockId, ENTRY, EXIT, Program, Term};
use crate::graph::Graph;

impl Program {
    /// Redirects jumps to empty blocks to the block after them, and clears unreachable blocks.
    pub fn thread_jumps(&mut self) {
        let end = self.jump_destinations();
        for block in &mut self.blocks {
            match &mut block.term {
                Term::Goto(to) => *to = end[*to],
                // The successor of a barrier must stay a separate block, because it starts a
                // region.
                Term::Barrier { .. } | Term::Exit => {}
                Term::Branch { taken, other, .. } => {
                    (*taken, *other) = (end[*taken], end[*other]);
                    if taken == other {
                        block.term = Term::Goto(*taken);
                    }
                }
            }
        }
        let graph = Graph::new(self.successors());
        let reached = graph.reachable(&[ENTRY], None);
        for (block, _) in self.blocks.iter_mut().zip(reached).skip(ENTRY).filter(|(_, reached)| !reached) {
            block.insts.clear();
            block.term = Term::Goto(EXIT);
        }
    }

    /// For each block, the first block on the path from it that is not empty; in an empty endless
    /// loop, any of the blocks of the loop.
    fn jump_destinations(&self) -> Vec<BlockId> {
        let mut end: Vec<Option<BlockId>> = vec![None; self.blocks.len()];
        for block in 0..self.blocks.len() {
            let (mut at, mut way) = (block, Vec::new());
            let landing = loop {
                match (end[at], &self.blocks[at].term) {
                    (Some(known), _) => break known,
                    (None, Term::Goto(next)) if self.blocks[at].insts.is_empty() => {
                        // The path leads back here: the loop is empty and endless, and jumps into
                        // it lead to this block.
                        end[at] = Some(at);
                        way.push(at);
                        at = *next;
                    }
                    _ => break at,
                }
            };
            end[at] = Some(landing);
            way.into_iter().for_each(|passed| end[passed] = Some(landing));
        }
        end.into_iter().enumerate().map(|(block, end)| end.unwrap_or(block)).collect()
    }
}
