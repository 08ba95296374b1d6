//! Operators on single strings. Strings are bytes; text operators treat them as UTF-8.

use super::format::Case;
use std::borrow::Cow;

/// A string in another case. Bytes that are not UTF-8 become U+FFFD.
pub(super) fn in_case(text: &[u8], case: Case) -> Cow<'_, [u8]> {
    match case {
        Case::Keep => Cow::Borrowed(text),
        Case::Lower => Cow::Owned(String::from_utf8_lossy(text).to_lowercase().into_bytes()),
        Case::Upper => Cow::Owned(String::from_utf8_lossy(text).to_uppercase().into_bytes()),
    }
}

/// The parts of a string. An empty delimiter separates at whitespace.
pub(super) fn parts<'t>(text: &'t [u8], delimiter: &[u8], cuts_max: Option<u64>) -> Vec<&'t [u8]> {
    let cuts_max = cuts_max.unwrap_or(u64::MAX);
    if delimiter.is_empty() { at_whitespace(text, cuts_max) } else { at_delimiter(text, delimiter, cuts_max) }
}

/// As Python's `split` with a separator: two separators in a row have an empty part between them.
/// But an empty string has no parts, as in ONNX Runtime.
fn at_delimiter<'t>(text: &'t [u8], delimiter: &[u8], cuts_max: u64) -> Vec<&'t [u8]> {
    let mut parts = Vec::new();
    if text.is_empty() {
        return parts;
    }
    let mut rest = text;
    while (parts.len() as u64) < cuts_max
        && let Some(at) = rest.windows(delimiter.len()).position(|part| part == delimiter)
    {
        parts.push(&rest[..at]);
        rest = &rest[at + delimiter.len()..];
    }
    parts.push(rest);
    parts
}

/// As Python's `split` without a separator: parts are not empty, and the last one keeps whitespace
/// at its end if the number of cuts is limited.
fn at_whitespace(text: &[u8], cuts_max: u64) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let mut rest = text.trim_ascii_start();
    while !rest.is_empty() {
        let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
        let is_last = parts.len() as u64 == cuts_max;
        parts.push(if is_last { rest } else { &rest[..end] });
        rest = if is_last { &[] } else { rest[end..].trim_ascii_start() };
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str, delimiter: &str, cuts_max: Option<u64>) -> Vec<String> {
        let parts = parts(text.as_bytes(), delimiter.as_bytes(), cuts_max);
        parts.into_iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect()
    }

    #[test]
    fn strings_are_split_as_in_python() {
        assert_eq!(split("o-n--n", "-", None), ["o", "n", "", "n"]);
        assert_eq!(split("a.b.c", ".", Some(1)), ["a", "b.c"]);
        assert_eq!(split("a.b.c", ".", Some(0)), ["a.b.c"]);
        assert_eq!(split(",", ",", None), ["", ""]);
        assert_eq!(split("abcbca", "bc", None), ["a", "", "a"]);
        assert_eq!(split("  hello \t world  ", "", None), ["hello", "world"]);
        assert_eq!(split(" a  b c ", "", Some(1)), ["a", "b c "]);
        assert!(["", ","].iter().all(|delimiter| split("", delimiter, None).is_empty()));
        assert!(split("  ", "", None).is_empty());
    }

    #[test]
    fn letters_change_their_case() {
        assert_eq!(in_case("Grüße".as_bytes(), Case::Upper), "GRÜSSE".as_bytes());
        assert_eq!(in_case("Ärger".as_bytes(), Case::Lower), "ärger".as_bytes());
        assert_eq!(in_case(b"\xff", Case::Keep), &b"\xff"[..]);
    }
}
