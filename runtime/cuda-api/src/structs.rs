//! Structs that are parameters, under their names in the header.

#![allow(non_camel_case_types, reason = "the names are those of the driver's header")]

use crate::types::*;

/// The layout of a struct of the header; a C compiler compares it with the header.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Its name.
    pub name: &'static str,
    /// Its size in bytes.
    pub bytes: usize,
    /// Its fields, by the names of the header, with their offsets.
    pub fields: &'static [(&'static str, usize)],
}

/// Declares structs: each with its size, and its fields with their names in the header and their
/// offsets.
macro_rules! structs {
    ($(
        $(#[$doc:meta])*
        $name:ident: $bytes:literal {
            $($(#[$field_doc:meta])* $field:ident ($c_name:literal @ $offset:literal): $type:ty,)+
        }
    )+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            #[repr(C)]
            pub struct $name {
                $($(#[$field_doc])* pub $field: $type,)+
            }

            const _: () = {
                assert!(size_of::<$name>() == $bytes);
                $(assert!(std::mem::offset_of!($name, $field) == $offset);)+
            };
        )+
        /// The structs.
        pub const LAYOUTS: &[Layout] = &[$(Layout {
            name: stringify!($name),
            bytes: $bytes,
            fields: &[$(($c_name, $offset)),+],
        }),+];
    };
}

structs! {
    /// The UUID of a device.
    CUuuid: 16 {
        /// Its bytes.
        bytes("bytes" @ 0): [u8; 16],
    }
    /// The handle of device memory that another process has exported.
    CUipcMemHandle: 64 {
        /// Private to the driver.
        reserved("reserved" @ 0): [u8; 64],
    }
    /// A resource that green contexts divide, as laid out by CUDA 12. CUDA 13's is larger: callers
    /// that let a driver write it must leave extra space.
    CUdevResource: 144 {
        /// The kind of resource.
        kind("type" @ 0): CUdevResourceType,
        /// Private to the driver.
        internal("_internal_padding" @ 4): [u8; 92],
        /// Number of compute units, if the resource is compute units.
        sm_count("sm.smCount" @ 96): c_uint,
        /// Space for other kinds.
        rest("_oversize[4]" @ 100): [u8; 44],
    }
    /// A copy of rows.
    CUDA_MEMCPY2D_v2: 128 {
        /// Bytes before each row of the source.
        src_x_in_bytes("srcXInBytes" @ 0): usize,
        /// Rows before the source.
        src_y("srcY" @ 8): usize,
        /// Kind of memory of the source.
        src_memory_type("srcMemoryType" @ 16): c_uint,
        /// The source on the host.
        src_host("srcHost" @ 24): *const c_void,
        /// The source on the device.
        src_device("srcDevice" @ 32): CUdeviceptr,
        /// The source as an array.
        src_array("srcArray" @ 40): *mut c_void,
        /// Bytes from one row of the source to the next.
        src_pitch("srcPitch" @ 48): usize,
        /// Bytes before each row of the destination.
        dst_x_in_bytes("dstXInBytes" @ 56): usize,
        /// Rows before the destination.
        dst_y("dstY" @ 64): usize,
        /// Kind of memory of the destination.
        dst_memory_type("dstMemoryType" @ 72): c_uint,
        /// The destination on the host.
        dst_host("dstHost" @ 80): *mut c_void,
        /// The destination on the device.
        dst_device("dstDevice" @ 88): CUdeviceptr,
        /// The destination as an array.
        dst_array("dstArray" @ 96): *mut c_void,
        /// Bytes from one row of the destination to the next.
        dst_pitch("dstPitch" @ 104): usize,
        /// Bytes of a row.
        width_in_bytes("WidthInBytes" @ 112): usize,
        /// Number of rows.
        height("Height" @ 120): usize,
    }
    /// A copy of boxes: planes of rows.
    CUDA_MEMCPY3D_v2: 200 {
        /// Bytes before each row of the source.
        src_x_in_bytes("srcXInBytes" @ 0): usize,
        /// Rows before each plane of the source.
        src_y("srcY" @ 8): usize,
        /// Planes before the source.
        src_z("srcZ" @ 16): usize,
        /// Must be 0.
        src_lod("srcLOD" @ 24): usize,
        /// Kind of memory of the source.
        src_memory_type("srcMemoryType" @ 32): c_uint,
        /// The source on the host.
        src_host("srcHost" @ 40): *const c_void,
        /// The source on the device.
        src_device("srcDevice" @ 48): CUdeviceptr,
        /// The source as an array.
        src_array("srcArray" @ 56): *mut c_void,
        /// Must be null.
        reserved0("reserved0" @ 64): *mut c_void,
        /// Bytes from one row of the source to the next.
        src_pitch("srcPitch" @ 72): usize,
        /// Rows from one plane of the source to the next.
        src_height("srcHeight" @ 80): usize,
        /// Bytes before each row of the destination.
        dst_x_in_bytes("dstXInBytes" @ 88): usize,
        /// Rows before each plane of the destination.
        dst_y("dstY" @ 96): usize,
        /// Planes before the destination.
        dst_z("dstZ" @ 104): usize,
        /// Must be 0.
        dst_lod("dstLOD" @ 112): usize,
        /// Kind of memory of the destination.
        dst_memory_type("dstMemoryType" @ 120): c_uint,
        /// The destination on the host.
        dst_host("dstHost" @ 128): *mut c_void,
        /// The destination on the device.
        dst_device("dstDevice" @ 136): CUdeviceptr,
        /// The destination as an array.
        dst_array("dstArray" @ 144): *mut c_void,
        /// Must be null.
        reserved1("reserved1" @ 152): *mut c_void,
        /// Bytes from one row of the destination to the next.
        dst_pitch("dstPitch" @ 160): usize,
        /// Rows from one plane of the destination to the next.
        dst_height("dstHeight" @ 168): usize,
        /// Bytes of a row.
        width_in_bytes("WidthInBytes" @ 176): usize,
        /// Rows of a plane.
        height("Height" @ 184): usize,
        /// Number of planes.
        depth("Depth" @ 192): usize,
    }
    /// A launch in a graph.
    CUDA_KERNEL_NODE_PARAMS_v1: 56 {
        /// The kernel.
        function("func" @ 0): CUfunction,
        /// Blocks in x.
        grid_dim_x("gridDimX" @ 8): c_uint,
        /// Blocks in y.
        grid_dim_y("gridDimY" @ 12): c_uint,
        /// Blocks in z.
        grid_dim_z("gridDimZ" @ 16): c_uint,
        /// Threads of a block in x.
        block_dim_x("blockDimX" @ 20): c_uint,
        /// Threads of a block in y.
        block_dim_y("blockDimY" @ 24): c_uint,
        /// Threads of a block in z.
        block_dim_z("blockDimZ" @ 28): c_uint,
        /// Dynamic shared memory of a block in bytes.
        shared_mem_bytes("sharedMemBytes" @ 32): c_uint,
        /// Addresses of the parameters.
        kernel_params("kernelParams" @ 40): *mut *mut c_void,
        /// The parameters in one buffer.
        extra("extra" @ 48): *mut *mut c_void,
    }
    /// A launch in a graph, also of a kernel of a library.
    CUDA_KERNEL_NODE_PARAMS_v2: 72 {
        /// The kernel, or null.
        function("func" @ 0): CUfunction,
        /// Blocks in x.
        grid_dim_x("gridDimX" @ 8): c_uint,
        /// Blocks in y.
        grid_dim_y("gridDimY" @ 12): c_uint,
        /// Blocks in z.
        grid_dim_z("gridDimZ" @ 16): c_uint,
        /// Threads of a block in x.
        block_dim_x("blockDimX" @ 20): c_uint,
        /// Threads of a block in y.
        block_dim_y("blockDimY" @ 24): c_uint,
        /// Threads of a block in z.
        block_dim_z("blockDimZ" @ 28): c_uint,
        /// Dynamic shared memory of a block in bytes.
        shared_mem_bytes("sharedMemBytes" @ 32): c_uint,
        /// Addresses of the parameters.
        kernel_params("kernelParams" @ 40): *mut *mut c_void,
        /// The parameters in one buffer.
        extra("extra" @ 48): *mut *mut c_void,
        /// The kernel of a library, if the function is null.
        kernel("kern" @ 56): CUkernel,
        /// The context of that kernel.
        context("ctx" @ 64): CUcontext,
    }
    /// A fill in a graph.
    CUDA_MEMSET_NODE_PARAMS_v1: 40 {
        /// The first row.
        destination("dst" @ 0): CUdeviceptr,
        /// Bytes from one row to the next.
        pitch("pitch" @ 8): usize,
        /// The element.
        value("value" @ 16): c_uint,
        /// Its size: 1, 2 or 4 bytes.
        element_size("elementSize" @ 20): c_uint,
        /// Elements of a row.
        width("width" @ 24): usize,
        /// Number of rows.
        height("height" @ 32): usize,
    }
    /// A call of a host function in a graph.
    CUDA_HOST_NODE_PARAMS_v1: 16 {
        /// The function.
        function("fn" @ 0): CUhostFn,
        /// Its argument.
        user_data("userData" @ 8): *mut c_void,
    }
    /// How a graph is made executable, and the result.
    CUDA_GRAPH_INSTANTIATE_PARAMS: 32 {
        /// Flags.
        flags("flags" @ 0): u64,
        /// The stream for an upload.
        upload_stream("hUploadStream" @ 8): CUstream,
        /// The node that is wrong, or null.
        error_node("hErrNode_out" @ 16): CUgraphNode,
        /// The result.
        result("result_out" @ 24): CUgraphInstantiateResult,
    }
    /// The result of updating an executable graph.
    CUgraphExecUpdateResultInfo: 24 {
        /// The result.
        result("result" @ 0): CUgraphExecUpdateResult,
        /// The node that differs, or null.
        error_node("errorNode" @ 8): CUgraphNode,
        /// The node at the other end of an edge that differs, or null.
        error_from_node("errorFromNode" @ 16): CUgraphNode,
    }
    /// How one node of a graph depends on another; all zeros for a dependency on the whole node.
    CUgraphEdgeData: 8 {
        /// Which part of the earlier node.
        from_port("from_port" @ 0): c_uchar,
        /// Which part of the later node.
        to_port("to_port" @ 1): c_uchar,
        /// The kind of dependency.
        kind("type" @ 2): c_uchar,
        /// Must be 0.
        reserved("reserved" @ 3): [u8; 5],
    }
    /// A place for memory.
    CUmemLocation_v1: 8 {
        /// Its kind.
        kind("type" @ 0): CUmemLocationType,
        /// Its number.
        id("id" @ 4): c_int,
    }
    /// Access of a device to the memory of a pool.
    CUmemAccessDesc_v1: 12 {
        /// The device.
        location("location" @ 0): CUmemLocation_v1,
        /// Its access.
        flags("flags" @ 8): CUmemAccess_flags,
    }
    /// How many compute units a context gets.
    CUexecAffinityParam: 8 {
        /// What is limited.
        kind("type" @ 0): c_int,
        /// Number of compute units.
        sm_count("param.smCount.val" @ 4): c_uint,
    }
    /// What a new context is like.
    CUctxCreateParams: 24 {
        /// The compute units, or null.
        exec_affinity("execAffinityParams" @ 0): *mut CUexecAffinityParam,
        /// Number of these parameters.
        exec_affinity_count("numExecAffinityParams" @ 8): c_int,
        /// Sharing with graphics, or null.
        cig("cigParams" @ 16): *mut c_void,
    }
    /// What memory that can be mapped is like.
    CUmemAllocationProp_v1: 32 {
        /// The kind of the memory.
        kind("type" @ 0): CUmemAllocationType,
        /// How it is exported.
        handle_kinds("requestedHandleTypes" @ 4): CUmemAllocationHandleType,
        /// Its place.
        location("location" @ 8): CUmemLocation_v1,
        /// Null on Linux.
        security_attributes("win32HandleMetaData" @ 16): *mut c_void,
        /// Hints.
        flags("allocFlags" @ 24): [u8; 8],
    }
    /// Memory that several devices write at the same time.
    CUmulticastObjectProp: 32 {
        /// Number of devices.
        devices("numDevices" @ 0): c_uint,
        /// Its size.
        bytes("size" @ 8): usize,
        /// How it is exported.
        handle_kinds("handleTypes" @ 16): c_ulonglong,
        /// Must be 0.
        flags("flags" @ 24): c_ulonglong,
    }
    /// A description of a tensor for copies to shared memory.
    CUtensorMap: 128 {
        /// Private to the driver.
        opaque("opaque" @ 0): [u64; 16],
    }
    /// The value of a stream's attribute.
    CUstreamAttrValue_v1: 64 {
        /// The value.
        value("pad" @ 0): [u64; 8],
    }
    /// What a new pool is like.
    CUmemPoolProps_v1: 88 {
        /// The kind of its allocations.
        allocation_kind("allocType" @ 0): CUmemAllocationType,
        /// How it is exported.
        handle_kinds("handleTypes" @ 4): CUmemAllocationHandleType,
        /// Its place.
        location("location" @ 8): CUmemLocation_v1,
        /// Null on Linux.
        security_attributes("win32SecurityAttributes" @ 16): *mut c_void,
        /// Its greatest size in bytes, or 0.
        max_bytes("maxSize" @ 24): usize,
        /// For what it is used.
        usage("usage" @ 32): c_ushort,
        /// Must be 0.
        reserved("reserved" @ 34): [u8; 54],
    }
    /// An attribute of a launch.
    CUlaunchAttribute: 72 {
        /// The attribute's number.
        id("id" @ 0): c_uint,
        /// Padding.
        pad("pad" @ 4): [u8; 4],
        /// Its value.
        value("value" @ 8): [u32; 16],
    }
    /// The configuration of a launch.
    CUlaunchConfig: 56 {
        /// Blocks in x.
        grid_dim_x("gridDimX" @ 0): c_uint,
        /// Blocks in y.
        grid_dim_y("gridDimY" @ 4): c_uint,
        /// Blocks in z.
        grid_dim_z("gridDimZ" @ 8): c_uint,
        /// Threads of a block in x.
        block_dim_x("blockDimX" @ 12): c_uint,
        /// Threads of a block in y.
        block_dim_y("blockDimY" @ 16): c_uint,
        /// Threads of a block in z.
        block_dim_z("blockDimZ" @ 20): c_uint,
        /// Dynamic shared memory of a block in bytes.
        shared_mem_bytes("sharedMemBytes" @ 24): c_uint,
        /// The stream.
        stream("hStream" @ 32): CUstream,
        /// The attributes.
        attributes("attrs" @ 40): *mut CUlaunchAttribute,
        /// The number of attributes.
        attribute_count("numAttrs" @ 48): c_uint,
    }
}
