//! The contract between native code of a host target and the host device (design D2).
//!
//! A kernel is an exported symbol of type [`HostKernel`]. It runs the blocks
//! `block_begin..block_end` of a launch, in linear order (x fastest), one after the other, on the
//! calling thread. All addresses are plain host addresses. The code has no undefined symbols: what
//! it cannot do inline it reaches through [`HostHelpers`].
//!
//! *How a kernel ends early.* Between blocks, where [`HostContext::stop_word`] asks for it: nothing
//! is lost. In the middle of a block it calls [`HostHelpers::trap`] and returns at once: the launch
//! has failed. It does so of its own accord, or because a loop that waits for other threads found
//! [`HostContext::halt_word`] set ([`TrapCode::TimeLimit`]). The device may also drop the frames of
//! a kernel whenever the program counter lies in the object's code, so a kernel owns nothing that
//! would have to be released.
//!
//! *Where a kernel is.* Before it runs a block it stores the block's index through
//! [`HostContext::block_word`]. Lines are those of the PTX text; the object's line table
//! (`.debug_line`) gives one for every instruction. The *column* of an entry is not a column: it
//! says how many lines above stands the load that the instruction consumes, 0 if none, because
//! native instructions read memory in the operation that uses the value.
//!
//! *Stacks.* A kernel may run on stacks of its own in scratch memory and call helpers from there:
//! each has 64 KiB for them.
//!
//! *Local memory* of the block's thread `t` is the `local_bytes` bytes at `scratch + t *
//! local_bytes`.

/// Version of [`HostContext`] and [`HostHelpers`]; a device refuses code compiled for another one.
pub const HOST_ABI_VERSION: u32 = 2;

/// Symbol of a `u32` in every native object that holds its [`HOST_ABI_VERSION`].
pub const HOST_ABI_SYMBOL: &str = "atoll_host_abi_version";

/// Type of an exported kernel.
///
/// # Safety
/// `context` must be valid for the call; params, shared and scratch as large as the kernel's facts
/// say; every address in the parameters valid for what the kernel does.
pub type HostKernel = unsafe extern "C" fn(context: *const HostContext);

/// What a compute unit hands to a kernel. Plain addresses are `u64`, so that the layout is the same
/// everywhere. Nothing in it changes while the kernel runs.
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
    /// Address of the u32 that asks this compute unit to stop when it is not 0; polled between
    /// blocks.
    pub stop_word: u64,
    /// Address of [`HostHelpers`].
    pub helpers: u64,
    /// Address of the u64 that the code stores the linear index of a block into before it runs it.
    pub block_word: u64,
    /// Address of the u32 that is not 0 once this launch must end wherever it is; polled in loops
    /// that wait for other threads.
    pub halt_word: u64,
}

/// Functions native code may call. All are addresses of `extern "C"` functions; none of them
/// unwinds.
///
/// `thread` is the linear index of a thread in its block (x fastest), [`NO_THREAD`] where it is not
/// known; `line` a line of PTX; `access` an [`Access`] in bits, 0 where there is none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HostHelpers {
    /// `fn(context: *const HostContext, code: u32, line: u32, thread: u32, access: u32, address:
    /// u64)`: reports a trap; `code` is a [`TrapCode`]. The kernel returns right after the call.
    pub trap: u64,
    /// `fn(context: *const HostContext, format: u64, arguments: u64, arguments_bytes: u32, line:
    /// u32, thread: u32) -> i32`: `vprintf`, whose result it returns. `format` is the address of a
    /// string; the arguments lie packed as CUDA does it, naturally aligned, nothing smaller
    /// than 4 bytes. `arguments_bytes` is how much may be read there at most.
    pub print: u64,
    /// `fn(context: *const HostContext, access: u32, line: u32, thread: u32, address: u64,
    /// local_bytes: u32) -> u32`: whether an access may be made; called before each access of code
    /// that was compiled with checks. Where the result is 0 it is reported already, and the
    /// kernel returns right after the call.
    pub check: u64,
}

/// A `thread` that is not known.
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
    /// Control flow reached a place the compiler knows to be unreachable.
    Unreachable = 2,
    /// An access whose address is no multiple of its size.
    Misaligned = 3,
    /// An access outside the memory that it may touch.
    OutOfBounds = 4,
    /// Threads wait for each other and none can go on.
    Deadlock = 5,
    /// A failed `assert`; what it said was printed before.
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

    /// The code of a number.
    pub fn from_u32(code: u32) -> Option<TrapCode> {
        Self::ALL.into_iter().find(|c| *c as u32 == code)
    }
}

/// What an access does to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum AccessKind {
    /// A load.
    Read = 1,
    /// A store.
    Write = 2,
    /// A load and a store that nothing comes between.
    Atomic = 3,
}

/// Where an access says that it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum AccessSpace {
    /// Anywhere.
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

/// One thread's access, as a helper hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// What it does.
    pub kind: AccessKind,
    /// Where it says that it goes.
    pub space: AccessSpace,
    /// Its size.
    pub bytes: u16,
}

impl Access {
    /// As an argument of a helper: never 0.
    pub fn to_bits(self) -> u32 {
        u32::from(self.bytes) | (self.kind as u32) << 16 | (self.space as u32) << 20
    }

    /// From an argument of a helper.
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
    fn arguments_of_helpers_survive_the_call() {
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
