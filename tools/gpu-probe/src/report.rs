//! The results: rows, printed as a table and saved as JSON.

use crate::stats::percentile;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// One result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The probe; set by the code that runs it.
    #[serde(default)]
    pub(crate) probe: String,
    /// The conditions of the measurement.
    pub(crate) case: String,
    /// The measured quantity.
    pub(crate) metric: String,
    /// The value.
    pub(crate) value: Value,
}

/// A value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Value {
    /// A distribution of samples.
    Samples {
        /// Unit of the numbers.
        unit: String,
        /// Number of samples.
        count: usize,
        /// Median.
        p50: f64,
        /// 99th percentile.
        p99: f64,
    },
    /// An observation.
    Text(String),
    /// The probe failed.
    Error(String),
}

impl Row {
    /// A distribution of samples.
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

/// Collects the rows of a probe, so that rows found before an error or a hang are kept.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// The rows so far.
    pub(crate) rows: Vec<Row>,
    /// Whether to write each row to standard output immediately, as a line of JSON.
    pub(crate) announce: bool,
}

impl Findings {
    /// Adds a row.
    pub(crate) fn push(&mut self, row: Row) {
        if self.announce {
            // Serializing a row cannot fail.
            serde_json::to_string(&row).into_iter().for_each(|line| println!("{line}"));
        }
        self.rows.push(row);
    }
}

/// Results of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Version of this format.
    pub(crate) version: u32,
    /// The measured device.
    pub(crate) device: DeviceFacts,
    /// In the order of the probes.
    pub(crate) rows: Vec<Row>,
}

/// The device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DeviceFacts {
    /// Its name.
    pub(crate) name: String,
    /// Architecture, as in `sm_90`.
    pub(crate) architecture: String,
    /// Compute units.
    pub(crate) compute_units: u32,
    /// Clock in MHz.
    pub(crate) clock_mhz: u32,
    /// CUDA version of the driver.
    pub(crate) driver: String,
}

impl Report {
    /// Whether any probe failed.
    pub(crate) fn has_errors(&self) -> bool {
        self.rows.iter().any(|row| matches!(row.value, Value::Error(_)))
    }

    /// The table as text.
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
