//! Dynamic kernel padding: which best-effort blocks are co-scheduled with a real-time launch (REEF
//! §5.2).
//!
//! A real-time launch gets as many compute units as it needs to run as fast as on all of them. The
//! others are filled with blocks of best-effort launches that end before it does (rule 1) and do
//! not reduce how many of its blocks fit on a compute unit (rule 2). REEF's published code
//! co-schedules one best-effort launch; here several share the remaining compute units.
//!
//! # Registers
//! A padded launch runs in a dkp module whose entry has enough registers for all its kernels, so it
//! may fit fewer blocks on a compute unit than each kernel alone. The modules of a set are ordered
//! by registers, and each contains the kernels of the ones before it: a launch runs in the first
//! that contains all its kernels. Rule 2 applies to the occupancy there.
//!
//! # Longer blocks
//! With [`PaddingOptions::delay_permille`], blocks may also end after the launch, as long as the
//! launches of the real-time task together take at most that much longer.
//!
//! # Bandwidth
//! REEF's rules compare time and occupancy, so that blocks that need the memory's whole bandwidth
//! may slow a launch down. With [`PaddingOptions::bandwidth`], co-scheduled blocks get only as many
//! compute units as leave the launch its bandwidth.

use crate::ids::TaskId;
use crate::limits::{PADDING_MODULES_MAX, PADS_MAX, SHARED_PARAMS_BYTES_MAX};
use std::sync::Arc;

/// What profiling a launch on the device found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchProfile {
    /// Its blocks; at least one.
    pub blocks: u32,
    /// `wave_ns[j]` is the duration of a wave with j + 1 blocks on each compute unit, in
    /// nanoseconds. Not empty; its length is the occupancy.
    pub wave_ns: Arc<[u64]>,
    /// The set of dkp modules that have the kernel as a candidate. Only launches of one set can
    /// share a launch.
    pub set: u32,
    /// For each module of the set, from the fewest registers to the most: how many blocks fit on a
    /// compute unit with its registers, or 0 if the kernel is not in it. Missing modules count as
    /// 0, and modules beyond [`PADDING_MODULES_MAX`] are ignored.
    pub unit_blocks: Arc<[u32]>,
    /// Size of its arguments there, in bytes.
    pub params_bytes: u32,
    /// The part of the device's memory bandwidth that it uses while it runs alone, in thousandths;
    /// 0 if it is not known.
    pub bandwidth_permille: u32,
}

impl LaunchProfile {
    /// A profile in a module without a limit on registers, which can share a launch with all others
    /// like it. Without arguments. For simulation.
    pub fn new(blocks: u32, wave_ns: impl Into<Arc<[u64]>>) -> LaunchProfile {
        let unit_blocks = [u32::MAX].into();
        LaunchProfile { blocks, wave_ns: wave_ns.into(), set: 0, unit_blocks, params_bytes: 0, bandwidth_permille: 0 }
    }

    /// Blocks that fit on one compute unit.
    pub fn occupancy(&self) -> u32 {
        self.wave_ns.len() as u32
    }

    /// Duration on `compute_units` compute units without co-scheduled blocks, in nanoseconds.
    pub fn alone_ns(&self, compute_units: u32) -> u64 {
        let wave = u64::from(self.occupancy()) * u64::from(compute_units);
        let (full, rest) = (u64::from(self.blocks) / wave, u64::from(self.blocks) % wave);
        let last = if rest == 0 { 0 } else { self.wave_ns[rest.div_ceil(u64::from(compute_units)) as usize - 1] };
        full * self.wave_ns[self.wave_ns.len() - 1] + last
    }

    /// The fewest compute units on which it is as fast as on all. A layer is one block on each
    /// compute unit; the last layer may not need all of them.
    fn needed_units(&self, compute_units: u32) -> u32 {
        self.blocks.div_ceil(self.layers(compute_units))
    }

    /// The memory bandwidth that its blocks use on some of a device's compute units, in thousandths
    /// of the device's.
    pub fn bandwidth_on(&self, units: u32, of: u32) -> u32 {
        let used = u64::from(self.bandwidth_permille) * u64::from(units);
        u32::try_from(used.div_ceil(u64::from(of.max(1)))).unwrap_or(u32::MAX)
    }

