//! Table 4.1 of the thesis: the goodput of three policies for graphs of functions, beside ours.

use crate::output::{Align, Table};
use anyhow::Result;
use atoll_sim::graphs::{ThesisRow, thesis_table};
use serde_json::{Value, json};
use std::fmt::Write;

/// The goodput by latency that the thesis prints for each latency SLO: FIFO, Clockwork, and its own
/// algorithm.
const PUBLISHED: [[&str; 3]; 4] =
    [["0.49", "0.069", "0.59"], ["1.17", "0.208", "1.37"], ["1.99", "0.34", "1.77"], ["2.66", "0.42", "2.82"]];

/// The table as text, and its rows as JSON. Its values cannot equal those of the thesis, which does
/// not publish the times of its functions.
pub(super) fn table_4_1() -> Result<(String, Vec<Value>)> {
    let rows = thesis_table()?;
    let mut text = String::from(
        "Requests per second that meet a latency SLO, and a cost SLO of 60 units (Table 4.1)\n\
         The thesis does not publish its function times. Ours were searched for, so that the policies\n\
         have its order at each SLO, with FIFO ahead at 60 ms. `thesis` is its value by latency.\n\n",
    );
    writeln!(text, "{}", table(&rows))?;
    Ok((text.trim_end().to_string(), rows.iter().map(json).collect()))
}

fn table(rows: &[ThesisRow]) -> Table {
    let mut table = Table::new([
        ("SLO ms", Align::Right),
        ("policy", Align::Left),
        ("thesis", Align::Right),
        ("by latency", Align::Right),
        ("by cost", Align::Right),
    ]);
    for (row, [fifo, clockwork, custom]) in rows.iter().zip(PUBLISHED) {
        let policies = [
            ("FIFO", fifo, row.fifo),
            ("Clockwork", clockwork, row.clockwork),
            ("thesis", custom, row.custom),
            ("atoll", "", row.ours),
        ];
        for (name, published, (latency, cost)) in policies {
            let values = (format!("{latency:.1}"), format!("{cost:.1}"));
            table.row([row.slo_ms.to_string(), name.into(), published.into(), values.0, values.1]);
        }
    }
    table
}

fn json(row: &ThesisRow) -> Value {
    let goodput = |(latency, cost): (f64, f64)| json!({ "latency": latency, "cost": cost });
    json!({
        "slo_ms": row.slo_ms,
        "fifo": goodput(row.fifo),
        "clockwork": goodput(row.clockwork),
        "thesis": goodput(row.custom),
        "atoll": goodput(row.ours),
    })
}
