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
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceName, String> {
        match text.split_once(':').unwrap_or((text, "0")) {
            ("host", _) if text == "host" => Ok(DeviceName::Host),
            ("cuda", index) => index
                .parse()
                .map(DeviceName::Cuda)
                .map_err(|_| format!("`{index}` is not a GPU number; GPUs are numbered from 0")),
            _ => Err(format!("unknown device {text}; the devices are host, and cuda or cuda:N for NVIDIA GPUs")),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Host => f.write_str("host"),
            DeviceName::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}
