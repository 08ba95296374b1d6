//! Rules of style that rustfmt and clippy do not check, held over all files of the repository.
//!
//! A rule lists its offences with file and line. [`REMAINING`] allows a number of offences for a
//! rule and a crate; the number must be lowered when offences are removed.

mod documents;
mod markdown;
mod rust;
mod words;

use anyhow::{Result, ensure};
use atoll_tests::source::crate_of;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Offences that are left: rule, crate, count. A count may only fall.
const REMAINING: &[(&str, &str, usize)] = &[];

/// A place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Offence {
    path: String,
    /// 0 where it is the whole file.
    line: usize,
    what: String,
}

impl Offence {
    fn new(path: &str, line: usize, what: impl Into<String>) -> Offence {
        Offence { path: path.to_owned(), line, what: what.into() }
    }
}

/// Fails if a crate has more or fewer offences than [`REMAINING`] allows. The message has the
/// counts by crate and then every offence.
fn hold(rule: &str, remedy: &str, offences: &[Offence]) -> Result<()> {
    let mut by_crate: BTreeMap<String, Vec<&Offence>> = BTreeMap::new();
    for offence in offences {
        by_crate.entry(crate_of(&offence.path)).or_default().push(offence);
    }
    let allowed = |folder: &str| {
        REMAINING.iter().find(|(of, at, _)| *of == rule && *at == folder).map_or(0, |(_, _, count)| *count)
    };
    let mut report = String::new();
    for (folder, found) in by_crate.iter().filter(|(folder, found)| found.len() > allowed(folder)) {
        writeln!(report, "{rule}: {folder}: {} (allowed: {})", found.len(), allowed(folder))?;
        for Offence { path, line, what } in found {
            writeln!(report, "  {path}:{line}: {what}")?;
        }
    }
    ensure!(report.is_empty(), "{remedy}\n{report}");
    for (_, folder, count) in REMAINING.iter().filter(|(of, _, _)| *of == rule) {
        let found = by_crate.get(*folder).map_or(0, Vec::len);
        ensure!(found >= *count, "{rule}: {folder} has {found} offences left: lower its number in REMAINING");
    }
    Ok(())
}
