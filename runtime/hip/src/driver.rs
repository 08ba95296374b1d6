//! The library and its devices.

use crate::error::{HipError, status};
use crate::functions::{Functions, Status};
use crate::gpu::Gpu;
use crate::kfd::{STAND_IN, StandIn};
use libloading::Library;
use std::error::Error;
use std::ffi::{CStr, c_int};
use std::path::Path;
use std::sync::Arc;

/// File names of the installed library: ROCm 7, 6 and 5, the development name, and the folder of
/// AMD's packages, which is not always on the loader's path.
const LIBRARY_NAMES: [&str; 5] =
    ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so", "/opt/rocm/lib/libamdhip64.so"];

/// Why no GPU can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The library cannot be loaded.
    #[error("no HIP runtime here: {name} cannot be loaded ({why}); install AMD's ROCm, or Debian's `libamdhip64-5`")]
    NoLibrary {
        /// The library.
        name: String,
        /// The loader's message.
        why: String,
    },
    /// The library is too old, or not a HIP runtime.
    #[error("the HIP runtime lacks `{0}`; ROCm 5.0 or later is needed")]
    NoSymbol(&'static str),
    /// The library finds no device.
    #[error(
        "the HIP runtime finds no device ({0}); is an AMD GPU installed, may this user open `/dev/kfd` and \
         `/dev/dri/renderD*` (groups `render` and `video`), and do `HIP_VISIBLE_DEVICES` and `ROCR_VISIBLE_DEVICES` \
         let this process see it?"
    )]
    NoDevice(HipError),
    /// The ordinal is too large.
    #[error("there is no device {index}: the HIP runtime has {count}, numbered from 0")]
    NoSuchDevice {
        /// The requested ordinal.
        index: u32,
        /// The number of devices.
        count: u32,
    },
    /// The library failed for another reason.
    #[error("the HIP runtime is installed but gives no device: {0}")]
    Refused(#[from] HipError),
}

/// The loaded library.
pub struct Driver {
    pub(crate) functions: Functions,
    /// The library's stand-in for the kernel driver, which only a test's library has.
    pub(crate) kernel_driver: Option<StandIn>,
    _library: Library,
}

impl Driver {
    /// Loads and initializes the library of this machine: the newest that is installed.
    pub fn load() -> Result<Arc<Driver>, OpenError> {
        let mut refusal = None;
        for name in LIBRARY_NAMES {
            match open_library(Path::new(name)) {
                Ok(library) => return Driver::start(library),
                Err(error) => refusal = refusal.or(Some(error)),
            }
        }
        Err(refusal.expect("`LIBRARY_NAMES` is not empty"))
    }

    /// Loads and initializes the library from a file.
    pub fn load_from(path: &Path) -> Result<Arc<Driver>, OpenError> {
        Driver::start(open_library(path)?)
    }

    fn start(library: Library) -> Result<Arc<Driver>, OpenError> {
        let functions = Functions::load(&library)?;
        // SAFETY: a function of this name has this type; the pointer is not kept longer than the
        // library, which is stored with it.
        let kernel_driver = unsafe { library.get::<StandIn>(STAND_IN) }.ok().map(|found| *found);
        let driver = Driver { functions, kernel_driver, _library: library };
        // SAFETY: initializes the library; takes no pointers.
        let initialised = driver.check("hipInit", unsafe { (driver.functions.init)(0) });
        initialised.map_err(|error| match error.code {
            // ROCm 5.2 returns the second error on a machine without a device.
            status::NO_DEVICE | status::INVALID_DEVICE => OpenError::NoDevice(error),
            _ => OpenError::Refused(error),
        })?;
        Ok(Arc::new(driver))
    }

    /// The version of the runtime: major times 10⁷, minor times 10⁵ and a build number.
    pub fn version(&self) -> Result<u32, HipError> {
        let mut version = 0;
        // SAFETY: writes one int to the given address.
        self.check("hipDriverGetVersion", unsafe { (self.functions.driver_version)(&mut version) })?;
        Ok(u32::try_from(version).unwrap_or(0))
    }

    /// The number of devices.
    pub fn device_count(&self) -> Result<u32, HipError> {
        let mut count = 0;
        // SAFETY: writes one int to the given address.
        self.check("hipGetDeviceCount", unsafe { (self.functions.device_count)(&mut count) })?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// The device with an ordinal.
    pub fn gpu(self: &Arc<Driver>, index: u32) -> Result<Gpu, OpenError> {
        let count = self.device_count().map_err(|error| match error.code {
            status::NO_DEVICE => OpenError::NoDevice(error),
            _ => OpenError::Refused(error),
        })?;
        match count {
            0 => Err(OpenError::NoDevice(HipError::of("hipGetDeviceCount", status::NO_DEVICE))),
            _ if index >= count => Err(OpenError::NoSuchDevice { index, count }),
            _ => Ok(Gpu::new(self.clone(), index)),
        }
    }

    /// Whether the library can kill the running waves of this process: REEF's extension.
    pub fn can_reset_waves(&self) -> bool {
        self.functions.reset_waves.is_some()
    }

    pub(crate) fn check(&self, call: &'static str, code: Status) -> Result<(), HipError> {
        if code == 0 {
            return Ok(());
        }
        Err(HipError { call, code, name: self.error_name(code) })
    }

    /// The name of an error. For a number that it does not know, the library returns
    /// `hipErrorUnknown`, which is the name of another error.
    fn error_name(&self, code: c_int) -> String {
        if let Some(name) = status::name(code) {
            return name.to_owned();
        }
        // SAFETY: returns the address of a static text, or null.
        let text = unsafe { (self.functions.error_name)(code) };
        if text.is_null() {
            return "unknown error".to_owned();
        }
        // SAFETY: the library returned the address of a static NUL-terminated text.
        let name = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        if name == "hipErrorUnknown" { "unknown error".to_owned() } else { name.into_owned() }
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

fn open_library(path: &Path) -> Result<Library, OpenError> {
    // SAFETY: the library is meant to be loaded like this; its initializers have no preconditions.
    unsafe { Library::new(path) }.map_err(|error| OpenError::NoLibrary {
        name: path.display().to_string(),
        why: error.source().map_or_else(|| error.to_string(), ToString::to_string),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named() {
        let error = Driver::load_from(Path::new("/nowhere/libamdhip64.so.6")).expect_err("there is none");
        let text = error.to_string();
        assert!(text.starts_with("no HIP runtime here: /nowhere/libamdhip64.so.6 cannot be loaded"), "{text}");
    }

    #[test]
    fn a_library_without_the_functions_is_refused() {
        // The C library exists on every machine that runs this test.
        let error = Driver::load_from(Path::new("libc.so.6")).expect_err("no HIP runtime");
        assert_eq!(error, OpenError::NoSymbol("hipInit"));
        assert!(error.to_string().contains("lacks `hipInit`"));
    }
}
