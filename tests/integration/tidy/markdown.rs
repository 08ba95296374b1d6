//! Markdown that stays readable as plain text.

use super::{Offence, hold};
use anyhow::Result;
use atoll_tests::source::{TextFile, text_files};

const COLUMNS_MAX: usize = 100;
const PARAGRAPH_WORDS_MAX: usize = 120;

#[test]
fn paragraphs_are_short() -> Result<()> {
    let files = text_files(&[".md"])?;
    let offences: Vec<Offence> = files.iter().flat_map(long_paragraphs).collect();
    hold("Markdown paragraphs over 120 words", "Split the paragraph, one thought each, or make a list.", &offences)
}

#[test]
fn lines_of_markdown_are_wrapped() -> Result<()> {
    let files = text_files(&[".md"])?;
    let offences: Vec<Offence> = files.iter().flat_map(long_lines).collect();
    hold("Markdown lines over 100 columns", "Wrap the text at 100 columns.", &offences)
}

/// The lines of prose with their numbers: no code, tables or HTML. `None` ends a paragraph.
fn prose(text: &str) -> Vec<(usize, Option<&str>)> {
    let mut fence: Option<&str> = None;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let marker = ["```", "~~~"].into_iter().find(|marker| trimmed.starts_with(marker));
        let is_code = match (fence, marker) {
            (None, Some(opening)) => {
                fence = Some(opening);
                true
            }
            (Some(opening), Some(closing)) if opening == closing => {
                fence = None;
                true
            }
            (Some(_), _) => true,
            (None, None) => {
                line.starts_with("    ") && lines.last().is_none_or(|(_, before): &(_, Option<&str>)| before.is_none())
            }
        };
        let is_apart = is_code || trimmed.is_empty() || trimmed.starts_with(['|', '<', '#']);
        lines.push((index + 1, (!is_apart).then_some(line)));
    }
    lines
}

fn begins_item(line: &str) -> bool {
    let line = line.trim_start();
    let is_numbered = line.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
    is_numbered || ["- ", "* ", "+ "].iter().any(|bullet| line.starts_with(bullet))
}

fn long_paragraphs(file: &TextFile) -> Vec<Offence> {
    let mut offences = Vec::new();
    let (mut begin, mut words) = (0, 0);
    let mut end = |begin: usize, words: usize| {
        if words > PARAGRAPH_WORDS_MAX {
            offences.push(Offence::new(&file.path, begin, format!("{words} words")));
        }
    };
    for (number, line) in prose(&file.text) {
        if line.is_none_or(begins_item) {
            end(begin, words);
            words = 0;
        }
        let Some(line) = line else { continue };
        if words == 0 {
            begin = number;
        }
        words += line.split_whitespace().count();
    }
    end(begin, words);
    offences
}

/// A line that is one link or one word cannot be wrapped.
fn long_lines(file: &TextFile) -> Vec<Offence> {
    let lines = prose(&file.text).into_iter().filter_map(|(number, line)| Some((number, line?)));
    lines
        .map(|(number, line)| (number, line, line.chars().count()))
        .filter(|(_, line, columns)| *columns > COLUMNS_MAX && can_be_wrapped(line))
        .map(|(number, _, columns)| Offence::new(&file.path, number, format!("{columns} columns")))
        .collect()
}

fn can_be_wrapped(line: &str) -> bool {
    let text = line.trim().trim_start_matches(['-', '*', '>', ' ']);
    !text.starts_with("![")
        && text.contains(' ')
        && !(text.starts_with('[') && text.trim_end_matches('.').ends_with(')') && text.matches("](").count() == 1)
}

#[test]
fn code_and_tables_are_no_paragraphs() {
    let words = |count: usize| vec!["word"; count].join(" ");
    let text = |text: String| TextFile { path: "x.md".into(), text };
    let long = words(121);
    assert_eq!(long_paragraphs(&text(format!("# {long}\n\n```\n{long}\n```\n| {long} |\n"))), []);
    let found = long_paragraphs(&text(format!("one\n\n{}\n{}\n\ntwo", words(60), words(61))));
    assert_eq!(found, [Offence::new("x.md", 3, "121 words")]);
    assert_eq!(long_paragraphs(&text(format!("- {}\n- {}\n", words(80), words(80)))), []);
    assert_eq!(long_lines(&text(format!("{}\n    {long}\n", words(21)))).len(), 2);
    assert_eq!(long_lines(&text(format!("[{}](https://example.com/)\n", words(21)))), []);
}
