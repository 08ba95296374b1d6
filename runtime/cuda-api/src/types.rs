//! Parameter types, under their names in the header.

#![allow(non_camel_case_types, reason = "the names are those of the driver's header")]

pub use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

/// A device, by its ordinal.
pub type CUdevice = c_int;
/// An address in device memory.
pub type CUdeviceptr = u64;

/// Declares enums of the header as integers.
macro_rules! enums {
    ($($(#[$doc:meta])* $name:ident;)+) => {
        $($(#[$doc])* pub type $name = c_int;)+
        /// The enums of the header that are integers here.
        pub const ENUMS: &[&str] = &[$(stringify!($name)),+];
    };
}

enums! {
    /// The result of a call: 0, or a number of [`error`](crate::error).
    CUresult;
    /// A limit of a context.
    CUlimit;
    /// Preferred split between L1 cache and shared memory.
    CUfunc_cache;
    /// An attribute of a device.
    CUdevice_attribute;
    /// An attribute of the link between two devices.
    CUdevice_P2PAttribute;
    /// A kind of resource that green contexts divide.
    CUdevResourceType;
    /// Result of looking up an entry point.
    CUdriverProcAddressQueryResult;
    /// An attribute of a kernel.
    CUfunction_attribute;
    /// An option of the driver's compiler.
    CUjit_option;
    /// An option of a library.
    CUlibraryOption;
    /// When modules are loaded.
    CUmoduleLoadingMode;
    /// An attribute of an address.
    CUpointer_attribute;
    /// Which calls are forbidden while a stream is captured.
    CUstreamCaptureMode;
    /// Whether a stream is captured.
    CUstreamCaptureStatus;
}

/// A handle of a driver object.
pub trait DriverHandle: Copy {
    /// The null handle.
    const NULL: Self;

    /// The handle with this value.
    fn from_bits(bits: u64) -> Self;

    /// Its value: an address that only the driver dereferences.
    fn bits(self) -> u64;
}

/// Declares handles. The header declares pointers to opaque structs. An integer of the same size is
/// passed in the same register, and may be sent to another thread.
macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
            #[repr(transparent)]
            pub struct $name(usize);

            impl DriverHandle for $name {
                const NULL: $name = $name(0);

                fn from_bits(bits: u64) -> $name {
                    $name(bits as usize)
                }

                fn bits(self) -> u64 {
                    self.0 as u64
                }
            }

            const _: () = assert!(
            size_of::<$name>() == size_of::<*mut c_void>() && align_of::<$name>() == align_of::<*mut c_void>()
        );
        )+
        /// The handles.
        pub const HANDLES: &[&str] = &[$(stringify!($name)),+];
    };
}

handles! {
    /// A context.
    CUcontext;
    /// A description of compute units for a green context.
    CUdevResourceDesc;
    /// An event.
    CUevent;
    /// A kernel of a module.
    CUfunction;
    /// A graph.
    CUgraph;
    /// A graph that can be launched.
    CUgraphExec;
    /// A node of a graph.
    CUgraphNode;
    /// A green context: a partition of a device's compute units.
    CUgreenCtx;
    /// A kernel of a library.
    CUkernel;
    /// A library: code that is loaded into every context.
    CUlibrary;
    /// A module: code that is loaded into one context.
    CUmodule;
    /// A stream.
    CUstream;
}

/// A function that a stream calls.
pub type CUhostFn = Option<unsafe extern "C" fn(user_data: *mut c_void)>;
/// A function that a stream calls with the status of the work before it.
pub type CUstreamCallback = Option<unsafe extern "C" fn(stream: CUstream, status: CUresult, user_data: *mut c_void)>;
/// The dynamic shared memory of a block, by its number of threads.
pub type CUoccupancyB2DSize = Option<unsafe extern "C" fn(block_size: c_int) -> usize>;

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
