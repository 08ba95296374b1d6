//! Errors, and the exit code and message for them.

use std::io::Write;
use std::process::ExitCode;

/// Exit code of a failure that is not the user's mistake.
const FAILED: u8 = 1;
/// Exit code of a mistake in the command line or in a file from the user.
const USAGE: u8 = 2;

/// Marks an error as the user's mistake; the inner error describes it.
#[derive(Debug, thiserror::Error)]
#[error("{}", in_words(.0))]
struct UserError(anyhow::Error);

/// A mistake of the user, from a message.
pub fn user_error(message: impl Into<String>) -> anyhow::Error {
    users(anyhow::Error::msg(message.into()))
}

/// A mistake of the user, from an error.
pub fn users(error: impl Into<anyhow::Error>) -> anyhow::Error {
    anyhow::Error::new(UserError(error.into()))
}

/// Marks failures as the user's mistake.
pub trait OrUserError<T> {
    /// Marks the error, if there is one.
    fn or_user_error(self) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> OrUserError<T> for Result<T, E> {
    fn or_user_error(self) -> anyhow::Result<T> {
        self.map_err(users)
    }
}

/// An error and its causes, each once: many errors already contain the message of their cause.
fn in_words(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match text.as_str() {
        "" => cause,
        so_far if so_far.contains(&cause) => text,
        so_far => format!("{so_far}: {cause}"),
    })
}

/// Prints the error and returns the exit code. A closed standard output, as in `atoll … | head`, is
/// not an error.
pub fn report(error: &anyhow::Error) -> ExitCode {
    let closed = |e: &(dyn std::error::Error + 'static)| {
        e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    };
    if error.chain().any(closed) {
        return ExitCode::SUCCESS;
    }
    // Standard error may be closed as well.
    let _ = writeln!(std::io::stderr(), "error: {}", in_words(error));
    ExitCode::from(if error.chain().any(|e| e.is::<UserError>()) { USAGE } else { FAILED })
}
