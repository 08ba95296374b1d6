//! The operations that instructions are decoded to.

use crate::alu::Alu;
use crate::atomic::Atomic;
use crate::warp_op::WarpOp;

/// The register that holds `CC.CF`.
pub(crate) const CARRY: u32 = 0;

/// A decoded instruction.
pub(crate) struct Inst {
    /// Predicate register, and the value it must have.
    pub(crate) guard: Option<(u32, bool)>,
    /// Line of the text.
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

/// Which lanes of a mask, against the reader's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneMask {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Where a value comes from.
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

/// A register to write, with its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dst {
    pub(crate) slot: u32,
    pub(crate) bits: u32,
}

/// A state space that can be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// Global memory alone; what `cvta` leaves as it is.
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
    /// Whether the base has 32 bits, so that the sum has, too.
    pub(crate) short: bool,
}

/// What a barrier instruction does besides being counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierKind {
    /// Waits.
    Sync,
    /// Goes on.
    Arrive,
    /// Waits and learns in how many threads a predicate was true, or whether in all or any.
    Reduce(Reduction),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    And,
    Or,
    Count,
}

/// What a call calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callee {
    Function(u32),
    Indirect(Src),
    Vprintf,
    AssertFail,
}

/// An argument of a call, or the place of a return value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    /// A `.param` variable: offset in the caller's parameter area, size.
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
    /// Bits of the sources in a row, lowest first, into the destinations in a row.
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
    /// `cp.async`: done at once.
    Copy {
        to: Addr,
        from: Addr,
        bytes: u32,
        /// How many bytes are read; the rest is zero.
        source_bytes: Option<Src>,
        /// Whether the source is ignored and all is zero.
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
    /// Lanes that stand here together; without waiting for any.
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
    /// 64-bit registers, the carry included.
    pub(crate) registers: usize,
    /// Bytes of its parameters proper.
    pub(crate) own_params: u32,
    /// Those, its return values and its `.param` variables.
    pub(crate) params_bytes: u32,
    pub(crate) local_bytes: u32,
    pub(crate) params: Vec<Formal>,
    pub(crate) returns: Vec<Formal>,
}
