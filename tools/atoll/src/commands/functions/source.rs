//! Inputs that the daemon already has, and calls that continue in the background.

use crate::commands::random_id;
use crate::failure::user_error;
use crate::output::{print, print_json};
use anyhow::Result;
use atoll_client::{Content, Digest};
use serde_json::json;

/// Begins the output of a call as an input, as in `future:ID/OUTPUT`.
const FUTURE: &str = "future:";

/// Whether an input from the command line is one that the daemon has.
pub(crate) fn is_kept(value: &str) -> bool {
    value.starts_with('@') || value.starts_with(FUTURE)
}

/// The content of the input `name` that the daemon has, from `@DIGEST` or `future:ID/OUTPUT`.
/// `None` for a content that this program sends.
///
/// # Errors
/// Mistakes of the user.
pub(crate) fn kept(name: &str, value: &str) -> Result<Option<Content>> {
    if let Some(digest) = value.strip_prefix('@') {
        let digest: Digest = digest.parse().map_err(|error| user_error(format!("{name}={value}: {error}")))?;
        return Ok(Some(digest.into()));
    }
    let Some(place) = value.strip_prefix(FUTURE) else { return Ok(None) };
    // Ids have no `/`, and outputs may.
    match place.split_once('/') {
        Some((future, output)) if !future.is_empty() && !output.is_empty() => {
            Ok(Some(Content::Future(future.into(), output.into())))
        }
        _ => Err(user_error(format!("{name}={value}: expected future:ID/OUTPUT, as in {name}=future:first/y"))),
    }
}

/// The flag of calls that can continue in the background.
#[derive(Debug, clap::Args)]
pub(crate) struct BackgroundArgs {
    /// Do not wait for the end of the call; print the id of its future, for `atoll future` and for
    /// inputs of other calls [default id: random]
    #[arg(long = "async", value_name = "ID", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    background: Option<String>,
}

impl BackgroundArgs {
    /// The id of the call's future; `None` for a call that is waited for.
    pub(crate) fn id(&self) -> Result<Option<String>> {
        match self.background.as_deref() {
            Some("") => random_id().map(Some),
            id => Ok(id.map(str::to_owned)),
        }
    }
}

/// Prints the id of a call that has begun.
pub(crate) fn print_begun(future: &str, as_json: bool) -> Result<()> {
    if as_json { print_json(&json!({ "future": future })) } else { Ok(print(&format!("{future}\n"))?) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_name_objects_and_outputs_of_futures() {
        assert_eq!(kept("x", "x.npy").unwrap(), None);
        assert_eq!(kept("x", "future:a/y/0").unwrap(), Some(Content::Future("a".into(), "y/0".into())));
        assert!(is_kept("future:a/y") && is_kept("@00") && !is_kept("futures.npy"));
        for bad in ["future:", "future:a", "future:a/", "future:/y"] {
            let message = kept("x", bad).unwrap_err().to_string();
            assert!(message.contains("expected future:ID/OUTPUT"), "{message}");
        }
        assert!(kept("x", "@00").is_err());
    }
}
