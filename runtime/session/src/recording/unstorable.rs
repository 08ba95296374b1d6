//! Why recorded calls cannot become a function.

/// Why recorded calls cannot become a function.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unstorable {
    /// A call that functions do not have, or that failed.
    #[error("call {number} ({call}) {why}")]
    Call {
        /// Its number in the session, from 0.
        number: u64,
        /// The entry point of the driver.
        call: &'static str,
        /// The reason.
        why: String,
    },
    /// A run has another structure than the first one.
    #[error("run {run} differs from run 1: {why}")]
    Differs {
        /// The run, from 1.
        run: usize,
        /// The first difference.
        why: String,
    },
    /// The runs as a whole are no function.
    #[error("{0}")]
    Whole(String),
}
