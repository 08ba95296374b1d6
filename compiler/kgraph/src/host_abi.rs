//! The ABI between native code of a host target and the host device.
//!
//! A kernel is an exported symbol of type [`HostKernel`]. It runs the blocks
//! `block_begin..block_end` of a launch in linear order (x fastest), one after another, on the
//! calling thread. All addresses are host addresses. The code has no undefined symbols; it calls
//! external functions only through [`HostHelpers`].
//!
//! *Early exit.* Between blocks, the kernel returns if [`HostContext::stop_word`] is set; no work
//! is lost. Within a block, it calls [`HostHelpers::trap`] and returns at once; the launch has
//! failed. The reason is an error, or a loop that waits for other threads and found
//! [`HostContext::halt_word`] set ([`TrapCode::TimeLimit`]). The device may also unwind the
//! kernel's frames without running any code whenever the program counter is in the object's code,
//! so a kernel must not own anything that needs to be released.
//!
//! *Position.* Before each block, the kernel stores the block's index through
//! [`HostContext::block_word`]. Line numbers refer to the PTX text; the object's line table
//! (`.debug_line`) has an entry for every instruction. The *column* of an entry has another meaning
//! here: it is the distance in lines to the load whose value the instruction consumes, 0 if there
//! is none. Native instructions can read memory as an operand, so the load may have no instruction
//! of its own.
//!
//! *Stacks.* A kernel may run on its own stacks in scratch memory and call helpers from there; each
//! stack reserves 64 KiB for them.
//!
//! *Local memory* of thread `t` of the block is the `local_bytes` bytes at `scratch + t *
//! local_bytes`.

/// Version of [`HostContext`] and [`HostHelpers`]. A device rejects code compiled for another
/// version.
pub const HOST_ABI_VERSION: u32 = 2;

/// Symbol of a `u32` in every native object that holds its [`HOST_ABI_VERSION`].
pub const HOST_ABI_SYMBOL: &str = "atoll_host_abi_version";

/// Type of an exported kernel.
///
/// # Safety
/// `context` must be valid during the call; params, shared and scratch must be as large as the
/// kernel's facts state; every address in the parameters must be valid for the kernel's accesses.
pub type HostKernel = unsafe extern "C" fn(context: *const HostContext);

/// The argument of a kernel. Addresses are `u64`, so that the layout is the same on all platforms.
/// No field changes while the kernel runs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HostContext {
    /// [`HOST_ABI_VERSION`].
    pub version: u32,
    /// Index of the compute unit, the value of `%smid`.
    pub compute_unit: u32,
    /// Address of the parameter block, 16-byte aligned.
    pub params: u64,
    /// Blocks of the launch in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z; equal to the block shape that the kernel was compiled for.
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
    /// Address of a u32 that asks this compute unit to stop if it is nonzero; polled between
    /// blocks.
    pub stop_word: u64,
    /// Address of [`HostHelpers`].
    pub helpers: u64,
    /// Address of a u64 to which the kernel stores the linear index of each block before it runs
    /// it.
    pub block_word: u64,
    /// Address of a u32 that is nonzero once this launch must end at once; polled in loops that
    /// wait for other threads.
    pub halt_word: u64,
}

/// Functions that native code may call: addresses of `extern "C"` functions that never unwind.
///
/// `thread` is the linear index of a thread in its block (x fastest), or [`NO_THREAD`] if unknown.
/// `line` is a line of the PTX. `access` is an [`Access`] as bits, or 0 if there is none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HostHelpers {
    /// `fn(context: *const HostContext, code: u32, line: u32, thread: u32, access: u32, address:
    /// u64)`: reports a trap; `code` is a [`TrapCode`]. The kernel returns right after the call.
    pub trap: u64,
    /// `fn(context: *const HostContext, format: u64, arguments: u64, arguments_bytes: u32, line:
    /// u32, thread: u32) -> i32`: `vprintf`; returns its result. `format` is the address of a
    /// string. The arguments are packed as in CUDA: naturally aligned, each at least 4 bytes. At
    /// most `arguments_bytes` bytes may be read there.
    pub print: u64,
    /// `fn(context: *const HostContext, access: u32, line: u32, thread: u32, address: u64,
    /// local_bytes: u32) -> u32`: whether an access is allowed. Code compiled with checks calls it
    /// before each access. If the result is 0, the helper has reported the access, and the kernel
    /// returns right after the call.
    pub check: u64,
}

