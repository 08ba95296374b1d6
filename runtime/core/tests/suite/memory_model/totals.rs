//! Event counts of simulated runs.

use std::ops::AddAssign;

/// Event counts, to check that the scenarios cover enough.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) completed: u64,
    pub(crate) cold: u64,
    pub(crate) reclaimed: u64,
    pub(crate) made_cold: u64,
    pub(crate) reserve_failed: u64,
    pub(crate) clear_failed: u64,
    pub(crate) free_failed: u64,
    pub(crate) write_failed: u64,
    pub(crate) unmapped: u64,
    pub(crate) lost: u64,
    pub(crate) reused: u64,
    pub(crate) refused: u64,
    pub(crate) over_quota: u64,
    pub(crate) device_lost: u64,
    pub(crate) resumed: u64,
    pub(crate) expired: u64,
    pub(crate) saved: u64,
    pub(crate) released: u64,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, o: Totals) {
        let pairs = [
            (&mut self.completed, o.completed),
            (&mut self.cold, o.cold),
            (&mut self.reclaimed, o.reclaimed),
            (&mut self.made_cold, o.made_cold),
            (&mut self.reserve_failed, o.reserve_failed),
            (&mut self.clear_failed, o.clear_failed),
            (&mut self.free_failed, o.free_failed),
            (&mut self.write_failed, o.write_failed),
            (&mut self.unmapped, o.unmapped),
            (&mut self.lost, o.lost),
            (&mut self.reused, o.reused),
            (&mut self.refused, o.refused),
            (&mut self.over_quota, o.over_quota),
            (&mut self.device_lost, o.device_lost),
            (&mut self.resumed, o.resumed),
            (&mut self.expired, o.expired),
            (&mut self.saved, o.saved),
            (&mut self.released, o.released),
        ];
        for (sum, more) in pairs {
            *sum += more;
        }
    }
}
