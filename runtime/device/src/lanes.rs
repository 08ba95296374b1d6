//! Lanes: groups of device queues that are bound to a set of compute units.

use crate::error::DeviceError;
use crate::link::LinkShape;
use atoll_core::{LaneId, QueueId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The sets of compute units that a lane of the device may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LaneUnits {
    /// None: the device cannot be divided into lanes.
    #[default]
    None,
    /// Any set.
    Any,
    /// A range that begins and ends at multiples of `step`, because the device assigns compute
    /// units in groups.
    Ranges {
        /// Size of a group.
        step: u32,
    },
}

/// The description of a lane to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneSpec {
    /// The compute units that run blocks of its queues, by index; see [`LaneUnits`]. Not empty.
    /// Lanes may share compute units: a shared unit serves the first queues of both lanes before
    /// their second ones.
    pub units: Vec<u32>,
    /// Device queues for tasks; the first is the most urgent of the lane. If the lane has several
    /// compute units and enough queues are free, it gets as many paired queues in addition.
    pub queues: u32,
}

/// An open lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Its id, for [`Lanes::close_lane`].
    pub id: LaneId,
    /// The device queues that belong to it.
    pub queues: Range<u32>,
    /// Whether the second half of them are the paired queues of the first; see
    /// [`crate::DeviceInfo::paired_queues`].
    pub paired_queues: bool,
}

impl Lane {
    /// Whether a device queue belongs to it.
    pub fn has(&self, queue: QueueId) -> bool {
        self.queues.contains(&queue.0)
    }
}

/// Divides the compute units of a device into lanes. A device that cannot be divided uses the
/// defaults: all its queues and compute units form one lane, [`LaneId::DEFAULT`].
///
/// The default lane keeps its queues, [`crate::DeviceInfo::queues`] and their paired queues, and
/// all compute units. Other lanes get queues beyond these.
pub trait Lanes {
    /// Opens a lane.
    ///
    /// # Errors
    /// [`DeviceError::Lanes`] if the device cannot be divided, has no such compute units, or has
    /// too few free queues.
    fn open_lane(&mut self, _spec: &LaneSpec) -> Result<Lane, DeviceError> {
        Err(DeviceError::Lanes("this device cannot be divided into lanes".to_owned()))
    }

    /// Closes a lane whose queues hold no launches.
    ///
    /// # Errors
    /// [`DeviceError::Lanes`] if there is no such lane or one of its queues holds launches.
    fn close_lane(&mut self, lane: LaneId) -> Result<(), DeviceError> {
        Err(DeviceError::Lanes(format!("there is no lane {}: this device cannot be divided into lanes", lane.0)))
    }
}

/// The open lanes of a device and its free queues. All checks of lanes are here.
#[derive(Clone, Debug)]
pub struct LaneTable {
    shape: LinkShape,
    compute_units: u32,
    can_have: LaneUnits,
    open: BTreeMap<LaneId, (Lane, Vec<u32>)>,
    /// The next lane id; all ids so far are lower.
    next: u32,
}

impl LaneTable {
    /// The default lane only, on a device with rings of this shape and this many compute units.
    pub fn new(shape: LinkShape, compute_units: u32, can_have: LaneUnits) -> LaneTable {
        LaneTable { shape, compute_units, can_have, open: BTreeMap::new(), next: LaneId::DEFAULT.0 + 1 }
    }

    /// Opens a lane with a new id and free queues.
    ///
    /// # Errors
    /// [`DeviceError::Lanes`] with the reason; the table is unchanged.
    pub fn open(&mut self, spec: &LaneSpec) -> Result<Lane, DeviceError> {
        let LaneSpec { units, queues } = spec;
        let count = self.compute_units;
        if self.can_have == LaneUnits::None {
            return Err(refused("this device cannot be divided into lanes".to_owned()));
        }
        if units.is_empty() {
            return Err(refused("a lane needs at least one compute unit".to_owned()));
        }
        if let Some(unit) = units.iter().find(|&&unit| unit >= count) {
            return Err(refused(format!("there is no compute unit {unit}; the device has {count}, numbered from 0")));
        }
        let mut seen = BTreeSet::new();
        if let Some(unit) = units.iter().find(|&&unit| !seen.insert(unit)) {
            return Err(refused(format!("compute unit {unit} is listed twice")));
        }
        if let LaneUnits::Ranges { step } = self.can_have {
            let (first, last) = (seen.first().copied().unwrap_or(0), seen.last().copied().unwrap_or(0));
            let is_range = (last - first + 1) as usize == seen.len();
            if !is_range || first % step != 0 || (last + 1) % step != 0 {
                let end = count - count % step;
                return Err(refused(format!(
                    "the compute units of a lane must be a range that begins and ends at multiples of {step}, \
                     up to {end}; {first} to {last} is not"
                )));
            }
        }
        if *queues == 0 {
            return Err(refused("a lane needs at least one device queue".to_owned()));
        }
        let with_paired_queues = queues
            .checked_mul(2)
            .filter(|_| self.shape.paired_queues && units.len() > 1)
            .and_then(|both| self.free_range(both));
        let paired_queues = with_paired_queues.is_some();
        let queues = with_paired_queues.or_else(|| self.free_range(*queues)).ok_or_else(|| {
            let (all, taken) =
                (self.shape.lane_queues, self.open.values().map(|(lane, _)| lane.queues.len()).sum::<usize>());
            refused(format!("no {queues} device queues in a row are free; {taken} of {all} for lanes are taken"))
        })?;
        let lane = Lane { id: LaneId(self.next), queues, paired_queues };
        self.next += 1;
        self.open.insert(lane.id, (lane.clone(), units.clone()));
        Ok(lane)
    }

