//! The functions of the library in use: a selection from the table of `runtime/hip-api`, which
//! supplies their types.

use crate::driver::OpenError;
use atoll_hip_api::signature;
use libloading::Library;

pub(crate) use atoll_hip_api::types::hipError_t as Status;

/// Declares the functions: a field, and its symbol in the table. Some libraries lack the functions
/// of the second list.
macro_rules! functions {
    (
        required { $($field:ident: $symbol:ident;)+ }
        optional { $($optional:ident: $name:ident;)+ }
    ) => {
        /// The functions of the library.
        pub(crate) struct Functions {
            $(pub(crate) $field: signature::$symbol,)+
            $(pub(crate) $optional: Option<signature::$name>,)+
        }

        impl Functions {
            pub(crate) fn load(library: &Library) -> Result<Functions, OpenError> {
                $(
                    let $field: Option<signature::$symbol> =
                        // SAFETY: the type is that of the function with this symbol in the table; the
                        // pointer is not kept longer than the library, which `Driver` stores with it.
                        unsafe { library.get(stringify!($symbol)) }.ok().map(|found| *found);
                )+
                $(
                    let $optional: Option<signature::$name> =
                        // SAFETY: as above.
                        unsafe { library.get(stringify!($name)) }.ok().map(|found| *found);
                )+
                Ok(Functions { $($field: $field.ok_or(OpenError::NoSymbol(stringify!($symbol)))?,)+ $($optional,)+ })
            }
        }

        /// The required symbols.
        #[cfg(test)]
        const REQUIRED: &[&str] = &[$(stringify!($symbol)),+];
    };
}

functions! {
    required {
        init: hipInit;
        error_name: hipGetErrorName;
        driver_version: hipDriverGetVersion;
        device_count: hipGetDeviceCount;
        device_set: hipSetDevice;
        device_name: hipDeviceGetName;
        device_bus: hipDeviceGetPCIBusId;
        device_attribute: hipDeviceGetAttribute;
        device_sync: hipDeviceSynchronize;
        priority_range: hipDeviceGetStreamPriorityRange;
        memory_info: hipMemGetInfo;
        memory_alloc: hipMalloc;
        memory_free: hipFree;
        host_alloc: hipHostMalloc;
        host_free: hipHostFree;
        host_register: hipHostRegister;
        host_unregister: hipHostUnregister;
        host_device_pointer: hipHostGetDevicePointer;
        ipc_get: hipIpcGetMemHandle;
        ipc_open: hipIpcOpenMemHandle;
        ipc_close: hipIpcCloseMemHandle;
        copy_to_device: hipMemcpyHtoDAsync;
        copy_to_host: hipMemcpyDtoHAsync;
        copy_on_device: hipMemcpyDtoDAsync;
        fill_bytes: hipMemsetD8Async;
        fill_words: hipMemsetD32Async;
        module_load: hipModuleLoadData;
        module_unload: hipModuleUnload;
        module_function: hipModuleGetFunction;
        module_variable: hipModuleGetGlobal;
        function_get: hipFuncGetAttribute;
        occupancy: hipModuleOccupancyMaxActiveBlocksPerMultiprocessor;
        launch: hipModuleLaunchKernel;
        stream_create: hipStreamCreateWithPriority;
        stream_destroy: hipStreamDestroy;
        stream_sync: hipStreamSynchronize;
        stream_query: hipStreamQuery;
        stream_wait: hipStreamWaitEvent;
        event_create: hipEventCreateWithFlags;
        event_destroy: hipEventDestroy;
        event_record: hipEventRecord;
        event_query: hipEventQuery;
        event_sync: hipEventSynchronize;
        event_elapsed: hipEventElapsedTime;
    }
    optional {
        device_uuid: hipDeviceGetUuid;
        // The layout of the struct that they fill depends on the symbol. ROCm 6 and later have
        // both, ROCm 5 only the second.
        properties: hipGetDevicePropertiesR0600;
        properties_old: hipGetDeviceProperties;
        masked_stream: hipExtStreamCreateWithCUMask;
        stream_mask: hipExtStreamGetCUMask;
        write_value: hipStreamWriteValue32;
        reset_waves: hipResetWavefronts;
    }
}

#[cfg(test)]
mod tests {
    use super::REQUIRED;
    use atoll_hip_api::ENTRY_POINTS;

    /// The oldest supported release of ROCm.
    const OLDEST: u32 = 500;

    #[test]
    fn the_oldest_release_has_all_required_functions() {
        // The texts of errors are not rows of the table.
        for symbol in REQUIRED.iter().filter(|symbol| **symbol != "hipGetErrorName") {
            let entry = ENTRY_POINTS.iter().find(|entry| entry.symbol == *symbol).expect("a type comes from its row");
            assert!(!entry.is_extension() && entry.since <= OLDEST, "{symbol} came later");
        }
    }
}
