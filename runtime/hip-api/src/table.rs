//! The table of entry points.

/// Calls a macro with every entry point: the first version of ROCm whose library exports it, the
/// exported symbol, and the parameters. The result is always a
/// [`hipError_t`](crate::types::hipError_t). Version 402 stands for 4.2 and everything older.
///
/// The macro's own crate needs the types in scope: `use atoll_hip_api::types::*`.
///
/// The two functions that return texts, `hipGetErrorName` and `hipGetErrorString`, are not rows;
/// their types are in [`signature`](crate::signature).
#[macro_export]
macro_rules! for_each_entry_point {
    ($consumer:ident) => {
        $consumer! {
            // The library and its devices.
            402 fn hipInit(flags: c_uint);
            402 fn hipDriverGetVersion(driver_version: *mut c_int);
            402 fn hipRuntimeGetVersion(runtime_version: *mut c_int);
            402 fn hipGetDeviceCount(count: *mut c_int);
            402 fn hipSetDevice(device: c_int);
            402 fn hipGetDevice(device: *mut c_int);
            402 fn hipDeviceGetName(name: *mut c_char, room: c_int, device: hipDevice_t);
            501 fn hipDeviceGetUuid(uuid: *mut hipUUID, device: hipDevice_t);
            402 fn hipDeviceGetPCIBusId(pci_bus_id: *mut c_char, room: c_int, device: c_int);
            402 fn hipDeviceGetAttribute(value: *mut c_int, attribute: hipDeviceAttribute_t, device: c_int);
            402 fn hipGetDeviceProperties(properties: *mut hipDeviceProp_tR0000, device: c_int);
            600 fn hipGetDevicePropertiesR0600(properties: *mut hipDeviceProp_tR0600, device: c_int);
            402 fn hipDeviceGetStreamPriorityRange(least_priority: *mut c_int, greatest_priority: *mut c_int);
            402 fn hipDeviceSynchronize();
            402 fn hipDeviceReset();
            402 fn hipGetLastError();

            // Memory of the device, and memory shared by host and device.
            402 fn hipMemGetInfo(free: *mut usize, total: *mut usize);
            402 fn hipMalloc(pointer: *mut hipDeviceptr_t, bytes: usize);
            402 fn hipFree(pointer: hipDeviceptr_t);
            402 fn hipHostMalloc(pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
            402 fn hipHostFree(pointer: *mut c_void);
            402 fn hipHostRegister(pointer: *mut c_void, bytes: usize, flags: c_uint);
            402 fn hipHostUnregister(pointer: *mut c_void);
            402 fn hipHostGetDevicePointer(device: *mut hipDeviceptr_t, host: *mut c_void, flags: c_uint);
            402 fn hipIpcGetMemHandle(handle: *mut hipIpcMemHandle_t, pointer: hipDeviceptr_t);
            402 fn hipIpcOpenMemHandle(pointer: *mut hipDeviceptr_t, handle: hipIpcMemHandle_t, flags: c_uint);
            402 fn hipIpcCloseMemHandle(pointer: hipDeviceptr_t);

            // Copies and fills.
            402 fn hipMemcpyHtoDAsync(to: hipDeviceptr_t, from: *mut c_void, bytes: usize, stream: hipStream_t);
            402 fn hipMemcpyDtoHAsync(to: *mut c_void, from: hipDeviceptr_t, bytes: usize, stream: hipStream_t);
            402 fn hipMemcpyDtoDAsync(to: hipDeviceptr_t, from: hipDeviceptr_t, bytes: usize, stream: hipStream_t);
            402 fn hipMemsetD8Async(to: hipDeviceptr_t, value: c_uchar, count: usize, stream: hipStream_t);
            402 fn hipMemsetD32Async(to: hipDeviceptr_t, value: c_int, count: usize, stream: hipStream_t);

            // Modules and kernels.
            402 fn hipModuleLoadData(module: *mut hipModule_t, image: *const c_void);
            402 fn hipModuleUnload(module: hipModule_t);
            402 fn hipModuleGetFunction(function: *mut hipFunction_t, module: hipModule_t, name: *const c_char);
            402 fn hipModuleGetGlobal(
                pointer: *mut hipDeviceptr_t, bytes: *mut usize, module: hipModule_t, name: *const c_char
            );
            402 fn hipFuncGetAttribute(value: *mut c_int, attribute: hipFunction_attribute, function: hipFunction_t);
            402 fn hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
                num_blocks: *mut c_int, function: hipFunction_t, block_size: c_int, dynamic_lds_bytes: usize
            );
            402 fn hipModuleLaunchKernel(
                function: hipFunction_t, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint,
                block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint,
                stream: hipStream_t, kernel_params: *mut *mut c_void, extra: *mut *mut c_void
            );

            // Streams, and operations in them.
            402 fn hipStreamCreateWithPriority(stream: *mut hipStream_t, flags: c_uint, priority: c_int);
            402 fn hipExtStreamCreateWithCUMask(stream: *mut hipStream_t, words: u32, mask: *const u32);
            402 fn hipExtStreamGetCUMask(stream: hipStream_t, words: u32, mask: *mut u32);
            402 fn hipStreamDestroy(stream: hipStream_t);
            402 fn hipStreamSynchronize(stream: hipStream_t);
            402 fn hipStreamQuery(stream: hipStream_t);
            402 fn hipStreamWaitEvent(stream: hipStream_t, event: hipEvent_t, flags: c_uint);
            404 fn hipStreamWriteValue32(stream: hipStream_t, pointer: hipDeviceptr_t, value: u32, flags: c_uint);

            // Events.
            402 fn hipEventCreateWithFlags(event: *mut hipEvent_t, flags: c_uint);
            402 fn hipEventDestroy(event: hipEvent_t);
            402 fn hipEventRecord(event: hipEvent_t, stream: hipStream_t);
            402 fn hipEventQuery(event: hipEvent_t);
            402 fn hipEventSynchronize(event: hipEvent_t);
            402 fn hipEventElapsedTime(milliseconds: *mut f32, start: hipEvent_t, stop: hipEvent_t);

            // Extensions of REEF's runtime. `hipResetWavefronts` kills all running waves of this
            // process. Memory, streams and modules stay; the kernels that ran end with some of
            // their blocks missing. The others limit and clear the launches that wait in a stream.
            0 fn hipResetWavefronts();
            0 fn hipStreamCreateWithWindowSize(stream: *mut hipStream_t, window: c_uint);
            0 fn hipStreamClearQueue(dropped: *mut u64, stream: hipStream_t, frees_later: bool);
        }
    };
}
