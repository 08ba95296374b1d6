//! Recordings: the calls of a session with their answers, and the function that they repeat.
//!
//! | file | contents |
//! |---|---|
//! | `format` | [`Item`], [`Recording`]: the encoding of a file |
//! | `steps` | [`Steps`]: the work of a recording, with addresses replaced by buffers |
//! | `runs` | [`Run`], [`Run::all`]: the part that a program repeats |
//! | `pattern` | [`Pattern`]: what runs have in common, and the data in which they differ |
//! | `function` | [`Function`]: buffers and operations of a kernel graph |
//! | `unstorable` | [`Unstorable`]: why recorded calls cannot become a function |
//!
//! A run is the work between two points at which a program has its results: a whole session, or one
//! repetition in it. Runs become a function if they have the same structure. Data that a program
//! copies to the device is a constant if it is equal in all runs, and an input otherwise. Data that
//! it copies back is an output.
//!
//! What it is not: it reads no PTX and executes nothing. `atoll fn from-trace` compiles the function
//! and compares its outputs with those of another run.

mod format;
mod function;
mod pattern;
mod runs;
mod steps;
#[cfg(test)]
mod tests;
mod unstorable;

pub use format::{Call, Item, Recording, RecordingError, recording_head};
pub use function::{Buffer, Function, Operation, Role, Writes};
pub use pattern::{Pattern, Values};
pub use runs::Run;
pub use steps::{Action, Kernel, Param, Place, Step, Steps};
pub use unstorable::Unstorable;
