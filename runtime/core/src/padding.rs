//! Dynamic kernel padding: which best-effort blocks run beside a real-time launch (REEF §5.2).
//!
//! A real-time launch gets the compute units it needs to be as fast as with all of them. The others
//! are filled with blocks of best-effort launches that are over before it is (rule 1) and do not
//! lower how many of its blocks a compute unit holds (rule 2). REEF's published code takes one
//! best-effort launch; here several share what is left.

use crate::limits::{PADS_MAX, SHARED_PARAMS_BYTES_MAX};
use std::sync::Arc;

/// What is known about a launch by profiling it on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchProfile {
    /// Its blocks, at least one.
    pub blocks: u32,
    /// `wave_ns[j]`: how long a wave takes with j + 1 blocks on each compute unit, in nanoseconds.
    /// Not empty; its length is how many fit.
    pub wave_ns: Arc<[u64]>,
    /// The module in which it can share launches with others of the same number.
    pub module: u32,
    /// Bytes of its arguments there.
    pub params_bytes: u32,
}

impl LaunchProfile {
    /// That of a launch which can share one with every other of its kind, as in simulation.
    pub fn new(blocks: u32, wave_ns: impl Into<Arc<[u64]>>) -> LaunchProfile {
        LaunchProfile { blocks, wave_ns: wave_ns.into(), module: 0, params_bytes: 0 }
    }

    /// Blocks of it that fit on one compute unit.
    pub fn occupancy(&self) -> u32 {
        self.wave_ns.len() as u32
    }

    /// How long it runs with so many compute units to itself, in nanoseconds.
    pub fn alone_ns(&self, compute_units: u32) -> u64 {
        let wave = u64::from(self.occupancy()) * u64::from(compute_units);
        let (full, rest) = (u64::from(self.blocks) / wave, u64::from(self.blocks) % wave);
        let last = if rest == 0 { 0 } else { self.wave_ns[rest.div_ceil(u64::from(compute_units)) as usize - 1] };
        full * self.wave_ns[self.wave_ns.len() - 1] + last
    }

    /// Compute units without which it takes longer: its blocks come in layers of one for each
    /// compute unit, and the last layer may leave some out of all of them.
    fn needed_units(&self, compute_units: u32) -> u32 {
        self.blocks.div_ceil(self.layers(compute_units))
    }

    /// What its arguments take beside others.
    fn params_room(&self) -> u32 {
        self.params_bytes.next_multiple_of(16)
    }

    fn layers(&self, compute_units: u32) -> u32 {
        self.blocks.div_ceil(compute_units)
    }
}

/// Blocks that run beside a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PadShape {
    /// How many.
    pub blocks: u32,
    /// On how many compute units of their own.
    pub compute_units: u32,
    /// How many of them at a time on each of these.
    pub at_once: u32,
}

/// Chooses pads for a launch.
#[derive(Debug)]
pub struct Padding {
    /// How long the launch takes, and with it all of its pads.
    limit_ns: u64,
    /// Blocks of the launch that have to fit on one compute unit.
    occupancy_min: u32,
    /// Blocks that fit on one compute unit, whosever they are.
    occupancy: u32,
    /// Compute units that nobody has.
    spare: u32,
    /// Bytes for arguments that nobody has.
    room: u32,
    module: u32,
    pads: usize,
}

impl Padding {
    /// For a launch on a device of so many compute units.
    pub fn of(launch: &LaunchProfile, compute_units: u32) -> Padding {
        Padding {
            limit_ns: launch.alone_ns(compute_units),
            occupancy_min: launch.occupancy().min(launch.layers(compute_units)),
            occupancy: launch.occupancy(),
            spare: compute_units - launch.needed_units(compute_units),
            room: SHARED_PARAMS_BYTES_MAX.saturating_sub(launch.params_room()),
            module: launch.module,
            pads: 0,
        }
    }

    /// Whether another pad may be found.
    pub fn has_room(&self) -> bool {
        self.spare > 0 && self.pads < PADS_MAX
    }

