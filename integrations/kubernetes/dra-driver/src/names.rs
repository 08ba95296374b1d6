//! Names of the driver, of its capacities, of devices and of pools.

/// Name of the driver.
pub(crate) const DRIVER: &str = "gpu.atoll.dev";

/// Capacities of a device: compute units times time in percent, bytes of memory, real-time slots.
pub(crate) const CAPACITIES: [&str; 3] = ["sm", "memory", "realTimeSlots"];

/// The name of the pool of a device of the daemon.
pub(crate) fn pool_name(node: &str, device: &str) -> String {
    format!("{node}/{}", label(device))
}

/// The name of a device of the daemon as a DNS label: `cuda-0` for `cuda:0`.
pub(crate) fn label(device: &str) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' };
    device.chars().map(plain).collect()
}

/// Whether a text can be the UID of a claim, and so a part of a path.
pub(crate) fn is_uid(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::Partition;

    /// The most letters of a DNS label, and of a text attribute of a device.
    const LABEL_MAX: usize = 63;

    #[test]
    fn a_mig_instance_has_a_label_and_a_pool_as_other_devices_have() {
        assert_eq!(label("cuda:0"), "cuda-0");
        let mig = "cuda:MIG-6d0b1c2e-7f31-5a88-9c54-2b1de0c7a9f3";
        assert_eq!(pool_name("gpu-1", mig), "gpu-1/cuda-mig-6d0b1c2e-7f31-5a88-9c54-2b1de0c7a9f3");
        let smallest = Partition::Part { percent: 100, number: 100, is_real_time: true };
        assert!(label(mig).len() + smallest.suffix().len() <= LABEL_MAX && mig.len() <= LABEL_MAX);
    }
}
