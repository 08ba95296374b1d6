//! Shares of devices: what a device that was allocated to a claim stands for.

use crate::names::{CAPACITIES, DRIVER, label, pool_name};
use crate::quantity;
use atoll_kubernetes::capacity::Device;
use std::collections::BTreeMap;

/// Sizes of the parts of a device in percent. There are as many of each as the device has room for.
const PERCENTS: [u64; 4] = [50, 25, 20, 10];

/// Bytes of a MiB.
const MIB: u64 = 1 << 20;

/// A share of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Compute units times time, in percent of a device.
    pub(crate) sm_pct: u64,
    /// Device memory in bytes.
    pub(crate) memory_bytes: u64,
    /// Real-time slots.
    pub(crate) slots: u64,
}

impl Share {
    /// All of a device, in whole MiB.
    pub(crate) fn whole(device: &Device) -> Share {
        Share { sm_pct: 100, memory_bytes: device.memory_bytes / MIB * MIB, slots: device.real_time_slots.into() }
    }
}

/// A part of a device of a fixed size, or the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Partition {
    /// The whole device.
    Whole,
    /// One of several parts.
    Part {
        /// Its size in percent of the device.
        percent: u64,
        /// Its number among the parts of this size.
        number: u64,
        /// Whether it has a real-time slot.
        is_real_time: bool,
    },
}

impl Partition {
    /// The partitions of a device, at most 64: the whole, and parts of each size without and with a
    /// real-time slot.
    pub(crate) fn all(device: &Device) -> Vec<Partition> {
        let slots = u64::from(device.real_time_slots);
        let mut all = vec![Partition::Whole];
        for percent in PERCENTS {
            let count = 100 / percent;
            all.extend((0..count).map(|number| Partition::Part { percent, number, is_real_time: false }));
            let real_time = (0..count.min(slots)).map(|number| Partition::Part { percent, number, is_real_time: true });
            all.extend(real_time);
        }
        all
    }

    /// The end of its name.
    pub(crate) fn suffix(self) -> String {
        match self {
            Partition::Whole => String::new(),
            Partition::Part { percent, number, is_real_time } => {
                format!("-{percent}-{number}{}", if is_real_time { "-rt" } else { "" })
            }
        }
    }

    /// What it has of its device.
    pub(crate) fn share(self, device: &Device) -> Share {
        let whole = Share::whole(device);
        match self {
            Partition::Whole => whole,
            Partition::Part { percent, is_real_time, .. } => Share {
                sm_pct: percent,
                memory_bytes: whole.memory_bytes / MIB * percent / 100 * MIB,
                slots: is_real_time.into(),
            },
        }
    }
}

/// What an allocated device of this node stands for. `consumed` has the capacities that a claim
/// consumes of a device with several claims.
///
/// # Errors
/// Fails if the daemon has never answered or has no such device, or if a capacity is not a quantity.
pub(crate) fn share(
    node: &str,
    devices: &[Device],
    (pool, device): (&str, &str),
    consumed: &BTreeMap<String, String>,
) -> Result<Share, String> {
    if devices.is_empty() {
        return Err("the daemon of this node has not answered yet; the driver's log says why".into());
    }
    let unknown = || format!("the daemon of this node has no device {device} in the pool {pool}");
    let found = devices.iter().find(|one| pool_name(node, &one.name) == pool).ok_or_else(unknown)?;
    let suffix = device.strip_prefix(label(&found.name).as_str()).ok_or_else(unknown)?;
    let partition = Partition::all(found).into_iter().find(|one| one.suffix() == suffix).ok_or_else(unknown)?;
    let mut share = partition.share(found);
    let amount = |name: &str| {
        let text = consumed.get(name).or_else(|| consumed.get(&format!("{DRIVER}/{name}")));
        let read = |text: &String| {
            quantity::parse(text).ok_or_else(|| format!("{text:?} of the capacity {name} is not a quantity"))
        };
        text.map(read).transpose()
    };
    let [sm, memory, slots] = CAPACITIES.map(amount);
    (share.sm_pct, share.memory_bytes, share.slots) =
        (sm?.unwrap_or(share.sm_pct), memory?.unwrap_or(share.memory_bytes), slots?.unwrap_or(share.slots));
    Ok(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Device {
        Device { name: "cuda:0".into(), is_healthy: true, memory_bytes: (1000 << 20) + 5, real_time_slots: 4 }
    }

    fn of(device_name: &str, consumed: &[(&str, &str)]) -> Result<Share, String> {
        let consumed = consumed.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        share("gpu-1", &[device()], ("gpu-1/cuda-0", device_name), &consumed)
    }

    #[test]
    fn devices_stand_for_shares() {
        assert_eq!(of("cuda-0", &[]), Ok(Share { sm_pct: 100, memory_bytes: 1000 << 20, slots: 4 }));
        let consumed = [("sm", "30"), ("gpu.atoll.dev/memory", "256Mi"), ("realTimeSlots", "1")];
        assert_eq!(of("cuda-0", &consumed), Ok(Share { sm_pct: 30, memory_bytes: 256 << 20, slots: 1 }));
        assert_eq!(of("cuda-0-25-3", &[]), Ok(Share { sm_pct: 25, memory_bytes: 250 << 20, slots: 0 }));
        assert_eq!(of("cuda-0-10-0-rt", &[]), Ok(Share { sm_pct: 10, memory_bytes: 100 << 20, slots: 1 }));
        for unknown in ["cuda-1", "cuda-0-25-4", "cuda-0-30-0", "cuda-0-10-4-rt", ""] {
            assert!(of(unknown, &[]).unwrap_err().contains("has no device"), "{unknown}");
        }
        assert!(of("cuda-0", &[("sm", "all")]).unwrap_err().contains("\"all\" of the capacity sm"));
        let none = share("gpu-2", &[device()], ("gpu-1/cuda-0", "cuda-0"), &BTreeMap::new());
        assert!(none.unwrap_err().contains("in the pool gpu-1/cuda-0"));
        let silent = share("gpu-1", &[], ("gpu-1/cuda-0", "cuda-0"), &BTreeMap::new());
        assert!(silent.unwrap_err().contains("has not answered yet"));
    }

    #[test]
    fn partitions_fit_a_slice_and_their_device() {
        let many = Device { real_time_slots: 64, ..device() };
        assert!(Partition::all(&many).len() <= 64, "the most that a slice may have");
        let all = Partition::all(&device());
        let names: std::collections::BTreeSet<String> = all.iter().map(|one| one.suffix()).collect();
        assert_eq!(names.len(), all.len());
        for percent in PERCENTS {
            let parts = all.iter().filter(
                |one| matches!(one, Partition::Part { percent: of, is_real_time: false, .. } if *of == percent),
            );
            let memory: u64 = parts.map(|one| one.share(&device()).memory_bytes).sum();
            assert!(memory <= device().memory_bytes);
        }
    }
}
