//! Results that `atoll bench --save` appended to the pages of `docs/benchmarks`.

use anyhow::{Context, Result};
use regex::Regex;
use serde_json::Value;
use std::path::Path;

/// One saved result.
pub(super) struct Saved {
    /// Date of the page, and time of day in UTC; they sort as text.
    pub(super) at: (String, String),
    /// Abbreviated hash of the commit that was checked out.
    pub(super) commit: Option<String>,
    /// The command line as [`normalized`] writes it.
    pub(super) command: String,
    /// CPU, cores and system.
    pub(super) machine: String,
    /// Load average over the minute before.
    pub(super) load: f64,
    pub(super) json: Value,
}

/// Reads all pages of a folder. Skips results of failed commands and of programs without
/// optimization.
pub(super) fn read(folder: &Path) -> Result<Vec<Saved>> {
    let page = Regex::new(r"^(\d{4}-\d\d-\d\d)(?:-([0-9a-f]{7,}))?\.md$")?;
    let mut results = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(parts) = page.captures(&name) else { continue };
        let commit = parts.get(2).map(|commit| commit.as_str());
        let text = std::fs::read_to_string(entry.path())?;
        for section in text.split("\n## ").skip(1) {
            let is_void = ["\n- the command failed", "built without optimization"].iter().any(|s| section.contains(s));
            if !is_void {
                results.push(result(&parts[1], commit, section).with_context(|| format!("{name}: {section}"))?);
            }
        }
    }
    results.sort_by(|a, b| a.at.cmp(&b.at));
    Ok(results)
}

fn result(date: &str, commit: Option<&str>, section: &str) -> Result<Saved> {
    let line = |name: &str| section.lines().find_map(|line| line.strip_prefix(&format!("- {name}: ")));
    Ok(Saved {
        at: (date.to_owned(), section.split(' ').next().context("the time")?.to_owned()),
        commit: commit.map(str::to_owned),
        command: normalized(block(section, "sh").context("the command")?),
        machine: line("machine").context("the machine")?.to_owned(),
        load: line("load average before").and_then(|load| load.parse().ok()).unwrap_or_default(),
        json: serde_json::from_str(block(section, "json").context("the JSON")?)?,
    })
}

/// The content of the last fenced block of a language.
fn block<'a>(section: &'a str, language: &str) -> Option<&'a str> {
    let (_, rest) = section.rsplit_once(&format!("\n```{language}\n"))?;
    rest.split_once("\n```").map(|(content, _)| content)
}

/// A command line without the parts that differ from run to run: output flags, folders of files,
/// and the address of a daemon.
pub(super) fn normalized(command: &str) -> String {
    let mut words = command.split_whitespace();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match word {
            "--json-file" | "--url" => drop(words.next()),
            _ if word == "--json" || word.starts_with("--save") => {}
            _ => kept.push(if word.starts_with('/') { word.rsplit('/').next().unwrap_or(word) } else { word }),
        }
    }
    kept.join(" ")
}

#[test]
fn a_saved_result_is_read_back() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let section = |time: &str, program: &str| {
        format!(
            "\n## {time} UTC\n\n```sh\natoll bench latency --save=/x --rt /x/a.kg --json\n```\n\n- machine: M, 2 \
             cores\n- load average before: 0.25\n- commit checked out: abc, no changes\n- program: atoll 1, \
             {program}\n\n```text\nrow\n```\n\n```json\n{{\"p50\": 3}}\n```\n"
        )
    };
    let text = format!(
        "# 2026-11-20\n{}{}",
        section("09:00:00", "release"),
        section("10:00:00", "built without optimization")
    );
    std::fs::write(folder.path().join(concat!("2026-11-20-abcdef0", ".md")), text)?;
    std::fs::write(folder.path().join(concat!("memory", ".md")), "# no results")?;
    let saved = read(folder.path())?;
    assert_eq!(saved.len(), 1);
    let Saved { at, commit, command, machine, load, json } = &saved[0];
    assert_eq!((at.0.as_str(), at.1.as_str(), commit.as_deref()), ("2026-11-20", "09:00:00", Some("abcdef0")));
    assert_eq!((command.as_str(), machine.as_str()), ("atoll bench latency --rt a.kg", "M, 2 cores"));
    assert_eq!((*load, &json["p50"]), (0.25, &Value::from(3)));
    Ok(())
}
