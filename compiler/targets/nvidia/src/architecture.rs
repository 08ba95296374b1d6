//! The GPU architectures that code is assembled for.

use atoll_kgraph::NVIDIA_TARGETS;
use std::fmt;
use std::str::FromStr;

/// A compute capability: 75 for `sm_75`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Architecture(u32);

/// A name that is not an architecture.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown NVIDIA architecture {0}; known architectures: {names}",
    names = Architecture::all().map(|a| a.to_string()).collect::<Vec<_>>().join(", ")
)]
pub struct UnknownArchitecture(String);

impl Architecture {
    /// Turing, whose PTX the drivers of all newer GPUs accept.
    pub const TURING: Architecture = Architecture(75);

    /// All architectures, oldest first.
    pub fn all() -> impl Iterator<Item = Architecture> {
        NVIDIA_TARGETS.into_iter().map(|(sm, _)| Architecture(sm))
    }

    /// 75 for `sm_75`.
    pub fn sm(self) -> u32 {
        self.0
    }

    /// The name of the target image: `nvidia-sm_75`.
    pub fn target_name(self) -> &'static str {
        NVIDIA_TARGETS.into_iter().find(|(sm, _)| *sm == self.0).map_or("nvidia-sm_75", |(_, name)| name)
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}", self.0)
    }
}

impl FromStr for Architecture {
    type Err = UnknownArchitecture;

    fn from_str(name: &str) -> Result<Architecture, UnknownArchitecture> {
        Architecture::all().find(|a| a.to_string() == name).ok_or_else(|| UnknownArchitecture(name.to_owned()))
    }
}
