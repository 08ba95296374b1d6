//! Shared by the chaos test and its client processes: roles, orders, and the lines in which a
//! client reports outcomes.

mod client;
pub mod grind;
mod hostile;

pub use client::{Process, infer, outputs_of};
pub use hostile::{BOMB, call_of};

use atoll_client::{Digest, RefusalKind};
use serde::{Deserialize, Serialize};

/// What a client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Short real-time calls at regular intervals.
    Steady,
    /// Calls of all lengths, chains, and objects that are stored and removed.
    Busy,
    /// The same, and functions that are deployed and removed.
    Deployer,
    /// A model and a function over HTTP.
    Web,
    /// Kernels that trap, fault, or never end.
    Faulty,
    /// Kernels that store to arbitrary addresses.
    Wild,
    /// Native code that attacks its executor and the daemon, and misuse of all its ports.
    Hostile,
}

impl Role {
    /// Whether requests may fail because of their own kernels or native code.
    pub fn is_hostile(self) -> bool {
        matches!(self, Role::Faulty | Role::Wild | Role::Hostile)
    }
}

/// Orders for a client process: a line of JSON as its only argument.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Orders {
    /// The control socket.
    pub socket: std::path::PathBuf,
    /// The file with the daemon's addresses.
    pub addresses: std::path::PathBuf,
    /// The bundle of `grind`.
    pub bundle: std::path::PathBuf,
    /// The tenant.
    pub tenant: String,
    /// What it requests.
    pub role: Role,
    /// Seed of its choices.
    pub seed: u64,
    /// Makes its contents different from those of any other process.
    pub salt: u32,
    /// Seed of the constants of `grind`.
    pub table: u64,
    /// Inputs of the model as JSON, with their outputs.
    pub examples: Vec<(String, String)>,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Run this many functions, one after the other; the last result may be stored as an object.
    Run {
        /// Number of functions.
        functions: u32,
        /// Digest of the stored result.
        keep: Option<Digest>,
    },
    /// Store an object.
    Put(Digest),
    /// Read an object.
    Get(Digest),
    /// Remove an object.
    Drop(Digest),
    /// Deploy a function with this name.
    Deploy(String),
    /// Remove a function.
    Remove(String),
    /// Misuse a port of the daemon in this way. It ends well if the daemon was there.
    Attack(String),
}

/// Outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// A correct answer.
    Right,
    /// A wrong answer.
    Wrong(String),
    /// The daemon refused.
    Refused(RefusalKind, String),
    /// There was no daemon, or it ended before the answer.
    Lost(String),
}

/// A line that a client prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Line {
    /// It is about to make this request.
    Asks(u64, Request),
    /// The request has ended, after this many microseconds.
    Ended(u64, Outcome, u64),
    /// All requests of the turn have ended.
    Done,
}
