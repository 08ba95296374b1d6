//! The memory that a launch of AMD code must provide: the kernarg segment, the trap record and the
//! print buffer.
//! `compiler/targets/amd` generates code for this layout, and `runtime/devices/hip` launches it.
//!
//! The kernarg segment begins with PTX's parameter block: a parameter at offset n in PTX is at
//! offset n of the segment. The *hidden arguments* follow at the next multiple of 8, at the offsets
//! of this module. Code reads neither the dispatch packet nor implicit arguments of the runtime. A
//! kernel can therefore set up a kernarg segment and jump to another kernel.
//!
//! The registers at the entry of a kernel depend only on the architecture, not on the kernel. First
//! come the user SGPRs, as the kernel descriptor of gfx9 and later defines them: a private segment
//! buffer and the initial flat scratch on architectures without architected scratch, and the
//! kernarg segment pointer; no dispatch pointer, queue pointer or dispatch id. Then come the
//! workgroup ids x, y and z, then the wave's scratch offset if the kernel needs scratch. gfx1201
//! has the workgroup ids in trap temporaries. VGPR 0, or VGPRs 0 to 2, hold the work-item ids x, y
//! and z.

/// Number of blocks of the grid in x, y and z: three u32.
pub const GRID: u32 = 0;
/// Number of threads of a block in x, y and z: three u32. A kernel is compiled for one block shape
/// and does not read them; code that jumps to kernels does.
pub const BLOCK: u32 = 12;
/// Bytes of dynamic shared memory: a u32, followed by a u32 of 0.
pub const DYNAMIC_SHARED: u32 = 24;
/// Address of the [trap record](TRAP_STATE) of the launch, or 0: u64.
pub const TRAP_RECORD: u32 = 32;
/// Address of the [print buffer](PRINT_USED) of the launch, or 0: u64.
pub const PRINT_BUFFER: u32 = 40;
/// Size of the hidden arguments in bytes.
pub const HIDDEN_BYTES: u32 = 48;

/// Addresses of what a launch may write for the host; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// The [trap record](TRAP_STATE).
    pub trap: u64,
    /// The [print buffer](PRINT_USED).
    pub print: u64,
}

/// Offset of the hidden arguments after `params_bytes` bytes of parameters.
pub const fn hidden_offset(params_bytes: u32) -> u32 {
    params_bytes.next_multiple_of(8)
}

/// Size of the kernarg segment in bytes.
pub const fn kernarg_bytes(params_bytes: u32) -> u32 {
    hidden_offset(params_bytes) + HIDDEN_BYTES
}

/// The kernarg segment of a launch: its parameter block, and the hidden arguments.
pub fn kernarg(params: &[u8], grid: [u32; 3], block: [u32; 3], shared_bytes: u32, records: Records) -> Vec<u8> {
    let params_bytes = params.len() as u32;
    let mut segment = params.to_vec();
    segment.resize(hidden_offset(params_bytes) as usize, 0);
    for word in grid.into_iter().chain(block).chain([shared_bytes, 0]) {
        segment.extend(word.to_le_bytes());
    }
    segment.extend(records.trap.to_le_bytes());
    segment.extend(records.print.to_le_bytes());
    debug_assert_eq!(segment.len(), kernarg_bytes(params_bytes) as usize);
    segment
}

/// Dynamic shared memory starts after the static part (`.group_segment_fixed_size` in the metadata
/// of the code object), at the next multiple of this many bytes.
pub const DYNAMIC_SHARED_ALIGN: u32 = 16;

/// Offset of the state of the trap record, a u32: 0 before a trap, [`TRAP_WRITING`] while the first
/// trap of the launch writes the record, then [`TRAP_COMPLETE`].
pub const TRAP_STATE: u32 = 0;
/// Offset of the code of the trap, a u32: one of [`TrapCode`].
pub const TRAP_CODE: u32 = 4;
/// Offset of the line of PTX, a u32; 0 for a statement that a pass has added.
pub const TRAP_LINE: u32 = 8;
/// Offset of the linear index of the thread in its block, a u32.
pub const TRAP_THREAD: u32 = 12;
/// Offset of the block's index in x, y and z: three u32.
pub const TRAP_BLOCK: u32 = 16;
/// Size of the trap record in bytes; its address must be a multiple of 4.
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
    /// An address outside the tenant's memory, found by the check before an access.
    OutOfBounds = 3,
}

/// Offset of the bytes of the print buffer that records take, a u64. It also counts records for
/// which there was no space, and is then more than the [capacity](PRINT_CAPACITY).
pub const PRINT_USED: u32 = 0;
/// Offset of the number of records that were dropped because there was no space, a u32.
pub const PRINT_DROPPED: u32 = 8;
/// Offset of the number of bytes for records, a u32 that the host writes before the launch.
pub const PRINT_CAPACITY: u32 = 12;
/// Offset of the first record. The address of a print buffer is a multiple of 8, as is the size of
/// every record. The space for records is zeroed before a launch.
///
/// A record is one call of `printf`: its head, and from [`PRINT_HEAD_BYTES`] on the format, the
/// arguments and the strings, each padded with up to 3 bytes. The arguments are packed as PTX passes
/// them to `vprintf`. A string is the address that is its argument, a u64, its length, a u32, and
/// its bytes. Format and strings have no final zero.
pub const PRINT_RECORDS: u32 = 16;
/// Offset of the size of a record, a u32: 0 until the record is complete.
pub const PRINT_SIZE: u32 = 0;
/// Offset of the line of PTX, a u32.
pub const PRINT_LINE: u32 = 4;
/// Offset of the linear index of the thread in its block, a u32.
pub const PRINT_THREAD: u32 = 8;
/// Offset of the length of the format, a u32.
pub const PRINT_FORMAT_BYTES: u32 = 12;
/// Offset of the size of the arguments, a u32.
pub const PRINT_ARGUMENTS_BYTES: u32 = 16;
/// Size of the head of a record.
pub const PRINT_HEAD_BYTES: u32 = 24;
/// Bytes in front of a string.
pub const PRINT_STRING_HEAD_BYTES: u32 = 12;
/// Maximum length of a format or string; the rest is not recorded.
pub const PRINT_STRING_BYTES: u32 = 4096;
/// A variable of code objects in which a kernel prints. Launches of their kernels need a print
/// buffer.
pub const PRINTS_SYMBOL: &str = "atoll.prints";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_arguments_follow_the_parameter_block() {
        let records = Records { trap: 0x1_2345_6789, print: 0x2_0000_0007 };
        let segment = kernarg(&[1; 12], [7, 8, 9], [64, 2, 1], 100, records);
        assert_eq!(segment.len(), 16 + 48);
        assert_eq!(segment[..16], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0]);
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| segment[at + byte]));
        assert_eq!([16, 20, 24, 28, 32, 36, 40].map(word), [7, 8, 9, 64, 2, 1, 100]);
        assert_eq!([48, 52, 56, 60].map(word), [0x2345_6789, 1, 7, 2]);
    }
}
