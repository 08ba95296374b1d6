//! Resources of a node: their names, and what one unit of each is.

use atoll_kubernetes::capacity::{Capacity, Device};
use std::fmt;
use std::str::FromStr;

/// Largest list of units in bytes: the kubelet takes messages up to 4 MiB.
pub(crate) const LIST_BYTES_MAX: u64 = 4 << 20;

/// Bytes of a unit in a list besides the name of its device: tags and lengths (8), the health (9),
/// and a dash and the digits of its number (11).
const UNIT_BYTES: u64 = 28;

/// Units of a share, and of memory in percent, that a device has.
const PERCENT: u64 = 100;

/// Pods that may share a device, as in HAMi's default.
const PLACES: u64 = 10;

/// Which names the resources have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Names {
    /// atoll.dev/sm-pct, atoll.dev/gpu-mem-64mib and atoll.dev/rt-slots
    Atoll,
    /// Those of HAMi: nvidia.com/gpu, gpucores, gpumem and gpumem-percentage
    Hami,
}

/// What a unit of a resource is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A hundredth of a device, as compute units times time.
    Share,
    /// Device memory in bytes.
    Memory(u64),
    /// A hundredth of the memory of a device.
    MemoryPercent,
    /// A real-time slot.
    RealTimeSlot,
    /// A place on a device.
    Place,
}

/// A resource of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    /// Its name, as in `atoll.dev/sm-pct`.
    pub(crate) name: String,
    /// What one unit of it is.
    pub(crate) unit: Unit,
}

/// A unit of a resource, by its id `DEVICE-NUMBER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnitId<'a> {
    /// Name of its device.
    pub(crate) device: &'a str,
    /// Its number among the units of the device, from 0.
    pub(crate) number: u64,
}

impl Names {
    /// The resources with these names. `memory` is the unit of `atoll.dev/gpu-mem-…`.
    pub(crate) fn resources(self, memory: MemoryUnit) -> Vec<Resource> {
        let of = |name: &str, unit| Resource { name: name.into(), unit };
        match self {
            Names::Atoll => vec![
                of("atoll.dev/sm-pct", Unit::Share),
                of(&format!("atoll.dev/gpu-mem-{memory}"), Unit::Memory(memory.bytes())),
                of("atoll.dev/rt-slots", Unit::RealTimeSlot),
            ],
            Names::Hami => vec![
                of("nvidia.com/gpu", Unit::Place),
                of("nvidia.com/gpucores", Unit::Share),
                of("nvidia.com/gpumem", Unit::Memory(1 << 20)),
                of("nvidia.com/gpumem-percentage", Unit::MemoryPercent),
            ],
        }
    }
}

impl Unit {
    /// How many a device has.
    pub(crate) fn count(self, device: &Device) -> u64 {
        match self {
            Unit::Share | Unit::MemoryPercent => PERCENT,
            Unit::Memory(bytes) => device.memory_bytes / bytes,
            Unit::RealTimeSlot => device.real_time_slots.into(),
            Unit::Place => PLACES,
        }
    }
}

impl Resource {
    /// The ids of all units with their health.
    ///
    /// # Errors
    /// Fails if the list is larger than the kubelet takes.
    pub(crate) fn units(&self, capacity: &Capacity) -> Result<Vec<(String, bool)>, TooManyUnits> {
        let bytes = |device: &Device| self.unit.count(device).saturating_mul(device.name.len() as u64 + UNIT_BYTES);
        let bytes = capacity.devices.iter().map(bytes).fold(0, u64::saturating_add);
        if bytes > LIST_BYTES_MAX {
            return Err(TooManyUnits { resource: self.name.clone(), bytes });
        }
        let units = capacity.devices.iter().flat_map(|device| {
            (0..self.unit.count(device)).map(move |number| (format!("{}-{number}", device.name), device.is_healthy))
        });
        Ok(units.collect())
    }
}

impl<'a> UnitId<'a> {
    /// Reads an id. `None` if it is none.
    pub(crate) fn parse(id: &'a str) -> Option<UnitId<'a>> {
        let (device, number) = id.rsplit_once('-')?;
        let is_number = !number.is_empty() && number.len() <= 10 && number.bytes().all(|byte| byte.is_ascii_digit());
        Some(UnitId { device, number: number.parse().ok().filter(|_| is_number)? })
    }
}

/// A list of units is larger than the kubelet takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TooManyUnits {
    resource: String,
    bytes: u64,
}

impl fmt::Display for TooManyUnits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the list of {} has about {} bytes, and the kubelet takes {LIST_BYTES_MAX}: the node offers none of it; \
            with --names=atoll, a larger --memory-unit makes the list of memory shorter",
            self.resource, self.bytes
        )
    }
}

/// Device memory of one unit: whole MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryUnit {
    mib: u64,
}

impl MemoryUnit {
    /// Largest unit in MiB: 1 TiB.
    const MIB_MAX: u64 = 1 << 20;

    pub(crate) fn bytes(self) -> u64 {
        self.mib << 20
    }
}

impl FromStr for MemoryUnit {
    type Err = String;

