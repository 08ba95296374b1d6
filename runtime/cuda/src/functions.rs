//! The driver's functions that are used: one table, from which their types and their loading follow.

use crate::driver::OpenError;
use crate::handle::Handle;
use crate::memory::DevicePtr;
use crate::partition::Resource;
use libloading::{Library, Symbol};
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

pub(crate) type Status = c_int;

/// Declares the functions: field, exported names in order of preference, type. Those of the second list are not in every driver.
macro_rules! driver_functions {
    (
        required { $($field:ident = $($symbol:literal)|+ : fn($($argument:ty),*);)+ }
        optional { $($optional:ident = $name:literal : fn($($of:ty),*);)+ }
    ) => {
        /// The functions of the driver.
        pub(crate) struct Functions {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> Status,)+
            $(pub(crate) $optional: Option<unsafe extern "C" fn($($of),*) -> Status>,)+
        }

        impl Functions {
            pub(crate) fn load(library: &Library) -> Result<Functions, OpenError> {
                $(
                    let mut $field = None;
                    for name in [$($symbol),+] {
                        // SAFETY: the type is that of the function in the driver's header `cuda.h` under this name; the pointer is kept no longer
                        // than the library, which `Driver` holds beside it.
                        let symbol: Result<Symbol<'_, unsafe extern "C" fn($($argument),*) -> Status>, _> = unsafe { library.get(name) };
                        $field = $field.or(symbol.ok().map(|s| *s));
                    }
                )+
                $(
                    // SAFETY: as above.
                    let symbol: Result<Symbol<'_, unsafe extern "C" fn($($of),*) -> Status>, _> = unsafe { library.get($name) };
                    let $optional = symbol.ok().map(|s| *s);
                )+
                Ok(Functions { $($field: $field.ok_or(OpenError::NoSymbol([$($symbol),+][0]))?,)+ $($optional,)+ })
            }
        }
    };
}

driver_functions! {
    required {
        init = "cuInit": fn(c_uint);
        error_name = "cuGetErrorName": fn(Status, *mut *const c_char);
        driver_version = "cuDriverGetVersion": fn(*mut c_int);
        device_count = "cuDeviceGetCount": fn(*mut c_int);
        device_get = "cuDeviceGet": fn(*mut c_int, c_int);
        device_name = "cuDeviceGetName": fn(*mut c_char, c_int, c_int);
        device_attribute = "cuDeviceGetAttribute": fn(*mut c_int, c_int, c_int);
        context_retain = "cuDevicePrimaryCtxRetain": fn(*mut Handle, c_int);
        context_release = "cuDevicePrimaryCtxRelease_v2" | "cuDevicePrimaryCtxRelease": fn(c_int);
        context_reset = "cuDevicePrimaryCtxReset_v2" | "cuDevicePrimaryCtxReset": fn(c_int);
        context_set = "cuCtxSetCurrent": fn(Handle);
        context_sync = "cuCtxSynchronize": fn();
        priority_range = "cuCtxGetStreamPriorityRange": fn(*mut c_int, *mut c_int);
        module_load = "cuModuleLoadDataEx": fn(*mut Handle, *const c_void, c_uint, *mut c_int, *mut *mut c_void);
        module_unload = "cuModuleUnload": fn(Handle);
        module_function = "cuModuleGetFunction": fn(*mut Handle, Handle, *const c_char);
        function_set = "cuFuncSetAttribute": fn(Handle, c_int, c_int);
        occupancy = "cuOccupancyMaxActiveBlocksPerMultiprocessor": fn(*mut c_int, Handle, c_int, usize);
        memory_info = "cuMemGetInfo_v2": fn(*mut usize, *mut usize);
        memory_alloc = "cuMemAlloc_v2": fn(*mut DevicePtr, usize);
        memory_free = "cuMemFree_v2": fn(DevicePtr);
        host_alloc = "cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint);
        host_register = "cuMemHostRegister_v2" | "cuMemHostRegister": fn(*mut c_void, usize, c_uint);
        host_unregister = "cuMemHostUnregister": fn(*mut c_void);
        host_free = "cuMemFreeHost": fn(*mut c_void);
        host_device_pointer = "cuMemHostGetDevicePointer_v2": fn(*mut DevicePtr, *mut c_void, c_uint);
        fill_bytes = "cuMemsetD8Async": fn(DevicePtr, u8, usize, Handle);
        fill_words = "cuMemsetD32Async": fn(DevicePtr, c_uint, usize, Handle);
        copy_to_device = "cuMemcpyHtoDAsync_v2": fn(DevicePtr, *const c_void, usize, Handle);
        copy_to_host = "cuMemcpyDtoHAsync_v2": fn(*mut c_void, DevicePtr, usize, Handle);
        copy_on_device = "cuMemcpyDtoDAsync_v2": fn(DevicePtr, DevicePtr, usize, Handle);
        write_value = "cuStreamWriteValue32_v2" | "cuStreamWriteValue32": fn(Handle, DevicePtr, c_uint, c_uint);
        stream_create = "cuStreamCreateWithPriority": fn(*mut Handle, c_uint, c_int);
        stream_destroy = "cuStreamDestroy_v2": fn(Handle);
        stream_sync = "cuStreamSynchronize": fn(Handle);
        event_create = "cuEventCreate": fn(*mut Handle, c_uint);
        event_destroy = "cuEventDestroy_v2": fn(Handle);
        event_record = "cuEventRecord": fn(Handle, Handle);
        event_query = "cuEventQuery": fn(Handle);
        event_elapsed = "cuEventElapsedTime": fn(*mut f32, Handle, Handle);
        launch = "cuLaunchKernel": fn(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void);
    }
    optional {
        function_load = "cuFuncLoad": fn(Handle);
        device_resource = "cuDeviceGetDevResource": fn(c_int, *mut Resource, c_int);
        resource_split = "cuDevSmResourceSplitByCount": fn(*mut Resource, *mut c_uint, *const Resource, *mut Resource, c_uint, c_uint);
        resource_describe = "cuDevResourceGenerateDesc": fn(*mut Handle, *mut Resource, c_uint);
        green_create = "cuGreenCtxCreate": fn(*mut Handle, Handle, c_int, c_uint);
        green_destroy = "cuGreenCtxDestroy": fn(Handle);
        green_stream = "cuGreenCtxStreamCreate": fn(*mut Handle, Handle, c_uint, c_int);
        capture_begin = "cuStreamBeginCapture_v2": fn(Handle, c_int);
        capture_end = "cuStreamEndCapture": fn(Handle, *mut Handle);
        graph_instantiate = "cuGraphInstantiateWithFlags": fn(*mut Handle, Handle, c_ulonglong);
        graph_launch = "cuGraphLaunch": fn(Handle, Handle);
        graph_destroy = "cuGraphDestroy": fn(Handle);
        graph_release = "cuGraphExecDestroy": fn(Handle);
    }
}
