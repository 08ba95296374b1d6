//! Parameter types, under their names in the header.

#![allow(non_camel_case_types, reason = "the names are those of the library's header")]

pub use std::ffi::{c_char, c_int, c_uchar, c_uint, c_void};

/// The result of a call: 0, or a number of [`error`](crate::error).
pub type hipError_t = c_int;
/// A device, by its ordinal.
pub type hipDevice_t = c_int;
/// An attribute of a device.
pub type hipDeviceAttribute_t = c_int;
/// An attribute of a kernel.
pub type hipFunction_attribute = c_int;
/// An address in device memory. The header declares a pointer, which is passed in the same way.
pub type hipDeviceptr_t = u64;

/// A handle of an object of the library.
pub trait HipHandle: Copy {
    /// The null handle.
    const NULL: Self;

    /// The handle with this value.
    fn from_bits(bits: u64) -> Self;

    /// Its value: an address that only the library dereferences.
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

            impl HipHandle for $name {
                const NULL: $name = $name(0);

                fn from_bits(bits: u64) -> $name {
                    $name(bits as usize)
                }

                fn bits(self) -> u64 {
                    self.0 as u64
                }
            }

            const _: () = assert!(size_of::<$name>() == size_of::<*mut c_void>());
        )+
    };
}

handles! {
    /// An event.
    hipEvent_t;
    /// A kernel of a module.
    hipFunction_t;
    /// A module: code that is loaded onto one device.
    hipModule_t;
    /// A stream.
    hipStream_t;
}

/// The layout of a struct of the header; a C compiler compares it with the header.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Its name here, and in the header of ROCm 6 and later.
    pub name: &'static str,
    /// Its size in bytes.
    pub bytes: usize,
    /// The fields in use, by the names of the header, with their offsets.
    pub fields: &'static [(&'static str, usize)],
}

/// Declares structs: each with its size, and its fields with their names in the header and their
/// offsets. Fields that are not used here are joined into one.
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
    hipUUID: 16 {
        /// Its bytes.
        bytes("bytes" @ 0): [u8; 16],
    }
    /// A handle of device memory that other processes can open.
    hipIpcMemHandle_t: 64 {
        /// Private to the library.
        reserved("reserved" @ 0): [u8; 64],
    }
    /// The properties of a device in the layout of ROCm 5, which later releases use for the old
    /// symbol.
    hipDeviceProp_tR0000: 792 {
        /// Name of the device, NUL-terminated.
        name("name" @ 0): [u8; 256],
        /// Device memory in bytes.
        total_global_mem("totalGlobalMem" @ 256): usize,
        /// Not in use here.
        between("sharedMemPerBlock" @ 264): [u8; 132],
        /// Name of the architecture with its features, NUL-terminated: `gfx90a:sramecc+:xnack-`.
        gcn_arch_name("gcnArchName" @ 396): [u8; 256],
        /// Not in use here.
        rest("integrated" @ 652): [u8; 140],
    }
    /// The properties of a device in the layout of ROCm 6 and later.
    hipDeviceProp_tR0600: 1472 {
        /// Name of the device, NUL-terminated.
        name("name" @ 0): [u8; 256],
        /// Not in use here.
        identity("uuid" @ 256): [u8; 32],
        /// Device memory in bytes.
        total_global_mem("totalGlobalMem" @ 288): usize,
        /// Not in use here.
        between("sharedMemPerBlock" @ 296): [u8; 864],
        /// Name of the architecture with its features, NUL-terminated: `gfx90a:sramecc+:xnack-`.
        gcn_arch_name("gcnArchName" @ 1160): [u8; 256],
        /// Not in use here.
        rest("maxSharedMemoryPerMultiProcessor" @ 1416): [u8; 56],
    }
}
