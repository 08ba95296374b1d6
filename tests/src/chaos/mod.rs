//! What the chaos test and its client processes have in common: who asks for what, and the lines in
//! which a client says what became of it.

mod client;
pub mod grind;

pub use client::{Process, infer, outputs_of};

use atoll_client::{Digest, RefusalKind};
use serde::{Deserialize, Serialize};

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Short real-time calls at a steady pace.
    Steady,
    /// Calls of all lengths, chains, objects that are kept and given up.
    Busy,
    /// The same, and functions that come and go.
    Deployer,
    /// A model and a function over HTTP.
    Web,
    /// Kernels that trap, fault, and never end.
    Faulty,
    /// Kernels that store anywhere.
    Wild,
}

impl Role {
    /// Whether requests may fail for what their own kernels do.
    pub fn is_hostile(self) -> bool {
        matches!(self, Role::Faulty | Role::Wild)
    }
}

/// How a client process is started: a line of JSON as its only argument.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Orders {
    /// The control socket.
    pub socket: std::path::PathBuf,
    /// The file in which the daemon tells its addresses.
    pub addresses: std::path::PathBuf,
    /// The bundle of `grind`.
    pub bundle: std::path::PathBuf,
    /// Whom it acts for.
    pub tenant: String,
    /// What it asks for.
    pub role: Role,
    /// Of its choices.
    pub seed: u64,
    /// What makes its contents different from those of any other process.
    pub salt: u32,
    /// The seed of the constants of `grind`.
    pub table: u64,
    /// Inputs of the model, as JSON, and the outputs that they give.
    pub examples: Vec<(String, String)>,
}

/// What a client is about to ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Run so many functions, one after the other; the last result may be kept under this name.
    Run {
        /// How many.
        functions: u32,
        /// The name.
        keep: Option<Digest>,
    },
    /// Keep an object.
    Put(Digest),
    /// Read an object.
    Get(Digest),
    /// Give up an object.
    Drop(Digest),
    /// Deploy a function of this name.
    Deploy(String),
    /// Remove it.
    Remove(String),
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The answer was there and right.
    Right,
    /// The answer was there and wrong.
    Wrong(String),
    /// The daemon said no.
    Refused(RefusalKind, String),
    /// There was no daemon, or it went away in the middle.
    Lost(String),
}

/// A line that a client prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Line {
    /// It is about to ask this.
    Asks(u64, What),
    /// That request is over, after so many microseconds.
    Ended(u64, Outcome, u64),
    /// All that it was told to ask is over.
    Done,
}
