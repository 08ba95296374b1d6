//! The driver's library and its devices.

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

/// File names of the installed driver.
const LIBRARY_NAMES: [&str; 2] =
    if cfg!(windows) { ["nvcuda.dll", "nvcuda64.dll"] } else { ["libcuda.so.1", "libcuda.so"] };

/// Why no GPU can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The driver's library cannot be loaded.
    #[error("no NVIDIA driver here: {name} cannot be loaded ({why})")]
    NoLibrary {
        /// The library.
        name: String,
        /// The loader's message.
        why: String,
    },
    /// The driver is too old.
    #[error("the NVIDIA driver lacks `{0}`; update it")]
    NoSymbol(&'static str),
    /// The driver finds no device.
    #[error(
        "the NVIDIA driver finds no device; is one installed, and does `CUDA_VISIBLE_DEVICES` let this process see it?"
    )]
    NoDevice,
    /// The ordinal is too large.
    #[error("there is no device {index}: the NVIDIA driver has {count}, numbered from 0")]
    NoSuchDevice {
        /// The requested ordinal.
        index: u32,
        /// The number of devices.
        count: u32,
    },
    /// There is no device with the id, or this process does not see it.
    #[error("no device that this process sees has the id {id}; `nvidia-smi -L` lists those of this machine")]
    NoSuchId {
        /// The requested id.
        id: String,
    },
    /// This process sees other devices only.
    #[error(
        "this process does not see {id}, but {seen}; `CUDA_VISIBLE_DEVICES={id}` lets it see that device, if the \
         machine has it: a process sees one MIG instance only"
    )]
    NotSeen {
        /// The requested id.
        id: String,
        /// The ids of the visible devices.
        seen: String,
    },
    /// No process may use the device.
    #[error("device {index} is in prohibited mode: no process may use it until `nvidia-smi -i {index} -c DEFAULT`")]
    Prohibited {
        /// The device's ordinal.
        index: u32,
    },
    /// Another process has exclusive use of the device.
    #[error(
        "device {index} is in exclusive mode and another process uses it; \
         stop that process, or run `nvidia-smi -i {index} -c DEFAULT`"
    )]
    Exclusive {
        /// The device's ordinal.
        index: u32,
    },
    /// Other processes use all of the device's memory.
    #[error(
        "device {index} has no memory left for another process; `nvidia-smi` shows who holds it, and an Atoll that \
         runs there leaves some with `--memory-limit`"
    )]
    NoMemory {
        /// The device's ordinal.
        index: u32,
    },
    /// The library and the kernel module have different versions.
    #[error(
        "the NVIDIA driver's library and its kernel module have different versions; \
         reboot, or load the module again ({0})"
    )]
    Mismatch(CudaError),
    /// The driver failed for another reason.
    #[error("the NVIDIA driver is installed but gives no device: {0}")]
    Refused(#[from] CudaError),
}

/// The loaded driver.
pub struct Driver {
    pub(crate) functions: Functions,
    _library: Library,
}

impl Driver {
    /// Loads and initializes the driver of this machine.
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

    /// Loads and initializes the driver from a file.
    pub fn load_from(path: &Path) -> Result<Arc<Driver>, OpenError> {
        Driver::start(open_library(path)?)
    }

    fn start(library: Library) -> Result<Arc<Driver>, OpenError> {
        let driver = Driver { functions: Functions::load(&library)?, _library: library };
        // SAFETY: initializes the library; takes no pointers.
        let initialised = driver.check("cuInit", unsafe { (driver.functions.init)(0) });
        initialised.map_err(|error| match error.code {
            status::NO_DEVICE => OpenError::NoDevice,
            status::SYSTEM_DRIVER_MISMATCH => OpenError::Mismatch(error),
            _ => OpenError::Refused(error),
        })?;
        Ok(Arc::new(driver))
    }

    /// The version of CUDA that the driver supports: 12040 is 12.4.
    pub fn version(&self) -> Result<u32, CudaError> {
        let mut version = 0;
        // SAFETY: writes one int to the given address.
        self.check("cuDriverGetVersion", unsafe { (self.functions.driver_version)(&mut version) })?;
        Ok(u32::try_from(version).unwrap_or(0))
    }

