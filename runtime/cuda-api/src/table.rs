//! The table of entry points.

/// Calls a macro with every entry point: the first CUDA version whose driver exports it, the
/// exported symbol, and the parameters. The result is always a
/// [`CUresult`](crate::types::CUresult).
///
/// The macro's own crate needs the types in scope: `use atoll_cuda_api::types::*`.
///
/// There are no rows for the symbols of per-thread default streams (`_ptsz`, `_ptds`), because
/// nothing here uses them.
#[macro_export]
macro_rules! for_each_entry_point {
    ($consumer:ident) => {
        $crate::with_graph_entry_points! { $consumer {
            // The driver and its devices.
            2000 fn cuInit(flags: c_uint);
            2020 fn cuDriverGetVersion(driver_version: *mut c_int);
            2000 fn cuDeviceGetCount(count: *mut c_int);
            2000 fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
            2000 fn cuDeviceGetName(name: *mut c_char, room: c_int, device: CUdevice);
            9020 fn cuDeviceGetUuid(uuid: *mut CUuuid, device: CUdevice);
            11040 fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice);
            4010 fn cuDeviceGetPCIBusId(pci_bus_id: *mut c_char, room: c_int, device: CUdevice);
            3020 fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
            2000 fn cuDeviceComputeCapability(major: *mut c_int, minor: *mut c_int, device: CUdevice);
            2000 fn cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
            4000 fn cuDeviceCanAccessPeer(can_access_peer: *mut c_int, device: CUdevice, peer_dev: CUdevice);
            4010 fn cuDeviceGetByPCIBusId(device: *mut CUdevice, pci_bus_id: *const c_char);
            8000 fn cuDeviceGetP2PAttribute(
                value: *mut c_int, attribute: CUdevice_P2PAttribute, from: CUdevice, to: CUdevice
            );

            // Contexts.
            7000 fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
            11000 fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
            11000 fn cuDevicePrimaryCtxReset_v2(device: CUdevice);
            11000 fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint);
            7000 fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut c_uint, active: *mut c_int);
            3020 fn cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice);
            11040 fn cuCtxCreate_v3(
                context: *mut CUcontext, params: *mut CUexecAffinityParam, num_params: c_int, flags: c_uint,
                device: CUdevice
            );
            12050 fn cuCtxCreate_v4(
                context: *mut CUcontext, params: *mut CUctxCreateParams, flags: c_uint, device: CUdevice
            );
            4000 fn cuCtxDestroy_v2(context: CUcontext);
            4000 fn cuCtxSetCurrent(context: CUcontext);
            4000 fn cuCtxGetCurrent(context: *mut CUcontext);
            4000 fn cuCtxPushCurrent_v2(context: CUcontext);
            4000 fn cuCtxPopCurrent_v2(context: *mut CUcontext);
            2000 fn cuCtxGetDevice(device: *mut CUdevice);
            7000 fn cuCtxGetFlags(flags: *mut c_uint);
            3020 fn cuCtxGetApiVersion(context: CUcontext, version: *mut c_uint);
            12000 fn cuCtxGetId(context: CUcontext, ctx_id: *mut c_ulonglong);
            2000 fn cuCtxSynchronize();
            5050 fn cuCtxGetStreamPriorityRange(least_priority: *mut c_int, greatest_priority: *mut c_int);
            3010 fn cuCtxSetLimit(limit: CUlimit, value: usize);
            7000 fn cuDevicePrimaryCtxRelease(device: CUdevice);
            7000 fn cuDevicePrimaryCtxReset(device: CUdevice);
            3010 fn cuCtxGetLimit(value: *mut usize, limit: CUlimit);
            3020 fn cuCtxGetCacheConfig(config: *mut CUfunc_cache);
            3020 fn cuCtxSetCacheConfig(config: CUfunc_cache);
            12010 fn cuCtxSetFlags(flags: c_uint);
            11000 fn cuCtxResetPersistingL2Cache();
            4000 fn cuCtxEnablePeerAccess(peer_context: CUcontext, flags: c_uint);
            4000 fn cuCtxDisablePeerAccess(peer_context: CUcontext);

            // Names of errors, and lookup of entry points.
            6000 fn cuGetErrorName(error: CUresult, text: *mut *const c_char);
            6000 fn cuGetErrorString(error: CUresult, text: *mut *const c_char);
            11030 fn cuGetProcAddress(
                symbol: *const c_char, entry: *mut *mut c_void, driver_version: c_int, flags: u64
            );
            12000 fn cuGetProcAddress_v2(
                symbol: *const c_char, entry: *mut *mut c_void, driver_version: c_int, flags: u64,
                symbol_found: *mut CUdriverProcAddressQueryResult
            );

            3000 fn cuGetExportTable(table: *mut *const c_void, id: *const CUuuid);

            // Device memory, and memory shared by host and device.
            3020 fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
            3020 fn cuMemAlloc_v2(pointer: *mut CUdeviceptr, bytes: usize);
            3020 fn cuMemFree_v2(pointer: CUdeviceptr);
            11020 fn cuMemAllocAsync(pointer: *mut CUdeviceptr, bytes: usize, stream: CUstream);
            11020 fn cuMemFreeAsync(pointer: CUdeviceptr, stream: CUstream);
            2020 fn cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
            3020 fn cuMemAllocHost_v2(pointer: *mut *mut c_void, bytes: usize);
            2000 fn cuMemFreeHost(pointer: *mut c_void);
            6050 fn cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, flags: c_uint);
            4000 fn cuMemHostUnregister(pointer: *mut c_void);
            3020 fn cuMemHostGetDevicePointer_v2(device: *mut CUdeviceptr, host: *mut c_void, flags: c_uint);
            2030 fn cuMemHostGetFlags(flags: *mut c_uint, pointer: *mut c_void);
            3020 fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, size: *mut usize, pointer: CUdeviceptr);
            4000 fn cuPointerGetAttribute(data: *mut c_void, attribute: CUpointer_attribute, pointer: CUdeviceptr);
            4000 fn cuMemHostRegister(pointer: *mut c_void, bytes: usize, flags: c_uint);
            6000 fn cuMemAllocManaged(pointer: *mut CUdeviceptr, bytes: usize, flags: c_uint);
            3020 fn cuMemAllocPitch_v2(
                pointer: *mut CUdeviceptr, pitch: *mut usize, width_in_bytes: usize, height: usize,
                element_size_bytes: c_uint
            );
            7000 fn cuPointerGetAttributes(
                num_attributes: c_uint, attributes: *mut CUpointer_attribute, data: *mut *mut c_void,
                pointer: CUdeviceptr
            );
            6000 fn cuPointerSetAttribute(value: *const c_void, attribute: CUpointer_attribute, pointer: CUdeviceptr);

            // Pools of device memory.
            11020 fn cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: CUdevice);
            11020 fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool);
            11020 fn cuDeviceGetMemPool(pool: *mut CUmemoryPool, device: CUdevice);
            11020 fn cuMemPoolTrimTo(pool: CUmemoryPool, bytes_to_keep: usize);
            11020 fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
            11020 fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
            11020 fn cuMemPoolSetAccess(pool: CUmemoryPool, access: *const CUmemAccessDesc_v1, count: usize);
            11020 fn cuMemPoolGetAccess(
                flags: *mut CUmemAccess_flags, pool: CUmemoryPool, location: *mut CUmemLocation_v1
            );
            11020 fn cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps_v1);
            11020 fn cuMemPoolDestroy(pool: CUmemoryPool);
            11020 fn cuMemAllocFromPoolAsync(
                pointer: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream
            );

            // Memory of the device, and addresses to which it is mapped.
            10020 fn cuMemAddressReserve(
                pointer: *mut CUdeviceptr, bytes: usize, alignment: usize, address: CUdeviceptr, flags: c_ulonglong
            );
            10020 fn cuMemAddressFree(pointer: CUdeviceptr, bytes: usize);
            10020 fn cuMemCreate(
                handle: *mut CUmemGenericAllocationHandle_v1, bytes: usize, properties: *const CUmemAllocationProp_v1,
                flags: c_ulonglong
            );
            10020 fn cuMemRelease(handle: CUmemGenericAllocationHandle_v1);
            10020 fn cuMemMap(
                pointer: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle_v1,
                flags: c_ulonglong
            );
            10020 fn cuMemUnmap(pointer: CUdeviceptr, bytes: usize);
            10020 fn cuMemSetAccess(
                pointer: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc_v1, count: usize
            );
            10020 fn cuMemGetAccess(flags: *mut c_ulonglong, location: *const CUmemLocation_v1, pointer: CUdeviceptr);
            10020 fn cuMemGetAllocationGranularity(
                granularity: *mut usize, properties: *const CUmemAllocationProp_v1,
                option: CUmemAllocationGranularity_flags
            );
            10020 fn cuMemGetAllocationPropertiesFromHandle(
                properties: *mut CUmemAllocationProp_v1, handle: CUmemGenericAllocationHandle_v1
            );
            11000 fn cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle_v1, address: *mut c_void);
            10020 fn cuMemExportToShareableHandle(
                shareable_handle: *mut c_void, handle: CUmemGenericAllocationHandle_v1,
                handle_kind: CUmemAllocationHandleType, flags: c_ulonglong
            );
            10020 fn cuMemImportFromShareableHandle(
                handle: *mut CUmemGenericAllocationHandle_v1, os_handle: *mut c_void,
                handle_kind: CUmemAllocationHandleType
            );
            12010 fn cuMulticastCreate(
                multicast: *mut CUmemGenericAllocationHandle, properties: *const CUmulticastObjectProp
            );
            12010 fn cuMulticastAddDevice(multicast: CUmemGenericAllocationHandle, device: CUdevice);
            12010 fn cuMulticastBindMem(
                multicast: CUmemGenericAllocationHandle, mc_offset: usize, memory: CUmemGenericAllocationHandle,
                mem_offset: usize, bytes: usize, flags: c_ulonglong
            );
            12010 fn cuMulticastUnbind(
                multicast: CUmemGenericAllocationHandle, device: CUdevice, mc_offset: usize, bytes: usize
            );

            // Managed memory.
            8000 fn cuMemPrefetchAsync(pointer: CUdeviceptr, count: usize, device: CUdevice, stream: CUstream);
            12020 fn cuMemPrefetchAsync_v2(
                pointer: CUdeviceptr, count: usize, location: CUmemLocation_v1, flags: c_uint, stream: CUstream
            );
            8000 fn cuMemAdvise(pointer: CUdeviceptr, count: usize, advice: CUmem_advise, device: CUdevice);
            12020 fn cuMemAdvise_v2(
                pointer: CUdeviceptr, count: usize, advice: CUmem_advise, location: CUmemLocation_v1
            );
            8000 fn cuMemRangeGetAttribute(
                data: *mut c_void, data_bytes: usize, attribute: CUmem_range_attribute, pointer: CUdeviceptr,
                count: usize
            );

            // Device memory of other processes.
            4010 fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, pointer: CUdeviceptr);
            4010 fn cuIpcOpenMemHandle(pointer: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint);
            11000 fn cuIpcOpenMemHandle_v2(pointer: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint);
            4010 fn cuIpcCloseMemHandle(pointer: CUdeviceptr);

            // Copies and fills.
            3020 fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize);
            3020 fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize);
            3020 fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize);
            4000 fn cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize);
            3020 fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
            3020 fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
            3020 fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
            4000 fn cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
            3020 fn cuMemsetD8_v2(to: CUdeviceptr, value: c_uchar, count: usize);
            3020 fn cuMemsetD16_v2(to: CUdeviceptr, value: c_ushort, count: usize);
            3020 fn cuMemsetD32_v2(to: CUdeviceptr, value: c_uint, count: usize);
            3020 fn cuMemsetD8Async(to: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream);
            3020 fn cuMemsetD16Async(to: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream);
            3020 fn cuMemsetD32Async(to: CUdeviceptr, value: c_uint, count: usize, stream: CUstream);
            4000 fn cuMemcpyPeer(
                to: CUdeviceptr, dst_context: CUcontext, from: CUdeviceptr, src_context: CUcontext, bytes: usize
            );
            4000 fn cuMemcpyPeerAsync(
                to: CUdeviceptr, dst_context: CUcontext, from: CUdeviceptr, src_context: CUcontext, bytes: usize,
                stream: CUstream
            );
            3020 fn cuMemsetD2D8_v2(to: CUdeviceptr, dst_pitch: usize, value: c_uchar, width: usize, height: usize);
            3020 fn cuMemsetD2D16_v2(to: CUdeviceptr, dst_pitch: usize, value: c_ushort, width: usize, height: usize);
            3020 fn cuMemsetD2D32_v2(to: CUdeviceptr, dst_pitch: usize, value: c_uint, width: usize, height: usize);
            3020 fn cuMemsetD2D8Async(
                to: CUdeviceptr, dst_pitch: usize, value: c_uchar, width: usize, height: usize, stream: CUstream
            );
            3020 fn cuMemsetD2D16Async(
                to: CUdeviceptr, dst_pitch: usize, value: c_ushort, width: usize, height: usize, stream: CUstream
            );
            3020 fn cuMemsetD2D32Async(
                to: CUdeviceptr, dst_pitch: usize, value: c_uint, width: usize, height: usize, stream: CUstream
            );
            3020 fn cuMemcpy2D_v2(copy: *const CUDA_MEMCPY2D_v2);
            3020 fn cuMemcpy2DUnaligned_v2(copy: *const CUDA_MEMCPY2D_v2);
            3020 fn cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D_v2, stream: CUstream);
            3020 fn cuMemcpy3D_v2(copy: *const CUDA_MEMCPY3D_v2);
            3020 fn cuMemcpy3DAsync_v2(copy: *const CUDA_MEMCPY3D_v2, stream: CUstream);

            // Modules, their variables and kernels.
            2000 fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
            2010 fn cuModuleLoadDataEx(
                module: *mut CUmodule, image: *const c_void, num_options: c_uint, options: *mut CUjit_option,
                option_values: *mut *mut c_void
            );
            2000 fn cuModuleLoadFatBinary(module: *mut CUmodule, fat_cubin: *const c_void);
            2000 fn cuModuleUnload(module: CUmodule);
            2000 fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
            12040 fn cuModuleGetFunctionCount(count: *mut c_uint, module: CUmodule);
            3020 fn cuModuleGetGlobal_v2(
                pointer: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char
            );
            11070 fn cuModuleGetLoadingMode(mode: *mut CUmoduleLoadingMode);
            11000 fn cuFuncGetModule(module: *mut CUmodule, function: CUfunction);
            12040 fn cuFuncLoad(function: CUfunction);
            2020 fn cuFuncGetAttribute(value: *mut c_int, attribute: CUfunction_attribute, function: CUfunction);
            9000 fn cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int);
            3000 fn cuFuncSetCacheConfig(function: CUfunction, config: CUfunc_cache);
            2000 fn cuModuleLoad(module: *mut CUmodule, path: *const c_char);
            12030 fn cuFuncGetName(name: *mut *const c_char, function: CUfunction);
            12040 fn cuFuncGetParamInfo(
                function: CUfunction, param_index: usize, param_offset: *mut usize, param_size: *mut usize
            );
            12000 fn cuLibraryLoadData(
                library: *mut CUlibrary, code: *const c_void, jit_options: *mut CUjit_option,
                jit_options_values: *mut *mut c_void, num_jit_options: c_uint, library_options: *mut CUlibraryOption,
                library_option_values: *mut *mut c_void, num_library_options: c_uint
            );
            12000 fn cuLibraryUnload(library: CUlibrary);
            12000 fn cuLibraryGetKernel(kernel: *mut CUkernel, library: CUlibrary, name: *const c_char);
            12000 fn cuLibraryGetModule(module: *mut CUmodule, library: CUlibrary);
            12000 fn cuKernelGetFunction(function: *mut CUfunction, kernel: CUkernel);
            12000 fn cuLibraryGetGlobal(
                pointer: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char
            );
            12000 fn cuKernelGetAttribute(
                value: *mut c_int, attribute: CUfunction_attribute, kernel: CUkernel, device: CUdevice
            );
            12000 fn cuKernelSetAttribute(
                attribute: CUfunction_attribute, value: c_int, kernel: CUkernel, device: CUdevice
            );
            12040 fn cuKernelGetParamInfo(
                kernel: CUkernel, param_index: usize, param_offset: *mut usize, param_size: *mut usize
            );
            12030 fn cuKernelGetName(name: *mut *const c_char, kernel: CUkernel);
            12050 fn cuKernelGetLibrary(library: *mut CUlibrary, kernel: CUkernel);
            12000 fn cuKernelSetCacheConfig(kernel: CUkernel, config: CUfunc_cache, device: CUdevice);

            // Code that the driver links.
            6050 fn cuLinkCreate_v2(
                num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void,
                state: *mut CUlinkState
            );
            6050 fn cuLinkAddData_v2(
                state: CUlinkState, kind: CUjitInputType, data: *mut c_void, bytes: usize, name: *const c_char,
                num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void
            );
            6050 fn cuLinkAddFile_v2(
                state: CUlinkState, kind: CUjitInputType, path: *const c_char, num_options: c_uint,
                options: *mut CUjit_option, option_values: *mut *mut c_void
            );
            5050 fn cuLinkComplete(state: CUlinkState, cubin: *mut *mut c_void, bytes: *mut usize);
            5050 fn cuLinkDestroy(state: CUlinkState);

            // Descriptions of tensors, for copies to shared memory.
            12000 fn cuTensorMapEncodeTiled(
                tensor_map: *mut CUtensorMap, tensor_data_type: CUtensorMapDataType, tensor_rank: u32,
                global_address: *mut c_void, global_dim: *const u64, global_strides: *const u64, box_dim: *const u32,
                element_strides: *const u32, interleave: CUtensorMapInterleave, swizzle: CUtensorMapSwizzle,
                l2_promotion: CUtensorMapL2promotion, oob_fill: CUtensorMapFloatOOBfill
            );
            12000 fn cuTensorMapEncodeIm2col(
                tensor_map: *mut CUtensorMap, tensor_data_type: CUtensorMapDataType, tensor_rank: u32,
                global_address: *mut c_void, global_dim: *const u64, global_strides: *const u64,
                pixel_box_lower_corner: *const c_int, pixel_box_upper_corner: *const c_int, channels_per_pixel: u32,
                pixels_per_column: u32, element_strides: *const u32, interleave: CUtensorMapInterleave,
                swizzle: CUtensorMapSwizzle, l2_promotion: CUtensorMapL2promotion, oob_fill: CUtensorMapFloatOOBfill
            );
            12000 fn cuTensorMapReplaceAddress(tensor_map: *mut CUtensorMap, global_address: *mut c_void);

            // Launches and occupancy.
            4000 fn cuLaunchKernel(
                function: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint,
                block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, stream: CUstream,
                kernel_params: *mut *mut c_void, extra: *mut *mut c_void
            );
            9000 fn cuLaunchCooperativeKernel(
                function: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint,
                block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, stream: CUstream,
                kernel_params: *mut *mut c_void
            );
            11060 fn cuLaunchKernelEx(
                config: *const CUlaunchConfig, function: CUfunction, kernel_params: *mut *mut c_void,
                extra: *mut *mut c_void
            );
            6050 fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
                num_blocks: *mut c_int, function: CUfunction, block_size: c_int, dynamic_smem_size: usize
            );
            7000 fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                num_blocks: *mut c_int, function: CUfunction, block_size: c_int, dynamic_smem_size: usize, flags: c_uint
            );
            6050 fn cuOccupancyMaxPotentialBlockSize(
                min_grid_size: *mut c_int, block_size: *mut c_int, function: CUfunction,
                block_size_to_dynamic_smem_size: CUoccupancyB2DSize, dynamic_smem_size: usize, block_size_limit: c_int
            );
            10020 fn cuOccupancyAvailableDynamicSMemPerBlock(
                dynamic_smem_size: *mut usize, function: CUfunction, num_blocks: c_int, block_size: c_int
            );
            7000 fn cuOccupancyMaxPotentialBlockSizeWithFlags(
                min_grid_size: *mut c_int, block_size: *mut c_int, function: CUfunction,
                block_size_to_dynamic_smem_size: CUoccupancyB2DSize, dynamic_smem_size: usize, block_size_limit: c_int,
                flags: c_uint
            );
            11070 fn cuOccupancyMaxPotentialClusterSize(
                cluster_size: *mut c_int, function: CUfunction, config: *const CUlaunchConfig
            );
            11070 fn cuOccupancyMaxActiveClusters(
                num_clusters: *mut c_int, function: CUfunction, config: *const CUlaunchConfig
            );

            // Streams, and operations in them.
            2000 fn cuStreamCreate(stream: *mut CUstream, flags: c_uint);
            5050 fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
            4000 fn cuStreamDestroy_v2(stream: CUstream);
            2000 fn cuStreamSynchronize(stream: CUstream);
            2000 fn cuStreamQuery(stream: CUstream);
            5050 fn cuStreamGetPriority(stream: CUstream, priority: *mut c_int);
            5050 fn cuStreamGetFlags(stream: CUstream, flags: *mut c_uint);
            9020 fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
            12000 fn cuStreamGetId(stream: CUstream, stream_id: *mut c_ulonglong);
            3020 fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
            11070 fn cuStreamWriteValue32_v2(stream: CUstream, address: CUdeviceptr, value: u32, flags: c_uint);
            11070 fn cuStreamWriteValue64_v2(stream: CUstream, address: CUdeviceptr, value: u64, flags: c_uint);
            11070 fn cuStreamWaitValue32_v2(stream: CUstream, address: CUdeviceptr, value: u32, flags: c_uint);
            11070 fn cuStreamWaitValue64_v2(stream: CUstream, address: CUdeviceptr, value: u64, flags: c_uint);
            10000 fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, user_data: *mut c_void);
            10010 fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
            10000 fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
            10010 fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode);
            10000 fn cuStreamIsCapturing(stream: CUstream, capture_status: *mut CUstreamCaptureStatus);
            11030 fn cuStreamGetCaptureInfo_v2(
                stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut u64,
                graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode, num_dependencies_out: *mut usize
            );
            10010 fn cuStreamGetCaptureInfo(stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut u64);
            12030 fn cuStreamGetCaptureInfo_v3(
                stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut u64, graph: *mut CUgraph,
                dependencies: *mut *const CUgraphNode, edge_data: *mut *const CUgraphEdgeData,
                num_dependencies: *mut usize
            );
            11030 fn cuStreamUpdateCaptureDependencies(
                stream: CUstream, dependencies: *mut CUgraphNode, num_dependencies: usize, flags: c_uint
            );
            12030 fn cuStreamUpdateCaptureDependencies_v2(
                stream: CUstream, dependencies: *mut CUgraphNode, edge_data: *const CUgraphEdgeData,
                num_dependencies: usize, flags: c_uint
            );
            8000 fn cuStreamWriteValue32(stream: CUstream, address: CUdeviceptr, value: u32, flags: c_uint);
            5000 fn cuStreamAddCallback(
                stream: CUstream, callback: CUstreamCallback, user_data: *mut c_void, flags: c_uint
            );
            6000 fn cuStreamAttachMemAsync(stream: CUstream, pointer: CUdeviceptr, length: usize, flags: c_uint);
            11000 fn cuStreamCopyAttributes(to: CUstream, from: CUstream);
            11000 fn cuStreamGetAttribute(
                stream: CUstream, attribute: CUstreamAttrID, value: *mut CUstreamAttrValue_v1
            );
            11000 fn cuStreamSetAttribute(
                stream: CUstream, attribute: CUstreamAttrID, value: *const CUstreamAttrValue_v1
            );

            // Events.
            2000 fn cuEventCreate(event: *mut CUevent, flags: c_uint);
            4000 fn cuEventDestroy_v2(event: CUevent);
            2000 fn cuEventRecord(event: CUevent, stream: CUstream);
            11010 fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: c_uint);
            2000 fn cuEventQuery(event: CUevent);
            2000 fn cuEventSynchronize(event: CUevent);
            2000 fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
            12080 fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: CUevent, end: CUevent);

            // Green contexts: partitions of a device.
            12040 fn cuDeviceGetDevResource(device: CUdevice, result: *mut CUdevResource, kind: CUdevResourceType);
            12040 fn cuDevSmResourceSplitByCount(
                result: *mut CUdevResource, groups: *mut c_uint, input: *const CUdevResource,
                remaining: *mut CUdevResource, use_flags: c_uint, min_count: c_uint
            );
            12040 fn cuDevResourceGenerateDesc(
                description: *mut CUdevResourceDesc, resources: *mut CUdevResource, count: c_uint
            );
            12040 fn cuGreenCtxCreate(
                context: *mut CUgreenCtx, description: CUdevResourceDesc, device: CUdevice, flags: c_uint
            );
            12040 fn cuGreenCtxDestroy(context: CUgreenCtx);
            12050 fn cuGreenCtxStreamCreate(stream: *mut CUstream, context: CUgreenCtx, flags: c_uint, priority: c_int);
            12040 fn cuCtxFromGreenCtx(context: *mut CUcontext, green: CUgreenCtx);
            12040 fn cuGreenCtxGetDevResource(context: CUgreenCtx, result: *mut CUdevResource, kind: CUdevResourceType);
            12040 fn cuGreenCtxRecordEvent(context: CUgreenCtx, event: CUevent);
            12040 fn cuGreenCtxWaitEvent(context: CUgreenCtx, event: CUevent);
        } }
    };
}
