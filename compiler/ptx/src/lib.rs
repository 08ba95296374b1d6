//! The PTX language: the one kernel language of Atoll (design D1).
//!
//! A module is read by the parser, held as an [`ast`], checked by the verifier and written by the
//! printer. The tree is **lossless**: a statement that nothing touched is printed with the very text
//! it was parsed from, comments and unknown instructions included; a statement that a pass built or
//! changed is printed in canonical form.
//!
//! What it is not: it knows no targets, no tensors and no kernel graphs, and it never rewrites text by
//! pattern: a change is a change of the tree.

pub mod analysis;
pub mod ast;
pub mod build;
mod directive;
mod lex;
pub mod limits;
mod parse;
mod print;
mod roles;
mod special;
mod syntax_error;
pub mod types;
mod verify;

pub use ast::*;
pub use parse::parse;
pub use print::print;
pub use roles::Role;
pub use special::is_special_register;
pub use syntax_error::{SyntaxError, SyntaxErrors};
pub use types::{ScalarType, StateSpace};
pub use verify::{Fault, FaultKind, Faults, verify};
