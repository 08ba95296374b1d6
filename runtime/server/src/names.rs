//! Names of functions and graphs.

use crate::limits::FUNCTION_NAME_BYTES_MAX;
use atoll_core::is_plain_name;

/// A name that is not valid for a function, graph or instance. The text is cut to the length of a
/// valid name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a valid name; use up to {FUNCTION_NAME_BYTES_MAX} letters, digits, `-`, `_` and `.`, \
     beginning with a letter or a digit"
)]
pub(crate) struct BadName(String);

pub(crate) fn check_name(name: &str) -> Result<(), BadName> {
    if is_plain_name(name, FUNCTION_NAME_BYTES_MAX) {
        return Ok(());
    }
    Err(BadName(name.chars().take(FUNCTION_NAME_BYTES_MAX).flat_map(char::escape_debug).collect()))
}
