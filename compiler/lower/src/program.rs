//! A kernel as basic blocks over dense register numbers: the input of the analyses and of lowering.
//!
//! A guard on a control-flow instruction becomes a branch; guards remain only on instructions that
//! compute or access memory. Every block ends in one [`Term`]. [`EXIT`] is the only block in which
//! threads leave the kernel.

mod jumps;

use crate::elem::Elem;
use atoll_ptx::{Immediate, Instruction, Name, ScalarType, types::TypeClass};

/// Index of a register. After `webs`, index of a web: a set of definitions and uses of one register
/// that are independent of its other definitions and uses.
pub type Reg = usize;
/// Index of a basic block.
pub type BlockId = usize;

/// The local memory of a thread is aligned to this power of two.
pub const LOCAL_ZEROS: u32 = 5;

/// The block where threads leave the kernel; it has no instructions.
pub const EXIT: BlockId = 0;
/// The block a kernel starts at.
pub const ENTRY: BlockId = 1;

/// A kernel.
#[derive(Debug)]
pub struct Program {
    /// The kernel's name.
    pub name: Name,
    /// Its registers.
    pub regs: Vec<RegInfo>,
    /// Its blocks; the first two are [`EXIT`] and [`ENTRY`].
    pub blocks: Vec<Block>,
    /// Bytes of the parameter block.
    pub params_bytes: u32,
    /// Bytes of statically declared shared memory; dynamic shared memory (`.extern .shared`)
    /// follows.
    pub shared_bytes: u32,
    /// Bytes of local memory of one thread.
    pub local_bytes: u32,
}

/// A register's name and storage.
#[derive(Clone, Debug)]
pub struct RegInfo {
    /// Its name in the text.
    pub name: Name,
    /// How it is stored.
    pub elem: Elem,
}

/// A basic block.
#[derive(Clone, Debug)]
pub struct Block {
    /// Instructions in order.
    pub insts: Vec<Inst>,
    /// Its terminator.
    pub term: Term,
    /// Source line of the terminator.
    pub line: u32,
}

/// The terminator of a block.
#[derive(Clone, Debug, PartialEq)]
pub enum Term {
    /// Unconditional jump.
    Goto(BlockId),
    /// Jump to `taken` where the predicate (or its negation) holds, to `other` elsewhere.
    Branch {
        /// The predicate.
        pred: Reg,
        /// Whether the predicate is negated.
        negated: bool,
        /// The target where the condition holds.
        taken: BlockId,
        /// The target where it does not.
        other: BlockId,
    },
    /// The threads of the block synchronise before `next`.
    Barrier {
        /// The block after the barrier.
        next: BlockId,
        /// Which threads take part.
        participants: Participants,
        /// What they reduce, for `bar.red`.
        reduce: Option<Reduce>,
    },
    /// The terminator of [`EXIT`] only.
    Exit,
}

/// Which threads take part in a barrier.
#[derive(Clone, Debug, PartialEq)]
pub struct Participants {
    /// The barrier's number.
    pub number: Opnd,
    /// The number of participating threads; if absent, all threads that have not exited.
    pub threads: Option<Opnd>,
    /// `bar.arrive`: the thread is counted and does not wait.
    pub only_arrives: bool,
}

/// `bar.red`
#[derive(Clone, Debug, PartialEq)]
pub struct Reduce {
    /// The operation.
    pub op: ReduceOp,
    /// The destination register.
    pub dst: Reg,
    /// The predicate that each thread contributes.
    pub source: Reg,
    /// Whether the source is negated.
    pub negated: bool,
}

/// The operation of `bar.red`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    /// The number of threads whose predicate holds.
    Popc,
    /// Whether the predicate holds for all threads.
    And,
    /// Whether the predicate holds for any thread.
    Or,
}

