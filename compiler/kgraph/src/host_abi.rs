//! The contract between native code of a host target and the host device (design D2).
//!
//! A kernel is an exported symbol of type [`HostKernel`]. It runs the blocks `block_begin..block_end` of a launch, in linear order (x fastest), one
//! after the other, on the calling thread. All addresses are plain host addresses. The code has no undefined symbols: what it cannot do inline it reaches through
//! [`HostHelpers`].

/// Version of [`HostContext`]; a device refuses code compiled for another one.
pub const HOST_ABI_VERSION: u32 = 1;

/// Symbol of a `u32` in every native object that holds its [`HOST_ABI_VERSION`].
pub const HOST_ABI_SYMBOL: &str = "atoll_host_abi_version";

/// Type of an exported kernel.
///
/// # Safety
/// `context` must be valid for the call; params, shared and scratch as large as the kernel's facts say; every address in the parameters valid for what the kernel does.
pub type HostKernel = unsafe extern "C" fn(context: *const HostContext);

/// What a compute unit hands to a kernel. Plain addresses are `u64`, so that the layout is the same everywhere.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HostContext {
    /// [`HOST_ABI_VERSION`].
    pub version: u32,
    /// Index of the compute unit, what `%smid` reads.
    pub compute_unit: u32,
    /// Address of the parameter block, 16-byte aligned.
    pub params: u64,
    /// Blocks of the launch in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z; equal to what the kernel was compiled for.
    pub block: [u32; 3],
    /// First block to run, linear.
    pub block_begin: u64,
    /// One past the last block to run.
    pub block_end: u64,
    /// Address of this compute unit's shared memory, 256-byte aligned.
    pub shared: u64,
    /// Bytes of shared memory.
    pub shared_bytes: u32,
    /// Bytes of scratch memory.
    pub scratch_bytes: u32,
    /// Address of this compute unit's scratch memory, 256-byte aligned.
    pub scratch: u64,
    /// Address of the u32 that asks this compute unit to stop when it is not 0; polled between blocks.
    pub stop_word: u64,
    /// Address of [`HostHelpers`].
    pub helpers: u64,
}

/// Functions native code may call. All are addresses of `extern "C"` functions.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HostHelpers {
    /// `fn(context: *const HostContext, code: u32, line: u32) -> !`-like report of a trap: `code` is a [`TrapCode`]; the kernel returns right after the call.
    pub trap: u64,
}

/// Byte offsets of [`HostContext`]'s fields, for the code generator.
#[expect(missing_docs, reason = "named after the fields")]
pub mod offsets {
    use super::HostContext;
    use std::mem::offset_of;
    pub const COMPUTE_UNIT: usize = offset_of!(HostContext, compute_unit);
    pub const PARAMS: usize = offset_of!(HostContext, params);
    pub const GRID: usize = offset_of!(HostContext, grid);
    pub const BLOCK: usize = offset_of!(HostContext, block);
    pub const BLOCK_BEGIN: usize = offset_of!(HostContext, block_begin);
    pub const BLOCK_END: usize = offset_of!(HostContext, block_end);
    pub const SHARED: usize = offset_of!(HostContext, shared);
    pub const SHARED_BYTES: usize = offset_of!(HostContext, shared_bytes);
    pub const SCRATCH_BYTES: usize = offset_of!(HostContext, scratch_bytes);
    pub const SCRATCH: usize = offset_of!(HostContext, scratch);
    pub const STOP_WORD: usize = offset_of!(HostContext, stop_word);
    pub const HELPERS: usize = offset_of!(HostContext, helpers);
}

/// Why native code trapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum TrapCode {
    /// The `trap` instruction.
    Trap = 1,
    /// Control flow reached a place the compiler knows to be unreachable.
    Unreachable = 2,
}

const _: () = assert!(size_of::<HostContext>() == 96);
