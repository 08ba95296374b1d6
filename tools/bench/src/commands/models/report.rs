//! The report as a table and as JSON.

use super::cases::{Prepared, Variant};
use super::measure::Times;
use crate::output::{Align, Table, milliseconds};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// All results.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) rows: Vec<Row>,
    geometric_means: Vec<Mean>,
    pub(super) failed: Vec<Failed>,
}

/// A model in one variant with one number of threads.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    model: String,
    variant: Variant,
    /// Shape of the inputs.
    shape: String,
    threads: u32,
    /// Median of all runs.
    atoll_ms: f64,
    ort_ms: Option<f64>,
    /// Ratio of the medians; above 1 means slower than ONNX Runtime.
    ratio: Option<f64>,
    /// Shortest run.
    atoll_min_ms: f64,
    ort_min_ms: Option<f64>,
    /// Ratio of the shortest runs.
    ratio_min: Option<f64>,
    /// CPU time of all threads per run, including the engine's, in the best turn.
    atoll_cpu_ms: f64,
    ort_cpu_ms: Option<f64>,
    ratio_cpu: Option<f64>,
    pairs: u32,
    /// Largest difference of an output from ONNX Runtime's, relative to the largest element.
    difference: Option<f64>,
    compile_ms: f64,
}

/// Geometric mean over models.
#[derive(Debug, Serialize)]
struct Mean {
    variant: Variant,
    threads: u32,
    models: usize,
    ratio: f64,
    ratio_min: f64,
    ratio_cpu: f64,
}

/// A model that could not be measured.
#[derive(Debug, Serialize)]
pub(super) struct Failed {
    pub(super) model: String,
    pub(super) variant: Variant,
    pub(super) reason: String,
}

impl Row {
    #[expect(clippy::too_many_arguments, reason = "what one row says")]
    pub(super) fn new(
        model: &str,
        prepared: &Prepared,
        shape: String,
        threads: u32,
        mine: Times,
        theirs: Option<Times>,
        pairs: u32,
        difference: Option<f64>,
    ) -> Row {
        Row {
            model: model.to_owned(),
            variant: prepared.variant,
            shape,
            threads,
            atoll_ms: mine.median,
            ort_ms: theirs.map(|theirs| theirs.median),
            ratio: theirs.map(|theirs| mine.median / theirs.median),
            atoll_min_ms: mine.min,
            ort_min_ms: theirs.map(|theirs| theirs.min),
            ratio_min: theirs.map(|theirs| mine.min / theirs.min),
            atoll_cpu_ms: mine.cpu,
            ort_cpu_ms: theirs.map(|theirs| theirs.cpu),
            ratio_cpu: theirs.map(|theirs| mine.cpu / theirs.cpu),
            pairs,
            difference,
            compile_ms: milliseconds(prepared.compile),
        }
    }
}

fn geometric_mean(ratios: &[f64]) -> f64 {
    (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp()
}

impl Report {
    /// Adds the means of all rows.
    pub(super) fn sum_up(&mut self) {
        let mut groups: BTreeMap<(Variant, u32), Vec<[f64; 3]>> = BTreeMap::new();
        for row in &self.rows {
            if let (Some(ratio), Some(ratio_min), Some(ratio_cpu)) = (row.ratio, row.ratio_min, row.ratio_cpu) {
                groups.entry((row.variant, row.threads)).or_default().push([ratio, ratio_min, ratio_cpu]);
            }
        }
        let mean = |((variant, threads), ratios): ((Variant, u32), Vec<[f64; 3]>)| {
            let of = |which: usize| geometric_mean(&ratios.iter().map(|ratios| ratios[which]).collect::<Vec<_>>());
            Mean { variant, threads, models: ratios.len(), ratio: of(0), ratio_min: of(1), ratio_cpu: of(2) }
        };
        self.geometric_means = groups.into_iter().map(mean).collect();
    }

    /// The table and the means as text.
    pub(super) fn text(&self) -> String {
        let mut table = Table::new([
            ("model", Align::Left),
            ("variant", Align::Left),
            ("threads", Align::Right),
            ("Atoll ms", Align::Right),
            ("ORT ms", Align::Right),
            ("ratio", Align::Right),
            ("Atoll min", Align::Right),
            ("ORT min", Align::Right),
            ("ratio", Align::Right),
            ("CPU ratio", Align::Right),
            ("compile s", Align::Right),
            ("shape", Align::Left),
        ]);
        let number = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.2}"));
        for row in &self.rows {
            table.row([
                row.model.clone(),
                format!("{:?}", row.variant).to_lowercase(),
                row.threads.to_string(),
                number(Some(row.atoll_ms)),
                number(row.ort_ms),
                number(row.ratio),
                number(Some(row.atoll_min_ms)),
                number(row.ort_min_ms),
                number(row.ratio_min),
                number(row.ratio_cpu),
                number(Some(row.compile_ms / 1e3)),
                row.shape.clone(),
            ]);
        }
        let mut text = table.to_string();
        for Mean { variant, threads, models, ratio, ratio_min, ratio_cpu } in &self.geometric_means {
            let variant = format!("{variant:?}").to_lowercase();
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "geometric mean of {models}, {variant}, threads {threads}: {ratio:.2}, of the shortest runs \
                {ratio_min:.2}, of CPU time {ratio_cpu:.2}"
            );
        }
        for Failed { model, variant, reason } in &self.failed {
            let _ = writeln!(text, "{model}, {}: {reason}", format!("{variant:?}").to_lowercase());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(variant: Variant, threads: u32, ratio: Option<f64>) -> Row {
        Row {
            model: "m".into(),
            variant,
            shape: "x=1".into(),
            threads,
            atoll_ms: 1.0,
            ort_ms: ratio.map(|ratio| 1.0 / ratio),
            ratio,
            atoll_min_ms: 1.0,
            ort_min_ms: ratio,
            ratio_min: ratio.map(|ratio| ratio / 2.0),
            atoll_cpu_ms: 1.0,
            ort_cpu_ms: ratio,
            ratio_cpu: ratio.map(|ratio| ratio * 4.0),
            pairs: 1,
            difference: None,
            compile_ms: 0.0,
        }
    }

    #[test]
    fn means_are_geometric_and_by_variant_and_threads() {
        let rows = vec![
            row(Variant::Static, 1, Some(2.0)),
            row(Variant::Static, 1, Some(0.5)),
            row(Variant::Static, 2, Some(3.0)),
            row(Variant::Symbolic, 1, None),
        ];
        let mut report = Report { rows, ..Report::default() };
        report.sum_up();
        let found: Vec<_> =
            report.geometric_means.iter().map(|m| (m.variant, m.threads, m.models, m.ratio, m.ratio_min)).collect();
        assert_eq!(found.len(), 2, "rows without a peer have no mean");
        assert_eq!((found[0].0, found[0].1, found[0].2), (Variant::Static, 1, 2));
        assert!((found[0].3 - 1.0).abs() < 1e-9 && (found[0].4 - 0.5).abs() < 1e-9);
        assert!((found[1].3 - 3.0).abs() < 1e-9);
        let text = report.text();
        assert!(
            text.contains("geometric mean of 2, static, threads 1: 1.00, of the shortest runs 0.50, of CPU time 4.00"),
            "{text}"
        );
    }
}
