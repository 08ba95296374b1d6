//! The stand-in's options, in one environment variable.
//!
//! `ATOLL_STAND_IN_CUDA=memory=64M,units=2,ptx=8.0,fail=cuMemAlloc_v2@3`: words separated by
//! commas.
//!
//! | word | meaning | default |
//! |---|---|---|
//! | `memory=64M` | device memory, with `K`, `M` or `G` | 1 GiB |
//! | `units=2` | number of compute units | 2 per CPU, at least 4 and at most 64 |
//! | `sm=90` | compute capability | 9.0 |
//! | `ptx=8.0` | newest supported version of PTX | 9.5 |
//! | `driver=13.5` | supported version of CUDA | 13.5 |
//! | `devices=1` | number of devices; 0 is a driver without devices | 1 |
//! | `mig=2` | device 0 is divided into this many MIG instances of equal size | not divided |
//! | `time=SECONDS` | how long a kernel may run before the launch times out | no limit |
//! | `cache=FOLDER` | cache of native code, shared by processes | `cuda` in `$ATOLL_TEST_KERNELS`, if set |
//! | `exclusive` | the device is in exclusive mode, and another process uses it | |
//! | `prohibited` | the device is in prohibited mode | |
//! | `fail=NAME@N` | the N-th call of an entry point fails with `CUDA_ERROR_UNKNOWN`, or `_OUT_OF_MEMORY` | |
//! | `fail=NAME@N:CODE` | the same with another code; the word may be repeated | |
//! | `verbose` | report failed calls and kernels on standard error | |

use crate::status::Status;
use std::path::PathBuf;
use std::time::Duration;

/// The environment variable.
pub(crate) const VARIABLE: &str = "ATOLL_STAND_IN_CUDA";

/// The environment variable with the folder of native code that the tests of one run share; see
/// `tests/src/kernels.rs`.
const KERNELS: &str = "ATOLL_TEST_KERNELS";

/// Maximum number of devices, so that tests can tell devices apart.
const DEVICES_MAX: u32 = 8;

/// Maximum number of MIG instances, as on real GPUs.
pub(crate) const INSTANCES_MAX: u32 = 7;

/// The options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) memory_bytes: u64,
    pub(crate) compute_units: u32,
    /// Major times ten plus minor.
    pub(crate) capability: u32,
    /// Major and minor.
    pub(crate) ptx: (u32, u32),
    /// As the driver counts: 12080 is 12.8.
    pub(crate) driver: i32,
    pub(crate) devices: u32,
    /// MIG instances of device 0; 0 if it is not divided.
    pub(crate) instances: u32,
    pub(crate) time_limit: Option<Duration>,
    pub(crate) cache: Option<PathBuf>,
    pub(crate) compute_mode: ComputeMode,
    pub(crate) failures: Vec<Failure>,
    pub(crate) verbose: bool,
}

/// Which processes may have contexts on the device, by the driver's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ComputeMode {
    Default = 0,
    Prohibited = 2,
    /// One process, which is not this one.
    ExclusiveProcess = 3,
}

impl ComputeMode {
    /// Whether this process may have contexts.
    pub(crate) fn is_available(self) -> bool {
        self == ComputeMode::Default
    }
}

/// A call that is to fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The entry point.
    pub(crate) name: String,
    /// Number of the failing call of this entry point, counted from 1.
    pub(crate) call: u64,
    pub(crate) status: Status,
}

/// An invalid word in the variable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{VARIABLE}: `{0}` is not understood")]
pub(crate) struct BadOption(String);

impl Default for Options {
    fn default() -> Options {
        Options {
            memory_bytes: 1 << 30,
            compute_units: compute_units_default(),
            capability: 90,
            ptx: (9, 5),
            driver: 13_050,
            devices: 1,
            instances: 0,
            time_limit: None,
            cache: None,
            compute_mode: ComputeMode::Default,
            failures: Vec::new(),
            verbose: false,
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

    /// Compute units of a MIG instance.
    pub(crate) fn instance_units(&self) -> u32 {
        (self.compute_units / self.instances.max(1)).max(1)
    }

    /// Memory of a MIG instance.
    pub(crate) fn instance_bytes(&self) -> u64 {
        self.memory_bytes / u64::from(self.instances.max(1))
    }

    /// The folder of the cache of native code; `None` for no cache.
    pub(crate) fn code_folder(&self) -> Option<PathBuf> {
        let shared = || std::env::var_os(KERNELS).filter(|folder| !folder.is_empty());
        self.cache.clone().or_else(|| Some(PathBuf::from(shared()?).join("cuda")))
    }

    fn take(&mut self, word: &str) -> Option<()> {
        match word.split_once('=') {
            None if word == "exclusive" => self.compute_mode = ComputeMode::ExclusiveProcess,
            None if word == "prohibited" => self.compute_mode = ComputeMode::Prohibited,
            None if word == "verbose" => self.verbose = true,
            Some(("memory", text)) => self.memory_bytes = bytes(text)?,
            Some(("units", text)) => self.compute_units = text.parse().ok().filter(|units| *units > 0)?,
            Some(("sm", text)) => self.capability = text.parse().ok()?,
            Some(("ptx", text)) => self.ptx = version(text)?,
            Some(("driver", text)) => {
                self.driver = version(text).and_then(|(major, minor)| i32::try_from(major * 1000 + minor * 10).ok())?
            }
            Some(("devices", text)) => self.devices = text.parse().ok().filter(|devices| *devices <= DEVICES_MAX)?,
            Some(("mig", text)) => {
                self.instances = text.parse().ok().filter(|count| (1..=INSTANCES_MAX).contains(count))?
            }
            Some(("time", text)) => self.time_limit = Some(Duration::try_from_secs_f64(text.parse().ok()?).ok()?),
            Some(("cache", text)) => self.cache = Some(text.into()),
            Some(("fail", text)) => self.failures.push(failure(text)?),
            _ => return None,
        }
        Some(())
    }
}

/// Tests run concurrently, one per CPU, and some tests have a kernel that waits for another kernel
/// of the same test. The device therefore has two compute units per CPU, but at least 4 and at most
/// 64.
fn compute_units_default() -> u32 {
    std::thread::available_parallelism().map_or(4, |cpus| (2 * cpus.get() as u32).clamp(4, 64))
}

fn bytes(text: &str) -> Option<u64> {
    let (number, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok().filter(|major| *major < 1000)?, minor.parse().ok().filter(|minor| *minor < 100)?))
}

fn failure(text: &str) -> Option<Failure> {
    let (name, rest) = text.split_once('@')?;
    let (call, status) = match rest.split_once(':') {
        Some((call, code)) => (call, Status::of_number(code.parse().ok()?)?),
        None if name.contains("Alloc") => (rest, Status::OutOfMemory),
        None => (rest, Status::Unknown),
    };
    Some(Failure { name: name.to_owned(), call: call.parse().ok().filter(|call| *call > 0)?, status })
}
