//! Results of measurements: printed, written to a file, and saved in a page.

use crate::output::print;
use crate::record::Record;
use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;

/// Flags of all measurements, for their output.
#[derive(Debug, clap::Args)]
pub(crate) struct ReportArgs {
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,

    /// Also write the JSON to a file
    #[arg(long, global = true, value_name = "FILE.json")]
    json_file: Option<PathBuf>,

    /// Also append the result to the page of this day and commit in a folder, with machine, command
    /// line, text and JSON [default folder: docs/benchmarks of the Atoll repository that contains
    /// the current folder]
    #[arg(long, global = true, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    save: Option<Option<PathBuf>>,
}

/// The result of a measurement.
pub(crate) struct Findings {
    /// For people.
    pub(crate) text: String,
    /// The same as JSON; ends in a line break.
    pub(crate) json: String,
    /// Why the measurement failed although it has a result.
    pub(crate) failure: Option<anyhow::Error>,
}

impl Findings {
    /// The result of a measurement that succeeded.
    pub(crate) fn new(json: &impl Serialize, text: impl Display) -> Result<Findings> {
        let json = serde_json::to_string_pretty(json)? + "\n";
        Ok(Findings { text: text.to_string(), json, failure: None })
    }

    /// The same result, of a measurement that failed.
    #[cfg(any(test, feature = "compiler"))]
    pub(crate) fn with_failure(self, failure: anyhow::Error) -> Findings {
        Findings { failure: Some(failure), ..self }
    }
}

/// A measurement that runs.
pub(crate) struct Report<'a> {
    args: &'a ReportArgs,
    record: Option<Record>,
}

impl ReportArgs {
    /// Checks before the measurement that its result can be saved, and notes when it began.
    pub(crate) fn begin(&self) -> Result<Report<'_>> {
        let record = self.save.as_ref().map(|folder| Record::begin(folder.as_deref())).transpose()?;
        Ok(Report { args: self, record })
    }
}

impl Report<'_> {
    /// Prints the result and saves it as requested. Returns the failure of the measurement, if
    /// there is one.
    pub(crate) fn finish(self, findings: Findings) -> Result<()> {
        if let Some(path) = &self.args.json_file {
            std::fs::write(path, &findings.json).with_context(|| format!("cannot write {}", path.display()))?;
        }
        if let Some(record) = &self.record {
            let path = record.append(&findings)?;
            writeln!(std::io::stderr(), "saved in {}", path.display())?;
        }
        print(if self.args.json { &findings.json } else { &findings.text })?;
        findings.failure.map_or(Ok(()), Err)
    }
}
