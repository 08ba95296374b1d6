//! Regular expressions with the syntax of RE2, which ONNX uses.

use regex::bytes::{Regex, RegexBuilder};

/// Largest compiled expression in bytes, and the largest size of its cache.
const BYTES_MAX: usize = 1 << 17;

/// Compiles an expression: one that has to match a whole string, or one that is searched for.
///
/// # Errors
/// What is wrong with the expression.
pub(super) fn compile(pattern: &str, is_whole: bool) -> Result<Regex, String> {
    let own = with_ascii_classes(pattern);
    let own = if is_whole { format!(r"\A(?:{own})\z") } else { own };
    let compiled = RegexBuilder::new(&own).size_limit(BYTES_MAX).dfa_size_limit(BYTES_MAX).build();
    compiled.map_err(|error| format!("its pattern {pattern:?} cannot be compiled: {error}"))
}

/// The expression with the classes of RE2, which contain only ASCII characters.
fn with_ascii_classes(pattern: &str) -> String {
    let mut result = String::with_capacity(pattern.len());
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            result.push(character);
            continue;
        }
        match characters.next() {
            Some('d') => result.push_str("[0-9]"),
            Some('D') => result.push_str("[^0-9]"),
            Some('w') => result.push_str("[0-9A-Za-z_]"),
            Some('W') => result.push_str("[^0-9A-Za-z_]"),
            Some('s') => result.push_str(r"[\t\n\f\r ]"),
            Some('S') => result.push_str(r"[^\t\n\f\r ]"),
            Some('b') => result.push_str(r"(?-u:\b)"),
            Some('B') => result.push_str(r"(?-u:\B)"),
            Some(other) => result.extend(['\\', other]),
            None => result.push('\\'),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_string_has_to_match() {
        let compile = |pattern: &str| compile(pattern, true);
        let matches = |pattern: &str, text: &str| compile(pattern).expect("valid").is_match(text.as_bytes());
        assert!(matches(r"www\.[\w.-]+\.\bcom\b", "www.google.com") && !matches(r"(\d+)", "12 "));
        assert!(matches("a|bc", "bc") && !matches("a|bc", "abc") && matches("", ""));
        assert!(matches(r"[\d_]*", "1_2") && !matches(r"\d", "\u{0663}") && matches(".", "\u{e9}"));
        assert!(!matches("a", "a\n") && matches("(?s).*", "a\nb"));
        assert!(compile("(").is_err() && compile(r"a{1000}{1000}").is_err() && compile("\\").is_err());
    }
}
