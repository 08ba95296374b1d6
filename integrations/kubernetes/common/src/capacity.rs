//! The capacity of a daemon that its node offers.

use atoll_client::{CapacityReport, DeviceCapacity, DeviceCondition};

/// The devices of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// In the order of the daemon.
    pub devices: Vec<Device>,
}

/// A device of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// For example `cuda:0`.
    pub name: String,
    /// Whether it takes leases.
    pub is_healthy: bool,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// Its real-time slots.
    pub real_time_slots: u32,
}

impl Capacity {
    /// Reads a report of the daemon. Takes whole devices, not the free part: the kubelet subtracts the
    /// units of its containers.
    #[must_use]
    pub fn of(report: &CapacityReport) -> Capacity {
        let device = |device: &DeviceCapacity| Device {
            name: device.device.clone(),
            is_healthy: matches!(device.state, DeviceCondition::Ready | DeviceCondition::Unready),
            memory_bytes: device.memory_bytes,
            real_time_slots: device.real_time_slots,
        };
        Capacity { devices: report.devices.iter().map(device).collect() }
    }

    /// The same devices, unhealthy, while the daemon does not answer.
    #[must_use]
    pub fn unreachable(&self) -> Capacity {
        let device = |device: &Device| Device { is_healthy: false, ..device.clone() };
        Capacity { devices: self.devices.iter().map(device).collect() }
    }

    /// A device by its name.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_take_no_leases_are_not_healthy() {
        let device = |state| DeviceCapacity {
            device: "host:0".into(),
            state,
            compute_units: 2,
            promised_sm_pct: 20.0,
            free: Vec::new(),
            memory_bytes: 1 << 30,
            promised_memory_bytes: 1 << 20,
            real_time_slots: 4,
            promised_real_time_slots: 1,
        };
        let states =
            [DeviceCondition::Ready, DeviceCondition::Unready, DeviceCondition::Drained, DeviceCondition::Lost];
        let capacity = Capacity::of(&CapacityReport { leases: 1, devices: states.map(device).into() });
        let healthy: Vec<bool> = capacity.devices.iter().map(|device| device.is_healthy).collect();
        assert_eq!(healthy, [true, true, false, false]);
        assert_eq!((capacity.devices[0].memory_bytes, capacity.devices[0].real_time_slots), (1 << 30, 4));
        let unreachable = capacity.unreachable();
        assert!(unreachable.devices.iter().all(|device| !device.is_healthy));
        assert_eq!(unreachable.devices.len(), 4);
    }
}