    /// An open lane.
    ///
    /// # Errors
    /// [`DeviceError::Lanes`] if there is no lane with this id, or it is the default lane.
    pub fn find(&self, lane: LaneId) -> Result<&Lane, DeviceError> {
        if lane == LaneId::DEFAULT {
            return Err(refused("the default lane cannot be closed".to_owned()));
        }
        self.open.get(&lane).map(|(lane, _)| lane).ok_or_else(|| refused(format!("there is no lane {}", lane.0)))
    }

    /// Closes a lane that [`LaneTable::find`] returned, and frees its queues.
    pub fn close(&mut self, lane: LaneId) {
        self.open.remove(&lane);
    }

    /// The open lanes without the default one, with their compute units.
    pub fn iter(&self) -> impl Iterator<Item = (&Lane, &[u32])> {
        self.open.values().map(|(lane, units)| (lane, &units[..]))
    }

    /// The first range of `count` free queues.
    fn free_range(&self, count: u32) -> Option<Range<u32>> {
        let mut taken: Vec<&Range<u32>> = self.open.values().map(|(lane, _)| &lane.queues).collect();
        taken.sort_by_key(|queues| queues.start);
        let mut begin = self.shape.own_queues();
        for queues in taken {
            if queues.start - begin >= count {
                break;
            }
            begin = queues.end;
        }
        let end = begin.checked_add(count)?;
        (end <= self.shape.all_queues()).then_some(begin..end)
    }
}

fn refused(why: String) -> DeviceError {
    DeviceError::Lanes(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> LaneTable {
        LaneTable::new(
            LinkShape { queues: 2, paired_queues: false, lane_queues: 6, capacity: 1, compute_units: 4 },
            4,
            LaneUnits::Any,
        )
    }

    fn spec(units: &[u32], queues: u32) -> LaneSpec {
        LaneSpec { units: units.to_vec(), queues }
    }

    #[test]
    fn queues_are_assigned_once_and_reused_after_their_lane_is_closed() {
        let mut table = table();
        let lanes = [1, 2, 2].map(|queues| table.open(&spec(&[0], queues)).expect("there are queues"));
        assert_eq!(lanes.each_ref().map(|lane| (lane.id.0, lane.queues.clone())), [(1, 2..3), (2, 3..5), (3, 5..7)]);
        table.close(LaneId(2));
        assert_eq!(
            table.open(&spec(&[1], 3)).expect_err("refused").to_string(),
            table.open(&spec(&[1], 3)).expect_err("refused").to_string()
        );
        assert_eq!(table.open(&spec(&[1], 2)).expect("the queues of lane 2").queues, 3..5);
        assert_eq!(
            table.open(&spec(&[1], 1)).expect("the last one"),
            Lane { id: LaneId(5), queues: 7..8, paired_queues: false }
        );
    }

    #[test]
    fn a_lane_of_several_compute_units_has_paired_queues_while_there_are_queues() {
        let shape = LinkShape { queues: 2, paired_queues: true, lane_queues: 7, capacity: 1, compute_units: 4 };
        let mut table = LaneTable::new(shape, 4, LaneUnits::Any);
        let lanes = [&[0, 1][..], &[2], &[2, 3]]
            .map(|units| table.open(&spec(units, 2)).map(|lane| (lane.queues, lane.paired_queues)).ok());
        assert_eq!(lanes, [Some((4..8, true)), Some((8..10, false)), None]);
        assert_eq!(
            table.open(&spec(&[2, 3], 1)).map(|lane| (lane.queues, lane.paired_queues)).expect("one is left"),
            (10..11, false)
        );
    }

    #[test]
    fn impossible_lanes_are_refused_with_a_reason() {
        let mut table = table();
        let mut refused = |units: &[u32], queues| match table.open(&spec(units, queues)) {
            Err(DeviceError::Lanes(why)) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(&[], 1), "a lane needs at least one compute unit");
        assert_eq!(refused(&[0, 4], 1), "there is no compute unit 4; the device has 4, numbered from 0");
        assert_eq!(refused(&[1, 1], 1), "compute unit 1 is listed twice");
        assert_eq!(refused(&[1], 0), "a lane needs at least one device queue");
        assert_eq!(refused(&[1], 7), "no 7 device queues in a row are free; 0 of 6 for lanes are taken");
        assert_eq!(
            refused(&[1], u32::MAX),
            "no 4294967295 device queues in a row are free; 0 of 6 for lanes are taken"
        );
        let shape = LinkShape { queues: 2, paired_queues: false, lane_queues: 6, capacity: 1, compute_units: 0 };
        let mut pairs = LaneTable::new(shape, 7, LaneUnits::Ranges { step: 2 });
        for units in [&[0][..], &[1, 2], &[0, 1, 4, 5], &[0, 1, 2], &[6]] {
            let why = pairs.open(&spec(units, 1)).expect_err("refused").to_string();
            assert!(why.contains("a range that begins and ends at multiples of 2, up to 6"), "{units:?}: {why}");
        }
        pairs.open(&spec(&[5, 4, 3, 2], 1)).expect("two pairs, in any order");
        let none = LaneTable::new(shape, 7, LaneUnits::None).open(&spec(&[0], 1)).expect_err("refused").to_string();
        assert!(none.contains("this device cannot be divided into lanes"), "{none}");
        let unknown = |lane| table.find(LaneId(lane)).expect_err("refused").to_string();
        assert!(unknown(0).contains("the default lane cannot be closed") && unknown(9).contains("there is no lane 9"));
    }
}
