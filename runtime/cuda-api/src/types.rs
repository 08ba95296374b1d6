//! The types of parameters, under the names of the header.

#![allow(non_camel_case_types, reason = "the names are those of the driver's header")]

pub use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

/// A device, by its number.
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
    /// What a call answers: 0, or a number of [`error`](crate::error).
    CUresult;
    /// A limit of a context.
    CUlimit;
    /// How a multiprocessor divides its memory into cache and shared memory.
    CUfunc_cache;
    /// An attribute of a device.
    CUdevice_attribute;
    /// An attribute of the link between two devices.
    CUdevice_P2PAttribute;
    /// What can be divided between green contexts.
    CUdevResourceType;
    /// Why an entry point was not found.
    CUdriverProcAddressQueryResult;
    /// An attribute of a kernel.
    CUfunction_attribute;
    /// An option of the driver's compiler.
    CUjit_option;
    /// An option of a library.
    CUlibraryOption;
    /// When code is loaded.
    CUmoduleLoadingMode;
    /// An attribute of an address.
    CUpointer_attribute;
    /// What else may go on while a stream is captured.
    CUstreamCaptureMode;
    /// Whether a stream is captured.
    CUstreamCaptureStatus;
}

/// A type that stands for an object of the driver.
pub trait DriverHandle: Copy {
    /// No object.
    const NULL: Self;

    /// The handle of this value.
    fn from_bits(bits: u64) -> Self;

    /// Its value: an address that only the driver looks behind.
    fn bits(self) -> u64;
}

/// Declares handles. The header declares pointers to structs that nobody sees; a number of the same
/// size crosses the border in the same register, and may go to another thread.
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

            const _: () = assert!(size_of::<$name>() == size_of::<*mut c_void>() && align_of::<$name>() == align_of::<*mut c_void>());
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
    /// A green context: a part of a device's compute units.
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

/// A struct of the header as it is laid out here; compared with the header by a C compiler.
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
    ($($(#[$doc:meta])* $name:ident: $bytes:literal { $($(#[$field_doc:meta])* $field:ident ($c_name:literal @ $offset:literal): $type:ty,)+ })+) => {
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
        pub const LAYOUTS: &[Layout] = &[$(Layout { name: stringify!($name), bytes: $bytes, fields: &[$(($c_name, $offset)),+] }),+];
    };
}

structs! {
    /// The name of a device that no other has.
    CUuuid: 16 {
        /// Its bytes.
        bytes("bytes" @ 0): [u8; 16],
    }
    /// Something that can be divided between green contexts, as CUDA 12 lays it out. CUDA 13 has more behind it: who has it written by a driver leaves room.
    CUdevResource: 144 {
        /// What it is.
        kind("type" @ 0): CUdevResourceType,
        /// The driver's.
        internal("_internal_padding" @ 4): [u8; 92],
        /// Compute units, where it is of these.
        sm_count("sm.smCount" @ 96): c_uint,
        /// Room for other kinds.
        rest("_oversize[4]" @ 100): [u8; 44],
    }
    /// An attribute of a launch.
    CUlaunchAttribute: 72 {
        /// Which one.
        id("id" @ 0): c_uint,
        /// Nothing.
        pad("pad" @ 4): [u8; 4],
        /// Its value.
        value("value" @ 8): [u32; 16],
    }
    /// How a kernel is launched.
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
        /// How many attributes there are.
        attribute_count("numAttrs" @ 48): c_uint,
    }
}
