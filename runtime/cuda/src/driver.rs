//! The driver's library, and the devices it counts.

use crate::context::Context;
use crate::error::{CudaError, status};
use crate::functions::{Functions, Status};
use atoll_cuda_api::constants;
use libloading::Library;
use std::error::Error;
use std::ffi::{CStr, c_char, c_int};
use std::path::Path;
use std::ptr;
use std::sync::Arc;

/// Names under which the driver is installed.
const LIBRARY_NAMES: [&str; 2] =
    if cfg!(windows) { ["nvcuda.dll", "nvcuda64.dll"] } else { ["libcuda.so.1", "libcuda.so"] };

/// Why there is no GPU to work with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No driver.
    #[error("no NVIDIA driver here: {name} cannot be loaded ({why})")]
    NoLibrary {
        /// The library.
        name: String,
        /// What the loader says.
        why: String,
    },
    /// A driver too old for us.
    #[error("the NVIDIA driver lacks `{0}`; update it")]
    NoSymbol(&'static str),
    /// The driver is there and finds no device.
    #[error(
        "the NVIDIA driver finds no device; is one installed, and does `CUDA_VISIBLE_DEVICES` let this process see it?"
    )]
    NoDevice,
    /// There are fewer devices.
    #[error("there is no device {index}: the NVIDIA driver counts {count}, from 0")]
    NoSuchDevice {
        /// What was asked for.
        index: u32,
        /// How many there are.
        count: u32,
    },
    /// Nobody may use the device.
    #[error("device {index} is in prohibited mode: no process may use it until `nvidia-smi -i {index} -c DEFAULT`")]
    Prohibited {
        /// The device.
        index: u32,
    },
    /// Another process has the device for itself.
    #[error(
        "device {index} is in exclusive mode and another process has it; end that one, or `nvidia-smi -i {index} -c DEFAULT`"
    )]
    Exclusive {
        /// The device.
        index: u32,
    },
    /// The library and the kernel's module are of different drivers.
    #[error(
        "the NVIDIA driver's library and its kernel module are of different versions; reboot, or load the module again ({0})"
    )]
    Mismatch(CudaError),
    /// The driver refuses for another reason.
    #[error("the NVIDIA driver is there but gives no device: {0}")]
    Refused(#[from] CudaError),
}

/// The loaded driver.
pub struct Driver {
    pub(crate) functions: Functions,
    _library: Library,
}

impl Driver {
    /// Loads and initialises the driver of this machine.
    pub fn load() -> Result<Arc<Driver>, OpenError> {
        let mut refusal = None;
        for name in LIBRARY_NAMES {
            match open_library(Path::new(name)) {
                Ok(library) => return Driver::start(library),
                Err(error) => refusal = refusal.or(Some(error)),
            }
        }
        Err(refusal.expect("a name was tried"))
    }

    /// The same of the library in a file.
    pub fn load_from(path: &Path) -> Result<Arc<Driver>, OpenError> {
        Driver::start(open_library(path)?)
    }

    fn start(library: Library) -> Result<Arc<Driver>, OpenError> {
        let driver = Driver { functions: Functions::load(&library)?, _library: library };
        // SAFETY: initialises the library; takes no pointers.
        let initialised = driver.check("cuInit", unsafe { (driver.functions.init)(0) });
        initialised.map_err(|error| match error.code {
            status::NO_DEVICE => OpenError::NoDevice,
            status::SYSTEM_DRIVER_MISMATCH => OpenError::Mismatch(error),
            _ => OpenError::Refused(error),
        })?;
        Ok(Arc::new(driver))
    }

    /// The version of CUDA the driver speaks: 12040 is 12.4.
    pub fn version(&self) -> Result<u32, CudaError> {
        let mut version = 0;
        // SAFETY: writes one int to the address given.
        self.check("cuDriverGetVersion", unsafe { (self.functions.driver_version)(&mut version) })?;
        Ok(u32::try_from(version).unwrap_or(0))
    }

