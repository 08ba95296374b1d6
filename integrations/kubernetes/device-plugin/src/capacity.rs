//! What the daemon has, as the plugin sees it.

use atoll_client::{CapacityReport, DeviceCapacity, DeviceCondition};

/// The devices of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capacity {
    /// In the order of the daemon.
    pub(crate) devices: Vec<Device>,
}

/// A device of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    /// For example `cuda:0`.
    pub(crate) name: String,
    /// Whether it takes leases.
    pub(crate) is_healthy: bool,
    /// Its memory in bytes.
    pub(crate) memory_bytes: u64,
    /// Its real-time slots.
    pub(crate) real_time_slots: u32,
}

impl Capacity {
    /// From a report of the daemon. The whole devices count, not what is free now: the kubelet
    /// subtracts what its containers have.
    pub(crate) fn of(report: &CapacityReport) -> Capacity {
        let device = |device: &DeviceCapacity| Device {
            name: device.device.clone(),
            is_healthy: matches!(device.state, DeviceCondition::Ready | DeviceCondition::Unready),
            memory_bytes: device.memory_bytes,
            real_time_slots: device.real_time_slots,
        };
        Capacity { devices: report.devices.iter().map(device).collect() }
    }

    /// The same devices while the daemon does not answer.
    pub(crate) fn unreachable(&self) -> Capacity {
        let device = |device: &Device| Device { is_healthy: false, ..device.clone() };
        Capacity { devices: self.devices.iter().map(device).collect() }
    }

    /// A device by its name.
    pub(crate) fn device(&self, name: &str) -> Option<&Device> {
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
