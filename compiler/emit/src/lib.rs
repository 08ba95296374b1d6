//! LLVM IR as text, and the arithmetic of PTX in it, for all targets that compile with LLVM.
//!
//! [`writer::Writer`] writes one function. [`Arithmetic`] lowers the instructions that compute
//! values from values (integers, floats, halves, conversions, comparisons, packed numbers) for any
//! number of lanes. A target implements [`Emit`]: it reads operands, writes destinations, and emits
//! the few operations for which each processor has its own instructions. [`math`] has the
//! approximate functions, [`matrix`] the supported matrix products, [`AtomicOp`] the atomic
//! operations. [`typed_literal`] writes initial values of variables.
//!
//! The host target computes up to 32 lanes at once, a GPU target one.
//!
//! This crate has no memory accesses, no control flow and no processor, and does not call LLVM.

mod arithmetic;
mod atomic;
pub mod lines;
mod literal;
pub mod math;
pub mod matrix;
pub mod writer;

pub use arithmetic::{Arithmetic, Rounded, Rounding, malformed, unsupported};
pub use atomic::{AtomicOp, is_half};
pub use literal::typed_literal;

use atoll_lower::program::{Inst, Opnd, Program, Reg};
use atoll_ptx::ScalarType;
use writer::{Elem, Val, Writer};

/// A target while it emits one kernel.
pub trait Emit {
    /// The text of the function being written.
    fn writer(&mut self) -> &mut Writer;

    /// The kernel.
    fn program(&self) -> &Program;

    /// The name of the target in errors.
    fn target(&self) -> &'static str;

    /// The PTX line of the current instruction.
    fn line(&self) -> u32;

    /// Reads an operand as an element type.
    fn get(&mut self, operand: &Opnd, elem: Elem, lanes: u32) -> Val;

    /// Writes the destination operand, which may be `_`. `signed` says how a narrower value is
    /// extended.
    fn set_operand(&mut self, operand: &Opnd, value: &Val, signed: bool);

    /// The number of lanes to compute for an instruction.
    fn lanes_of(&self, inst: &Inst) -> u32;

    /// The number of lanes of a value that differs between threads.
    fn all_lanes(&self) -> u32;

    /// Whether all lanes of an operand have the same value, so that one lane suffices.
    fn is_uniform(&self, operand: &Opnd) -> bool;

    /// Whether a register never holds a subnormal f32.
    fn is_flushed(&self, reg: Reg) -> bool;

    /// An integer operand extended from `ty`.
    fn extended(&mut self, operand: &Opnd, ty: ScalarType, to: Elem, lanes: u32) -> Val;

    /// An operation in a rounding mode other than to nearest.
    fn directed(&mut self, op: Rounded, rounding: Rounding, arguments: &[&Val]) -> Val;

    /// Converts a float to f16 in a rounding mode other than to nearest.
    fn half_directed(&mut self, value: &Val, rounding: Rounding) -> Val;

    /// A float that is about to be rounded to f16. A target whose LLVM computes a product and its
    /// rounding wrongly in one instruction hides here where the float comes from.
    fn before_half(&mut self, value: &Val) -> Val {
        value.clone()
    }

    /// Records that the text calls a routine, which the target then adds to the module.
    fn use_routine(&mut self, routine: math::Routine);

    /// The processor's instruction for an approximate PTX instruction on floats, if it is faster
    /// than the general lowering and within the ISA's limits.
    fn approximation(&mut self, inst: &Inst, arguments: &[Val]) -> Option<Val> {
        let _ = (inst, arguments);
        None
    }
}
