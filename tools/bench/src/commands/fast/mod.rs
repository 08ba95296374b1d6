//! `atoll bench fast`

mod figures;
mod pods;

use crate::output::{Align, Table};
use crate::report::Findings;
use anyhow::Result;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

const EXAMPLES: &str = "\
Examples:
  atoll bench fast
  atoll bench fast --figure 8,10 --seconds 10
  atoll bench fast --figure 11 --json

Kernels are in the shape of the paper's: ResNet and RNNT use a quarter of a V100, GNMT and BERT half of
it, and a request takes alone what it takes there. Figure 12 with other loads is `atoll bench scaling`.";

/// The figures of FaST-GShare's evaluation (8 to 13), on a simulated V100
///
/// 8: throughput by quota and partition. 9: two pods that share in time, and in space. 10: several
/// pods with partitions beside pods that race. 11: devices that a set of pods needs. 12: instances
/// that follow a load. 13: memory with shared constants.
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Figures
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "8,9,10,11,12,13",
        value_parser = clap::value_parser!(u8).range(8..=13)
    )]
    figure: Vec<u8>,

    /// Duration of each simulated run
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// Seed of random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A row of a figure: its cells by the names of their columns.
type Cells = Vec<(&'static str, Cell)>;

/// A cell of a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
enum Cell {
    Text(String),
    Count(u64),
    Number(f64),
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.into())
    }
}

impl From<u64> for Cell {
    fn from(count: u64) -> Cell {
        Cell::Count(count)
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Cell {
        Cell::Number(number)
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cell::Text(text) => f.write_str(text),
            Cell::Count(count) => write!(f, "{count}"),
            Cell::Number(number) => write!(f, "{number:.3}"),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    let (mut json, mut text) = (Map::new(), String::new());
    for figure in args.figure.iter().copied().collect::<BTreeSet<u8>>() {
        let (title, rows) = match figure {
            8 => ("throughput by partition and quota", figures::profile(args)?),
            9 => ("two pods that share in time, and in space", figures::isolation(args)?),
            10 => ("pods with partitions, and pods that race", figures::spatial(args)?),
            11 => ("devices for eight pods", figures::packed(args)?),
            12 => ("instances that follow a load", figures::scaled(args)),
            _ => ("memory with shared constants", figures::memory()),
        };
        let of_row = |cells: &Cells| -> Result<Value> {
            let cells = cells.iter().map(|(name, cell)| Ok(((*name).to_owned(), serde_json::to_value(cell)?)));
            Ok(Value::Object(cells.collect::<Result<Map<String, Value>>>()?))
        };
        json.insert(format!("figure_{figure}"), rows.iter().map(of_row).collect::<Result<Vec<Value>>>()?.into());
        text += &format!("Figure {figure}: {title}\n{}\n", table(&rows));
    }
    Findings::new(&json, text)
}

/// Rows of the same columns as a table of text.
fn table(rows: &[Cells]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let align = |cell: &Cell| if matches!(cell, Cell::Text(_)) { Align::Left } else { Align::Right };
    let mut table = Table::of_columns(first.iter().map(|(name, cell)| (name.replace('_', " "), align(cell))));
    for row in rows {
        table.cells(row.iter().map(|(_, cell)| cell.to_string()));
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_rows_and_the_shape_of_the_paper() {
        let args = Args { figure: vec![8, 9, 10, 11, 12, 13], seconds: 1, seed: 1 };
        let findings = run(&args).unwrap();
        let json: Value = serde_json::from_str(&findings.json).unwrap();
        for figure in 8..=13 {
            let rows = json[format!("figure_{figure}")].as_array().unwrap();
            assert!(rows.len() > 1, "figure {figure}: {rows:?}");
            assert!(findings.text.contains(&format!("Figure {figure}: ")));
        }
        let devices: Vec<u64> =
            json["figure_11"].as_array().unwrap().iter().map(|row| row["devices"].as_u64().unwrap()).collect();
        assert_eq!(devices, [4, 1], "one device instead of four");
        let point = |partition: u64, quota: u64| {
            let rows = json["figure_8"].as_array().unwrap();
            let is_it =
                |row: &&Value| row["model"] == "ResNet" && row["partition"] == partition && row["quota"] == quota;
            rows.iter().find(is_it).unwrap()["per_s"].as_f64().unwrap()
        };
        assert!(point(50, 100) < point(24, 100) * 1.2, "it saturates at a quarter of the units");
        assert!(point(12, 100) < point(24, 100) * 0.8 && point(24, 20) < point(24, 100) * 0.4);
    }
}