    /// The number of devices.
    pub fn device_count(&self) -> Result<u32, CudaError> {
        let mut count = 0;
        // SAFETY: writes one int to the given address.
        self.check("cuDeviceGetCount", unsafe { (self.functions.device_count)(&mut count) })?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// The device with an ordinal.
    pub fn gpu(self: &Arc<Driver>, index: u32) -> Result<Gpu, OpenError> {
        let count = self.device_count()?;
        match count {
            0 => return Err(OpenError::NoDevice),
            _ if index >= count => return Err(OpenError::NoSuchDevice { index, count }),
            _ => {}
        }
        let mut ordinal = 0;
        // SAFETY: writes one int to the given address.
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
            // SAFETY: the driver returned the address of a static NUL-terminated string.
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
    // SAFETY: the driver's library is meant to be loaded like this; its initializers have no
    // preconditions.
    unsafe { Library::new(path) }
        .map_err(|error| OpenError::NoLibrary { name: path.display().to_string(), why: loader_message(&error) })
}

/// The loader's own message, if there is one.
pub(crate) fn loader_message(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// Device attributes, with their numbers in `cuda.h`.
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

/// Which processes may use a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeMode {
    /// Any number of processes.
    Default,
    /// None.
    Prohibited,
    /// One process at a time.
    Exclusive,
}

/// A device, by its ordinal.
#[derive(Clone, Debug)]
pub struct Gpu {
    pub(crate) driver: Arc<Driver>,
    pub(crate) ordinal: c_int,
    index: u32,
}

impl Gpu {
    /// Its ordinal.
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
        // SAFETY: writes at most 255 bytes and a NUL into an array of 256.
        self.driver.check("cuDeviceGetName", unsafe {
            (self.driver.functions.device_name)(name.as_mut_ptr(), 255, self.ordinal)
        })?;
        // SAFETY: the array is NUL-terminated: its last byte was zero and is not written.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// Its place on the bus: `0000:01:00.0`.
    pub fn pci_bus_id(&self) -> Result<String, CudaError> {
        let mut name = [0 as c_char; 64];
        // SAFETY: writes at most 63 bytes and a NUL into an array of 64.
        self.driver.check("cuDeviceGetPCIBusId", unsafe {
            (self.driver.functions.device_bus)(name.as_mut_ptr(), 63, self.ordinal)
        })?;
        // SAFETY: the array is NUL-terminated: its last byte was zero and is not written.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// A device attribute by its number in `cuda.h`; `None` if the driver does not know it.
    pub fn attribute_number(&self, number: i32) -> Option<i32> {
        let mut value = 0;
        // SAFETY: writes one int to the given address; the driver refuses unknown numbers.
        let code = unsafe { (self.driver.functions.device_attribute)(&mut value, number, self.ordinal) };
        (code == 0).then_some(value)
    }

    /// A device attribute; 0 if the driver returns a negative value.
    pub fn attribute(&self, attribute: Attribute) -> Result<u32, CudaError> {
        let mut value = 0;
        let get = self.driver.functions.device_attribute;
        // SAFETY: writes one int to the given address.
        self.driver.check("cuDeviceGetAttribute", unsafe { get(&mut value, attribute as c_int, self.ordinal) })?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Its compute capability: 90 is 9.0, with the target `sm_90`.
    pub fn capability(&self) -> Result<u32, CudaError> {
        Ok(self.attribute(Attribute::ComputeMajor)? * 10 + self.attribute(Attribute::ComputeMinor)?)
    }

    /// Which processes may use it.
    pub fn compute_mode(&self) -> Result<ComputeMode, CudaError> {
        Ok(match self.attribute(Attribute::ComputeMode)? {
            2 => ComputeMode::Prohibited,
            1 | 3 => ComputeMode::Exclusive,
            _ => ComputeMode::Default,
        })
    }

    /// Creates a context of its own, in addition to the primary one.
    pub fn create_context(&self) -> Result<Arc<Context>, CudaError> {
        Context::create(self.clone())
    }

    /// Retains its primary context.
    pub fn enter(&self) -> Result<Arc<Context>, OpenError> {
        let index = self.index;
        match self.compute_mode()? {
            ComputeMode::Prohibited => Err(OpenError::Prohibited { index }),
            mode => Context::retain(self.clone()).map_err(|error| match (mode, error.code) {
                (ComputeMode::Exclusive, _) | (_, status::DEVICE_UNAVAILABLE) => OpenError::Exclusive { index },
                (_, status::OUT_OF_MEMORY) => OpenError::NoMemory { index },
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
    fn a_library_without_the_driver_s_functions_is_refused() {
        // The C library exists on every machine that runs this test.
        let error = Driver::load_from(Path::new("libc.so.6")).expect_err("no driver");
        assert_eq!(error, OpenError::NoSymbol("cuInit"));
        assert!(error.to_string().contains("lacks `cuInit`"));
    }
}
