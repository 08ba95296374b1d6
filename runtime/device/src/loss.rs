//! Why an executor was lost.

use std::fmt;

/// Why an executor was lost. Its text follows the name of the process: "executor 123 `text`".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LossCause {
    /// It ended by itself or was killed by somebody else; how.
    Died(String),
    /// It told that it cannot go on, and why.
    GaveUp(String),
    /// It did not do something in time, and was killed.
    Hung(String),
    /// It broke the rules of the rings, of shared memory or of the channel, and was killed; which
    /// one.
    ProtocolViolation(String),
    /// A ring is corrupt, or one of its compute units ended.
    BrokenRings,
    /// Its code made a system call that the jail forbids, and the system killed it.
    ForbiddenCall,
    /// The daemon ended it for this reason.
    Ended(String),
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossCause::Died(how) => f.write_str(how),
            LossCause::GaveUp(why) => write!(f, "cannot go on: {why}"),
            LossCause::Hung(what) => write!(f, "{what} and was killed"),
            LossCause::ProtocolViolation(rule) => write!(f, "broke the rules: {rule}"),
            LossCause::BrokenRings => f.write_str("broke the rules of the rings, or lost a compute unit"),
            LossCause::ForbiddenCall => {
                f.write_str("was killed by SIGSYS: its code made a system call that it may not")
            }
            LossCause::Ended(why) => f.write_str(why),
        }
    }
}
