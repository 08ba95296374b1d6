//! Strings: kernels compute with their codes, and the host translates between strings and codes at
//! the borders of an invocation.
//!
//! A tensor of [`crate::DType::Strings`] has a code per element. The code of a string that the model names
//! is its index in [`Strings::table`]. Other strings of an invocation's inputs get the next codes,
//! in the order in which they occur. So two elements have the same code exactly if their strings
//! are equal: kernels move codes and compare them for equality. The order of codes has no meaning.
//! Code 0 is the empty string, so zeroed memory has valid codes.
//!
//! Operators that make new strings, or numbers from strings, run on the host, before the kernels:
//! each is a [`StringStep`] whose results are inputs of the graph after those of the client.
//!
//! Clients send and receive strings as BYTES tensors: each string is preceded by its length in
//! bytes, a little-endian u32.

mod check;
mod codes;
mod compute;
pub(crate) mod format;
mod numbers;
mod pattern;
#[cfg(test)]
mod tests;
mod words;

pub(crate) use check::check;
pub use codes::{Interned, Vocabulary};
pub use compute::{ComputedInput, GivenCodes};
pub use format::{Case, Cut, StringError, StringOp, StringOperand, StringStep, Strings};
pub use numbers::{number, texts};
