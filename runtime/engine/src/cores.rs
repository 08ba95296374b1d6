//! Assigns CPUs to the threads of engines.
//!
//! An engine's thread spins for completions if it has a CPU to itself. A CPU is free if no compute
//! unit is pinned to it and no other engine's thread has it, so the CPUs are assigned for all
//! engines of a process at once.

use atoll_device::{DeviceInfo, cpus};

/// The CPUs of one engine's thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreShare {
    /// Whether the process has a core for the thread besides those that compute units use, so that
    /// the thread may spin.
    pub spins: bool,
    /// The CPUs that the thread is pinned to; if empty, the system places it.
    pub cpus: Vec<usize>,
}

impl CoreShare {
    /// Assigns the CPUs of this process to the engines of the given devices, in their order.
    pub fn assign(devices: &[CoreUse]) -> Vec<CoreShare> {
        // This includes a CPU quota: spinning would take quota from compute units.
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        assign(cores, &cpus::allowed(), devices)
    }

    /// The share of the only engine of a process.
    pub(crate) fn alone(device: &DeviceInfo) -> CoreShare {
        CoreShare::assign(&[device.into()]).pop().unwrap_or_default()
    }
}

/// The CPU use of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreUse {
    /// Threads of the device that are busy while it runs blocks.
    pub threads: u32,
    /// The CPUs that those threads are pinned to, if they are.
    pub cpus: Vec<usize>,
}

impl From<&DeviceInfo> for CoreUse {
    fn from(info: &DeviceInfo) -> CoreUse {
        CoreUse { threads: info.host_threads, cpus: info.host_cpus.clone() }
    }
}

/// Assigns the CPUs that no compute unit is pinned to: one share for each device, in their order.
/// `cores` is the CPU time of the process in CPUs, which a quota may make less than `allowed`, the
/// CPUs that it may run on.
///
/// A single engine gets all free CPUs. Several engines get disjoint CPUs; if there are not enough
/// for all, the first engines get them. An engine without a share never spins for long, and stays
/// on the CPUs of its own device, where it takes time only from that device.
fn assign(cores: usize, allowed: &[usize], devices: &[CoreUse]) -> Vec<CoreShare> {
    let threads: usize = devices.iter().map(|device| device.threads as usize).sum();
    let spare: Vec<usize> =
        allowed.iter().copied().filter(|cpu| devices.iter().all(|device| !device.cpus.contains(cpu))).collect();
    let free = cores.saturating_sub(threads);
    if let [device] = devices {
        let cpus = if free > 0 && !device.cpus.is_empty() { spare } else { Vec::new() };
        return vec![CoreShare { spins: free > 0, cpus }];
    }
    let shares = free.min(spare.len()).min(devices.len());
    let share = |(at, device): (usize, &CoreUse)| match at < shares {
        true => CoreShare { spins: true, cpus: spare.iter().copied().skip(at).step_by(shares).collect() },
        false => CoreShare { spins: false, cpus: device.cpus.clone() },
    };
    devices.iter().enumerate().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn pinned(cpus: &[usize]) -> CoreUse {
        CoreUse { threads: cpus.len() as u32, cpus: cpus.to_vec() }
    }

    fn floating(threads: u32) -> CoreUse {
        CoreUse { threads, cpus: Vec::new() }
    }

    fn share(spins: bool, cpus: &[usize]) -> CoreShare {
        CoreShare { spins, cpus: cpus.to_vec() }
    }

    #[test]
    fn a_lone_engine_gets_what_its_device_leaves() {
        assert_eq!(assign(4, &[0, 1, 2, 3], &[pinned(&[0, 1])]), [share(true, &[2, 3])]);
        assert_eq!(assign(2, &[0, 1], &[pinned(&[0, 1])]), [share(false, &[])]);
        assert_eq!(assign(1, &[0, 1], &[pinned(&[0])]), [share(false, &[])], "the quota is one CPU");
        assert_eq!(
            assign(4, &[0, 1, 2, 3], &[floating(1)]),
            [share(true, &[])],
            "the system places it beside threads that are not pinned"
        );
    }

    #[test]
    fn two_engines_share_what_both_devices_leave() {
        let two = [pinned(&[0]), pinned(&[1])];
        assert_eq!(assign(2, &[0, 1], &two), [share(false, &[0]), share(false, &[1])]);
        assert_eq!(assign(3, &[0, 1, 2], &two), [share(true, &[2]), share(false, &[1])]);
        assert_eq!(assign(6, &[0, 1, 2, 3, 4, 5], &two), [share(true, &[2, 4]), share(true, &[3, 5])]);
    }

    proptest! {
        #[test]
        fn no_two_engines_spin_on_one_core_and_none_on_that_of_a_compute_unit(
            cpus in 1_usize..12,
            quota in 1_usize..12,
            devices in prop::collection::vec((0_u32..4, any::<bool>()), 1..5),
        ) {
            let mut next = 0;
            let devices: Vec<CoreUse> = devices.into_iter().map(|(threads, pins)| {
                let own: Vec<usize> = (next..next + threads as usize).filter(|cpu| pins && *cpu < cpus).collect();
                next += threads as usize;
                CoreUse { threads, cpus: own }
            }).collect();
            let allowed: Vec<usize> = (0..cpus).collect();
            let shares = assign(quota.min(cpus), &allowed, &devices);
            prop_assert_eq!(shares.len(), devices.len());
            let spinning: Vec<&CoreShare> = shares.iter().filter(|share| share.spins).collect();
            let taken: Vec<usize> = spinning.iter().flat_map(|share| share.cpus.clone()).collect();
            prop_assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), taken.len(), "{:?}", shares);
            let is_free = |cpu: &usize| devices.iter().all(|device| !device.cpus.contains(cpu));
            prop_assert!(taken.iter().all(is_free), "{:?}", shares);
            let threads: usize = devices.iter().map(|device| device.threads as usize).sum();
            prop_assert!(spinning.len() <= quota.min(cpus).saturating_sub(threads), "{:?}", shares);
        }
    }
}
