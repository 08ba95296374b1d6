//! A device before the process uses it.

use crate::context::Context;
use crate::driver::Driver;
use crate::error::{HipError, status};
use crate::functions::Status;
use atoll_hip_api::constants::{CLOCK_RATE, MAX_SHARED_MEMORY_PER_BLOCK, MULTIPROCESSOR_COUNT, WARP_SIZE};
use atoll_hip_api::types::{c_char, c_int, hipDeviceAttribute_t, hipDeviceProp_tR0000, hipDeviceProp_tR0600, hipUUID};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// A device, by its ordinal.
#[derive(Clone, Debug)]
pub struct Gpu {
    pub(crate) driver: Arc<Driver>,
    index: u32,
}

impl Gpu {
    pub(crate) fn new(driver: Arc<Driver>, index: u32) -> Gpu {
        Gpu { driver, index }
    }

    /// Its ordinal.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its ordinal, for the library.
    pub(crate) fn ordinal(&self) -> c_int {
        self.index as c_int
    }

    /// The library.
    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// Its name.
    pub fn name(&self) -> Result<String, HipError> {
        let get = self.driver.functions.device_name;
        // SAFETY: writes at most as many bytes as the buffer has.
        self.text("hipDeviceGetName", |to, room| unsafe { get(to, room, self.ordinal()) })
    }

    /// Its PCI bus id, such as `0000:01:00.0`.
    pub fn pci_bus_id(&self) -> Result<String, HipError> {
        let get = self.driver.functions.device_bus;
        // SAFETY: writes at most as many bytes as the buffer has.
        self.text("hipDeviceGetPCIBusId", |to, room| unsafe { get(to, room, self.ordinal()) })
    }

    /// Its UUID; zeros if the library is too old.
    pub fn uuid(&self) -> Result<[u8; 16], HipError> {
        let mut uuid = hipUUID { bytes: [0; 16] };
        let Some(get) = self.driver.functions.device_uuid else { return Ok(uuid.bytes) };
        // SAFETY: writes one UUID to the given address.
        self.driver.check("hipDeviceGetUuid", unsafe { get(&mut uuid, self.ordinal()) })?;
        Ok(uuid.bytes)
    }

    /// The name of its architecture with the features it runs with: `gfx90a:sramecc+:xnack-`.
    pub fn architecture(&self) -> Result<String, HipError> {
        let functions = &self.driver.functions;
        if let Some(get) = functions.properties {
            let mut properties = MaybeUninit::<hipDeviceProp_tR0600>::zeroed();
            // SAFETY: this symbol writes a struct of this layout.
            let code = unsafe { get(properties.as_mut_ptr(), self.ordinal()) };
            if code != status::NOT_SUPPORTED {
                self.driver.check("hipGetDevicePropertiesR0600", code)?;
                // SAFETY: all bits are valid in every field.
                return Ok(until_nul(&unsafe { properties.assume_init() }.gcn_arch_name));
            }
        }
        let Some(get) = functions.properties_old else {
            return Err(HipError::of("hipGetDeviceProperties", status::NOT_SUPPORTED));
        };
        let mut properties = MaybeUninit::<hipDeviceProp_tR0000>::zeroed();
        // SAFETY: this symbol writes a struct of this layout.
        let code = unsafe { get(properties.as_mut_ptr(), self.ordinal()) };
        self.driver.check("hipGetDeviceProperties", code)?;
        // SAFETY: all bits are valid in every field.
        Ok(until_nul(&unsafe { properties.assume_init() }.gcn_arch_name))
    }

    /// Number of its compute units.
    pub fn compute_units(&self) -> Result<u32, HipError> {
        self.attribute(MULTIPROCESSOR_COUNT)
    }

    /// Lanes of a wave: 64 or 32.
    pub fn wave_lanes(&self) -> Result<u32, HipError> {
        self.attribute(WARP_SIZE)
    }

    /// Maximum LDS of a block in bytes.
    pub fn lds_bytes(&self) -> Result<u32, HipError> {
        self.attribute(MAX_SHARED_MEMORY_PER_BLOCK)
    }

    /// Its highest clock rate in kHz.
    pub fn clock_kilohertz(&self) -> Result<u32, HipError> {
        self.attribute(CLOCK_RATE)
    }

    /// Starts to use the device in this process.
    pub fn enter(&self) -> Result<Arc<Context>, HipError> {
        Context::new(self.clone())
    }

    /// An attribute; 0 if the library returns a negative value.
    fn attribute(&self, attribute: hipDeviceAttribute_t) -> Result<u32, HipError> {
        let mut value = 0;
        let get = self.driver.functions.device_attribute;
        // SAFETY: writes one int to the given address.
        self.driver.check("hipDeviceGetAttribute", unsafe { get(&mut value, attribute, self.ordinal()) })?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    fn text(&self, call: &'static str, get: impl FnOnce(*mut c_char, c_int) -> Status) -> Result<String, HipError> {
        let mut text = [0 as c_char; 256];
        self.driver.check(call, get(text.as_mut_ptr(), 255))?;
        // SAFETY: the array is NUL-terminated: its last byte was zero and is not written.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }
}

/// A text that ends at the first NUL, or at the end of its field.
fn until_nul(field: &[u8]) -> String {
    let text = field.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}
