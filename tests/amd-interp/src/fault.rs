//! Errors: why a code object cannot be loaded, and why a run ends early.

use thiserror::Error;

/// Why a wave stopped.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FaultKind {
    /// The interpreter has no operation of this name.
    #[error("the interpreter does not know the instruction `{0}`")]
    UnknownInstruction(String),
    /// The instruction is known, but not with this operand or modifier.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// LLVM's disassembler does not accept the bytes.
    #[error("the bytes are no instruction of this architecture")]
    Undecodable,
    /// The program counter is outside the code of all loaded programs, or not a multiple of 4.
    #[error("a jump leads to {0:#x}, which is not in the code of a loaded program")]
    OutsideCode(u64),
    /// An access to global memory is not inside one buffer.
    #[error("{access} of {bytes} bytes at {address:#x} is outside all buffers")]
    OutsideBuffers {
        /// `read`, `write` or `atomic`.
        access: &'static str,
        /// First byte.
        address: u64,
        /// Size of the access.
        bytes: usize,
    },
    /// A write to a buffer that may only be read.
    #[error("write of {bytes} bytes at {address:#x}, which is in the read-only buffer `{buffer}`")]
    ReadOnly {
        /// Name of the buffer.
        buffer: String,
        /// First byte.
        address: u64,
        /// Size of the access.
        bytes: usize,
    },
    /// An access to LDS beyond the size of the workgroup's allocation.
    #[error("{access} of {bytes} bytes at LDS offset {offset:#x}, but the workgroup has {size} bytes")]
    OutsideLds {
        /// `read`, `write` or `atomic`.
        access: &'static str,
        /// First byte.
        offset: u64,
        /// Size of the access.
        bytes: usize,
        /// Bytes of the allocation.
        size: usize,
    },
    /// An access to scratch beyond the private segment of the lane.
    #[error("{access} of {bytes} bytes at private offset {offset:#x}, but a lane has {size} bytes of scratch")]
    OutsideScratch {
        /// `read` or `write`.
        access: &'static str,
        /// First byte.
        offset: u64,
        /// Size of the access.
        bytes: usize,
        /// Bytes of the private segment.
        size: usize,
    },
    /// The address is not a multiple of what the instruction needs.
    #[error("address {address:#x} is not a multiple of {alignment}")]
    Misaligned {
        /// First byte.
        address: u64,
        /// The alignment, in bytes.
        alignment: u64,
    },
    /// A register that the kernel descriptor does not allocate.
    #[error("register {register} is not allocated: the kernel has {allocated}")]
    RegisterNotAllocated {
        /// Name of the register.
        register: String,
        /// Number of registers of this kind.
        allocated: usize,
    },
    /// `s_trap` with this number.
    #[error("trap {0}")]
    Trap(u32),
    /// The launch has executed as many instructions as its limit allows.
    #[error("the limit of {0} instructions is reached")]
    LimitReached(u64),
}

/// A wave stopped: why, and where.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{kind}, at {address:#x} `{text}`, workgroup {workgroup:?}, wave {wave}{}", lane_text(*.lane))]
pub struct Fault {
    /// What happened.
    pub kind: FaultKind,
    /// Address of the instruction.
    pub address: u64,
    /// The instruction as LLVM prints it; empty if it was not decoded.
    pub text: String,
    /// Index of the workgroup in the grid.
    pub workgroup: [u32; 3],
    /// Index of the wave in its workgroup.
    pub wave: u32,
    /// The lane whose access failed.
    pub lane: Option<u32>,
}

fn lane_text(lane: Option<u32>) -> String {
    lane.map(|lane| format!(", lane {lane}")).unwrap_or_default()
}

/// Why bytes are not a code object that can run.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum LoadError {
    /// Not a readable ELF file.
    #[error("the file is not a complete ELF file: {0}")]
    Elf(String),
    /// An ELF file for something else.
    #[error("the file is not a linked AMD code object: {0}")]
    NotCodeObject(String),
    /// A machine code in the ELF header without an entry in the table of architectures.
    #[error("architecture {0:#x} of the ELF header is not known (EF_AMDGPU_MACH)")]
    UnknownArchitecture(u32),
    /// A relocation that lld leaves to the loader and that this loader does not apply.
    #[error("relocation type {kind} at {offset:#x} is not supported")]
    Relocation {
        /// ELF relocation type.
        kind: u32,
        /// Virtual address in the file.
        offset: u64,
    },
    /// LLVM was built without AMDGPU.
    #[error("LLVM has no disassembler for {0}")]
    NoDisassembler(String),
}

/// Why a launch did not start, or why it ended early.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum RunError {
    /// The code object has no such kernel.
    #[error("the code object has no kernel `{name}`; it has: {}", .present.join(", "))]
    NoKernel {
        /// The name that was asked for.
        name: String,
        /// Names of the kernels that exist.
        present: Vec<String>,
    },
    /// The launch does not fit the kernel or the architecture.
    #[error("the launch is not possible: {0}")]
    Launch(String),
    /// A wave stopped.
    #[error(transparent)]
    Fault(Box<Fault>),
}