    /// Aligned size of its arguments in a shared launch, in bytes.
    fn params_room(&self) -> u32 {
        self.params_bytes.next_multiple_of(16)
    }

    fn layers(&self, compute_units: u32) -> u32 {
        self.blocks.div_ceil(compute_units)
    }

    /// [`LaunchProfile::unit_blocks`], with zeros for missing modules.
    fn by_module(&self) -> [u32; PADDING_MODULES_MAX] {
        let mut all = [0; PADDING_MODULES_MAX];
        all.iter_mut().zip(&*self.unit_blocks).for_each(|(blocks, given)| *blocks = *given);
        all
    }
}

/// The shape of co-scheduled blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PadShape {
    /// Number of blocks.
    pub blocks: u32,
    /// Number of compute units they get.
    pub compute_units: u32,
    /// Blocks at a time on each of those compute units.
    pub at_once: u32,
}

impl PadShape {
    /// Time in nanoseconds that the blocks take, in consecutive rounds.
    pub fn ns(&self, profile: &LaunchProfile) -> u64 {
        let rounds = self.blocks.div_ceil((self.compute_units * self.at_once).max(1));
        let wave = profile.wave_ns.get(self.at_once.max(1) as usize - 1);
        u64::from(rounds) * wave.copied().unwrap_or(0)
    }
}

/// Options of padding. By default they are off, and the rules are REEF's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PaddingOptions {
    /// How much longer the launches of a real-time task may take because of co-scheduled blocks, in
    /// thousandths of their duration alone. 0: co-scheduled blocks end with their launch (rule 1).
    pub delay_permille: u32,
    /// Whether the launch and its co-scheduled blocks together may use at most the device's memory
    /// bandwidth. A kernel's use grows with its compute units. Kernels whose bandwidth is not known
    /// count as if they used none.
    pub bandwidth: bool,
}

/// The delay by padding that real-time tasks may still have.
#[derive(Debug, Default)]
pub(crate) struct PaddingDelay {
    pub(crate) options: PaddingOptions,
    /// The task whose launch was padded last, and its remaining delay in nanoseconds. Other tasks
    /// begin without one, so that tasks in turn have less than they might.
    remaining: Option<(TaskId, u64)>,
}

impl PaddingDelay {
    /// Adds what a launch of this duration allows to the delay of its task, and returns the sum.
    pub(crate) fn earn(&mut self, task: TaskId, launch_ns: u64) -> u64 {
        let before = self.remaining.filter(|(other, _)| *other == task).map_or(0, |(_, ns)| ns);
        let earned = u128::from(launch_ns) * u128::from(self.options.delay_permille) / 1000;
        let remaining = before.saturating_add(u64::try_from(earned).unwrap_or(u64::MAX));
        self.remaining = Some((task, remaining));
        remaining
    }

    /// Takes the delay of a launch from what the task has.
    pub(crate) fn spend(&mut self, task: TaskId, ns: u64) {
        if let Some((other, remaining)) = &mut self.remaining
            && *other == task
        {
            *remaining = remaining.saturating_sub(ns);
        }
    }
}

/// Chooses the blocks to co-schedule with one launch.
#[derive(Debug)]
pub struct Padding {
    /// Duration of the launch.
    launch_ns: u64,
    /// Time within which all co-scheduled blocks have to end.
    limit_ns: u64,
    /// Time in which the co-scheduled blocks end.
    longest_ns: u64,
    /// Blocks that have to fit on one compute unit: those of the launch, and as many as each
    /// co-scheduled launch runs there at once.
    occupancy_min: u32,
    /// Blocks that fit on one compute unit by the profiles of the padded launch's kernels: the
    /// minimum.
    occupancy: u32,
    /// The same minimum by the registers of each module of the set.
    by_module: [u32; PADDING_MODULES_MAX],
    /// Compute units of the device.
    compute_units: u32,
    /// Compute units not assigned yet.
    spare: u32,
    /// Memory bandwidth of the launch, in thousandths of the device's.
    own_bandwidth: u32,
    /// Memory bandwidth not assigned yet; `None` if it does not matter.
    bandwidth: Option<u32>,
    /// Bytes for arguments not assigned yet.
    room: u32,
    set: u32,
    pads: usize,
}

