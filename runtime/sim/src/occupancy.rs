//! Which client used which compute units when, for plots.

use crate::model::Kernel;
use atoll_core::{Nanos, TaskId};
use std::ops::Range;
use std::sync::Arc;

/// A group of blocks that started together, and the compute units that it used.
#[derive(Clone, Debug, PartialEq)]
pub struct Occupied {
    /// Index of the client in the workload.
    pub client: usize,
    /// The name of the kernel.
    pub kernel: String,
    /// The number of blocks.
    pub blocks: u32,
    /// Ranges of compute units, counted from the first one. Fractions are shared with other groups.
    pub units: Vec<Range<f64>>,
    /// When the blocks started.
    pub began: Nanos,
    /// When the blocks ended.
    pub ended: Nanos,
    /// Whether the blocks were stopped, to run again later.
    pub was_stopped: bool,
    /// Whether the blocks were padding of a real-time launch.
    pub is_padding: bool,
}

/// A group of blocks as the device records it.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) task: TaskId,
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) blocks: u32,
    /// The capacity used, in subdivisions of a compute unit.
    pub(crate) parts: u64,
    pub(crate) began: Nanos,
    pub(crate) ended: Nanos,
    pub(crate) was_stopped: bool,
    pub(crate) is_padding: bool,
}

/// Assigns each group the lowest free compute units. The simulation only knows how many compute
/// units a group used, not which.
pub(crate) fn place(mut groups: Vec<Group>) -> Vec<(Group, Vec<Range<u64>>)> {
    groups.sort_by_key(|group| (group.began, group.ended));
    let mut busy: Vec<(Nanos, Range<u64>)> = Vec::new();
    let mut placed = Vec::with_capacity(groups.len());
    for group in groups {
        busy.retain(|(until, _)| *until > group.began);
        busy.sort_by_key(|(_, taken)| taken.start);
        let (mut left, mut at, mut pieces) = (group.parts, 0, Vec::new());
        for (_, taken) in &busy {
            let free = taken.start.saturating_sub(at).min(left);
            if free > 0 {
                pieces.push(at..at + free);
                left -= free;
            }
            at = at.max(taken.end);
        }
        if left > 0 {
            pieces.push(at..at + left);
        }
        busy.extend(pieces.iter().map(|piece| (group.ended, piece.clone())));
        placed.push((group, pieces));
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::LaunchProfile;

    fn kernel() -> Arc<Kernel> {
        Arc::new(Kernel { name: "k".into(), profile: LaunchProfile::new(1, [1]) })
    }

    fn group(parts: u64, began: u64, ended: u64) -> Group {
        Group {
            task: TaskId(0),
            kernel: kernel(),
            blocks: 1,
            parts,
            began: Nanos(began),
            ended: Nanos(ended),
            was_stopped: false,
            is_padding: false,
        }
    }

    #[test]
    fn groups_at_one_time_have_places_of_their_own() {
        let placed = place(vec![group(4, 0, 10), group(3, 0, 5), group(2, 5, 9), group(3, 6, 9), group(9, 10, 11)]);
        let pieces: Vec<Vec<(u64, u64)>> =
            placed.iter().map(|(_, pieces)| pieces.iter().map(|piece| (piece.start, piece.end)).collect()).collect();
        // The shorter of the first two groups is placed first, and later groups take the place that
        // it leaves.
        assert_eq!(pieces, [vec![(0, 3)], vec![(3, 7)], vec![(0, 2)], vec![(2, 3), (7, 9)], vec![(0, 9)]]);
        for (at, (group, pieces)) in placed.iter().enumerate() {
            assert_eq!(pieces.iter().map(|piece| piece.end - piece.start).sum::<u64>(), group.parts);
            for (other, others) in placed[..at].iter().filter(|(other, _)| other.ended > group.began) {
                let meet = pieces.iter().any(|a| others.iter().any(|b| a.start < b.end && b.start < a.end));
                assert!(!meet, "{group:?} and {other:?}");
            }
        }
    }
}
