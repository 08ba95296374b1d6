//! The report: counts in a table, and one line per unexpected result.

use super::trial::{Group, Task};
use crate::commands::kernel::place::Place;
use crate::output::{Align, Table};
use atoll_workbench::Verdict;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};

/// Maximum number of printed lines; the file has all findings.
const LINES_MAX: usize = 40;

/// Maximum number of random kernels to shrink; each takes a few dozen runs.
const SHRUNK_MAX: usize = 3;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    device: String,
    against: String,
    pub(super) seconds: f64,
    random: Counts,
    corpus: Counts,
    /// The largest difference within the tolerance.
    largest_allowed: Option<Allowed>,
    findings: Vec<Finding>,
    #[serde(skip)]
    corpus_folder: Option<PathBuf>,
}

/// Launches by result.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Counts {
    equal: usize,
    close: usize,
    not_comparable: usize,
    different: usize,
    failed: usize,
    refused: usize,
    no_reference: usize,
    left_out: usize,
}

#[derive(Clone, Debug, Serialize)]
struct Allowed {
    kernel: String,
    share_of_tolerance: f64,
}

/// An unexpected result.
#[derive(Clone, Debug, Serialize)]
struct Finding {
    kernel: String,
    what: &'static str,
    message: String,
    /// Number of consecutive launches with this result: devices often refuse many kernels for the
    /// same reason.
    launches: usize,
    replay: String,
    shrunk: Option<String>,
}

impl Report {
    pub(super) fn new(device: Place, against: Place, corpus: Option<&Path>) -> Report {
        Report {
            device: device.to_string(),
            against: against.to_string(),
            seconds: 0.0,
            random: Counts::default(),
            corpus: Counts::default(),
            largest_allowed: None,
            findings: Vec::new(),
            corpus_folder: corpus.map(Path::to_owned),
        }
    }

    fn counts(&mut self, group: Group) -> &mut Counts {
        match group {
            Group::Random => &mut self.random,
            Group::Corpus => &mut self.corpus,
        }
    }

    /// Counts launches that were left out.
    pub(super) fn leave_out(&mut self, group: Group, launches: usize) {
        self.counts(group).left_out += launches;
    }

    /// Whether to shrink the random kernel.
    pub(super) fn is_worth_shrinking(&self, verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::Different(_))
            && self.findings.iter().filter(|finding| finding.shrunk.is_some()).count() < SHRUNK_MAX
    }

    /// Counts a launch. Returns a line to print if the result is unexpected.
    pub(super) fn note(
        &mut self,
        task: &Task<'_>,
        kernel: &str,
        verdict: Verdict,
        shrunk: Option<String>,
    ) -> Option<String> {
        let counts = self.counts(task.group());
        let (count, what, message) = match verdict {
            Verdict::Equal => (&mut counts.equal, "equal", None),
            Verdict::Close(_) => (&mut counts.close, "close", None),
            Verdict::Unordered => (&mut counts.not_comparable, "not comparable", None),
            Verdict::Different(ref difference) => (&mut counts.different, "differs", Some(difference.to_string())),
            Verdict::Failed(ref error) => (&mut counts.failed, "failed", Some(error.to_string())),
            Verdict::Refused(ref error) => (&mut counts.refused, "refused", Some(error.to_string())),
            Verdict::NoReference(ref error) => {
                (&mut counts.no_reference, "the reference cannot run it", Some(error.to_string()))
            }
        };
        *count += 1;
        if let Verdict::Close(share) = verdict
            && self.largest_allowed.as_ref().is_none_or(|largest| largest.share_of_tolerance < share)
        {
            self.largest_allowed = Some(Allowed { kernel: kernel.to_owned(), share_of_tolerance: share });
        }
        let message = message?;
        if let Some(last) = self.findings.last_mut().filter(|last| last.what == what && last.message == message) {
            last.launches += 1;
            return None;
        }
        let replay = format!(
            "atoll kernel compare --device {} --against {} {}",
            self.device,
            self.against,
            task.replay(self.corpus_folder.as_deref())
        );
        self.findings.push(Finding { kernel: kernel.to_owned(), what, message, launches: 1, replay, shrunk });
        (self.findings.len() <= LINES_MAX).then(|| self.findings[self.findings.len() - 1].to_string())
    }

    /// Whether all launches ran and agree, apart from kernels that the device refuses.
    pub(super) fn has_passed(&self) -> bool {
        let has_passed = |counts: Counts| counts.different + counts.failed + counts.no_reference + counts.left_out == 0;
        has_passed(self.random) && has_passed(self.corpus)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { kernel, what, message, replay, shrunk, .. } = self;
        writeln!(f, "{kernel}: {what}: {message}")?;
        writeln!(f, "  {replay}")?;
        if let Some(shrunk) = shrunk {
            writeln!(f, "  {shrunk}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Align::{Left, Right};
        let unsaid = self.findings.len().saturating_sub(LINES_MAX);
        if unsaid > 0 {
            writeln!(f, "and {unsaid} more; use --save FILE to keep all of them")?;
        }
        writeln!(f, "{} against {}, {:.1} s; launches:", self.device, self.against, self.seconds)?;
        let mut table = Table::new([
            ("kernels", Left),
            ("equal", Right),
            ("close", Right),
            ("not comparable", Right),
            ("different", Right),
            ("failed", Right),
            ("refused", Right),
            ("no reference", Right),
            ("left out", Right),
        ]);
        for (name, counts) in [("random", self.random), ("corpus", self.corpus)] {
            let Counts { equal, close, not_comparable, different, failed, refused, no_reference, left_out } = counts;
            let numbers = [equal, close, not_comparable, different, failed, refused, no_reference, left_out]
                .map(|n| n.to_string());
            let [equal, close, not_comparable, different, failed, refused, no_reference, left_out] = numbers;
            table.row([
                name.to_owned(),
                equal,
                close,
                not_comparable,
                different,
                failed,
                refused,
                no_reference,
                left_out,
            ]);
        }
        write!(f, "{table}")?;
        if let Some(Allowed { kernel, share_of_tolerance }) = &self.largest_allowed {
            writeln!(
                f,
                "largest difference within the tolerance: {:.1} % of the tolerance of its case, {kernel}",
                share_of_tolerance * 100.0
            )?;
        }
        Ok(())
    }
}
