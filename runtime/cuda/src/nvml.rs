//! NVIDIA's management library (NVML), loaded at run time: it lists all GPUs of the machine with
//! their MIG instances, whereas the driver lists what this process sees.

use crate::driver::loader_message;
use crate::list::{ListedGpu, Mig};
use atoll_cuda_api::nvml::{nvmlDevice_t, nvmlDeviceAttributes_t, nvmlMemory_t, nvmlReturn_t, signature, status};
use libloading::Library;
use std::ffi::{CStr, c_char, c_uint};
use std::path::Path;
use std::ptr;

/// Names of the installed library.
const LIBRARY_NAMES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];

/// Room for a name or a UUID, as the header demands it.
const TEXT_BYTES: usize = 96;

/// Why NVML lists no GPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvmlError {
    /// The library is not installed, or too old.
    #[error("NVIDIA's management library cannot be loaded ({0})")]
    Absent(String),
    /// A call failed.
    #[error("NVIDIA's management library failed: `{call}` returned {code}")]
    Refused {
        /// The function.
        call: &'static str,
        /// The error number in `nvml.h`.
        code: i32,
    },
}

/// Declares the functions: a field, and the symbol of the table.
macro_rules! nvml_functions {
    ($($field:ident: $symbol:ident;)+) => {
        struct Functions {
            $($field: signature::$symbol,)+
        }

        impl Functions {
            fn of(library: &Library) -> Result<Functions, libloading::Error> {
                $(
                    // SAFETY: the type is that of the function with this symbol; the pointer is not kept
                    // longer than the library, which `Nvml` stores with it.
                    let $field = unsafe { *library.get::<signature::$symbol>(stringify!($symbol))? };
                )+
                Ok(Functions { $($field,)+ })
            }
        }
    };
}

nvml_functions! {
    init: nvmlInit_v2;
    shutdown: nvmlShutdown;
    count: nvmlDeviceGetCount_v2;
    at: nvmlDeviceGetHandleByIndex_v2;
    name: nvmlDeviceGetName;
    uuid: nvmlDeviceGetUUID;
    memory: nvmlDeviceGetMemoryInfo;
    mig_mode: nvmlDeviceGetMigMode;
    instances_max: nvmlDeviceGetMaxMigDeviceCount;
    instance_at: nvmlDeviceGetMigDeviceHandleByIndex;
    gpu_instance: nvmlDeviceGetGpuInstanceId;
    compute_instance: nvmlDeviceGetComputeInstanceId;
    attributes: nvmlDeviceGetAttributes_v2;
}

/// The initialized library.
pub(crate) struct Nvml {
    functions: Functions,
    _library: Library,
}

impl Nvml {
    /// Loads and initializes the library of this machine.
    pub(crate) fn load() -> Result<Nvml, NvmlError> {
        let mut why = String::new();
        for name in LIBRARY_NAMES {
            // SAFETY: the library is meant to be loaded like this; its initializers have no
            // preconditions.
            match unsafe { Library::new(Path::new(name)) } {
                Ok(library) => return Nvml::start(library),
                Err(error) => why = loader_message(&error),
            }
        }
        Err(NvmlError::Absent(why))
    }

    fn start(library: Library) -> Result<Nvml, NvmlError> {
        let functions = Functions::of(&library).map_err(|error| NvmlError::Absent(loader_message(&error)))?;
        // SAFETY: takes no arguments. Balanced by `nvmlShutdown`.
        checked("nvmlInit_v2", unsafe { (functions.init)() })?;
        Ok(Nvml { functions, _library: library })
    }

    /// All GPUs, each followed by its MIG instances.
    pub(crate) fn gpus(&self) -> Result<Vec<ListedGpu>, NvmlError> {
        let mut count = 0;
        // SAFETY: writes one number to the given address.
        checked("nvmlDeviceGetCount_v2", unsafe { (self.functions.count)(&mut count) })?;
        let mut gpus = Vec::new();
        for index in 0..count {
            let mut device = ptr::null_mut();
            // SAFETY: writes one handle to the given address.
            checked("nvmlDeviceGetHandleByIndex_v2", unsafe { (self.functions.at)(index, &mut device) })?;
            let gpu = self.describe(device, Mig::Whole)?;
            match self.instances(device, &gpu.id)? {
                None => gpus.push(gpu),
                Some(instances) => {
                    gpus.push(ListedGpu { mig: Mig::Divided, ..gpu });
                    gpus.extend(instances);
                }
            }
        }
        Ok(gpus)
    }