    /// How much of a launch, the first blocks of which were padding before, runs beside this one;
    /// `None` if nothing of it may.
    pub fn take(&mut self, candidate: &LaunchProfile, done: u32) -> Option<PadShape> {
        let occupancy = self.occupancy.min(candidate.occupancy());
        let is_shut_out = candidate.module != self.module || candidate.params_room() > self.room;
        if !self.has_room() || is_shut_out || occupancy < self.occupancy_min {
            return None;
        }
        let waves = &candidate.wave_ns[..occupancy as usize];
        let at_once = waves.iter().rposition(|ns| *ns <= self.limit_ns)? + 1;
        let rounds = self.limit_ns / waves[at_once - 1].max(1);
        let on_each = (at_once as u64 * rounds).min(u64::from(u32::MAX)) as u32;
        let blocks = (candidate.blocks - done).min(on_each.saturating_mul(self.spare));
        let compute_units = blocks.div_ceil(on_each);
        self.spare -= compute_units;
        self.occupancy = occupancy;
        self.room -= candidate.params_room();
        self.pads += 1;
        Some(PadShape { blocks, compute_units, at_once: at_once as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(blocks: u32, wave_ns: &[u64]) -> LaunchProfile {
        LaunchProfile::new(blocks, wave_ns)
    }

    #[test]
    fn the_last_wave_is_as_full_as_what_is_left() {
        let alone = |blocks| profile(blocks, &[10, 12, 15]).alone_ns(4);
        assert_eq!([1, 4, 5, 8, 9, 12].map(alone), [10, 10, 12, 12, 15, 15]);
        assert_eq!([13, 24, 25, 36 + 8].map(alone), [25, 30, 40, 57]);
    }

    #[test]
    fn pads_end_before_the_launch_and_fill_what_it_leaves() {
        // 70 blocks on 60 compute units are two layers, for which 35 do.
        let launch = profile(70, &[100, 120]);
        let mut padding = Padding::of(&launch, 60);
        // Two at a time take 60 ns: two rounds in 120.
        let pad = padding.take(&profile(1000, &[40, 60, 90]), 0).expect("it fits");
        assert_eq!(pad, PadShape { blocks: 25 * 2 * 2, compute_units: 25, at_once: 2 });
        assert!(!padding.has_room());
        // One at a time where two take too long, and what is left of a launch that was padding before.
        let pad = Padding::of(&launch, 60).take(&profile(30, &[110, 130]), 10).expect("it fits");
        assert_eq!(pad, PadShape { blocks: 20, compute_units: 20, at_once: 1 });
    }

    #[test]
    fn several_share_what_is_left() {
        let mut padding = Padding::of(&profile(10, &[100]), 60);
        let small = profile(20, &[100]);
        assert_eq!(padding.take(&small, 0).map(|pad| pad.compute_units), Some(20));
        assert_eq!(padding.take(&small, 0).map(|pad| pad.compute_units), Some(20));
        assert_eq!(padding.take(&small, 0).map(|pad| (pad.compute_units, pad.blocks)), Some((10, 10)));
        assert_eq!(padding.take(&small, 0), None);
    }

    #[test]
    fn only_what_is_in_one_module_and_fits_shares_a_launch() {
        let launch = LaunchProfile { params_bytes: 100, module: 3, ..profile(1, &[100]) };
        let candidate = |module, params_bytes| LaunchProfile { module, params_bytes, ..profile(4, &[10]) };
        assert!(Padding::of(&launch, 60).take(&candidate(3, 200), 0).is_some());
        assert_eq!(Padding::of(&launch, 60).take(&candidate(2, 200), 0), None, "another module");
        let mut padding = Padding::of(&launch, 60);
        assert!(padding.take(&candidate(3, 200), 0).is_some());
        assert_eq!(padding.take(&candidate(3, 200), 0), None, "448 bytes hold 112 + 208 + 128");
        assert!(padding.take(&candidate(3, 128), 0).is_some());
    }

    #[test]
    fn what_would_slow_the_launch_down_stays_out() {
        assert_eq!(Padding::of(&profile(10, &[100]), 60).take(&profile(10, &[101]), 0), None, "rule 1");
        // Three layers, three at a time: a candidate of which two fit would leave a compute unit with two.
        let launch = profile(150, &[100, 110, 120]);
        assert_eq!(Padding::of(&launch, 60).take(&profile(10, &[10, 10]), 0), None, "rule 2");
        assert!(
            Padding::of(&profile(50, &[100, 110, 120]), 60).take(&profile(10, &[10, 10]), 0).is_some(),
            "one layer needs no room for three"
        );
        assert_eq!(Padding::of(&profile(120, &[100]), 60).take(&profile(10, &[10]), 0), None, "nothing is left");
    }
}
