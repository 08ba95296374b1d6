//! The first source of a DPP instruction: which lane each lane reads.

use crate::text::{Dpp, DppControl};

/// The source of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    Lane(u32),
    Zero,
    /// The lane reads none and is not written.
    Nothing,
}

/// The lane that `lane` reads, if the pattern names one inside the wave.
fn source(control: DppControl, lane: u32, size: u32) -> Option<u32> {
    let (row, place) = (lane & !15, lane & 15);
    let shifted = |by: i32| {
        let place = place as i32 + by;
        (0..16).contains(&place).then(|| row + place as u32)
    };
    match control {
        DppControl::QuadPerm(quad) => Some(lane & !3 | u32::from(quad[(lane & 3) as usize] & 3)),
        DppControl::RowShl(by) => shifted(by.into()),
        DppControl::RowShr(by) => shifted(-i32::from(by)),
        DppControl::RowRor(by) => Some(row | place.wrapping_sub(by.into()) & 15),
        DppControl::WaveShl => Some(lane + 1).filter(|&l| l < size),
        DppControl::WaveShr => lane.checked_sub(1),
        DppControl::WaveRol => Some((lane + 1) % size),
        DppControl::WaveRor => Some((lane + size - 1) % size),
        DppControl::RowMirror => Some(row | (15 - place)),
        DppControl::RowHalfMirror => Some(lane & !7 | (7 - (lane & 7))),
        DppControl::RowBcast(15) => (lane >= 16).then(|| row - 1),
        DppControl::RowBcast(_) => (lane >= 32).then_some(31),
        DppControl::RowShare(by) => Some(row | u32::from(by & 15)),
        DppControl::RowXmask(by) => Some(row | place ^ u32::from(by & 15)),
        DppControl::Dpp8(eight) => Some(lane & !7 | u32::from(eight[(lane & 7) as usize] & 7)),
    }
}

impl Dpp {
    /// The source of `lane` in a wave of `size` lanes, of which those in `exec` are active.
    pub(crate) fn from(&self, lane: u32, size: u32, exec: u64) -> From {
        let enabled = self.row_mask >> (lane / 16) & 1 == 1 && self.bank_mask >> (lane / 4 % 4) & 1 == 1;
        if !enabled {
            return From::Nothing;
        }
        let active = |l: &u32| self.fetch_inactive || exec >> l & 1 == 1;
        let eight = matches!(self.control, DppControl::Dpp8(_));
        match source(self.control, lane, size).filter(active) {
            Some(lane) => From::Lane(lane),
            None if self.bound_ctrl || eight => From::Zero,
            None => From::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shifts_stay_in_their_row() {
        let dpp = |control| Dpp { control, row_mask: 15, bank_mask: 15, bound_ctrl: false, fetch_inactive: false };
        assert_eq!(dpp(DppControl::RowShr(1)).from(17, 64, u64::MAX), From::Lane(16));
        assert_eq!(dpp(DppControl::RowShr(1)).from(16, 64, u64::MAX), From::Nothing);
        assert_eq!(dpp(DppControl::RowRor(1)).from(16, 64, u64::MAX), From::Lane(31));
        assert_eq!(dpp(DppControl::RowBcast(15)).from(20, 64, u64::MAX), From::Lane(15));
        assert_eq!(dpp(DppControl::RowXmask(1)).from(20, 32, 0), From::Nothing);
    }
}
