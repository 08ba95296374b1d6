//! Regular expressions with the syntax of RE2, which ONNX uses.
//!
//! An expression is a lazy automaton that starts at a given byte. So the bytes that it reads are
//! counted exactly, and an expression that reads the same text again and again is stopped.

use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input};
use std::error::Error;

/// Largest compiled expression in bytes, and the largest size of its cache.
const BYTES_MAX: usize = 1 << 17;

/// Names of classes in brackets.
const NAMED: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word",
    "xdigit",
];

/// A compiled expression.
#[derive(Clone, Debug)]
pub(super) struct Pattern(DFA);

impl Pattern {
    /// Compiles an expression: one that has to match a whole string, or one that is searched for.
    ///
    /// # Errors
    /// What is wrong with the expression.
    pub(super) fn new(pattern: &str, is_whole: bool) -> Result<Pattern, String> {
        let refuse = |reason: String| format!("its pattern {pattern:?} cannot be compiled: {reason}");
        let own = translated(pattern).map_err(refuse)?;
        let own = if is_whole { format!(r"(?:{own})\z") } else { own };
        let compiled = DFA::builder()
            .configure(DFA::config().cache_capacity(BYTES_MAX).skip_cache_capacity_check(true))
            .syntax(syntax::Config::new().utf8(false))
            .thompson(thompson::Config::new().utf8(false).nfa_size_limit(Some(BYTES_MAX)))
            .build(&own);
        compiled.map(Pattern).map_err(|error| {
            // The outer errors only name the automaton.
            let mut cause: &dyn Error = &error;
            while let Some(source) = cause.source() {
                cause = source;
            }
            refuse(cause.to_string())
        })
    }

    /// Memory for matches.
    pub(super) fn cache(&self) -> Cache {
        self.0.create_cache()
    }

    /// The end of the match that begins at `at`, if there is one, and the number of bytes read.
    pub(super) fn match_at(&self, cache: &mut Cache, text: &[u8], at: usize) -> (Option<usize>, usize) {
        const NEVER: &str = "the cache is cleared when it is full, and no byte ends a search";
        let input = Input::new(text).span(at..text.len()).anchored(Anchored::Yes);
        let mut state = self.0.start_state_forward(cache, &input).expect(NEVER);
        let mut end = None;
        for (index, byte) in text.iter().enumerate().skip(at) {
            state = self.0.next_state(cache, state, *byte).expect(NEVER);
            // A match is reported one byte after its end.
            if state.is_match() {
                end = Some(index);
            } else if state.is_dead() {
                return (end, index + 1 - at);
            }
        }
        if self.0.next_eoi_state(cache, state).expect(NEVER).is_match() {
            end = Some(text.len());
        }
        (end, text.len() - at)
    }
}

/// The expression in the syntax of the crate. RE2's classes `\d`, `\w` and `\s` contain only ASCII
/// characters, and its classes in brackets neither nest nor have operators.
fn translated(pattern: &str) -> Result<String, String> {
    let mut result = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(character) = rest.chars().next() {
        rest = match character {
            '\\' => escape(rest, false, &mut result).1,
            '[' => class(rest, &mut result)?,
            _ => {
                result.push(character);
                &rest[character.len_utf8()..]
            }
        };
    }
    Ok(result)
}

/// Translates the escape at the start of `rest`. Returns whether it is one character, and the rest
/// behind it.
fn escape<'p>(rest: &'p str, in_class: bool, result: &mut String) -> (bool, &'p str) {
    let mut characters = rest.chars();
    characters.next();
    let escaped = characters.next();
    let set = match escaped {
        Some('d') => "[0-9]",
        Some('D') => "[^0-9]",
        Some('w') => "[0-9A-Za-z_]",
        Some('W') => "[^0-9A-Za-z_]",
        Some('s') => r"[\t\n\f\r ]",
        Some('S') => r"[^\t\n\f\r ]",
        _ => "",
    };
    match escaped {
        _ if !set.is_empty() => result.push_str(set),
        Some('b') if !in_class => result.push_str(r"(?-u:\b)"),
        Some('B') if !in_class => result.push_str(r"(?-u:\B)"),
        // The crate's escapes of these are borders of words.
        Some(angle @ ('<' | '>')) => result.push(angle),
        Some(other) => result.extend(['\\', other]),
        None => result.push('\\'),
    }
    (set.is_empty(), characters.as_str())
}

