//! Summary over many kernels.

use super::PassSet;
use super::measure::{Figures, Row};
use crate::output::{Align, Table};
use serde::Serialize;

/// Effects of a set of passes on the kernels that it changed, on one architecture.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    passes: String,
    architecture: String,
    kernels: usize,
    /// Additional registers: median, 90th percentile, maximum.
    registers_more: [i64; 3],
    /// Additional instructions: median, 90th percentile, maximum.
    instructions_more: [i64; 3],
    /// Length after the passes over length before: median, 90th percentile, maximum.
    length_ratio: [f64; 3],
    /// Kernels whose registers had to be limited.
    held: usize,
    /// Kernels with fewer resident warps per compute unit.
    lose_warps: usize,
    /// Kernels with more spills.
    spill_more: usize,
    /// Kernels with checks in loops, and the smallest share of inner-loop work that one of them
    /// kept.
    checked: usize,
    inner_kept_min: Option<f64>,
}

/// Summaries by set of passes and architecture, in the given order.
pub(super) fn summarize(rows: &[Row], sets: &[PassSet], architectures: &[String]) -> Vec<Summary> {
    let of = |set: &PassSet, architecture: &String| {
        let rows: Vec<&Row> =
            rows.iter().filter(|row| row.passes == set.name && row.architecture == *architecture).collect();
        rows.first().map(|first| Summary::of(first, &rows))
    };
    sets.iter().flat_map(|set| architectures.iter().filter_map(move |architecture| of(set, architecture))).collect()
}

impl Summary {
    fn of(first: &Row, rows: &[&Row]) -> Summary {
        let more = |row: &Row, what: fn(&Figures) -> u32| i64::from(what(&row.after)) - i64::from(what(&row.before));
        let ratio = |row: &&Row| f64::from(row.after.instructions) / f64::from(row.before.instructions.max(1));
        let kept: Vec<f64> = rows.iter().filter_map(|row| row.inner_kept).collect();
        Summary {
            passes: first.passes.clone(),
            architecture: first.architecture.clone(),
            kernels: rows.len(),
            registers_more: percentiles(rows.iter().map(|row| more(row, |f| f.registers)).collect(), i64::cmp),
            instructions_more: percentiles(rows.iter().map(|row| more(row, |f| f.instructions)).collect(), i64::cmp),
            length_ratio: percentiles(rows.iter().map(ratio).collect(), f64::total_cmp),
            held: rows.iter().filter(|row| row.held).count(),
            lose_warps: rows.iter().filter(|row| row.loses_warps()).count(),
            spill_more: rows.iter().filter(|row| row.spills_more()).count(),
            checked: kept.len(),
            inner_kept_min: kept.into_iter().min_by(f64::total_cmp),
        }
    }
}

/// Median, 90th percentile and maximum of at least one value.
fn percentiles<T: Copy>(mut values: Vec<T>, order: fn(&T, &T) -> std::cmp::Ordering) -> [T; 3] {
    values.sort_by(order);
    [50, 90, 100].map(|percent| values[(values.len() - 1) * percent / 100])
}

/// One row per summary.
pub(super) fn table(summaries: &[Summary]) -> String {
    let mut table = Table::new([
        ("passes", Align::Left),
        ("arch", Align::Left),
        ("kernels", Align::Right),
        ("registers more p50, p90, max", Align::Right),
        ("instructions more p50, p90, max", Align::Right),
        ("length p50, p90, max", Align::Right),
        ("held", Align::Right),
        ("lose warps", Align::Right),
        ("spill more", Align::Right),
        ("inner loops kept", Align::Right),
    ]);
    for summary in summaries {
        let whole = |values: [i64; 3]| values.map(|v| v.to_string()).join(", ");
        table.row([
            summary.passes.clone(),
            summary.architecture.clone(),
            summary.kernels.to_string(),
            whole(summary.registers_more),
            whole(summary.instructions_more),
            summary.length_ratio.map(|v| format!("{v:.2}")).join(", "),
            summary.held.to_string(),
            summary.lose_warps.to_string(),
            summary.spill_more.to_string(),
            summary
                .inner_kept_min
                .map_or(String::new(), |kept| format!("≥ {:.0} % of {}", (100.0 * kept).floor(), summary.checked)),
        ]);
    }
    table.to_string()
}
