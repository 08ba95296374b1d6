//! The group with the most waiting requests.

use crate::placement::GroupId;
use crate::placement::id_set::Id;

/// Groups by their number of waiting requests: a tournament, in which the group with more of them
/// wins, and of equal ones the one with the lower id. A change takes time proportional to the
/// logarithm of the highest id, and less if other groups have more.
#[derive(Default)]
pub(super) struct Deepest {
    /// For each group one more than its waiting requests; 0 if it takes no part. A power of two of
    /// them, or none.
    entries: Vec<usize>,
    /// The winner of each match. The final is at 1; the match at `n` is between the winners at `2n`
    /// and `2n + 1`, and the first matches are between groups with consecutive ids.
    winners: Vec<u32>,
}

impl Deepest {
    /// Adds a group, or changes its number of waiting requests.
    pub(super) fn set(&mut self, group: GroupId, waiting: usize) {
        let at = group.index();
        if at >= self.entries.len() {
            self.entries.resize((at + 1).next_power_of_two().max(2), 0);
            self.winners = vec![0; self.entries.len()];
            (1..self.winners.len()).rev().for_each(|round| self.winners[round] = self.winner(round));
        }
        self.entries[at] = waiting + 1;
        let mut round = (self.entries.len() + at) / 2;
        while round > 0 {
            let winner = self.winner(round);
            let former = std::mem::replace(&mut self.winners[round], winner);
            if former == winner && winner as usize != at {
                // The later matches are as before.
                break;
            }
            round /= 2;
        }
    }

    fn winner(&self, round: usize) -> u32 {
        let of = |side: usize| match side.checked_sub(self.entries.len()) {
            Some(group) => group as u32,
            None => self.winners[side],
        };
        let (left, right) = (of(2 * round), of(2 * round + 1));
        if self.entries[right as usize] > self.entries[left as usize] { right } else { left }
    }

    /// The group with the most waiting requests, of equal ones the one with the lowest id, and their
    /// number. `None` if there are no groups.
    pub(super) fn first(&self) -> Option<(GroupId, usize)> {
        let &winner = self.winners.get(1)?;
        Some((GroupId(winner), self.entries[winner as usize].checked_sub(1)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use std::cmp::Reverse;
    use std::collections::BTreeMap;

    #[test]
    fn the_deepest_group_is_found_as_by_a_scan() {
        let mut rng = Rng::new(1);
        for groups in [1, 2, 5, 64, 300] {
            let (mut deepest, mut model) = (Deepest::default(), BTreeMap::new());
            assert_eq!(deepest.first(), None);
            for _ in 0..2000 {
                let (group, waiting) = (GroupId(rng.below(groups) as u32), rng.below(9) as usize);
                deepest.set(group, waiting);
                model.insert(group, waiting);
                let first = model.iter().max_by_key(|(group, waiting)| (**waiting, Reverse(**group)));
                assert_eq!(deepest.first(), first.map(|(group, waiting)| (*group, *waiting)));
            }
        }
    }
}
