//! What the probes found: rows, as a table for people and as JSON for programs.

use crate::stats::percentile;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// One finding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The probe; filled in by whoever runs it.
    #[serde(default)]
    pub(crate) probe: String,
    /// Under which circumstances.
    pub(crate) case: String,
    /// What was measured.
    pub(crate) metric: String,
    /// The result.
    pub(crate) value: Value,
}

/// A result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Value {
    /// A distribution.
    Samples {
        /// Unit of the numbers.
        unit: String,
        /// How many samples.
        count: usize,
        /// Median.
        p50: f64,
        /// 99th percentile.
        p99: f64,
    },
    /// An observation in words.
    Text(String),
    /// The probe could not measure it.
    Error(String),
}

impl Row {
    /// A distribution.
    pub(crate) fn samples(case: impl Into<String>, metric: &str, unit: &str, samples: &[f64]) -> Row {
        let value = match (percentile(samples, 50.0), percentile(samples, 99.0)) {
            (Some(p50), Some(p99)) => Value::Samples { unit: unit.to_owned(), count: samples.len(), p50, p99 },
            _ => Value::Error("no samples".to_owned()),
        };
        Row { probe: String::new(), case: case.into(), metric: metric.to_owned(), value }
    }

    /// An observation.
    pub(crate) fn text(case: impl Into<String>, metric: &str, text: impl Into<String>) -> Row {
        Row { probe: String::new(), case: case.into(), metric: metric.to_owned(), value: Value::Text(text.into()) }
    }

    /// A failure.
    pub(crate) fn error(case: impl Into<String>, error: impl ToString) -> Row {
        Row {
            probe: String::new(),
            case: case.into(),
            metric: "failed".to_owned(),
            value: Value::Error(error.to_string()),
        }
    }
}

/// Where a probe puts its rows, so that those found before an error or a hang are not lost.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// The rows so far.
    pub(crate) rows: Vec<Row>,
    /// Write each row to standard output as a line of JSON at once.
    pub(crate) announce: bool,
}

impl Findings {
    /// Adds a row.
    pub(crate) fn push(&mut self, row: Row) {
        if self.announce {
            // A row is plain data and always has a text.
            serde_json::to_string(&row).into_iter().for_each(|line| println!("{line}"));
        }
        self.rows.push(row);
    }
}

/// Everything of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Version of this format.
    pub(crate) version: u32,
    /// What was measured on.
    pub(crate) device: DeviceFacts,
    /// In the order of the probes.
    pub(crate) rows: Vec<Row>,
}

/// The device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DeviceFacts {
    /// Its name.
    pub(crate) name: String,
    /// `sm_90`.
    pub(crate) architecture: String,
    /// Compute units.
    pub(crate) compute_units: u32,
    /// Clock in MHz.
    pub(crate) clock_mhz: u32,
    /// The CUDA version its driver speaks.
    pub(crate) driver: String,
}

impl Report {
    /// Whether some probe failed.
    pub(crate) fn has_errors(&self) -> bool {
        self.rows.iter().any(|row| matches!(row.value, Value::Error(_)))
    }

    /// The table.
    pub(crate) fn table(&self) -> String {
        let device = &self.device;
        let mut text = format!(
            "{} ({}, {} compute units, {} MHz, CUDA {})\n",
            device.name, device.architecture, device.compute_units, device.clock_mhz, device.driver
        );
        let wide = |column: fn(&Row) -> &str, least: usize| {
            self.rows.iter().map(|r| column(r).chars().count()).max().unwrap_or(0).max(least)
        };
        let (case_width, metric_width) = (wide(|r| &r.case, 4), wide(|r| &r.metric, 6));
        let mut probe = None;
        for row in &self.rows {
            if probe != Some(&row.probe) {
                probe = Some(&row.probe);
                // Writing to a string cannot fail.
                _ = writeln!(text, "\n{}", row.probe);
                _ = writeln!(
                    text,
                    "  {:case_width$}  {:metric_width$}  {:>10}  {:>10}  {:6} {:>6}",
                    "case", "metric", "p50", "p99", "unit", "n"
                );
            }
            _ = write!(text, "  {:case_width$}  {:metric_width$}  ", row.case, row.metric);
            _ = match &row.value {
                Value::Samples { unit, count, p50, p99 } => {
                    writeln!(text, "{p50:>10.3}  {p99:>10.3}  {unit:6} {count:>6}")
                }
                Value::Text(words) => writeln!(text, "{words}"),
                Value::Error(error) => writeln!(text, "error: {error}"),
            };
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let device = DeviceFacts {
            name: "Test".into(),
            architecture: "sm_75".into(),
            compute_units: 2,
            clock_mhz: 1000,
            driver: "12.4".into(),
        };
        let mut rows = vec![
            Row::samples("one block", "per kernel", "us", &[1.0, 2.0, 3.0]),
            Row::text("exit", "barriers", "correct"),
            Row::error("all", "CUDA_ERROR_UNKNOWN"),
        ];
        rows.iter_mut().for_each(|row| row.probe = "evicted-kernel".into());
        rows[2].probe = "sticky".into();
        Report { version: 1, device, rows }
    }

    #[test]
    fn the_table_has_a_heading_per_probe_and_a_line_per_row() {
        let expected = "\
Test (sm_75, 2 compute units, 1000 MHz, CUDA 12.4)

evicted-kernel
  case       metric             p50         p99  unit        n
  one block  per kernel       2.000       3.000  us          3
  exit       barriers    correct

sticky
  case       metric             p50         p99  unit        n
  all        failed      error: CUDA_ERROR_UNKNOWN
";
        assert_eq!(report().table(), expected);
    }

    #[test]
    fn json_reads_back_and_failures_show() {
        let text = serde_json::to_string(&report()).expect("plain data");
        let back: Report = serde_json::from_str(&text).expect("own format");
        assert_eq!(back.rows, report().rows);
        assert!(back.has_errors());
        assert!(matches!(Row::samples("none", "x", "us", &[]).value, Value::Error(_)));
    }
}