/// The value of `thread` if the thread is unknown.
pub const NO_THREAD: u32 = u32::MAX;

/// Byte offsets of [`HostContext`]'s fields, for the code generator.
#[expect(missing_docs, reason = "named after the fields")]
pub mod offsets {
    use super::{HostContext, HostHelpers};
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
    pub const BLOCK_WORD: usize = offset_of!(HostContext, block_word);
    pub const HALT_WORD: usize = offset_of!(HostContext, halt_word);

    /// Offset of [`HostHelpers::trap`] in the table of helpers.
    pub const HELPER_TRAP: usize = offset_of!(HostHelpers, trap);
    /// Offset of [`HostHelpers::print`].
    pub const HELPER_PRINT: usize = offset_of!(HostHelpers, print);
    /// Offset of [`HostHelpers::check`].
    pub const HELPER_CHECK: usize = offset_of!(HostHelpers, check);
}

/// Why native code trapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum TrapCode {
    /// The `trap` instruction.
    Trap = 1,
    /// Control flow reached code that the compiler knows to be unreachable.
    Unreachable = 2,
    /// An access whose address is not a multiple of its size.
    Misaligned = 3,
    /// An access outside the memory that the kernel may use.
    OutOfBounds = 4,
    /// Threads wait for each other and none can continue.
    Deadlock = 5,
    /// A failed `assert`; its message was printed before.
    Assert = 6,
    /// A loop that waits for other threads found the halt word set.
    TimeLimit = 7,
}

impl TrapCode {
    /// Every code.
    pub const ALL: [TrapCode; 7] = [
        TrapCode::Trap,
        TrapCode::Unreachable,
        TrapCode::Misaligned,
        TrapCode::OutOfBounds,
        TrapCode::Deadlock,
        TrapCode::Assert,
        TrapCode::TimeLimit,
    ];

    /// The trap code with this number.
    pub fn from_u32(code: u32) -> Option<TrapCode> {
        Self::ALL.into_iter().find(|c| *c as u32 == code)
    }
}

/// The effect of an access on memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum AccessKind {
    /// A load.
    Read = 1,
    /// A store.
    Write = 2,
    /// An atomic read-modify-write.
    Atomic = 3,
}

/// The state space that an access names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum AccessSpace {
    /// Generic addressing: any space.
    Generic = 0,
    /// Device memory.
    Global = 1,
    /// The block's shared memory.
    Shared = 2,
    /// The thread's local memory.
    Local = 3,
    /// Constants of the module.
    Const = 4,
    /// The parameter block.
    Param = 5,
}

/// One thread's access, as reported to a helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// Load, store or atomic.
    pub kind: AccessKind,
    /// The state space that it names.
    pub space: AccessSpace,
    /// Its size in bytes.
    pub bytes: u16,
}

impl Access {
    /// The access as an argument of a helper; never 0.
    pub fn to_bits(self) -> u32 {
        u32::from(self.bytes) | (self.kind as u32) << 16 | (self.space as u32) << 20
    }

    /// The access in an argument of a helper; `None` for 0 and malformed values.
    pub fn from_bits(bits: u32) -> Option<Access> {
        let kind = [AccessKind::Read, AccessKind::Write, AccessKind::Atomic]
            .into_iter()
            .find(|k| *k as u32 == bits >> 16 & 0xF)?;
        use AccessSpace::{Const, Generic, Global, Local, Param, Shared};
        let space = [Generic, Global, Shared, Local, Const, Param].into_iter().find(|s| *s as u32 == bits >> 20)?;
        Some(Access { kind, space, bytes: bits as u16 })
    }
}

const _: () = assert!(size_of::<HostContext>() == 112);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_bits_round_trip() {
        for kind in [AccessKind::Read, AccessKind::Write, AccessKind::Atomic] {
            let access = Access { kind, space: AccessSpace::Param, bytes: 16 };
            assert_eq!(Access::from_bits(access.to_bits()), Some(access));
        }
        assert_eq!(Access::from_bits(0), None);
        assert_eq!(Access::from_bits(u32::MAX), None);
        assert!(TrapCode::ALL.iter().all(|c| TrapCode::from_u32(*c as u32) == Some(*c)));
        assert_eq!(TrapCode::from_u32(0), None);
    }
}
