//! The targets of a bundle.

use atoll_codegen::{HostLevel, TargetDescription};
use atoll_kgraph::AMD_TARGETS;
use atoll_target_nvidia::Architecture;
use std::fmt;
use std::str::FromStr;

/// A target of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// `host-x86-64-v3`
    HostV3,
    /// `host-x86-64-v4`
    HostV4,
    /// `nvidia-sm_75`, also written `nvidia:sm_75`: PTX, which the driver compiles for this and
    /// every newer GPU; if assembled, also machine code for this GPU.
    Nvidia(Architecture),
    /// `amd-gfx90a`, also written `amd:gfx90a`: machine code for this architecture.
    Amd(AmdArchitecture),
}

/// An AMD architecture: an index into `AMD_TARGETS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AmdArchitecture(usize);

impl AmdArchitecture {
    /// Every architecture.
    pub fn all() -> impl Iterator<Item = AmdArchitecture> {
        (0..AMD_TARGETS.len()).map(AmdArchitecture)
    }

    /// Its name: `gfx90a`.
    pub fn name(self) -> &'static str {
        AMD_TARGETS[self.0].0
    }

    fn target_name(self) -> &'static str {
        AMD_TARGETS[self.0].1
    }
}

/// An unknown target name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no target {0}; there are {names}, and host for this machine", names = target_names())]
pub struct UnknownTarget(String);

impl Target {
    /// PTX for every NVIDIA GPU from Turing on.
    pub const NVIDIA: Target = Target::Nvidia(Architecture::TURING);

    /// Every target.
    pub fn all() -> impl Iterator<Item = Target> {
        [Target::HostV3, Target::HostV4]
            .into_iter()
            .chain(Architecture::all().map(Target::Nvidia))
            .chain(AmdArchitecture::all().map(Target::Amd))
    }

    /// The host target of this machine (if built with LLVM), and PTX for NVIDIA GPUs.
    pub fn defaults() -> Vec<Target> {
        if cfg!(feature = "host") { vec![Target::this_host(), Target::NVIDIA] } else { vec![Target::NVIDIA] }
    }

    /// The default targets for existing PTX: the host, and the oldest NVIDIA architecture that is
    /// not older than `sm` (80 for `sm_80`).
    pub(crate) fn defaults_for(sm: u32) -> Vec<Target> {
        let nvidia = |target| if target == Target::NVIDIA { Target::nvidia_for(sm) } else { target };
        Target::defaults().into_iter().map(nvidia).collect()
    }

    /// The oldest NVIDIA architecture that is not older than `sm`.
    pub(crate) fn nvidia_for(sm: u32) -> Target {
        let is_new_enough = |architecture: &Architecture| architecture.sm() >= sm;
        Architecture::all().find(is_new_enough).map_or(Target::NVIDIA, Target::Nvidia)
    }

    /// The best host target that this machine can run; without LLVM, the one that every machine can
    /// run.
    pub fn this_host() -> Target {
        #[cfg(feature = "host")]
        if atoll_target_host::CpuLevel::of_this_machine() == Some(atoll_target_host::CpuLevel::V4) {
            return Target::HostV4;
        }
        Target::HostV3
    }

    /// The name in bundles.
    pub fn name(self) -> &'static str {
        match self {
            Target::HostV3 => "host-x86-64-v3",
            Target::HostV4 => "host-x86-64-v4",
            Target::Nvidia(architecture) => architecture.target_name(),
            Target::Amd(architecture) => architecture.target_name(),
        }
    }

    pub(crate) fn description(self) -> TargetDescription {
        match self {
            Target::HostV3 => TargetDescription::host(HostLevel::V3),
            Target::HostV4 => TargetDescription::host(HostLevel::V4),
            // One PTX text serves all architectures; they differ only in assembly.
            Target::Nvidia(_) => TargetDescription::nvidia_sm75(),
            Target::Amd(_) => TargetDescription::amd(),
        }
    }
}

fn target_names() -> String {
    Target::all().map(Target::name).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Target {
    type Err = UnknownTarget;

    fn from_str(name: &str) -> Result<Target, UnknownTarget> {
        if name == "host" {
            return Ok(Target::this_host());
        }
        let dashed = name.replacen(':', "-", 1);
        Target::all().find(|t| t.name() == dashed).ok_or_else(|| UnknownTarget(name.into()))
    }
}
