//! Flags, attribute numbers and similar constants in use, by their names in the header.

use crate::types::*;

macro_rules! constants {
    ($(#[doc = $doc:literal] $type:ty: $($name:ident $c_name:ident = $value:literal),+;)+) => {
        $($(
            #[doc = concat!("`", stringify!($c_name), "`. ", $doc)]
            pub const $name: $type = $value;
        )+)+

        /// All constants: their names in the header, and their values.
        pub const CONSTANTS: &[(&str, u64)] = &[$($((stringify!($c_name), $value)),+),+];
    };
}

constants! {
    /// Device attribute.
    hipDeviceAttribute_t:
        CLOCK_RATE hipDeviceAttributeClockRate = 5,
        COMPUTE_MODE hipDeviceAttributeComputeMode = 6,
        MULTIPROCESSOR_COUNT hipDeviceAttributeMultiprocessorCount = 63,
        MAX_SHARED_MEMORY_PER_BLOCK hipDeviceAttributeMaxSharedMemoryPerBlock = 74,
        WARP_SIZE hipDeviceAttributeWarpSize = 87;
    /// Kernel attribute.
    hipFunction_attribute:
        FUNC_MAX_THREADS_PER_BLOCK HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
        FUNC_SHARED_SIZE_BYTES HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
        FUNC_LOCAL_SIZE_BYTES HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3,
        FUNC_NUM_REGS HIP_FUNC_ATTRIBUTE_NUM_REGS = 4;
    /// Flag of pinned memory.
    c_uint:
        HOST_MALLOC_PORTABLE hipHostMallocPortable = 1,
        HOST_MALLOC_MAPPED hipHostMallocMapped = 2,
        HOST_MALLOC_COHERENT hipHostMallocCoherent = 0x4000_0000;
    /// Flag of registered memory.
    c_uint: HOST_REGISTER_PORTABLE hipHostRegisterPortable = 1, HOST_REGISTER_MAPPED hipHostRegisterMapped = 2;
    /// Flag of a stream.
    c_uint: STREAM_NON_BLOCKING hipStreamNonBlocking = 1;
    /// Flag of an event.
    c_uint: EVENT_DISABLE_TIMING hipEventDisableTiming = 2, EVENT_INTERPROCESS hipEventInterprocess = 4;
    /// Flag of opening memory of another process. ROCm 5 has 0 here and ignores the flag.
    c_uint: IPC_MEM_LAZY_ENABLE_PEER_ACCESS hipIpcMemLazyEnablePeerAccess = 1;
    /// Element of a launch's `extra`.
    usize:
        LAUNCH_PARAM_BUFFER_POINTER HIP_LAUNCH_PARAM_BUFFER_POINTER = 1,
        LAUNCH_PARAM_BUFFER_SIZE HIP_LAUNCH_PARAM_BUFFER_SIZE = 2,
        LAUNCH_PARAM_END HIP_LAUNCH_PARAM_END = 3;
}
