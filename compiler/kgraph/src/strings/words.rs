//! Operators on single strings. Strings are bytes; text operators treat them as UTF-8.

use super::format::{Case, Cut};
use regex::bytes::Regex;
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

/// The tokens of a string with at least so many characters. `patterns` are those of `by`.
pub(super) fn tokens<'t>(text: &'t [u8], by: &Cut, patterns: &[Regex], characters_min: u64) -> Vec<&'t [u8]> {
    // No token is empty, so every step of the loops advances.
    let is_token = |token: &[u8]| characters(token) >= characters_min.max(1);
    match (by, patterns) {
        (Cut::Matches(_), [pattern]) => matches(text, pattern, is_token),
        (Cut::Matches(_), _) => Vec::new(),
        (Cut::Separators(_), separators) => separators.iter().fold(vec![text], |parts, separator| {
            parts.into_iter().flat_map(|part| between(part, separator)).filter(|part| is_token(part)).collect()
        }),
        (Cut::Characters, _) => {
            let mut rest = text;
            let next = || {
                let (character, tail) = rest.split_at(character_bytes(rest)?);
                rest = tail;
                Some(character)
            };
            std::iter::from_fn(next).filter(|token| is_token(token)).collect()
        }
    }
}

/// The matches that are tokens. After a match that is not, the search continues at the next character.
fn matches<'t>(text: &'t [u8], pattern: &Regex, is_token: impl Fn(&[u8]) -> bool) -> Vec<&'t [u8]> {
    let (mut tokens, mut at) = (Vec::new(), 0);
    while at <= text.len()
        && let Some(found) = pattern.find_at(text, at)
    {
        if is_token(found.as_bytes()) {
            tokens.push(found.as_bytes());
            at = found.end();
        } else {
            at = found.start() + character_bytes(&text[found.start()..]).unwrap_or(1);
        }
    }
    tokens
}

/// The parts between matches that are not empty.
fn between<'t>(text: &'t [u8], separator: &Regex) -> Vec<&'t [u8]> {
    let (mut parts, mut begin) = (Vec::new(), 0);
    for found in separator.find_iter(text).filter(|found| !found.is_empty()) {
        parts.push(&text[begin..found.start()]);
        begin = found.end();
    }
    parts.push(&text[begin..]);
    parts
}

/// Number of characters: bytes that do not continue one of UTF-8.
fn characters(text: &[u8]) -> u64 {
    text.iter().filter(|byte| **byte & 0xc0 != 0x80).count() as u64
}

/// Bytes of the first character; `None` if there is none.
fn character_bytes(text: &[u8]) -> Option<usize> {
    let (_, rest) = text.split_first()?;
    Some(1 + rest.iter().take_while(|byte| **byte & 0xc0 == 0x80).count())
}

#[cfg(test)]
mod tests {
    use super::super::pattern::compile;
    use super::*;

    fn cut(text: &str, by: &Cut, characters_min: u64) -> Vec<String> {
        let patterns: Vec<Regex> = by.patterns().iter().map(|pattern| compile(pattern, false).unwrap()).collect();
        let tokens = tokens(text.as_bytes(), by, &patterns, characters_min);
        tokens.into_iter().map(|token| String::from_utf8_lossy(token).into_owned()).collect()
    }

    #[test]
    fn tokens_are_cut_by_expressions_and_have_a_least_length() {
        let words = Cut::Matches(r"\w+".into());
        assert_eq!(cut("a bc, def!", &words, 1), ["a", "bc", "def"]);
        assert_eq!(cut("a bc, def!", &words, 2), ["bc", "def"]);
        assert_eq!(cut("\u{e9}a", &Cut::Matches("x*".into()), 1), Vec::<String>::new());
        let separators = Cut::Separators(vec![",".into(), " +".into()]);
        assert_eq!(cut("a, bc  d,,e", &separators, 1), ["a", "bc", "d", "e"]);
        assert_eq!(cut("a, bc  d", &separators, 2), ["bc"]);
        assert_eq!(cut("gr\u{fc}n", &Cut::Characters, 1), ["g", "r", "\u{fc}", "n"]);
        assert!(cut("", &words, 1).is_empty() && cut("", &separators, 1).is_empty());
    }

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
