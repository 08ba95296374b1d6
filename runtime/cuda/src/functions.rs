//! The driver functions in use: a selection from the table of `runtime/cuda-api`, which supplies
//! their types.

use crate::driver::OpenError;
use atoll_cuda_api::signature;
use libloading::Library;

pub(crate) use atoll_cuda_api::types::CUresult as Status;

/// Declares the functions: a field, and the symbols of the table in order of preference. Functions
/// of the second list are missing in older drivers.
macro_rules! driver_functions {
    (
        required { $($field:ident: $symbol:ident $(| $older:ident)*;)+ }
        optional { $($optional:ident: $name:ident;)+ }
    ) => {
        /// The functions of the driver.
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
                    $(
                        let $field = $field.or_else(|| {
                            // SAFETY: as above; the compiler checks that the older symbol has the same
                            // type.
                            unsafe { library.get::<signature::$older>(stringify!($older)) }.ok().map(|found| *found)
                        });
                    )*
                )+
                $(
                    let $optional: Option<signature::$name> =
                        // SAFETY: as above.
                        unsafe { library.get(stringify!($name)) }.ok().map(|found| *found);
                )+
                Ok(Functions { $($field: $field.ok_or(OpenError::NoSymbol(stringify!($symbol)))?,)+ $($optional,)+ })
            }
        }

        /// The symbols of each required function; one of them is enough.
        #[cfg(test)]
        const REQUIRED: &[&[&str]] = &[$(&[stringify!($symbol) $(, stringify!($older))*]),+];
    };
}

driver_functions! {
    required {
        init: cuInit;
        error_name: cuGetErrorName;
        driver_version: cuDriverGetVersion;
        device_count: cuDeviceGetCount;
        device_get: cuDeviceGet;
        device_name: cuDeviceGetName;
        device_attribute: cuDeviceGetAttribute;
        device_bus: cuDeviceGetPCIBusId;
        device_memory: cuDeviceTotalMem_v2;
        context_retain: cuDevicePrimaryCtxRetain;
        context_release: cuDevicePrimaryCtxRelease_v2 | cuDevicePrimaryCtxRelease;
        context_reset: cuDevicePrimaryCtxReset_v2 | cuDevicePrimaryCtxReset;
        context_set: cuCtxSetCurrent;
        context_sync: cuCtxSynchronize;
        context_create: cuCtxCreate_v2;
        context_destroy: cuCtxDestroy_v2;
        context_pop: cuCtxPopCurrent_v2;
        priority_range: cuCtxGetStreamPriorityRange;
        module_load: cuModuleLoadDataEx;
        module_unload: cuModuleUnload;
        module_function: cuModuleGetFunction;
        module_variable: cuModuleGetGlobal_v2;
        function_set: cuFuncSetAttribute;
        function_get: cuFuncGetAttribute;
        occupancy: cuOccupancyMaxActiveBlocksPerMultiprocessor;
        memory_info: cuMemGetInfo_v2;
        memory_alloc: cuMemAlloc_v2;
        memory_free: cuMemFree_v2;
        memory_range: cuMemGetAddressRange_v2;
        ipc_open: cuIpcOpenMemHandle_v2 | cuIpcOpenMemHandle;
        ipc_close: cuIpcCloseMemHandle;
        host_alloc: cuMemHostAlloc;
        host_register: cuMemHostRegister_v2 | cuMemHostRegister;
        host_unregister: cuMemHostUnregister;
        host_free: cuMemFreeHost;
        host_device_pointer: cuMemHostGetDevicePointer_v2;
        fill_bytes: cuMemsetD8Async;
        fill_halves: cuMemsetD16Async;
        fill_words: cuMemsetD32Async;
        copy_to_device: cuMemcpyHtoDAsync_v2;
        copy_to_host: cuMemcpyDtoHAsync_v2;
        copy_on_device: cuMemcpyDtoDAsync_v2;
        write_value: cuStreamWriteValue32_v2 | cuStreamWriteValue32;
        stream_create: cuStreamCreateWithPriority;
        stream_destroy: cuStreamDestroy_v2;
        stream_sync: cuStreamSynchronize;
        stream_query: cuStreamQuery;
        stream_wait: cuStreamWaitEvent;
        event_create: cuEventCreate;
        event_destroy: cuEventDestroy_v2;
        event_record: cuEventRecord;
        event_query: cuEventQuery;
        event_sync: cuEventSynchronize;
        event_elapsed: cuEventElapsedTime;
        launch: cuLaunchKernel;
    }
    optional {
        device_uuid: cuDeviceGetUuid;
        instance_uuid: cuDeviceGetUuid_v2;
        function_load: cuFuncLoad;
        function_param: cuFuncGetParamInfo;
        launch_cooperative: cuLaunchCooperativeKernel;
        device_resource: cuDeviceGetDevResource;
        resource_split: cuDevSmResourceSplitByCount;
        resource_describe: cuDevResourceGenerateDesc;
        green_create: cuGreenCtxCreate;
        green_destroy: cuGreenCtxDestroy;
        green_stream: cuGreenCtxStreamCreate;
        capture_begin: cuStreamBeginCapture_v2;
        capture_end: cuStreamEndCapture;
        graph_instantiate: cuGraphInstantiateWithFlags;
        graph_launch: cuGraphLaunch;
        graph_destroy: cuGraphDestroy;
        graph_release: cuGraphExecDestroy;
    }
}

#[cfg(test)]
mod tests {
    use super::REQUIRED;
    use atoll_cuda_api::ENTRY_POINTS;

    /// The oldest supported driver, by its version of CUDA.
    const OLDEST: u32 = 9000;

    #[test]
    fn the_oldest_driver_has_all_required_functions() {
        for symbols in REQUIRED {
            let since = |symbol: &str| {
                ENTRY_POINTS.iter().find(|entry| entry.symbol == symbol).expect("a type comes from its row").since
            };
            assert!(symbols.iter().any(|symbol| since(symbol) <= OLDEST), "{symbols:?} came later");
        }
    }
}
