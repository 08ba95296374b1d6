//! The PTX language: the one kernel language of Atoll (design D1).
//!
//! A module is read by the parser, held as an [`ast`], checked by the verifier and written by the
//! printer. The tree is **lossless**: a statement that nothing touched is printed with the very
//! text it was parsed from, comments and unknown instructions included; a statement that a pass
//! built or changed is printed in canonical form.
//!
//! | step | what |
//! |---|---|
//! | [`parse`] | text to [`Module`]; every error with its line, column and what was expected |
//! | [`verify`] | whether the module makes sense; every fault with its place |
//! | [`analysis`] | control flow, dominators, loops, liveness, definitions and uses |
//! | [`flow`] | the same analyses over numbers, for graphs that others make |
//! | [`Instruction::visit_names`] | what an instruction does with each of its operands |
//! | [`build`] | new kernels, statement by statement |
//! | [`rename`] | other names for what a module defines |
//! | [`print()`] | [`Module`] to text |
//!
//! What it is not: it knows no targets, no tensors and no kernel graphs, and it never rewrites text
//! by pattern: a change is a change of the tree.
//!
//! Invariants: `print(parse(text)) == text` for every text the parser takes; a built tree printed
//! and parsed again is the same tree but for [`Origin`]s; no input makes this crate panic, and its
//! memory is bounded by the constants in [`limits`].
//!
//! What is read is what nvcc, NVRTC, clang, LLVM and Triton write, for versions 6.0 to 9.3 of the
//! ISA, and nearly everything else that `ptxas` takes. Refused, with their place, are preprocessor
//! lines other than line markers, arrays indexed by a register (`a[%r1]`, which the tree has no
//! address for), and `-` in front of a register in `vmad`. Compilers write none of these.

pub mod analysis;
pub mod ast;
pub mod build;
mod directive;
pub mod flow;
mod initial;
mod lex;
pub mod limits;
mod parse;
mod print;
pub mod rename;
mod roles;
mod special;
mod syntax_error;
pub mod types;
mod verify;

pub use ast::*;
pub use initial::InitialValue;
pub use parse::parse;
pub use print::{print, print_located};
pub use roles::Role;
pub use special::is_special_register;
pub use syntax_error::{SyntaxError, SyntaxErrors};
pub use types::{ScalarType, StateSpace};
pub use verify::{Fault, FaultKind, Faults, verify};
