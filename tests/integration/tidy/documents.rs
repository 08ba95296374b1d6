//! Files name only documents that are in the repository, and links of Markdown lead somewhere.

use super::{Offence, hold};
use anyhow::Result;
use atoll_tests::root;
use atoll_tests::source::text_files;
use regex::Regex;
use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

/// Files whose texts name pages that are made when a test runs.
const EXCEPT: [&str; 3] = ["tests/integration/tidy", "tests/integration/reference", "tests/integration/console"];

/// Endings of the files that are read.
const SOURCES: [&str; 11] = [".rs", ".py", ".sh", ".toml", ".md", ".c", ".cpp", ".cu", ".h", ".mix", "Makefile"];

const REMEDY: &str = "Name a page of the repository, or say what the page says.";

#[test]
fn links_of_markdown_resolve() -> Result<()> {
    let link = Regex::new(r"\]\(([^)\s]+)(?: [^)]*)?\)")?;
    let mut offences = Vec::new();
    for file in text_files(&[".md"])? {
        let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
        for (index, line) in outside_code(&file.text) {
            for target in link.captures_iter(line).map(|found| found[1].to_owned()) {
                if target.contains("://") || target.starts_with("mailto:") {
                    continue;
                }
                let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
                let full = if path.is_empty() { PathBuf::from(&file.path) } else { normal(&folder.join(path)) };
                if !root().join(&full).exists() {
                    offences.push(Offence::new(&file.path, index + 1, format!("no file `{}`", full.display())));
                } else if !anchor.is_empty() && full.extension().is_some_and(|end| end == "md") {
                    let text = std::fs::read_to_string(root().join(&full))?;
                    if !anchors(&text).contains(anchor) {
                        offences.push(Offence::new(&file.path, index + 1, format!("no heading `{target}`")));
                    }
                }
            }
        }
    }
    hold("broken links", REMEDY, &offences)
}

#[test]
fn files_name_documents_that_exist() -> Result<()> {
    let page = Regex::new(r"[A-Za-z0-9_./:-]*[A-Za-z0-9_-]\.md\b")?;
    let mut offences = Vec::new();
    for file in text_files(&SOURCES)? {
        if EXCEPT.iter().any(|path| file.path.starts_with(path)) {
            continue;
        }
        let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
        for (index, line) in file.text.lines().enumerate() {
            for name in page.find_iter(line).map(|found| found.as_str()).filter(|name| !name.contains("://")) {
                let of_folder = folder.ancestors().any(|above| root().join(above).join(name).exists());
                let of_docs = ["docs", "docs/reference"].iter().any(|above| root().join(above).join(name).exists());
                if !of_folder && !of_docs {
                    offences.push(Offence::new(&file.path, index + 1, format!("no document `{name}`")));
                }
            }
        }
    }
    hold("documents that do not exist", REMEDY, &offences)
}

#[test]
fn no_file_cites_the_design_by_number() -> Result<()> {
    // A line break with the marks of a comment may stand between the two words.
    let cited = Regex::new(r"(?i)\bdesign(?:'s)?(?:\s|//[/!]?|#)+D\d+\b|\(D\d{1,2}\)|\bD\d{1,2} of the design")?;
    let mut offences = Vec::new();
    for file in text_files(&SOURCES)? {
        if EXCEPT.iter().any(|path| file.path.starts_with(path)) {
            continue;
        }
        for found in cited.find_iter(&file.text) {
            let line = file.text[..found.start()].lines().count().max(1);
            let what = found.as_str().split_whitespace().collect::<Vec<_>>().join(" ");
            offences.push(Offence::new(&file.path, line, format!("`{what}`")));
        }
    }
    hold("citations of the design", REMEDY, &offences)
}

/// The lines outside of fenced code, with their indices.
fn outside_code(text: &str) -> Vec<(usize, &str)> {
    let mut is_code = false;
    let lines = text.lines().enumerate().filter(|(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    lines.collect()
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = outside_code(text).into_iter().filter_map(|(_, line)| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len() && title.starts_with(' ')).then_some(title.trim())
    });
    headings.map(anchor).collect()
}

fn anchor(title: &str) -> String {
    let kept = title.to_lowercase();
    let kept = kept.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

/// A path without `..` and `.`.
fn normal(path: &Path) -> PathBuf {
    let mut parts: Vec<Component<'_>> = Vec::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(parts.pop()),
            Component::CurDir => {}
            part => parts.push(part),
        }
    }
    parts.iter().collect()
}

#[test]
fn headings_have_the_anchors_of_github() {
    let found = anchors("# A title: `code`, more\n```\n# no heading\n```\n## Two  words\n");
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["a-title-code-more", "two--words"]);
    assert_eq!(normal(Path::new("docs/guide/../import.md")), Path::new("docs/import.md"));
}
