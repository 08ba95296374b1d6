//! Decoded operations.

use crate::alu::Alu;
use crate::atomic::Atomic;
use crate::warp_op::WarpOp;

/// The register that holds `CC.CF`.
pub(crate) const CARRY: u32 = 0;

/// A decoded instruction.
pub(crate) struct Inst {
    /// Predicate register and the value it must have.
    pub(crate) guard: Option<(u32, bool)>,
    /// Line of the PTX text.
    pub(crate) line: u32,
    pub(crate) op: Op,
}

/// A special register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Tid(usize),
    Ntid(usize),
    Ctaid(usize),
    Nctaid(usize),
    Lane,
    Warp,
    WarpCount,
    LaneMask(LaneMask),
    Clock,
    ClockHigh,
    DynamicShared,
    TotalShared,
}

/// The lanes in a lane mask, relative to the reading lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneMask {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// The source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Src {
    Reg(u32),
    /// A predicate register, negated.
    Not(u32),
    Imm(u64),
    Special(Special),
    /// The address of a variable of the frame in local space.
    Local(u64),
}

/// A destination register and its width in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dst {
    pub(crate) slot: u32,
    pub(crate) bits: u32,
}

/// The state space of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// Global memory only; `cvta` does not change its addresses.
    Global,
    Shared,
    Local,
    Const,
    Param,
    Generic,
}

/// `[base+offset]`
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addr {
    pub(crate) space: Space,
    pub(crate) base: Src,
    pub(crate) offset: i64,
    /// Whether the base has 32 bits, so that the sum is truncated to 32 bits.
    pub(crate) short: bool,
}

/// The effect of a barrier instruction on its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierKind {
    /// Waits.
    Sync,
    /// Continues.
    Arrive,
    /// Waits, and returns a reduction of a predicate over all threads.
    Reduce(Reduction),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    And,
    Or,
    Count,
}

/// The callee of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callee {
    Function(u32),
    Indirect(Src),
    Vprintf,
    AssertFail,
}

/// An argument of a call, or the destination of a return value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    /// A `.param` variable: offset in the caller's parameter area, size in bytes.
    Param(u32, u32),
    /// A value.
    Value(Src),
    /// A register to write.
    Register(Dst),
}

pub(crate) enum Op {
    Nop,
    Alu {
        alu: Alu,
        src: Box<[Src]>,
        dst: [Option<Dst>; 2],
    },
    /// Concatenates the bits of the sources, lowest first, and splits them over the destinations.
    Move {
        src: Box<[(Src, u32)]>,
        dst: Box<[(Option<Dst>, u32)]>,
    },
    Load {
        addr: Addr,
        bits: u32,
        signed: bool,
        dst: Box<[Option<Dst>]>,
    },
    Store {
        addr: Addr,
        bits: u32,
        src: Box<[Src]>,
    },
    Atomic(Box<Atomic>),
    /// `cp.async`; completes at once.
    Copy {
        to: Addr,
        from: Addr,
        bytes: u32,
        /// Number of bytes to read; the rest is zero.
        source_bytes: Option<Src>,
        /// Whether to ignore the source and write zeros.
        ignore: Option<Src>,
    },
    Branch(u32),
    BranchIndexed {
        index: Src,
        targets: Box<[u32]>,
    },
    Call {
        callee: Callee,
        returns: Box<[Passed]>,
        arguments: Box<[Passed]>,
    },
    Return,
    Exit,
    Trap,
    Barrier {
        kind: BarrierKind,
        number: Src,
        count: Option<Src>,
        predicate: Option<Src>,
        dst: Option<Dst>,
    },
    /// The lanes that execute this together; does not wait for others.
    ActiveMask(Option<Dst>),
    Warp(Box<WarpOp>),
}

/// A parameter or return value of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Formal {
    /// Offset and size in the function's parameter area.
    Memory(u32, u32),
    Register(Dst),
}

/// A decoded function.
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) code: Vec<Inst>,
    /// Number of 64-bit registers, including the carry.
    pub(crate) registers: usize,
    /// Bytes of its parameters.
    pub(crate) own_params: u32,
    /// Bytes of its parameters, return values and `.param` variables.
    pub(crate) params_bytes: u32,
    pub(crate) local_bytes: u32,
    pub(crate) params: Vec<Formal>,
    pub(crate) returns: Vec<Formal>,
}
