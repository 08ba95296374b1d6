//! Decoded instructions, and the forms of operations. The table of a family has one line per
//! mnemonic, with a form and a function.

use crate::access::{Action, LdsAction, ScalarLoad, Space};
use crate::fault::FaultKind;
use crate::memory::Memory;
use crate::mode::Mode;
use crate::operand::{Operand, Ty};
use crate::target::Target;
use crate::text::Mods;
use crate::wave::Wave;

/// The state that an instruction can access.
pub(crate) struct Machine<'a> {
    pub(crate) wave: &'a mut Wave,
    pub(crate) lds: &'a mut Vec<u8>,
    pub(crate) memory: &'a mut Memory,
    pub(crate) target: &'a Target,
    /// The number of instructions so far, for reads of clocks.
    pub(crate) clock: u64,
}

/// Computes one lane: sources to result, all as bits.
pub(crate) type LaneFn = fn(Mode, [u64; 3]) -> u64;
/// Computes sources and carry to result and carry.
pub(crate) type CarryFn = fn([u64; 3], bool) -> (u64, bool);
/// Computes SCC and sources to the result and the new SCC.
pub(crate) type ScalarFn = fn(&mut bool, [u64; 3]) -> u64;
/// Executes an operation that has no form of its own.
pub(crate) type WholeFn = fn(&mut Machine, &Inst) -> Result<(), FaultKind>;

/// An operation: its form, the types of its operands and its function.
#[derive(Clone, Copy)]
pub(crate) enum Op {
    /// Vector: each lane by itself.
    Lane { dst: Ty, src: &'static [Ty], f: LaneFn },
    /// Vector, with the destination as the last source.
    Accumulate { dst: Ty, src: &'static [Ty], f: LaneFn },
    /// Vector: both halves of packed operands, or both registers of packed f32.
    Packed { half: Ty, sources: usize, f: LaneFn },
    /// Vector: f32 arithmetic whose sources are f32 or f16 by `op_sel_hi`.
    Mix { dst: Ty, high: bool, f: LaneFn },
    /// Vector: one of two sources by a lane mask, which is VCC if it is not an operand.
    Select { ty: Ty },
    /// Vector: a comparison to a lane mask; `exec` writes EXEC too.
    Compare { src: [Ty; 2], f: fn(Mode, [u64; 2]) -> bool, exec: bool },
    /// Vector: result and carry mask; the last source is a mask if `carry_in`.
    Carry { src: &'static [Ty], dst: Ty, carry_in: bool, f: CarryFn },
    /// Scalar: the first operand is the destination, if there is one.
    Scalar { dst: Option<Ty>, src: &'static [Ty], f: ScalarFn },
    /// Scalar floating-point arithmetic, by the function of the vector operation.
    ScalarFloat { dst: Ty, src: &'static [Ty], accumulate: bool, f: LaneFn },
    /// Scalar floating-point comparison, to SCC.
    ScalarCompare { src: [Ty; 2], f: fn(Mode, [u64; 2]) -> bool },
    /// Scalar: the sources are the destination and a 16-bit immediate.
    ScalarK { dst: bool, f: ScalarFn },
    /// A global, flat, scratch or buffer instruction.
    Memory(Space, Action),
    /// An LDS instruction.
    Lds(LdsAction),
    /// A load into scalar registers.
    ScalarLoad(ScalarLoad),
    /// A matrix product.
    Matrix(Shape),
    /// An operation that reads its operands itself.
    Whole(WholeFn),
}

/// The element type of a matrix instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F16,
    Bf16,
    F32,
    F64,
    I8,
}

/// The shape of a matrix product `D = A * B + C`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) rows: usize,
    pub(crate) depth: usize,
    /// Independent products in one instruction.
    pub(crate) blocks: usize,
    pub(crate) input: Element,
    pub(crate) output: Element,
    /// Whether registers have RDNA's layout rather than CDNA's.
    pub(crate) wmma: bool,
}

/// Classes of instructions, for statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Scalar arithmetic and moves.
    Scalar,
    /// Branches, barriers, waits and the end.
    Control,
    /// Vector arithmetic.
    Vector,
    /// Matrix instructions.
    Matrix,
    /// Loads through the scalar cache.
    ScalarMemory,
    /// Global, flat and buffer accesses.
    VectorMemory,
    /// Scratch accesses.
    Scratch,
    /// LDS and cross-lane operations through it.
    Lds,
}

/// A line of a family's table.
pub(crate) type Row = (&'static str, Op);

/// A decoded instruction.
pub(crate) struct Inst {
    pub(crate) op: Op,
    /// The name without the suffix of its encoding.
    pub(crate) mnemonic: String,
    pub(crate) operands: Vec<Operand>,
    pub(crate) mods: Mods,
    /// The first 8 bytes of the encoding.
    pub(crate) raw: u64,
    /// Size in bytes.
    pub(crate) size: u64,
    pub(crate) text: String,
    pub(crate) class: Class,
    /// The second operation of a dual instruction.
    pub(crate) second: Option<Box<Inst>>,
    /// Whether a 16-bit result sets the upper half of its register to zero.
    pub(crate) zero_upper: bool,
}

impl Inst {
    /// The operand with this index. An error if there is none.
    pub(crate) fn operand(&self, index: usize) -> Result<&Operand, FaultKind> {
        let missing = || FaultKind::Unsupported(format!("`{}` has no operand {index}", self.mnemonic));
        self.operands.get(index).ok_or_else(missing)
    }

    /// The immediate of SOPK and SOPP encodings, sign-extended.
    pub(crate) fn simm16(&self) -> i64 {
        i64::from(self.raw as u16 as i16)
    }
}
