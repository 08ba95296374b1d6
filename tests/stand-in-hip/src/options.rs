//! The stand-in's options, in one environment variable.
//!
//! `ATOLL_STAND_IN_HIP=arch=gfx1100,memory=64M,units=8`: words separated by commas.
//!
//! | word | meaning | default |
//! |---|---|---|
//! | `arch=gfx1100` | architecture of the devices | gfx90a |
//! | `memory=64M` | memory of a device, with `K`, `M` or `G` | 1 GiB |
//! | `units=8` | number of compute units | 8 |
//! | `devices=1` | number of devices; 0 is a library without devices | 1 |
//! | `rocm=5.2` | version of ROCm; before 6.0 the new symbol of device properties is not supported | 6.2 |
//! | `reef` | `hipResetWavefronts` works, as with REEF's runtime and driver | it does not |
//! | `reef=fatal` | a call of `hipResetWavefronts` ends the process, which shows that it was made | |
//! | `kfd` | the kernel driver has Atoll's patch, whose ioctl ends running waves | it has not |
//! | `kfd=other-abi` | it has the patch with another version of the interface | |
//! | `kfd=busy` | it refuses every reset, as if the GPU held too many processes | |
//! | `kfd=loses` | a reset of running waves loses the GPU | |
//! | `no-ipc` | memory of another process cannot be opened | it can |
//! | `abort` | a fault ends the process, as most releases of ROCm do | it is an error of all later calls |

use crate::status::Status;
use std::fmt;

/// The environment variable.
pub(crate) const VARIABLE: &str = "ATOLL_STAND_IN_HIP";

/// Maximum number of devices, so that tests can tell them apart.
const DEVICES_MAX: u32 = 8;

/// Maximum number of compute units; a mask of them has four words.
pub(crate) const UNITS_MAX: u32 = 128;

/// The options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) architecture: String,
    pub(crate) memory_bytes: u64,
    pub(crate) compute_units: u32,
    pub(crate) devices: u32,
    /// Major and minor version.
    pub(crate) rocm: (u32, u32),
    pub(crate) resets_waves: bool,
    pub(crate) reset_is_fatal: bool,
    pub(crate) patch: Patch,
    pub(crate) refuses_ipc: bool,
    pub(crate) aborts: bool,
}

/// Atoll's patch of the kernel driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patch {
    /// The driver does not have it.
    Absent,
    /// The driver has it.
    Present,
    /// The driver has another version of its interface.
    OtherAbi,
    /// The driver has it, and refuses every reset.
    Busy,
    /// The driver has it, and a reset of running waves loses the GPU.
    Loses,
}

/// An invalid word in the variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadOption(String);

impl fmt::Display for BadOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VARIABLE}: `{}` is not understood", self.0)
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            architecture: "gfx90a".to_owned(),
            memory_bytes: 1 << 30,
            compute_units: 8,
            devices: 1,
            rocm: (6, 2),
            resets_waves: false,
            reset_is_fatal: false,
            patch: Patch::Absent,
            refuses_ipc: false,
            aborts: false,
        }
    }
}

impl Options {
    /// Parses the value of the variable.
    pub(crate) fn parse(text: &str) -> Result<Options, BadOption> {
        let mut options = Options::default();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            options.take(word).ok_or_else(|| BadOption(word.to_owned()))?;
        }
        Ok(options)
    }

    fn take(&mut self, word: &str) -> Option<()> {
        match word.split_once('=') {
            None if word == "reef" => self.resets_waves = true,
            None if word == "abort" => self.aborts = true,
            None if word == "kfd" => self.patch = Patch::Present,
            None if word == "no-ipc" => self.refuses_ipc = true,
            Some(("reef", "fatal")) => self.reset_is_fatal = true,
            Some(("kfd", "other-abi")) => self.patch = Patch::OtherAbi,
            Some(("kfd", "busy")) => self.patch = Patch::Busy,
            Some(("kfd", "loses")) => self.patch = Patch::Loses,
            Some(("arch", name)) => self.architecture = Some(name).filter(|name| name.starts_with("gfx"))?.to_owned(),
            Some(("memory", text)) => self.memory_bytes = bytes(text)?,
            Some(("units", text)) => {
                self.compute_units = text.parse().ok().filter(|units| (1..=UNITS_MAX).contains(units))?;
            }
            Some(("devices", text)) => self.devices = text.parse().ok().filter(|devices| *devices <= DEVICES_MAX)?,
            Some(("rocm", text)) => self.rocm = version(text)?,
            _ => return None,
        }
        Some(())
    }

    /// The version in the library's encoding.
    pub(crate) fn version(&self) -> i32 {
        (self.rocm.0 * 10_000_000 + self.rocm.1 * 100_000) as i32
    }

    /// The error for code that the loader refuses. Before 6.1, one stands for every reason.
    pub(crate) fn refusal(&self) -> Status {
        if self.rocm < (6, 1) { Status::SharedObjectInitFailed } else { Status::NoBinaryForGpu }
    }

    /// Whether memory is paged in on demand; no option turns it on.
    pub(crate) fn xnack(&self) -> bool {
        false
    }

    /// Whether on-chip memory has error correction.
    pub(crate) fn sramecc(&self) -> bool {
        self.architecture.starts_with("gfx9")
    }

    /// The architecture with its features, as the library prints it.
    pub(crate) fn full_architecture(&self) -> String {
        let features = if self.sramecc() { ":sramecc+:xnack-" } else { "" };
        format!("{}{features}", self.architecture)
    }

    /// Lanes of a wave.
    pub(crate) fn wave_lanes(&self) -> i32 {
        if self.architecture.starts_with("gfx9") { 64 } else { 32 }
    }
}

fn bytes(text: &str) -> Option<u64> {
    let (number, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|bytes| (1 << 20..1 << 40).contains(bytes))
}

fn version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok().filter(|major| *major < 100)?, minor.parse().ok().filter(|minor| *minor < 100)?))
}
