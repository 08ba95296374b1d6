//! Figures of a paper as tables of text and as JSON.

use crate::output::{Align, Table};
use crate::report::Findings;
use anyhow::Result;
use serde::Serialize;
use serde_json::{Map, Value};

/// A row of a figure: its cells by the names of their columns.
pub(crate) type Cells = Vec<(&'static str, Cell)>;

/// A cell of a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Cell {
    /// A name, or a value of the paper in its words.
    Text(String),
    /// A number of things.
    Count(u64),
    /// Any other number, printed with three decimals.
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

/// Figures of one paper.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    json: Map<String, Value>,
    text: String,
}

impl Figures {
    /// Adds a figure whose rows have the same columns, under a key of the JSON.
    ///
    /// # Errors
    /// A cell is a number that JSON does not have.
    pub(crate) fn add(&mut self, key: &str, title: &str, rows: &[Cells]) -> Result<()> {
        let of_row = |cells: &Cells| -> Result<Value> {
            let cells = cells.iter().map(|(name, cell)| Ok(((*name).to_owned(), serde_json::to_value(cell)?)));
            Ok(Value::Object(cells.collect::<Result<Map<String, Value>>>()?))
        };
        self.json.insert(key.to_owned(), rows.iter().map(of_row).collect::<Result<Vec<Value>>>()?.into());
        self.text += &format!("{title}\n{}\n", table(rows));
        Ok(())
    }

    /// All figures.
    ///
    /// # Errors
    /// None are expected: the JSON is made of values.
    pub(crate) fn findings(self) -> Result<Findings> {
        Findings::new(&self.json, self.text)
    }
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
