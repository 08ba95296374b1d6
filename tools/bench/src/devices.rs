//! Device specifications (`--device`), and the check that they can be combined.

use crate::device_name::{DeviceName, GpuName};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Largest CPU number that Linux supports.
const CPU_MAX: usize = 8191;

/// A device to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceSpec {
    /// CPU cores as compute units.
    Host {
        /// Its number among host devices.
        number: u32,
        /// Its exclusive CPUs, ascending; `None` for all CPUs.
        cpus: Option<Vec<usize>>,
    },
    /// An NVIDIA GPU or a MIG instance.
    Cuda(GpuName),
    /// An AMD GPU, by its number.
    Hip(u32),
}

/// Why devices cannot be started together.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SpecError {
    #[error("device {0} is given twice")]
    Twice(String),
    #[error(
        "{0} is one of several host devices, but has no CPU set; give each its own CPUs, as in --device host:0@0-3 \
        --device host:1@4-7"
    )]
    NoCpus(String),
    #[error("CPU {cpu} is in the CPU sets of both {first} and {second}; give each device its own CPUs")]
    Overlap { cpu: usize, first: String, second: String },
    #[error("{device} names CPU {cpu}, but this process may use only {allowed}")]
    NotAllowed { device: String, cpu: usize, allowed: String },
    #[error(
        "{number} and {uuid} may be the same GPU; name all NVIDIA GPUs by their numbers, or all by their UUIDs, which \
        `atoll doctor` prints"
    )]
    MixedNames { number: String, uuid: String },
}

impl DeviceSpec {
    /// A host device on all CPUs of the machine.
    pub(crate) const HOST: DeviceSpec = DeviceSpec::Host { number: 0, cpus: None };

    /// Kind of the device, with the number of a GPU.
    pub(crate) fn kind(&self) -> DeviceName {
        match *self {
            DeviceSpec::Host { .. } => DeviceName::Host,
            DeviceSpec::Cuda(gpu) => DeviceName::Cuda(gpu),
            DeviceSpec::Hip(index) => DeviceName::Hip(index),
        }
    }

    pub(crate) fn is_host(&self) -> bool {
        matches!(self, DeviceSpec::Host { .. })
    }

    /// Name of the device, as in `host:1`.
    pub(crate) fn name(&self) -> String {
        match self {
            DeviceSpec::Host { number, .. } => format!("host:{number}"),
            DeviceSpec::Cuda(_) | DeviceSpec::Hip(_) => self.kind().to_string(),
        }
    }

    fn cpus(&self) -> Option<&[usize]> {
        match self {
            DeviceSpec::Host { cpus, .. } => cpus.as_deref(),
            DeviceSpec::Cuda(_) | DeviceSpec::Hip(_) => None,
        }
    }
}

impl FromStr for DeviceSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceSpec, String> {
        let (name, cpus) = text.split_once('@').map_or((text, None), |(name, cpus)| (name, Some(cpus)));
        let (kind, own) = name.split_once(':').unwrap_or((name, "0"));
        let number = || own.parse().map_err(|_| format!("`{own}` is not a device number; devices are numbered from 0"));
        match (kind, cpus) {
            ("host", cpus) => Ok(DeviceSpec::Host { number: number()?, cpus: cpus.map(cpu_set).transpose()? }),
            ("cuda", None) => own.parse().map(DeviceSpec::Cuda),
            ("hip", None) => Ok(DeviceSpec::Hip(number()?)),
            ("cuda" | "hip", Some(_)) => Err("only host devices have a CPU set; a GPU has none".into()),
            _ => Err(format!(
                "unknown device {name}; use host or host:N, cuda, cuda:N or cuda:UUID for NVIDIA GPUs, or hip or hip:N \
                 for AMD GPUs"
            )),
        }
    }
}

/// Formats as it is parsed: `host`, `host:1@4-7`, `cuda:0`.
impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceSpec::Host { number: 0, cpus: None } => f.write_str("host"),
            DeviceSpec::Host { cpus: Some(cpus), .. } => write!(f, "{}@{}", self.name(), ranges(cpus)),
            _ => f.write_str(&self.name()),
        }
    }
}

/// Parses a CPU set, as in `0-3,8`.
fn cpu_set(text: &str) -> Result<Vec<usize>, String> {
    if text.is_empty() {
        return Err("the CPU set is empty; write for example host:0@0-3,8".into());
    }
    let number = |text: &str| match text.parse() {
        Ok(cpu) if cpu <= CPU_MAX => Ok(cpu),
        _ => Err(format!("`{text}` is not a CPU number; write for example host:0@0-3,8")),
    };
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (number(first)?, number(last)?);
        if first > last {
            return Err(format!("the CPU range {part} is empty: {first} comes after {last}"));
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    match cpus.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("CPU {} is in the set twice", pair[0])),
        None => Ok(cpus),
    }
}

/// Formats ascending numbers as `0-3,8`.
fn ranges(cpus: &[usize]) -> String {
    let runs = cpus.chunk_by(|a, b| a + 1 == *b);
    let run = |run: &[usize]| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    };
    runs.map(run).collect::<Vec<_>>().join(",")
}

