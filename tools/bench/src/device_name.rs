//! Names of devices.

use std::fmt;
use std::str::FromStr;

/// A device kind, as named by flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceName {
    /// CPU cores as compute units.
    Host,
    /// An NVIDIA GPU.
    Cuda(GpuName),
    /// An AMD GPU, by its number.
    Hip(u32),
}

/// The name of an NVIDIA GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuName {
    /// The number that the driver gives it.
    Number(u32),
    /// Its UUID, as in `GPU-1f6a…`.
    Gpu(Uuid),
    /// The UUID of a MIG instance, as in `MIG-1f6a…`.
    Mig(Uuid),
}

/// A UUID in five groups of hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uuid(u128);

/// Digits of the groups of a UUID.
const GROUPS: [usize; 5] = [8, 4, 4, 4, 12];

impl GpuName {
    /// The GPU that has the number 0.
    pub const FIRST: GpuName = GpuName::Number(0);
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceName, String> {
        let (kind, name) = text.split_once(':').unwrap_or((text, "0"));
        match kind {
            "host" if text == "host" => Ok(DeviceName::Host),
            "cuda" => name.parse().map(DeviceName::Cuda),
            "hip" => name
                .parse()
                .map(DeviceName::Hip)
                .map_err(|_| format!("`{name}` is not a GPU number; GPUs are numbered from 0")),
            _ => Err(format!(
                "unknown device {text}; the devices are host, cuda, cuda:N or cuda:UUID for NVIDIA GPUs, and hip or \
                 hip:N for AMD GPUs"
            )),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Host => f.write_str("host"),
            DeviceName::Cuda(gpu) => write!(f, "cuda:{gpu}"),
            DeviceName::Hip(index) => write!(f, "hip:{index}"),
        }
    }
}

impl FromStr for GpuName {
    type Err = String;

    fn from_str(text: &str) -> Result<GpuName, String> {
        let kind = |prefix: &str| text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
        match text.get(4..) {
            Some(uuid) if kind("GPU-") => uuid.parse().map(GpuName::Gpu),
            Some(uuid) if kind("MIG-") => uuid.parse().map(GpuName::Mig),
            _ => text.parse().map(GpuName::Number).map_err(|_| {
                format!(
                    "`{text}` names no NVIDIA GPU; write its number, counted from 0, or its UUID, as in cuda:GPU-UUID \
                     or, for a MIG instance, cuda:MIG-UUID"
                )
            }),
        }
    }
}

impl fmt::Display for GpuName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuName::Number(number) => number.fmt(f),
            GpuName::Gpu(uuid) => write!(f, "GPU-{uuid}"),
            GpuName::Mig(uuid) => write!(f, "MIG-{uuid}"),
        }
    }
}

#[cfg(feature = "cuda")]
impl From<GpuName> for atoll_device_cuda::GpuId {
    fn from(name: GpuName) -> atoll_device_cuda::GpuId {
        match name {
            GpuName::Number(number) => atoll_device_cuda::GpuId::Number(number),
            GpuName::Gpu(_) | GpuName::Mig(_) => atoll_device_cuda::GpuId::Uuid(name.to_string()),
        }
    }
}

impl FromStr for Uuid {
    type Err = String;

    fn from_str(text: &str) -> Result<Uuid, String> {
        let is_group = |(group, digits): (&str, usize)| {
            group.len() == digits && group.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let is_whole = text.split('-').count() == GROUPS.len() && text.split('-').zip(GROUPS).all(is_group);
        let value = is_whole.then(|| u128::from_str_radix(&text.replace('-', ""), 16).ok()).flatten();
        value.map(Uuid).ok_or_else(|| {
            format!("`{text}` is not a whole UUID; `nvidia-smi -L` prints those of GPUs and MIG instances")
        })
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = format!("{:032x}", self.0);
        let mut rest = hex.as_str();
        for (at, digits) in GROUPS.into_iter().enumerate() {
            let (group, after) = rest.split_at(digits);
            write!(f, "{}{group}", if at == 0 { "" } else { "-" })?;
            rest = after;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_named_by_number_or_uuid() {
        let name = |text: &str| text.parse::<DeviceName>().map(|name| name.to_string());
        for text in ["host", "cuda:3", "hip:1", "cuda:GPU-0123abcd-0000-4000-8000-00000000000f"] {
            assert_eq!(name(text).as_deref(), Ok(text));
        }
        let mig = "cuda:mig-ABCDEF01-2345-6789-abcd-ef0123456789";
        assert_eq!(name(mig).as_deref(), Ok("cuda:MIG-abcdef01-2345-6789-abcd-ef0123456789"));
        assert_eq!(name("cuda").as_deref(), Ok("cuda:0"));
    }

    #[test]
    fn names_of_gpus_that_are_no_names_are_refused() {
        for (text, why) in [
            ("cuda:x", "`x` names no NVIDIA GPU"),
            ("cuda:-1", "`-1` names no NVIDIA GPU"),
            ("cuda:MIG", "`MIG` names no NVIDIA GPU"),
            ("cuda:GPUé1", "names no NVIDIA GPU"),
            ("cuda:GPU-", "`` is not a whole UUID"),
            ("cuda:GPU-0123abcd", "is not a whole UUID"),
            ("cuda:MIG-GPU-0123abcd-0000-4000-8000-00000000000f/7/0", "is not a whole UUID"),
            ("cuda:GPU-0123abcd-0000-4000-8000-00000000000g", "is not a whole UUID"),
            ("cuda:GPU-0123abcd-0000-4000-8000-00000000000f-0", "is not a whole UUID"),
            ("cuda:GPU-+123abcd-0000-4000-8000-00000000000f", "is not a whole UUID"),
            ("hip:GPU-0", "`GPU-0` is not a GPU number"),
        ] {
            let refusal = text.parse::<DeviceName>().unwrap_err();
            assert!(refusal.contains(why), "{text}: {refusal}");
        }
    }
}