/// An instruction that is not control flow.
#[derive(Clone, Debug)]
pub struct Inst {
    /// Opcode and modifiers; its operands are in `ops`.
    pub form: Instruction,
    /// Guard register, and whether it is negated.
    pub guard: Option<(Reg, bool)>,
    /// Its operands, the destination first.
    pub ops: Vec<Opnd>,
    /// Source line; 0 for a statement that a pass has built.
    pub line: u32,
    /// Set by `webs`: the definition is guarded and its register held a value before, which lanes
    /// that fail the guard keep.
    pub tied: bool,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Opnd {
    /// A register.
    Reg(Reg),
    /// A predicate, negated.
    Not(Reg),
    /// A constant.
    Imm(Immediate),
    /// A special register.
    Special(Special),
    /// Address of a variable, as an offset in its state space.
    Symbol(Symbol),
    /// `[base+offset]`
    Addr(Box<Opnd>, i64),
    /// `{a, b}`, or a register declared as a vector.
    Vec(Vec<Opnd>),
    /// `%r1.h0`: bytes or halves that a video instruction selects, named by the letters and digits
    /// after the dot.
    Part(Box<Opnd>, Name),
    /// `-%r1`, `-%r1.h0`
    Negated(Box<Opnd>),
    /// `a|b`
    Pair(Box<Opnd>, Box<Opnd>),
    /// `_`
    Sink,
}

/// The address of a variable.
#[derive(Clone, Debug, PartialEq)]
pub enum Symbol {
    /// Offset in the parameter block.
    Param(u32),
    /// Offset in the block's static shared memory.
    Shared(u32),
    /// Offset in the block's dynamic shared memory, which follows the static part.
    Dynamic(u32),
    /// Offset in the thread's local memory.
    Local(u32),
    /// A global or const variable plus an offset.
    Global(Name, i64),
}

/// A special register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// `%tid`, by axis.
    Tid(usize),
    /// `%ntid`, by axis.
    Ntid(usize),
    /// `%ctaid`, by axis.
    Ctaid(usize),
    /// `%nctaid`, by axis.
    Nctaid(usize),
    /// `%laneid`
    LaneId,
    /// `%warpid`
    WarpId,
    /// `%nwarpid`
    NWarpId,
    /// `%smid`
    SmId,
    /// `%nsmid`
    NSmId,
    /// `%gridid`
    GridId,
    /// `%lanemask_eq`
    LaneMaskEq,
    /// `%lanemask_le`
    LaneMaskLe,
    /// `%lanemask_lt`
    LaneMaskLt,
    /// `%lanemask_ge`
    LaneMaskGe,
    /// `%lanemask_gt`
    LaneMaskGt,
    /// `%clock` and `%clock64`
    Clock,
    /// `%globaltimer`
    GlobalTimer,
    /// `%dynamic_smem_size`
    DynamicShared,
    /// `%total_smem_size`
    TotalShared,
}

impl Special {
    /// The axes of a special register that is a vector, such as `%tid`; its fourth element is 0.
    pub fn axes(name: &str) -> Option<[Special; 3]> {
        let axes = ["x", "y", "z"].map(|axis| Special::from_name(&format!("{name}.{axis}")));
        let [Some(x), Some(y), Some(z)] = axes else { return None };
        Some([x, y, z])
    }

    /// The special register with a name.
    pub fn from_name(name: &str) -> Option<Special> {
        let axis = |rest: &str| ["x", "y", "z"].iter().position(|a| *a == rest);
        for (prefix, make) in [
            ("%tid.", Special::Tid as fn(usize) -> Special),
            ("%ntid.", Special::Ntid),
            ("%ctaid.", Special::Ctaid),
            ("%nctaid.", Special::Nctaid),
        ] {
            if let Some(rest) = name.strip_prefix(prefix) {
                return axis(rest).map(make);
            }
        }
        Some(match name {
            "%laneid" => Special::LaneId,
            "%warpid" => Special::WarpId,
            "%nwarpid" => Special::NWarpId,
            "%smid" => Special::SmId,
            "%nsmid" => Special::NSmId,
            "%gridid" => Special::GridId,
            "%lanemask_eq" => Special::LaneMaskEq,
            "%lanemask_le" => Special::LaneMaskLe,
            "%lanemask_lt" => Special::LaneMaskLt,
            "%lanemask_ge" => Special::LaneMaskGe,
            "%lanemask_gt" => Special::LaneMaskGt,
            "%clock" | "%clock64" => Special::Clock,
            "%globaltimer" | "%globaltimer_lo" => Special::GlobalTimer,
            "%dynamic_smem_size" => Special::DynamicShared,
            "%total_smem_size" => Special::TotalShared,
            _ => return None,
        })
    }
}

impl Inst {
    /// Whether the instruction has a modifier.
    pub fn has(&self, modifier: &str) -> bool {
        self.form.has(modifier)
    }

    /// Whether operand 0 is the destination.
    pub fn has_destination(&self) -> bool {
        let opcode = self.form.opcode.as_str();
        if opcode == "cp" || matches!(self.ops.first(), Some(Opnd::Addr(..))) {
            return false;
        }
        let effect_only = matches!(
            opcode,
            "st" | "red"
                | "bar"
                | "barrier"
                | "membar"
                | "fence"
                | "prefetch"
                | "prefetchu"
                | "trap"
                | "brkpt"
                | "nanosleep"
                | "discard"
                | "applypriority"
                | "pmevent"
                | "griddepcontrol"
                | "__assertfail"
        );
        !effect_only || (opcode.starts_with("bar") && self.has("red"))
    }

    /// Registers written, in operand order.
    pub fn defs(&self) -> Vec<Reg> {
        let mut regs = Vec::new();
        if self.has_destination()
            && let Some(first) = self.ops.first()
        {
            first.collect(&mut regs);
        }
        regs
    }

