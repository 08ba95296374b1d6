//! Words that have a plain term of the field instead (`docs/glossary.md`).

use super::{Offence, hold};
use anyhow::Result;
use atoll_tests::source::text_files;
use regex::Regex;

/// Regular expressions of whole words, in lower case.
const BANNED: &[&str] = &[
    "homeless",
    "unseeing",
    "sparing",
    "doom(s|ed)?",
    "bury|buries|buried",
    "riders?",
    "whoever",
    "whatever it is",
    "of which nobody",
    "(takes?|took|taking) leave",
    "offended",
    "cuttable",
    "twins?",
    "errands?",
    "strangers?",
    "nobody",
    "somebody",
];

/// Files that name the words: this one, and the list of renamed names.
const EXCEPT: &[&str] = &["tests/integration/tidy/words.rs", "CHANGELOG.md"];

#[test]
fn texts_have_no_banned_words() -> Result<()> {
    let banned = Regex::new(&format!("(?:^|[^a-z])({})(?:$|[^a-z])", BANNED.join("|")))?;
    let files = text_files(&[".rs", ".md", ".py", ".sh", ".toml", "Makefile"])?;
    let mut offences = Vec::new();
    for file in files.iter().filter(|file| !EXCEPT.contains(&file.path.as_str())) {
        for (index, line) in file.text.lines().enumerate() {
            let line = separated(line);
            let found = banned.captures_iter(&line).map(|words| words[1].to_owned());
            offences
                .extend(found.map(|word| Offence::new(&file.path, index + 1, format!("`{word}`: {}", line.trim()))));
        }
    }
    hold("banned words", "Name the thing or the actor instead; docs/glossary.md has the terms.", &offences)
}

/// A line in lower case in which the parts of CamelCase names are words of their own.
fn separated(line: &str) -> String {
    let mut words = String::with_capacity(line.len());
    let mut was_lower = false;
    for letter in line.chars() {
        if was_lower && letter.is_ascii_uppercase() {
            words.push('_');
        }
        was_lower = letter.is_ascii_lowercase();
        words.push(letter.to_ascii_lowercase());
    }
    words
}

#[test]
fn parts_of_names_are_words() {
    assert_eq!(separated("fn pairedQueue(x: TwoBlocks) // Text"), "fn paired_queue(x: two_blocks) // text");
}
