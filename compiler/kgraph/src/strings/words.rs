//! Operators on single strings. Strings are bytes; text operators treat them as UTF-8.

use super::format::{Case, Cut, StringError};
use super::pattern::Pattern;
use memchr::memmem;
use regex_automata::hybrid::dfa::Cache;
use std::borrow::Cow;

/// A string in another case. Bytes that are not UTF-8 become U+FFFD.
pub(super) fn in_case(text: &[u8], case: Case) -> Cow<'_, [u8]> {
    match case {
        Case::Keep => Cow::Borrowed(text),
        Case::Lower => Cow::Owned(String::from_utf8_lossy(text).to_lowercase().into_bytes()),
        Case::Upper => Cow::Owned(String::from_utf8_lossy(text).to_uppercase().into_bytes()),
    }
}

/// The parts of a string, cut one by one. An empty delimiter separates at whitespace.
pub(super) fn parts<'t>(
    text: &'t [u8],
    delimiter: &'t [u8],
    cuts_max: Option<u64>,
) -> Box<dyn Iterator<Item = &'t [u8]> + 't> {
    let cuts_max = cuts_max.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
    if delimiter.is_empty() {
        Box::new(at_whitespace(text, cuts_max))
    } else {
        Box::new(at_delimiter(text, delimiter, cuts_max))
    }
}

/// As Python's `split` with a separator: two separators in a row have an empty part between them.
/// But an empty string has no parts, as in ONNX Runtime.
fn at_delimiter<'t>(text: &'t [u8], delimiter: &'t [u8], cuts_max: usize) -> impl Iterator<Item = &'t [u8]> {
    let mut begin = 0;
    let ends = memmem::find_iter(text, delimiter).take(cuts_max).chain([text.len()]);
    let part = move |end: usize| {
        let part = &text[begin..end];
        begin = end + delimiter.len();
        part
    };
    ends.map(part).take(if text.is_empty() { 0 } else { usize::MAX })
}

/// As Python's `split` without a separator: parts are not empty, and the last one keeps whitespace
/// at its end if the number of cuts is limited.
fn at_whitespace(text: &[u8], cuts_max: usize) -> impl Iterator<Item = &[u8]> {
    let (mut rest, mut cuts_left) = (text.trim_ascii_start(), cuts_max);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = if cuts_left == 0 { None } else { rest.iter().position(u8::is_ascii_whitespace) };
        let (part, tail) = rest.split_at(end.unwrap_or(rest.len()));
        (rest, cuts_left) = (tail.trim_ascii_start(), cuts_left.saturating_sub(1));
        Some(part)
    })
}

/// The tokens of a string with at least so many characters. `patterns` are those of `by`, each with
/// memory for its matches. `note` is given the number of bytes that they read.
///
/// # Errors
/// Those of `note`.
pub(super) fn tokens<'t>(
    text: &'t [u8],
    by: &Cut,
    patterns: &mut [(&Pattern, Cache)],
    characters_min: u64,
    mut note: impl FnMut(usize) -> Result<(), StringError>,
) -> Result<Box<dyn Iterator<Item = &'t [u8]> + 't>, StringError> {
    let characters_min = characters_min.max(1);
    // No token is empty.
    let is_token = move |token: &[u8]| characters(token) >= characters_min;
    Ok(match by {
        Cut::Matches(_) => {
            let mut tokens = Vec::new();
            for pattern in patterns {
                let found = matches(text, pattern, is_token, &mut note)?;
                tokens.extend(found.into_iter().map(|(begin, end)| &text[begin..end]));
            }
            Box::new(tokens.into_iter())
        }
        Cut::Separators(_) => {
            let mut parts = vec![text];
            for separator in patterns {
                let mut tokens = Vec::new();
                for part in parts {
                    let mut begin = 0;
                    for (from, to) in matches(part, separator, |found| !found.is_empty(), &mut note)? {
                        tokens.push(&part[begin..from]);
                        begin = to;
                    }
                    tokens.push(&part[begin..]);
                }
                tokens.retain(|part| is_token(part));
                parts = tokens;
            }
            Box::new(parts.into_iter())
        }
        Cut::Characters => {
            let mut rest = text;
            let next = move || {
                let (character, tail) = rest.split_at(character_bytes(rest)?);
                rest = tail;
                Some(character)
            };
            Box::new(std::iter::from_fn(next).filter(move |token| is_token(token)))
        }
    })
}

/// Begin and end of each match that is accepted. After one that is not, the search continues at the
/// next character.
fn matches(
    text: &[u8],
    (pattern, cache): &mut (&Pattern, Cache),
    accepts: impl Fn(&[u8]) -> bool,
    note: &mut impl FnMut(usize) -> Result<(), StringError>,
) -> Result<Vec<(usize, usize)>, StringError> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < text.len() {
        let (end, read) = pattern.match_at(cache, text, at);
        note(read)?;
        match end.filter(|end| *end > at && accepts(&text[at..*end])) {
            Some(end) => {
                found.push((at, end));
                at = end;
            }
            None => at += character_bytes(&text[at..]).unwrap_or(1),
        }
    }
    Ok(found)
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
    use super::*;

    fn cut(text: &str, by: &Cut, characters_min: u64) -> Vec<String> {
        let patterns: Vec<Pattern> = by.patterns().iter().map(|it| Pattern::new(it, false).unwrap()).collect();
        let mut patterns: Vec<_> = patterns.iter().map(|pattern| (pattern, pattern.cache())).collect();
        let tokens = tokens(text.as_bytes(), by, &mut patterns, characters_min, |_| Ok(()));
        tokens.unwrap().map(|token| String::from_utf8_lossy(token).into_owned()).collect()
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
        parts.map(|part| String::from_utf8_lossy(part).into_owned()).collect()
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
