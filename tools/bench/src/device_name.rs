//! Names of devices.

use std::fmt;
use std::str::FromStr;

/// A device kind, as named by flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceName {
    /// CPU cores as compute units.
    Host,
    /// An NVIDIA GPU, by its number.
    Cuda(u32),
    /// An AMD GPU, by its number.
    Hip(u32),
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceName, String> {
        let (kind, index) = text.split_once(':').unwrap_or((text, "0"));
        let number = || index.parse().map_err(|_| format!("`{index}` is not a GPU number; GPUs are numbered from 0"));
        match kind {
            "host" if text == "host" => Ok(DeviceName::Host),
            "cuda" => number().map(DeviceName::Cuda),
            "hip" => number().map(DeviceName::Hip),
            _ => Err(format!(
                "unknown device {text}; the devices are host, cuda or cuda:N for NVIDIA GPUs, and hip or hip:N for \
                 AMD GPUs"
            )),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Host => f.write_str("host"),
            DeviceName::Cuda(index) => write!(f, "cuda:{index}"),
            DeviceName::Hip(index) => write!(f, "hip:{index}"),
        }
    }
}
