//! Syntax errors.

use crate::limits::MAX_SYNTAX_ERRORS;
use std::fmt;

/// A syntax error and its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: expected {expected}, found {found}")]
pub struct SyntaxError {
    /// Line, from 1.
    pub line: u32,
    /// Column in bytes, from 1.
    pub column: u32,
    /// What the parser expected here.
    pub expected: String,
    /// What it found instead.
    pub found: String,
}

impl SyntaxError {
    pub(crate) fn new(
        (line, column): (u32, u32),
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> SyntaxError {
        SyntaxError { line, column, expected: expected.into(), found: found.into() }
    }
}

/// All syntax errors of a text in source order, at most [`MAX_SYNTAX_ERRORS`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxErrors {
    /// The errors; never empty.
    pub errors: Vec<SyntaxError>,
    /// Whether there were more errors than listed.
    pub truncated: bool,
}

impl SyntaxErrors {
    pub(crate) fn collect(errors: impl IntoIterator<Item = SyntaxError>) -> SyntaxErrors {
        let mut errors: Vec<_> = errors.into_iter().take(MAX_SYNTAX_ERRORS + 1).collect();
        let truncated = errors.len() > MAX_SYNTAX_ERRORS;
        errors.truncate(MAX_SYNTAX_ERRORS);
        SyntaxErrors { errors, truncated }
    }
}

impl From<SyntaxError> for SyntaxErrors {
    fn from(error: SyntaxError) -> SyntaxErrors {
        SyntaxErrors { errors: vec![error], truncated: false }
    }
}

impl std::error::Error for SyntaxErrors {}

impl fmt::Display for SyntaxErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        if self.truncated { f.write_str("\n… and more") } else { Ok(()) }
    }
}