    fn from_str(text: &str) -> Result<MemoryUnit, String> {
        let (digits, factor) = match text.strip_suffix('G') {
            Some(digits) => (digits, 1 << 10),
            None => (text.strip_suffix('M').unwrap_or(""), 1),
        };
        let number = if digits.len() <= 7 { digits.parse::<u64>().ok() } else { None };
        match number.map(|number| number * factor) {
            Some(mib) if (1..=MemoryUnit::MIB_MAX).contains(&mib) => Ok(MemoryUnit { mib }),
            _ => Err("a number of MiB or GiB from 1M to 1024G is possible, as in 64M".into()),
        }
    }
}

/// The end of the resource's name, as in `64mib`, or `mib` for one.
impl fmt::Display for MemoryUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = if self.mib.is_multiple_of(1 << 10) { (self.mib >> 10, "gib") } else { (self.mib, "mib") };
        if number == 1 { f.write_str(unit) } else { write!(f, "{number}{unit}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto;
    use prost::Message;

    fn device(memory_bytes: u64) -> Device {
        Device { name: "cuda:0".into(), is_healthy: true, memory_bytes, real_time_slots: 4 }
    }

    fn capacity(memory_bytes: u64) -> Capacity {
        Capacity { devices: vec![device(memory_bytes), Device { name: "cuda:1".into(), ..device(memory_bytes) }] }
    }

    #[test]
    fn a_unit_of_memory_is_in_the_name() {
        for (text, name, bytes) in
            [("64M", "64mib", 64 << 20), ("1M", "mib", 1 << 20), ("1G", "gib", 1 << 30), ("1024M", "gib", 1 << 30)]
        {
            let unit: MemoryUnit = text.parse().unwrap();
            assert_eq!((unit.to_string().as_str(), unit.bytes()), (name, bytes), "{text}");
            assert_eq!(Names::Atoll.resources(unit)[1].name, format!("atoll.dev/gpu-mem-{name}"));
        }
        for wrong in ["", "M", "0M", "-1M", "64", "64K", "1.5G", "1025G", "99999999999M", "+", "64MiB"] {
            assert!(wrong.parse::<MemoryUnit>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn units_are_those_of_all_devices() {
        let counts = |names: Names| {
            let resources = names.resources("64M".parse().unwrap());
            let count =
                |resource: &Resource| (resource.name.clone(), resource.units(&capacity(1 << 30)).unwrap().len());
            resources.iter().map(count).collect::<Vec<_>>()
        };
        let named =
            |pairs: &[(&str, usize)]| pairs.iter().map(|(name, count)| ((*name).into(), *count)).collect::<Vec<_>>();
        assert_eq!(
            counts(Names::Atoll),
            named(&[("atoll.dev/sm-pct", 200), ("atoll.dev/gpu-mem-64mib", 32), ("atoll.dev/rt-slots", 8)])
        );
        assert_eq!(
            counts(Names::Hami),
            named(&[
                ("nvidia.com/gpu", 20),
                ("nvidia.com/gpucores", 200),
                ("nvidia.com/gpumem", 2048),
                ("nvidia.com/gpumem-percentage", 200)
            ])
        );
        let slots = Resource { name: "r".into(), unit: Unit::RealTimeSlot };
        let mut capacity = capacity(0);
        capacity.devices[1].is_healthy = false;
        let units = slots.units(&capacity).unwrap();
        assert_eq!((units[0].clone(), units[7].clone()), (("cuda:0-0".into(), true), ("cuda:1-3".into(), false)));
    }

    #[test]
    fn the_unit_of_a_mig_instance_ends_in_its_number() {
        let device = "cuda:MIG-6d0b1c2e-7f31-5a88-9c54-2b1de0c7a9f3";
        let id = format!("{device}-12");
        assert_eq!(UnitId::parse(&id), Some(UnitId { device, number: 12 }));
    }

    #[test]
    fn a_list_fits_a_message_of_the_kubelet_or_there_is_none() {
        let memory = |bytes| Resource { name: "m".into(), unit: Unit::Memory(bytes) };
        let gpus = |count: u64| Capacity {
            devices: (0..count).map(|at| Device { name: format!("cuda:{at}"), ..device(80 << 30) }).collect(),
        };
        let error = memory(1 << 20).units(&gpus(8)).unwrap_err().to_string();
        assert!(error.contains("the list of m has about") && error.contains("--memory-unit"), "{error}");
        assert!(memory(64 << 20).units(&gpus(16)).is_ok());
        assert!(memory(1).units(&Capacity { devices: vec![device(u64::MAX)] }).is_err());
        // The estimate is above what is sent.
        let units = memory(1 << 20).units(&gpus(1)).unwrap();
        let estimate = units.len() as u64 * ("cuda:0".len() as u64 + UNIT_BYTES);
        let devices = units.into_iter().map(|(id, _)| proto::Device { id, health: "Unhealthy".into(), topology: None });
        let sent = proto::ListAndWatchResponse { devices: devices.collect() }.encoded_len() as u64;
        assert!(sent <= estimate && estimate <= LIST_BYTES_MAX, "{sent} {estimate}");
    }

    #[test]
    fn ids_are_read_and_others_refused() {
        assert_eq!(UnitId::parse("host:0-17"), Some(UnitId { device: "host:0", number: 17 }));
        assert_eq!(UnitId::parse("a-b-0"), Some(UnitId { device: "a-b", number: 0 }));
        for wrong in ["", "host:0", "host:0-", "host:0-x", "host:0-+1", "host:0-12345678901"] {
            assert_eq!(UnitId::parse(wrong), None, "{wrong}");
        }
    }
}
