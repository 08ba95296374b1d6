//! Calls that follow the answers to calls of other clients ([`crate::Load::After`]).

use crate::disb::{Client, predecessors};
use crate::error::SimError;
use std::collections::{BTreeMap, VecDeque};

/// The answers that dependent clients wait for.
///
/// Calls have serial numbers: those of independent clients are counted, and a dependent call has
/// the number of the calls that it follows.
#[derive(Debug, Default)]
pub(super) struct Dependents {
    /// The clients that follow each client.
    followers: Vec<Vec<usize>>,
    /// How many clients each client follows.
    needed: Vec<usize>,
    /// How many answers each client has, by serial number, as long as some are missing.
    arrived: Vec<BTreeMap<u64, usize>>,
    /// The serial numbers of calls of each client that are due.
    due: Vec<VecDeque<u64>>,
}

impl Dependents {
    /// The dependencies of some clients.
    pub(super) fn new(clients: &[Client]) -> Result<Dependents, SimError> {
        let predecessors = predecessors(clients).map_err(SimError::Dependency)?;
        let mut followers = vec![Vec::new(); clients.len()];
        for (client, of) in predecessors.iter().enumerate() {
            of.iter().for_each(|&predecessor| followers[predecessor].push(client));
        }
        Ok(Dependents {
            followers,
            needed: predecessors.iter().map(Vec::len).collect(),
            arrived: vec![BTreeMap::new(); clients.len()],
            due: vec![VecDeque::new(); clients.len()],
        })
    }

    /// The serial number of a call that is due. `count` is the number of earlier calls of its
    /// client.
    pub(super) fn serial(&mut self, client: usize, count: u64) -> u64 {
        self.due[client].pop_front().unwrap_or(count)
    }

    /// Notes an answer. Returns the clients whose next call is due: all calls that it follows have
    /// been answered. Earlier calls that still miss an answer are given up, as DISB does.
    pub(super) fn answered(&mut self, client: usize, serial: u64) -> Vec<usize> {
        let Dependents { followers, needed, arrived, due } = self;
        let mut ready = Vec::new();
        for &follower in &followers[client] {
            let answers = arrived[follower].entry(serial).or_default();
            *answers += 1;
            if *answers == needed[follower] {
                arrived[follower] = arrived[follower].split_off(&(serial + 1));
                due[follower].push_back(serial);
                ready.push(follower);
            }
        }
        ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disb::Load;
    use atoll_core::Class;

    #[test]
    fn a_call_waits_for_all_answers_of_its_number() {
        let client = |id: &str, load| Client { id: id.into(), class: Class::BestEffort, model: "m".into(), load };
        let after = |ids: &[&str]| Load::After(ids.iter().map(|id| (*id).to_owned()).collect());
        let clients = [client("a", Load::Continuous), client("b", Load::Continuous), client("c", after(&["a", "b"]))];
        let mut dependents = Dependents::new(&clients).expect("no circle");
        assert!(dependents.answered(0, 0).is_empty() && dependents.answered(0, 1).is_empty());
        assert_eq!(dependents.answered(1, 1), [2], "both answers of call 1 are there");
        assert!(dependents.answered(1, 0).is_empty(), "call 0 was given up");
        assert_eq!((dependents.serial(2, 0), dependents.serial(0, 2)), (1, 2));
    }
}
