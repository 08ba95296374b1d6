//! The PTX language: the only kernel language of Atoll.
//!
//! The parser reads a module into an [`ast`], the verifier checks it, and the printer writes it.
//! The tree is **lossless**: the printer writes an unchanged statement with the exact text it was
//! parsed from, including comments and unknown instructions. It writes a statement that a pass
//! built or changed in canonical form.
//!
//! | Item | Purpose |
//! |---|---|
//! | [`parse`] | text to [`Module`]; each error has a line, a column and what was expected |
//! | [`verify`] | checks names, operands and control flow; reports every fault with its position |
//! | [`analysis`] | control flow, dominators, loops, liveness, definitions and uses |
//! | [`flow`] | dominators over numbered nodes, for graphs built by other crates |
//! | [`Instruction::visit_names`] | how an instruction uses each of its operands |
//! | [`build`] | builds new kernels, statement by statement |
//! | [`rename`] | renames symbols of a module |
//! | [`print()`] | [`Module`] to text |
//!
//! Not here: targets, tensors and kernel graphs. The crate never rewrites text by pattern matching;
//! every change is a change of the tree.
//!
//! Invariants: `print(parse(text)) == text` for every text that the parser accepts; printing and
//! parsing a built tree gives an equal tree, except for its [`Origin`]s; no input makes this crate
//! panic; its memory is bounded by the constants in [`limits`].
//!
//! The parser reads the output of nvcc, NVRTC, clang, LLVM and Triton for ISA versions 6.0 to 9.3,
//! and almost everything else that `ptxas` accepts. It rejects, with a position: preprocessor
//! directives other than line markers, arrays indexed by a register (`a[%r1]`, for which the tree
//! has no address form), and `-` before a register outside `vmad`. Compilers emit none of these.
//!
//! Start reading at [`ast`], then `parse.rs`.

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