    /// Registers read, guard included. A destination is read only where it keeps its old value
    /// under a guard.
    pub fn uses(&self) -> Vec<Reg> {
        let mut regs: Vec<Reg> = self.guard.iter().map(|g| g.0).collect();
        for operand in self.sources() {
            operand.collect(&mut regs);
        }
        if self.tied {
            regs.extend(self.defs());
        }
        regs
    }

    /// The operands that are read.
    pub fn sources(&self) -> &[Opnd] {
        if self.has_destination() { self.ops.get(1..).unwrap_or(&[]) } else { &self.ops }
    }
}

impl Opnd {
    /// The registers in it, in order.
    pub fn collect(&self, into: &mut Vec<Reg>) {
        match self {
            Opnd::Reg(r) | Opnd::Not(r) => into.push(*r),
            Opnd::Addr(base, _) | Opnd::Part(base, _) | Opnd::Negated(base) => base.collect(into),
            Opnd::Vec(parts) => parts.iter().for_each(|p| p.collect(into)),
            Opnd::Pair(a, b) => {
                a.collect(into);
                b.collect(into);
            }
            Opnd::Imm(_) | Opnd::Special(_) | Opnd::Symbol(_) | Opnd::Sink => {}
        }
    }

    /// Renames every register in it.
    pub fn rename(&mut self, map: &mut impl FnMut(Reg) -> Reg) {
        match self {
            Opnd::Reg(r) | Opnd::Not(r) => *r = map(*r),
            Opnd::Addr(base, _) | Opnd::Part(base, _) | Opnd::Negated(base) => base.rename(map),
            Opnd::Vec(parts) => parts.iter_mut().for_each(|p| p.rename(map)),
            Opnd::Pair(a, b) => {
                a.rename(map);
                b.rename(map);
            }
            Opnd::Imm(_) | Opnd::Special(_) | Opnd::Symbol(_) | Opnd::Sink => {}
        }
    }
}

impl Participants {
    /// The operands that select the threads.
    pub fn operands(&self) -> impl Iterator<Item = &Opnd> {
        std::iter::once(&self.number).chain(&self.threads)
    }
}

impl Term {
    /// Registers read.
    pub fn uses(&self) -> Vec<Reg> {
        let mut regs = Vec::new();
        match self {
            Term::Branch { pred, .. } => regs.push(*pred),
            Term::Barrier { participants, reduce, .. } => {
                regs.extend(reduce.iter().map(|r| r.source));
                participants.operands().for_each(|o| o.collect(&mut regs));
            }
            Term::Goto(_) | Term::Exit => {}
        }
        regs
    }

    /// The register written.
    pub fn def(&self) -> Option<Reg> {
        match self {
            Term::Barrier { reduce, .. } => reduce.as_ref().map(|r| r.dst),
            _ => None,
        }
    }

    /// Renames every register read.
    pub fn rename_uses(&mut self, map: &mut impl FnMut(Reg) -> Reg) {
        match self {
            Term::Branch { pred, .. } => *pred = map(*pred),
            Term::Barrier { participants, reduce, .. } => {
                participants.number.rename(map);
                participants.threads.iter_mut().for_each(|t| t.rename(map));
                reduce.iter_mut().for_each(|r| r.source = map(r.source));
            }
            Term::Goto(_) | Term::Exit => {}
        }
    }

    /// Renames the register written.
    pub fn rename_def(&mut self, map: &mut impl FnMut(Reg) -> Reg) {
        if let Term::Barrier { reduce: Some(reduce), .. } = self {
            reduce.dst = map(reduce.dst);
        }
    }

    /// The blocks that may follow.
    pub fn successors(&self) -> Vec<BlockId> {
        match self {
            Term::Goto(next) | Term::Barrier { next, .. } => vec![*next],
            Term::Branch { taken, other, .. } => vec![*taken, *other],
            Term::Exit => Vec::new(),
        }
    }
}

impl Program {
    /// Successor lists of all blocks.
    pub fn successors(&self) -> Vec<Vec<BlockId>> {
        self.blocks.iter().map(|b| b.term.successors()).collect()
    }
}

/// How a register of a type is stored: floats as floats, all other types as integers of their
/// width.
pub fn storage(ty: ScalarType) -> Elem {
    match ty {
        ScalarType::Pred => Elem::I1,
        ScalarType::F32 => Elem::F32,
        ScalarType::F64 => Elem::F64,
        other => Elem::int(other.bits()),
    }
}

/// The element type that an instruction of a type computes in.
pub fn elem_of(ty: ScalarType) -> Elem {
    match ty {
        ScalarType::F16 => Elem::F16,
        other => storage(other),
    }
}

/// Whether a type is a signed integer.
pub fn is_signed(ty: ScalarType) -> bool {
    ty.class() == TypeClass::Signed
}
