//! Prometheus' text format.

use super::recorder::BUCKETS_NS;
use atoll_engine::BatchStatistics;
use std::fmt::Write;

/// Writes the samples of one metric.
pub(super) struct Samples<'a> {
    pub(super) name: &'static str,
    /// The device that the samples describe, as their label `device`; `None` for samples of the
    /// daemon.
    pub(super) device: Option<&'a str>,
    pub(super) text: &'a mut String,
}

/// Upper bounds of the buckets for the rows of a run.
const BUCKETS_ROWS: [u64; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/// Names and values of labels.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

impl Samples<'_> {
    pub(super) fn integer(&mut self, labels: Labels<'_>, value: u64) {
        self.line("", labels, None, &value.to_string());
    }

    pub(super) fn number(&mut self, labels: Labels<'_>, value: f64) {
        self.line("", labels, None, &value.to_string());
    }

    /// Writes a histogram of durations in seconds. `cumulative` has one count for each of
    /// [`BUCKETS_NS`], followed by the total count.
    pub(super) fn histogram(&mut self, labels: Labels<'_>, cumulative: &[u64], sum_ns: u64) {
        let count = cumulative.last().copied().unwrap_or(0);
        for (bound, value) in BUCKETS_NS.iter().zip(cumulative) {
            self.line("_bucket", labels, Some(&seconds(*bound).to_string()), &value.to_string());
        }
        self.line("_bucket", labels, Some("+Inf"), &count.to_string());
        self.line("_sum", labels, None, &seconds(sum_ns).to_string());
        self.line("_count", labels, None, &count.to_string());
    }

    /// Writes a histogram of the rows of runs.
    pub(super) fn rows(&mut self, labels: Labels<'_>, batches: &[BatchStatistics]) {
        let (mut count, mut sum, mut batches) = (0, 0, batches.iter().peekable());
        for bound in BUCKETS_ROWS {
            while let Some(batch) = batches.next_if(|batch| batch.rows <= bound) {
                (count, sum) = (count + batch.count, sum + batch.rows * batch.count);
            }
            self.line("_bucket", labels, Some(&bound.to_string()), &count.to_string());
        }
        for batch in batches {
            (count, sum) = (count + batch.count, sum + batch.rows * batch.count);
        }
        self.line("_bucket", labels, Some("+Inf"), &count.to_string());
        self.line("_sum", labels, None, &sum.to_string());
        self.line("_count", labels, None, &count.to_string());
    }

    fn line(&mut self, suffix: &str, labels: Labels<'_>, bound: Option<&str>, value: &str) {
        let last = self.device.map(|device| ("device", device)).into_iter().chain(bound.map(|bound| ("le", bound)));
        let labels: Vec<String> =
            labels.iter().copied().chain(last).map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let braces = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{}{suffix}{braces} {value}", self.name);
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_counted_up_to_each_bound() {
        let mut text = String::new();
        let batch = |rows, count| BatchStatistics { rows, count, ..BatchStatistics::default() };
        let mut samples = Samples { name: "m", device: None, text: &mut text };
        samples.rows(&[], &[batch(1, 3), batch(3, 2), batch(4, 1), batch(300, 1)]);
        let expected = "m_bucket{le=\"1\"} 3\nm_bucket{le=\"2\"} 3\nm_bucket{le=\"4\"} 6\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.ends_with("m_bucket{le=\"256\"} 6\nm_bucket{le=\"+Inf\"} 7\nm_sum 313\nm_count 7\n"), "{text}");
    }

    #[test]
    fn labels_are_escaped_and_bounds_are_seconds() {
        let mut text = String::new();
        let mut samples = Samples { name: "m", device: None, text: &mut text };
        samples.integer(&[("a", "q\"\\\n"), ("b", "")], 7);
        let mut cumulative = vec![1; BUCKETS_NS.len()];
        cumulative.push(2);
        samples.histogram(&[], &cumulative, 1_500_000_000);
        assert!(text.starts_with("m{a=\"q\\\"\\\\\\n\",b=\"\"} 7\nm_bucket{le=\"0.00005\"} 1\n"), "{text}");
        assert!(text.ends_with("m_bucket{le=\"10\"} 1\nm_bucket{le=\"+Inf\"} 2\nm_sum 1.5\nm_count 2\n"), "{text}");
        let mut text = String::new();
        let mut samples = Samples { name: "m", device: Some("host:1"), text: &mut text };
        samples.integer(&[], 1);
        samples.histogram(&[("a", "b")], &cumulative, 0);
        assert!(
            text.starts_with("m{device=\"host:1\"} 1\nm_bucket{a=\"b\",device=\"host:1\",le=\"0.00005\"} 1\n"),
            "{text}"
        );
    }
}