/// Refuses devices that cannot be started together by a process that may use the CPUs in `allowed`.
pub(crate) fn check(devices: &[DeviceSpec], allowed: &[usize]) -> Result<(), SpecError> {
    let mut owners: BTreeMap<usize, &DeviceSpec> = BTreeMap::new();
    for (at, device) in devices.iter().enumerate() {
        if devices[..at].iter().any(|other| other.name() == device.name()) {
            return Err(SpecError::Twice(device.name()));
        }
        for &cpu in device.cpus().unwrap_or_default() {
            // An empty list means that the system does not report the allowed CPUs.
            if !allowed.is_empty() && !allowed.contains(&cpu) {
                return Err(SpecError::NotAllowed { device: device.name(), cpu, allowed: ranges(allowed) });
            }
            if let Some(first) = owners.insert(cpu, device) {
                return Err(SpecError::Overlap { cpu, first: first.name(), second: device.name() });
            }
        }
    }
    check_names(devices)?;
    let hosts = || devices.iter().filter(|device| device.is_host());
    match hosts().find(|device| device.cpus().is_none()) {
        Some(device) if hosts().count() > 1 => Err(SpecError::NoCpus(device.name())),
        _ => Ok(()),
    }
}

/// Refuses NVIDIA GPUs of which some have numbers and others UUIDs: only the driver knows which of
/// them are the same.
fn check_names(devices: &[DeviceSpec]) -> Result<(), SpecError> {
    let named = |by_number: bool| {
        let is_named = |device: &&DeviceSpec| match device {
            DeviceSpec::Cuda(gpu) => matches!(gpu, GpuName::Number(_)) == by_number,
            DeviceSpec::Host { .. } | DeviceSpec::Hip(_) => false,
        };
        devices.iter().find(is_named).map(DeviceSpec::name)
    };
    match (named(true), named(false)) {
        (Some(number), Some(uuid)) => Err(SpecError::MixedNames { number, uuid }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A MIG instance and a GPU.
    const MIG: &str = "cuda:MIG-00000000-0000-0000-0000-00000000000a";
    const WHOLE: &str = "cuda:GPU-00000000-0000-0000-0000-00000000000b";

    fn spec(text: &str) -> DeviceSpec {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn devices_are_read_as_they_are_written() {
        assert_eq!(spec("host"), DeviceSpec::HOST);
        assert_eq!(spec("host:1@4-6,9"), DeviceSpec::Host { number: 1, cpus: Some(vec![4, 5, 6, 9]) });
        assert_eq!(spec("host@1"), DeviceSpec::Host { number: 0, cpus: Some(vec![1]) });
        let gpu = |number| DeviceSpec::Cuda(GpuName::Number(number));
        assert_eq!((spec("cuda"), spec("cuda:3")), (gpu(0), gpu(3)));
        assert_eq!((spec("hip"), spec("hip:1")), (DeviceSpec::Hip(0), DeviceSpec::Hip(1)));
        for text in ["host", "host:1", "host:0@0-3,8", "cuda:0", "hip:2", MIG, WHOLE] {
            assert_eq!(spec(text).to_string(), text);
        }
    }

    #[test]
    fn invalid_devices_are_refused_with_the_cause() {
        for (text, cause) in [
            ("gpu", "unknown device gpu"),
            ("host:x", "`x` is not a device number"),
            ("host:0@", "empty"),
            ("host:0@3-1", "3 comes after 1"),
            ("host:0@0-2,1", "CPU 1 is in the set twice"),
            ("host:0@a", "`a` is not a CPU"),
            ("host:0@1-", "`` is not a CPU"),
            ("host:0@0-99999999999", "not a CPU"),
            ("cuda:x", "`x` names no NVIDIA GPU"),
            ("cuda:MIG-1", "`1` is not a whole UUID"),
            ("cuda:0@1", "only host devices have a CPU set"),
            ("hip:0@1", "only host devices have a CPU set"),
            ("hip:x", "`x` is not a device number"),
        ] {
            let error = text.parse::<DeviceSpec>().unwrap_err();
            assert!(error.contains(cause), "{text}: {error}");
        }
    }

    #[test]
    fn devices_that_conflict_are_refused() {
        let checked =
            |devices: &[&str]| check(&devices.iter().map(|text| spec(text)).collect::<Vec<_>>(), &[0, 1, 2, 3]);
        for devices in [
            &["host"][..],
            &["host:5"],
            &["host:0@0", "host:1@1-3"],
            &["cuda:0", "cuda:1"],
            &["host", "cuda:0"],
            &[MIG, WHOLE, "hip:0"],
        ] {
            assert_eq!(checked(devices), Ok(()), "{devices:?}");
        }
        for (devices, cause) in [
            (&["host:0@0", "host:0@1"][..], "device host:0 is given twice"),
            (&["host", "host:0"], "device host:0 is given twice"),
            (&["cuda", "cuda:0"], "device cuda:0 is given twice"),
            (&[MIG, MIG], "is given twice"),
            (&["cuda:1", MIG], "cuda:1 and cuda:MIG-00000000-0000-0000-0000-00000000000a may be the same GPU"),
            (&["host:0@0-1", "host:1@1-2"], "CPU 1 is in the CPU sets of both host:0 and host:1"),
            (&["host:0@0", "host:1"], "host:1 is one of several host devices, but has no CPU set"),
            (&["host:0@3-5"], "host:0 names CPU 4, but this process may use only 0-3"),
        ] {
            let error = checked(devices).unwrap_err().to_string();
            assert!(error.contains(cause), "{devices:?}: {error}");
        }
    }
}