    /// The instances of a GPU that is in MIG mode; there may be none yet.
    fn instances(&self, device: nvmlDevice_t, gpu: &str) -> Result<Option<Vec<ListedGpu>>, NvmlError> {
        let (mut current, mut pending, mut count) = (0, 0, 0);
        // SAFETY: writes one number to each address.
        match unsafe { (self.functions.mig_mode)(device, &mut current, &mut pending) } {
            status::NOT_SUPPORTED => return Ok(None),
            code => checked("nvmlDeviceGetMigMode", code)?,
        }
        if current == 0 {
            return Ok(None);
        }
        // SAFETY: as above.
        checked("nvmlDeviceGetMaxMigDeviceCount", unsafe { (self.functions.instances_max)(device, &mut count) })?;
        let mut instances = Vec::new();
        for index in 0..count {
            let mut instance = ptr::null_mut();
            // SAFETY: writes one handle to the given address.
            match unsafe { (self.functions.instance_at)(device, index, &mut instance) } {
                status::NOT_FOUND => continue,
                code => checked("nvmlDeviceGetMigDeviceHandleByIndex", code)?,
            }
            instances.push(self.instance(instance, gpu)?);
        }
        Ok(Some(instances))
    }

    fn instance(&self, instance: nvmlDevice_t, gpu: &str) -> Result<ListedGpu, NvmlError> {
        let (mut gpu_instance, mut compute_instance) = (0, 0);
        // SAFETY: each call writes one number to the given address.
        unsafe {
            checked("nvmlDeviceGetGpuInstanceId", (self.functions.gpu_instance)(instance, &mut gpu_instance))?;
            checked(
                "nvmlDeviceGetComputeInstanceId",
                (self.functions.compute_instance)(instance, &mut compute_instance),
            )?;
        }
        let mut attributes = nvmlDeviceAttributes_t::default();
        // SAFETY: writes one struct to the given address.
        checked("nvmlDeviceGetAttributes_v2", unsafe { (self.functions.attributes)(instance, &mut attributes) })?;
        let mig = Mig::Instance { gpu: gpu.to_owned(), numbers: Some((gpu_instance, compute_instance)) };
        Ok(ListedGpu { compute_units: Some(attributes.multiprocessorCount), ..self.describe(instance, mig)? })
    }

    /// A GPU, or an instance, without its compute units.
    fn describe(&self, device: nvmlDevice_t, mig: Mig) -> Result<ListedGpu, NvmlError> {
        let mut memory = nvmlMemory_t::default();
        // SAFETY: writes one struct to the given address.
        checked("nvmlDeviceGetMemoryInfo", unsafe { (self.functions.memory)(device, &mut memory) })?;
        // SAFETY: writes at most as many bytes as it is told.
        let name = text("nvmlDeviceGetName", |at, room| unsafe { (self.functions.name)(device, at, room) })?;
        // SAFETY: as above.
        let id = text("nvmlDeviceGetUUID", |at, room| unsafe { (self.functions.uuid)(device, at, room) })?;
        Ok(ListedGpu { id, name, compute_units: None, memory_bytes: memory.total, mig })
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: takes no arguments, and ends what `nvmlInit_v2` began.
        let _ = unsafe { (self.functions.shutdown)() };
    }
}

/// The text that a call writes.
fn text(call: &'static str, write: impl FnOnce(*mut c_char, c_uint) -> nvmlReturn_t) -> Result<String, NvmlError> {
    let mut bytes = [0 as c_char; TEXT_BYTES];
    checked(call, write(bytes.as_mut_ptr(), TEXT_BYTES as c_uint - 1))?;
    // SAFETY: the array is NUL-terminated: its last byte was zero and is not written.
    Ok(unsafe { CStr::from_ptr(bytes.as_ptr()) }.to_string_lossy().into_owned())
}

fn checked(call: &'static str, code: nvmlReturn_t) -> Result<(), NvmlError> {
    if code == 0 { Ok(()) } else { Err(NvmlError::Refused { call, code }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_the_functions_is_no_error_of_its_own() {
        // SAFETY: the C library exists on every machine that runs this test.
        let library = unsafe { Library::new(Path::new("libc.so.6")) }.expect("the C library");
        assert!(matches!(Nvml::start(library).err(), Some(NvmlError::Absent(_))));
    }

    #[test]
    fn the_number_of_an_error_is_kept() {
        let error = checked("nvmlInit_v2", 9).unwrap_err();
        assert_eq!(error.to_string(), "NVIDIA's management library failed: `nvmlInit_v2` returned 9");
    }
}