impl Padding {
    /// Starts with a launch on a device of `compute_units` compute units.
    pub fn of(launch: &LaunchProfile, compute_units: u32) -> Padding {
        let launch_ns = launch.alone_ns(compute_units);
        Padding {
            launch_ns,
            limit_ns: launch_ns,
            longest_ns: 0,
            occupancy_min: launch.occupancy().min(launch.layers(compute_units)),
            occupancy: launch.occupancy(),
            by_module: launch.by_module(),
            compute_units,
            spare: compute_units - launch.needed_units(compute_units),
            own_bandwidth: launch.bandwidth_permille,
            bandwidth: None,
            room: SHARED_PARAMS_BYTES_MAX.saturating_sub(launch.params_room()),
            set: launch.set,
            pads: 0,
        }
    }

    /// Allows the co-scheduled blocks to end this much later than the launch.
    #[must_use]
    pub fn with_delay(self, delay_ns: u64) -> Padding {
        Padding { limit_ns: self.launch_ns.saturating_add(delay_ns), ..self }
    }

    /// Limits the co-scheduled blocks to the memory bandwidth that the launch leaves.
    #[must_use]
    pub fn within_bandwidth(self) -> Padding {
        Padding { bandwidth: Some(1000_u32.saturating_sub(self.own_bandwidth)), ..self }
    }

    /// The compute units that a candidate may have.
    fn units_for(&self, candidate: &LaunchProfile) -> u32 {
        let (Some(left), used @ 1..) = (self.bandwidth, candidate.bandwidth_permille) else { return self.spare };
        let units = u64::from(left) * u64::from(self.compute_units) / u64::from(used);
        self.spare.min(u32::try_from(units).unwrap_or(u32::MAX))
    }

    /// Duration of the launch without co-scheduled blocks, in nanoseconds.
    pub fn launch_ns(&self) -> u64 {
        self.launch_ns
    }

    /// How much later than the launch the co-scheduled blocks end, in nanoseconds.
    pub fn delay_ns(&self) -> u64 {
        self.longest_ns.saturating_sub(self.launch_ns)
    }

    /// Whether more blocks may be co-scheduled.
    pub fn has_room(&self) -> bool {
        self.spare > 0 && self.pads < PADS_MAX
    }