/// Translates the class in brackets at the start of `rest`. Returns the rest behind it.
///
/// # Errors
/// A named class does not exist. A class that does not end is refused when it is compiled.
fn class<'p>(rest: &'p str, result: &mut String) -> Result<&'p str, String> {
    let (begin, mut rest) = match rest.strip_prefix("[^") {
        Some(tail) => ("[^", tail),
        None => ("[", &rest[1..]),
    };
    result.push_str(begin);
    // The first character is a member, even if it is `]`.
    let mut is_first = true;
    // Whether the previous member may be the first of a range.
    let mut begins_range = false;
    while !rest.is_empty() {
        if let Some(tail) = rest.strip_prefix(']').filter(|_| !is_first) {
            result.push(']');
            return Ok(tail);
        }
        is_first = false;
        if let Some(tail) = rest.strip_prefix('-').filter(|tail| begins_range && !tail.starts_with(']')) {
            result.push('-');
            (_, rest) = member(tail, result);
            begins_range = false;
        } else if let Some((name, tail)) = rest.strip_prefix("[:").and_then(|tail| tail.split_once(":]")) {
            if !NAMED.contains(&name.strip_prefix('^').unwrap_or(name)) {
                return Err(format!("there is no class [:{name}:]"));
            }
            result.extend(["[:", name, ":]"]);
            (begins_range, rest) = (false, tail);
        } else {
            (begins_range, rest) = member(rest, result);
        }
    }
    Ok(rest)
}

/// Translates a member of a class. Returns whether it is one character, and the rest behind it.
fn member<'p>(rest: &'p str, result: &mut String) -> (bool, &'p str) {
    let mut characters = rest.chars();
    match characters.next() {
        Some('\\') => return escape(rest, true, result),
        // In the crate's classes, these characters nest or are operators.
        Some(operator @ ('[' | ']' | '&' | '~' | '-' | '^')) => result.extend(['\\', operator]),
        Some(other) => result.push(other),
        None => {}
    }
    (true, characters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        let pattern = Pattern::new(pattern, true).expect("valid");
        pattern.match_at(&mut pattern.cache(), text.as_bytes(), 0).0.is_some()
    }

    fn refusal(pattern: &str) -> String {
        Pattern::new(pattern, true).expect_err("invalid")
    }

    #[test]
    fn a_whole_string_has_to_match() {
        assert!(matches(r"www\.[\w.-]+\.\bcom\b", "www.google.com") && !matches(r"(\d+)", "12 "));
        assert!(matches("a|bc", "bc") && !matches("a|bc", "abc") && matches("", ""));
        assert!(matches("a|ab", "ab") && matches("a*?", "aa") && !matches("a", ""));
        assert!(matches(r"[\d_]*", "1_2") && !matches(r"\d", "\u{0663}") && matches(".", "\u{e9}"));
        assert!(!matches("a", "a\n") && matches("(?s).*", "a\nb"));
        assert!(
            ["(", r"a{1000}{1000}", "\\", "[a"].iter().all(|pattern| refusal(pattern).contains("cannot be compiled"))
        );
    }

    #[test]
    fn classes_in_brackets_have_no_operators() {
        let members = |pattern: &str| -> String { (' '..='~').filter(|c| matches(pattern, &c.to_string())).collect() };
        let cases = [
            ("[a&&b]", "&ab"),
            ("[a~~b]", "ab~"),
            ("[ab[b]", "[ab"),
            ("[+--]", "+,-"),
            ("[a--]", ""),
            ("[a-c-e]", "-abce"),
            ("[a-c--/]", "-./abc"),
            ("[-a]", "-a"),
            ("[a-]", "-a"),
            ("[]a]", "]a"),
            ("[a^]", "^a"),
            (r"[\]\-\[]", "-[]"),
            (r"[\d-a]", "-0123456789a"),
            (r"[\x41-C]", "ABC"),
            (r"[\x{41}-\x{43}x]", "ABCx"),
            ("[[:digit:]a]", "0123456789a"),
            ("[[:a]", ":[a"),
            (r"\<|\>", "<>"),
        ];
        for (pattern, expected) in cases {
            if expected.is_empty() {
                refusal(pattern);
            } else {
                assert_eq!(members(pattern), expected, "{pattern}");
            }
        }
        assert!(!matches("[^]a]", "]") && matches("[^]a]", "b") && !matches("[^[:^alpha:]]", "1"));
        assert!(matches(r"[^\d]", "a") && !matches(r"[^\d]", "1") && matches("[a-z&&[^aeiou]]", "a]"));
        assert!(refusal("[[:letter:]]").contains("there is no class [:letter:]"));
    }

    #[test]
    fn bytes_that_are_read_are_counted() {
        let pattern = Pattern::new("a(a*b)?", false).expect("valid");
        let found = |text: &[u8], at: usize| pattern.match_at(&mut pattern.cache(), text, at);
        assert_eq!(found(b"aaaa", 1), (Some(2), 3));
        assert_eq!(found(b"aab ", 0).0, Some(3));
        let (end, read) = found(b"xaaaaaaaaa", 0);
        assert!(end.is_none() && read < 3, "{read}");
        // What is in front of the search is known to it.
        let word = Pattern::new(r"\ba", false).expect("valid");
        assert_eq!(word.match_at(&mut word.cache(), b"ba a", 1).0, None);
        assert_eq!(word.match_at(&mut word.cache(), b"ba a", 3).0, Some(4));
    }
}
