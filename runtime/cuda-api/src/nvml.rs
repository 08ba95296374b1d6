//! NVIDIA's management library (NVML), as far as it lists GPUs and MIG instances: the declarations
//! of `nvml.h`.

#![allow(non_camel_case_types, non_snake_case, reason = "the names are those of the library's header")]

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

/// The result of a call: 0, or an error number.
pub type nvmlReturn_t = c_int;

/// A GPU or a MIG instance.
pub type nvmlDevice_t = *mut c_void;

/// Error numbers.
pub mod status {
    use super::nvmlReturn_t;

    /// The library has not been initialized.
    pub const UNINITIALIZED: nvmlReturn_t = 1;
    /// An argument is wrong.
    pub const INVALID_ARGUMENT: nvmlReturn_t = 2;
    /// The device does not support the call: a GPU without MIG.
    pub const NOT_SUPPORTED: nvmlReturn_t = 3;
    /// There is no MIG instance with the index.
    pub const NOT_FOUND: nvmlReturn_t = 6;
}

/// Bytes of memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct nvmlMemory_t {
    /// Of the device.
    pub total: c_ulonglong,
    /// Not in use.
    pub free: c_ulonglong,
    /// In use.
    pub used: c_ulonglong,
}

/// What a MIG instance has.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct nvmlDeviceAttributes_t {
    /// Compute units.
    pub multiprocessorCount: c_uint,
    /// Copy engines that it shares.
    pub sharedCopyEngineCount: c_uint,
    /// Decoders that it shares.
    pub sharedDecoderCount: c_uint,
    /// Encoders that it shares.
    pub sharedEncoderCount: c_uint,
    /// JPEG engines that it shares.
    pub sharedJpegCount: c_uint,
    /// Optical flow engines that it shares.
    pub sharedOfaCount: c_uint,
    /// Slices of its GPU instance.
    pub gpuInstanceSliceCount: c_uint,
    /// Slices of its compute instance.
    pub computeInstanceSliceCount: c_uint,
    /// Memory in MiB.
    pub memorySizeMB: c_ulonglong,
}

/// Generates the list of symbols and the function types.
macro_rules! functions {
    ($(fn $symbol:ident($($parameter:ident: $type:ty),*);)+) => {
        /// The functions in use.
        pub const SYMBOLS: &[&str] = &[$(stringify!($symbol)),+];

        /// The type of each function, under the name of its symbol.
        pub mod signature {
            use super::*;

            $(
                #[doc = concat!("`", stringify!($symbol), "`")]
                pub type $symbol = unsafe extern "C" fn($($parameter: $type),*) -> nvmlReturn_t;
            )+
        }
    };
}

functions! {
    fn nvmlInit_v2();
    fn nvmlShutdown();
    fn nvmlDeviceGetCount_v2(count: *mut c_uint);
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut nvmlDevice_t);
    fn nvmlDeviceGetName(device: nvmlDevice_t, name: *mut c_char, room: c_uint);
    fn nvmlDeviceGetUUID(device: nvmlDevice_t, uuid: *mut c_char, room: c_uint);
    fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: *mut nvmlMemory_t);
    fn nvmlDeviceGetMigMode(device: nvmlDevice_t, current: *mut c_uint, pending: *mut c_uint);
    fn nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, count: *mut c_uint);
    fn nvmlDeviceGetMigDeviceHandleByIndex(device: nvmlDevice_t, index: c_uint, instance: *mut nvmlDevice_t);
    fn nvmlDeviceGetGpuInstanceId(instance: nvmlDevice_t, id: *mut c_uint);
    fn nvmlDeviceGetComputeInstanceId(instance: nvmlDevice_t, id: *mut c_uint);
    fn nvmlDeviceGetAttributes_v2(instance: nvmlDevice_t, attributes: *mut nvmlDeviceAttributes_t);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_the_sizes_of_the_header() {
        assert_eq!((size_of::<nvmlMemory_t>(), size_of::<nvmlDeviceAttributes_t>()), (24, 40));
    }
}