    /// Co-schedules as many blocks of a launch as possible; its first `done` blocks were
    /// co-scheduled before. `None` if no block may be.
    pub fn take(&mut self, candidate: &LaunchProfile, done: u32) -> Option<PadShape> {
        let is_shut_out = candidate.set != self.set || candidate.params_room() > self.room;
        if !self.has_room() || is_shut_out {
            return None;
        }
        let mut by_module = candidate.by_module();
        by_module.iter_mut().zip(&self.by_module).for_each(|(blocks, others)| *blocks = (*blocks).min(*others));
        let by_registers = *by_module.iter().find(|blocks| **blocks > 0)?;
        let by_profiles = self.occupancy.min(candidate.occupancy());
        let occupancy = by_profiles.min(by_registers);
        if occupancy < self.occupancy_min {
            return None;
        }
        let waves = &candidate.wave_ns[..occupancy as usize];
        let at_once = waves.iter().rposition(|ns| *ns <= self.limit_ns)? + 1;
        let rounds = self.limit_ns / waves[at_once - 1].max(1);
        let on_each = (at_once as u64 * rounds).min(u64::from(u32::MAX)) as u32;
        let spare = self.units_for(candidate);
        if spare == 0 {
            return None;
        }
        let blocks = (candidate.blocks - done).min(on_each.saturating_mul(spare));
        let compute_units = blocks.div_ceil(on_each);
        self.spare -= compute_units;
        if let Some(left) = &mut self.bandwidth {
            *left = left.saturating_sub(candidate.bandwidth_on(compute_units, self.compute_units));
        }
        (self.occupancy, self.by_module) = (by_profiles, by_module);
        self.occupancy_min = self.occupancy_min.max(at_once as u32);
        self.room -= candidate.params_room();
        self.pads += 1;
        let shape = PadShape { blocks, compute_units, at_once: at_once as u32 };
        self.longest_ns = self.longest_ns.max(shape.ns(candidate));
        Some(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(blocks: u32, wave_ns: &[u64]) -> LaunchProfile {
        LaunchProfile::new(blocks, wave_ns)
    }

    #[test]
    fn the_last_wave_takes_as_long_as_its_blocks_per_unit() {
        let alone = |blocks| profile(blocks, &[10, 12, 15]).alone_ns(4);
        assert_eq!([1, 4, 5, 8, 9, 12].map(alone), [10, 10, 12, 12, 15, 15]);
        assert_eq!([13, 24, 25, 36 + 8].map(alone), [25, 30, 40, 57]);
    }

    #[test]
    fn pads_end_with_the_launch_and_fill_the_units_it_leaves() {
        // 70 blocks on 60 compute units are two layers, for which 35 compute units are enough.
        let launch = profile(70, &[100, 120]);
        let mut padding = Padding::of(&launch, 60);
        // Two at a time take 60 ns: two rounds in 120.
        let pad = padding.take(&profile(1000, &[40, 60, 90]), 0).expect("it fits");
        assert_eq!(pad, PadShape { blocks: 25 * 2 * 2, compute_units: 25, at_once: 2 });
        assert!(!padding.has_room());
        // One block at a time, since two take too long; the first ten blocks were padding before.
        let pad = Padding::of(&launch, 60).take(&profile(30, &[110, 130]), 10).expect("it fits");
        assert_eq!(pad, PadShape { blocks: 20, compute_units: 20, at_once: 1 });
    }

    #[test]
    fn several_launches_share_the_idle_units() {
        let mut padding = Padding::of(&profile(10, &[100]), 60);
        let small = profile(20, &[100]);
        assert_eq!(padding.take(&small, 0).map(|pad| pad.compute_units), Some(20));
        assert_eq!(padding.take(&small, 0).map(|pad| pad.compute_units), Some(20));
        assert_eq!(padding.take(&small, 0).map(|pad| (pad.compute_units, pad.blocks)), Some((10, 10)));
        assert_eq!(padding.take(&small, 0), None);
    }

    #[test]
    fn only_launches_of_one_set_whose_arguments_fit_share_a_launch() {
        let launch = LaunchProfile { params_bytes: 1000, set: 3, ..profile(1, &[100]) };
        let candidate = |set, params_bytes| LaunchProfile { set, params_bytes, ..profile(4, &[10]) };
        assert!(Padding::of(&launch, 60).take(&candidate(3, 2000), 0).is_some());
        assert_eq!(Padding::of(&launch, 60).take(&candidate(2, 2000), 0), None, "another set");
        let mut padding = Padding::of(&launch, 60);
        assert!(padding.take(&candidate(3, 2000), 0).is_some());
        assert_eq!(padding.take(&candidate(3, 1025), 0), None, "4,032 bytes hold 1,008 + 2,000 + 1,024");
        assert!(padding.take(&candidate(3, 1024), 0).is_some());
    }

    /// A profile of a kernel that is in the modules where blocks of it fit.
    fn in_modules(unit_blocks: &[u32], blocks: u32, wave_ns: &[u64]) -> LaunchProfile {
        LaunchProfile { unit_blocks: unit_blocks.into(), ..profile(blocks, wave_ns) }
    }

    #[test]
    fn kernels_with_fewer_registers_run_in_the_module_of_the_launch() {
        let launch = in_modules(&[0, 2], 70, &[100, 110]);
        let pad = Padding::of(&launch, 60).take(&in_modules(&[8, 4], 50, &[50, 50, 50, 50]), 0).expect("it fits");
        assert_eq!(pad, PadShape { blocks: 50, compute_units: 13, at_once: 2 }, "two at a time, as the launch");
    }

    #[test]
    fn kernels_with_more_registers_pad_a_launch_that_fits_their_module() {
        let candidate = in_modules(&[0, 1], 10, &[10]);
        let launch = |blocks| in_modules(&[4, 1], blocks, &[100, 110, 120, 130]);
        assert!(Padding::of(&launch(50), 60).take(&candidate, 0).is_some(), "one layer needs no room for two");
        assert_eq!(Padding::of(&launch(70), 60).take(&candidate, 0), None, "two layers do");
        let elsewhere = in_modules(&[4, 0], 10, &[10]);
        assert_eq!(Padding::of(&in_modules(&[0, 2], 50, &[100]), 60).take(&elsewhere, 0), None, "no module has both");
        assert_eq!(Padding::of(&in_modules(&[], 50, &[100]), 60).take(&candidate, 0), None, "the launch is in none");
    }

    #[test]
    fn a_later_candidate_leaves_earlier_ones_their_blocks_per_unit() {
        let mut padding = Padding::of(&in_modules(&[4, 1], 10, &[100]), 60);
        let pad = padding.take(&in_modules(&[4, 1], 20, &[10, 10, 10, 10]), 0).expect("it fits");
        assert_eq!(pad.at_once, 1, "as many as the launch");
        assert!(padding.take(&in_modules(&[0, 1], 10, &[10]), 0).is_some());
        let mut padding = Padding::of(&in_modules(&[4, 1], 10, &[100, 100]), 60);
        assert_eq!(padding.take(&in_modules(&[4, 1], 20, &[60, 60]), 0).map(|pad| pad.at_once), Some(2));
        assert_eq!(padding.take(&in_modules(&[0, 1], 10, &[10]), 0), None, "one block in that module, two at once");
    }

    #[test]
    fn longer_blocks_use_the_delay_that_launches_earn() {
        let (launch, longer) = (profile(10, &[100]), profile(10, &[130]));
        let mut padding = Padding::of(&launch, 60).with_delay(29);
        assert_eq!((padding.take(&longer, 0), padding.delay_ns()), (None, 0));
        let mut padding = Padding::of(&launch, 60).with_delay(30);
        assert_eq!(padding.take(&longer, 0).map(|pad| pad.blocks), Some(10));
        assert_eq!((padding.launch_ns(), padding.delay_ns()), (100, 30));

        let (one, other) = (TaskId(1), TaskId(2));
        let mut delay = PaddingDelay {
            options: PaddingOptions { delay_permille: 100, bandwidth: false },
            ..PaddingDelay::default()
        };
        assert_eq!([100, 200].map(|ns| delay.earn(one, ns)), [10, 30]);
        delay.spend(one, 25);
        delay.spend(other, 5);
        assert_eq!(delay.earn(one, 10), 6);
        assert_eq!(delay.earn(other, 10), 1, "another task begins anew");
        assert_eq!(PaddingDelay::default().earn(one, u64::MAX), 0, "off by default");
    }

    #[test]
    fn blocks_get_the_units_for_which_bandwidth_is_left() {
        let using = |bandwidth_permille| LaunchProfile { bandwidth_permille, ..profile(60, &[100]) };
        let launch = LaunchProfile { blocks: 10, ..using(700) };
        let units = |padding: &mut Padding, used| padding.take(&using(used), 0).map(|pad| pad.compute_units);
        assert_eq!(units(&mut Padding::of(&launch, 60), 900), Some(50), "the rules do not look at bandwidth");
        let mut padding = Padding::of(&launch, 60).within_bandwidth();
        assert_eq!(units(&mut padding, 900), Some(20), "a third of 900 is what the launch leaves");
        assert_eq!(units(&mut padding, 900), None);
        assert_eq!(units(&mut padding, 0), Some(30), "unknown bandwidth counts as none");
        assert_eq!(units(&mut Padding::of(&using(1000), 70).within_bandwidth(), 1), None);
    }

    #[test]
    fn a_candidate_that_would_slow_the_launch_down_is_refused() {
        assert_eq!(Padding::of(&profile(10, &[100]), 60).take(&profile(10, &[101]), 0), None, "rule 1");
        // Three layers, three at a time: a candidate of which two fit would leave a compute unit
        // with two.
        let launch = profile(150, &[100, 110, 120]);
        assert_eq!(Padding::of(&launch, 60).take(&profile(10, &[10, 10]), 0), None, "rule 2");
        assert!(
            Padding::of(&profile(50, &[100, 110, 120]), 60).take(&profile(10, &[10, 10]), 0).is_some(),
            "one layer needs no room for three"
        );
        assert_eq!(
            Padding::of(&profile(120, &[100]), 60).take(&profile(10, &[10]), 0),
            None,
            "no compute unit is idle"
        );
    }
}
