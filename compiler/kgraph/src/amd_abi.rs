//! What a launch of AMD code must provide: the layout of the kernarg segment, and the record of a
//! trap. `compiler/targets/amd` generates code for it, `runtime/devices/hip` launches it.
//!
//! The kernarg segment starts with PTX's parameter block, byte for byte: a parameter at offset n of
//! PTX's layout is at offset n of the segment. Behind it, at the next multiple of 8, follow the
//! *hidden arguments* at the offsets of this module. Code reads nothing from the dispatch packet
//! and no implicit argument of the runtime: another kernel can therefore jump to a kernel after it
//! has set up a kernarg segment.
//!
//! Registers at the entry of every kernel of one architecture are the same, whatever the kernel
//! uses: user SGPRs as the kernel descriptor of gfx9 and later defines them (a private segment
//! buffer and the initial flat scratch where the architecture has no architected scratch, and the
//! kernarg segment pointer; no dispatch pointer, queue pointer or dispatch id), then the workgroup
//! ids x, y and z, then the wave's scratch offset if the kernel needs scratch. gfx1201 has the
//! workgroup ids in trap temporaries. VGPR 0 (to 2) hold the work-item ids x, y and z.

/// Number of blocks of the grid along x, y and z: three u32.
pub const GRID: u32 = 0;
/// Threads of a block along x, y and z: three u32. Code is compiled for one block shape and does
/// not read them; they are for code that jumps to kernels.
pub const BLOCK: u32 = 12;
/// Bytes of dynamic shared memory: u32. A u32 that is 0 follows.
pub const DYNAMIC_SHARED: u32 = 24;
/// Address of the [trap record](TRAP_STATE) of the launch, or 0: u64.
pub const TRAP_RECORD: u32 = 32;
/// Bytes of the hidden arguments.
pub const HIDDEN_BYTES: u32 = 40;

/// Offset of the hidden arguments behind parameters of this size in bytes.
pub const fn hidden_offset(params_bytes: u32) -> u32 {
    params_bytes.next_multiple_of(8)
}

/// Size of the kernarg segment in bytes.
pub const fn kernarg_bytes(params_bytes: u32) -> u32 {
    hidden_offset(params_bytes) + HIDDEN_BYTES
}

/// Dynamic shared memory starts at the next multiple of this many bytes behind the static part
/// (`.group_segment_fixed_size` in the metadata of the code object).
pub const DYNAMIC_SHARED_ALIGN: u32 = 16;

/// Offset of the state of the trap record, a u32: 0 before a trap, [`TRAP_WRITING`] while the first
/// trap of the launch writes the record, then [`TRAP_COMPLETE`].
pub const TRAP_STATE: u32 = 0;
/// Offset of the code of the trap, a u32: one of [`TrapCode`].
pub const TRAP_CODE: u32 = 4;
/// Offset of the line of PTX, a u32; 0 for a statement that a pass has built.
pub const TRAP_LINE: u32 = 8;
/// Offset of the linear index of the thread in its block, a u32.
pub const TRAP_THREAD: u32 = 12;
/// Offset of the block's index along x, y and z: three u32.
pub const TRAP_BLOCK: u32 = 16;
/// Bytes of the trap record; it must be aligned to 4 bytes.
pub const TRAP_BYTES: u32 = 32;

/// See [`TRAP_STATE`].
pub const TRAP_WRITING: u32 = 1;
/// See [`TRAP_STATE`].
pub const TRAP_COMPLETE: u32 = 2;

/// Why a launch trapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum TrapCode {
    /// `trap`
    Trap = 1,
    /// A failed assertion.
    Assert = 2,
    /// An address outside the memory of the tenant, found by the check in front of an access.
    OutOfBounds = 3,
}
