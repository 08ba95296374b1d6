//! Whose fault a failure is, and what the process says and returns.

use std::io::Write;
use std::process::ExitCode;

/// Something failed that is not the user's input.
const FAILED: u8 = 1;
/// The command line or a file that the user gave is at fault.
const USAGE: u8 = 2;

/// Marks an error as the user's: the chain below it says what is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{}", in_words(.0))]
struct UserError(anyhow::Error);

/// An error of the user's, in words.
pub fn user_error(message: impl Into<String>) -> anyhow::Error {
    users(anyhow::Error::msg(message.into()))
}

/// An error that is the user's.
pub fn users(error: impl Into<anyhow::Error>) -> anyhow::Error {
    anyhow::Error::new(UserError(error.into()))
}

/// Says that a failure would be the user's.
pub trait Blame<T> {
    /// Marks the error, if there is one.
    fn blame_user(self) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> Blame<T> for Result<T, E> {
    fn blame_user(self) -> anyhow::Result<T> {
        self.map_err(users)
    }
}

/// An error and its causes, each once: many say in their own words what caused them.
fn in_words(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match text.as_str() {
        "" => cause,
        told if told.contains(&cause) => text,
        told => format!("{told}: {cause}"),
    })
}

/// Tells the user, and chooses the exit code. A closed pipe at the other end of our output is not
/// worth a word: `atoll … | head` is no mistake.
pub fn report(error: &anyhow::Error) -> ExitCode {
    let closed = |e: &(dyn std::error::Error + 'static)| {
        e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    };
    if error.chain().any(closed) {
        return ExitCode::SUCCESS;
    }
    // Standard error may be closed as well; there is nobody left to tell.
    let _ = writeln!(std::io::stderr(), "error: {}", in_words(error));
    ExitCode::from(if error.chain().any(|e| e.is::<UserError>()) { USAGE } else { FAILED })
}
