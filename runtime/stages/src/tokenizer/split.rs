//! Splits texts into words, whose tokens are independent.

use super::bpe::as_chars;
use super::file::{Behavior, Pattern, PreTokenizer};
use regex::Regex;
use std::sync::LazyLock;

/// GPT-2's words, without its last alternatives for white space ([`TAIL`]).
const GPT2: &str = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+";

/// How patterns of this kind end: white space, without its last character where a word follows. The
/// `regex` crate has no look-ahead, so [`Words`] does this part.
const TAIL: &str = r"|\s+(?!\S)|\s+";

/// A step that splits.
pub(super) enum Splitter {
    /// At white space, which is dropped, and around every punctuation mark.
    Bert,
    /// At white space, which is dropped.
    Whitespace,
    /// At the matches of a pattern, which become words of their own.
    Pattern(Words),
    /// Into words, and every byte into a character that stands for it.
    Bytes { adds_space: bool, words: Option<Words> },
}

/// A pattern. Its matches are words, and so are the texts between them.
pub(super) struct Words {
    regex: Regex,
    /// Whether [`TAIL`] follows.
    has_tail: bool,
}

/// Classes of characters, taken from the Unicode tables of the `regex` crate.
#[derive(Clone, Copy)]
pub(super) enum Class {
    Punctuation,
    Other,
    NonspacingMark,
}

/// Whether a character is of a class.
pub(super) fn is_of(class: Class, c: char) -> bool {
    static CLASSES: LazyLock<[Regex; 3]> = LazyLock::new(|| {
        [r"^\p{P}$", r"^[\p{Cc}\p{Cf}\p{Cn}\p{Co}]$", r"^\p{Mn}$"]
            .map(|pattern| Regex::new(pattern).expect("invariant: constant patterns are valid"))
    });
    if c.is_ascii() {
        return match class {
            Class::Punctuation => c.is_ascii_punctuation(),
            Class::Other => c.is_ascii_control(),
            Class::NonspacingMark => false,
        };
    }
    CLASSES[class as usize].is_match(c.encode_utf8(&mut [0; 4]))
}

/// The steps of a pre-tokeniser of the file, in order.
pub(super) fn flatten(splitter: PreTokenizer, into: &mut Vec<Splitter>) -> Result<(), String> {
    match splitter {
        PreTokenizer::Sequence { pretokenizers } => {
            return pretokenizers.into_iter().try_for_each(|splitter| flatten(splitter, into));
        }
        PreTokenizer::Bert => into.push(Splitter::Bert),
        PreTokenizer::WhitespaceSplit => into.push(Splitter::Whitespace),
        PreTokenizer::ByteLevel { add_prefix_space, use_regex } => {
            let words = use_regex.then(|| Words::new(&format!("{GPT2}{TAIL}"))).transpose()?;
            into.push(Splitter::Bytes { adds_space: add_prefix_space, words });
        }
        PreTokenizer::Split { pattern, behavior: Behavior::Isolated, invert: false } => {
            let pattern = match pattern {
                Pattern::Regex(pattern) => pattern,
                Pattern::String(text) => regex::escape(&text),
            };
            into.push(Splitter::Pattern(Words::new(&pattern)?));
        }
        PreTokenizer::Split { .. } => {
            return Err(
                "its `tokenizer.json` has a pre-tokenizer `Split` that is inverted, which is not supported".into()
            );
        }
    }
    Ok(())
}

impl Splitter {
    pub(super) fn split(&self, text: &str) -> Vec<String> {
        match self {
            Splitter::Whitespace => text.split_whitespace().map(Into::into).collect(),
            Splitter::Bert => text.split_whitespace().flat_map(around_punctuation).collect(),
            Splitter::Pattern(words) => words.split(text).into_iter().map(Into::into).collect(),
            Splitter::Bytes { adds_space, words } => {
                let spaced = if *adds_space && !text.starts_with(' ') { format!(" {text}") } else { text.into() };
                let split = words.as_ref().map_or_else(|| vec![&spaced[..]], |words| words.split(&spaced));
                split.into_iter().map(as_chars).collect()
            }
        }
    }
}

fn around_punctuation(word: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut is_open = false;
    for c in word.chars() {
        let is_mark = is_of(Class::Punctuation, c);
        match parts.last_mut().filter(|_| is_open && !is_mark) {
            Some(part) => part.push(c),
            None => parts.push(c.into()),
        }
        is_open = !is_mark;
    }
    parts
}

impl Words {
    fn new(pattern: &str) -> Result<Words, String> {
        let (pattern, has_tail) = match pattern.strip_suffix(TAIL) {
            Some(pattern) => (pattern, true),
            None => (pattern, false),
        };
        let regex = Regex::new(pattern)
            .map_err(|error| format!("its `tokenizer.json` has a pattern that is not supported: {error}"))?;
        Ok(Words { regex, has_tail })
    }

    /// The matches and the texts between them, in order.
    fn split<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let mut words = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let found = self.regex.find_at(text, at).filter(|found| !found.is_empty());
            let (start, end) = found.map_or((text.len(), text.len()), |found| (found.start(), found.end()));
            let between = &text[at..start];
            if let Some(offset) = between.find(char::is_whitespace).filter(|_| self.has_tail) {
                if offset > 0 {
                    words.push(&between[..offset]);
                }
                at += offset;
                let length = tail(&text[at..]);
                words.push(&text[at..at + length]);
                at += length;
                continue;
            }
            if !between.is_empty() {
                words.push(between);
            }
            if end > start {
                words.push(&text[start..end]);
            }
            at = end;
        }
        words
    }
}

/// The length of a match of [`TAIL`] at the beginning of a text, which is white space.
fn tail(text: &str) -> usize {
    let run = text.len() - text.trim_start().len();
    let last = text[..run].chars().next_back().map_or(0, char::len_utf8);
    // The last character is left for a word that follows, unless it is the only one.
    if run < text.len() && run > last { run - last } else { run }
}
