//! Why an executor was lost.

use crate::telemetry::GroupLimit;
use std::fmt;

/// Why an executor was lost. The text follows the name of the process: "executor 123 `text`".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LossCause {
    /// It ended by itself or was killed from outside; the text says how.
    Died(String),
    /// It reported that it cannot continue; the text is its reason.
    GaveUp(String),
    /// It exceeded a time limit and was killed; the text names the limit.
    Hung(String),
    /// It broke the protocol of the rings, of shared memory or of the channel, and was killed; the
    /// text names the rule.
    ProtocolViolation(String),
    /// A ring is corrupt, or a compute unit ended.
    BrokenRings,
    /// Its code made a system call that the jail forbids, and the kernel killed it.
    ForbiddenCall,
    /// The kernel or the daemon killed it at the memory limit of its control group.
    OutOfMemory(GroupLimit),
    /// The daemon ended it; the text is the reason.
    Ended(String),
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossCause::Died(how) => f.write_str(how),
            LossCause::GaveUp(why) => write!(f, "cannot continue: {why}"),
            LossCause::Hung(what) => write!(f, "{what} and was killed"),
            LossCause::ProtocolViolation(rule) => write!(f, "broke the protocol: {rule}"),
            LossCause::BrokenRings => f.write_str("broke the protocol of the rings, or lost a compute unit"),
            LossCause::ForbiddenCall => f.write_str("was killed by SIGSYS: its code made a forbidden system call"),
            LossCause::OutOfMemory(limit) => write!(f, "was killed: {limit}"),
            LossCause::Ended(why) => f.write_str(why),
        }
    }
}
