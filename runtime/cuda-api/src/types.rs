//! Parameter types, under their names in the header.

#![allow(non_camel_case_types, reason = "the names are those of the driver's header")]

pub use crate::structs::*;
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
    /// Result of updating an executable graph.
    CUgraphExecUpdateResult;
    /// Result of making a graph executable.
    CUgraphInstantiateResult;
    /// The kind of a node of a graph.
    CUgraphNodeType;
    /// Access to the memory of a pool.
    CUmemAccess_flags;
    /// Advice about managed memory.
    CUmem_advise;
    /// The kind of an allocation of a pool.
    CUmemAllocationType;
    /// The kind of handle by which a pool is exported.
    CUmemAllocationHandleType;
    /// Which granularity of memory is asked for.
    CUmemAllocationGranularity_flags;
    /// The kind of a place for memory.
    CUmemLocationType;
    /// An attribute of a pool.
    CUmemPool_attribute;
    /// An attribute of a range of managed memory.
    CUmem_range_attribute;
    /// Result of looking up an entry point.
    CUdriverProcAddressQueryResult;
    /// An attribute of a kernel.
    CUfunction_attribute;
    /// The kind of code that is linked.
    CUjitInputType;
    /// An option of the driver's compiler.
    CUjit_option;
    /// An option of a library.
    CUlibraryOption;
    /// When modules are loaded.
    CUmoduleLoadingMode;
    /// An attribute of an address.
    CUpointer_attribute;
    /// An attribute of a stream.
    CUstreamAttrID;
    /// Which calls are forbidden while a stream is captured.
    CUstreamCaptureMode;
    /// Whether a stream is captured.
    CUstreamCaptureStatus;
    /// The type of a tensor's elements.
    CUtensorMapDataType;
    /// What elements outside of a tensor are.
    CUtensorMapFloatOOBfill;
    /// How the rows of a tensor are interleaved.
    CUtensorMapInterleave;
    /// How much of a tensor is read into the L2 cache.
    CUtensorMapL2promotion;
    /// How a tensor is laid out in shared memory.
    CUtensorMapSwizzle;
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
    /// A link in progress.
    CUlinkState;
    /// A pool of device memory.
    CUmemoryPool;
    /// A module: code that is loaded into one context.
    CUmodule;
    /// A stream.
    CUstream;
    /// An object of the program that graphs keep.
    CUuserObject;
}

/// Memory of the device that can be mapped, as CUDA's first functions for it name it.
pub type CUmemGenericAllocationHandle_v1 = u64;
/// Memory of the device that can be mapped.
pub type CUmemGenericAllocationHandle = CUmemGenericAllocationHandle_v1;

/// A function that a stream calls.
pub type CUhostFn = Option<unsafe extern "C" fn(user_data: *mut c_void)>;
/// A function that a stream calls with the status of the work before it.
pub type CUstreamCallback = Option<unsafe extern "C" fn(stream: CUstream, status: CUresult, user_data: *mut c_void)>;
/// The dynamic shared memory of a block, by its number of threads.
pub type CUoccupancyB2DSize = Option<unsafe extern "C" fn(block_size: c_int) -> usize>;