    /// How many devices there are.
    pub fn device_count(&self) -> Result<u32, CudaError> {
        let mut count = 0;
        // SAFETY: writes one int to the address given.
        self.check("cuDeviceGetCount", unsafe { (self.functions.device_count)(&mut count) })?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// A device by its number.
    pub fn gpu(self: &Arc<Driver>, index: u32) -> Result<Gpu, OpenError> {
        let count = self.device_count()?;
        match count {
            0 => return Err(OpenError::NoDevice),
            _ if index >= count => return Err(OpenError::NoSuchDevice { index, count }),
            _ => {}
        }
        let mut ordinal = 0;
        // SAFETY: writes one int to the address given.
        self.check("cuDeviceGet", unsafe { (self.functions.device_get)(&mut ordinal, index as c_int) })?;
        Ok(Gpu { driver: self.clone(), index, ordinal })
    }

    pub(crate) fn check(&self, call: &'static str, code: Status) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let mut name: *const c_char = ptr::null();
        // SAFETY: writes the address of a static string, or null for an unknown code.
        let answer = unsafe { (self.functions.error_name)(code, &mut name) };
        let name = match (answer, name.is_null()) {
            // SAFETY: the driver gave the address of a static zero-terminated string.
            (0, false) => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
            _ => "unknown error".to_owned(),
        };
        Err(CudaError { call, code, name })
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

fn open_library(path: &Path) -> Result<Library, OpenError> {
    // SAFETY: the driver's library is meant to be loaded like this; its initialisers have no
    // preconditions.
    unsafe { Library::new(path) }
        .map_err(|error| OpenError::NoLibrary { name: path.display().to_string(), why: loader_says(&error) })
}

/// The loader's own words, where it has some.
pub(crate) fn loader_says(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// Device attributes by their numbers in `cuda.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Attribute {
    /// `CU_DEVICE_ATTRIBUTE_CLOCK_RATE`, kHz.
    ClockKilohertz = constants::CU_DEVICE_ATTRIBUTE_CLOCK_RATE,
    /// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
    ComputeUnits = constants::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
    /// `CU_DEVICE_ATTRIBUTE_COMPUTE_MODE`; see [`Gpu::compute_mode`].
    ComputeMode = constants::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE,
    /// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`.
    ComputeMajor = constants::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
    /// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`.
    ComputeMinor = constants::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    /// `CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`, bytes.
    SharedBytesMax = constants::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
}

/// Who may use a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeMode {
    /// Anybody.
    Default,
    /// Nobody.
    Prohibited,
    /// One process at a time.
    Exclusive,
}

/// A device as the driver counts them.
#[derive(Clone, Debug)]
pub struct Gpu {
    pub(crate) driver: Arc<Driver>,
    pub(crate) ordinal: c_int,
    index: u32,
}

impl Gpu {
    /// Its number.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its driver.
    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// Its name.
    pub fn name(&self) -> Result<String, CudaError> {
        let mut name = [0 as c_char; 256];
        // SAFETY: writes at most 255 bytes and a zero into an array of 256.
        self.driver.check("cuDeviceGetName", unsafe {
            (self.driver.functions.device_name)(name.as_mut_ptr(), 255, self.ordinal)
        })?;
        // SAFETY: the array is zero-terminated: its last byte was zero and is not written.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// A number about it; 0 where the driver gives a negative one.
    pub fn attribute(&self, attribute: Attribute) -> Result<u32, CudaError> {
        let mut value = 0;
        let get = self.driver.functions.device_attribute;
        // SAFETY: writes one int to the address given.
        self.driver.check("cuDeviceGetAttribute", unsafe { get(&mut value, attribute as c_int, self.ordinal) })?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Its compute capability: 90 for 9.0, whose target is `sm_90`.
    pub fn capability(&self) -> Result<u32, CudaError> {
        Ok(self.attribute(Attribute::ComputeMajor)? * 10 + self.attribute(Attribute::ComputeMinor)?)
    }

    /// Who may use it.
    pub fn compute_mode(&self) -> Result<ComputeMode, CudaError> {
        Ok(match self.attribute(Attribute::ComputeMode)? {
            2 => ComputeMode::Prohibited,
            1 | 3 => ComputeMode::Exclusive,
            _ => ComputeMode::Default,
        })
    }

    /// Retains its primary context.
    pub fn enter(&self) -> Result<Arc<Context>, OpenError> {
        let index = self.index;
        match self.compute_mode()? {
            ComputeMode::Prohibited => Err(OpenError::Prohibited { index }),
            mode => Context::retain(self.clone()).map_err(|error| match (mode, error.code) {
                (ComputeMode::Exclusive, _) | (_, status::DEVICE_UNAVAILABLE) => OpenError::Exclusive { index },
                _ => OpenError::Refused(error),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named() {
        let error = Driver::load_from(Path::new("/nowhere/libcuda.so.1")).expect_err("there is none");
        assert!(
            error.to_string().starts_with("no NVIDIA driver here: /nowhere/libcuda.so.1 cannot be loaded"),
            "{error}"
        );
    }

    #[test]
    fn a_library_without_the_driver_s_functions_is_no_driver() {
        // The C library is on every machine that runs this.
        let error = Driver::load_from(Path::new("libc.so.6")).expect_err("no driver");
        assert_eq!(error, OpenError::NoSymbol("cuInit"));
        assert!(error.to_string().contains("lacks `cuInit`"));
    }
}
