//! Output of commands: text, tables, JSON, and numbers with units.

pub use atoll_server::parse_bytes;

use crate::failure::user_error;
use anyhow::Result;
use atoll_executor::TenantMemory;
use indicatif::{ProgressBar, ProgressDrawTarget};
use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, Write};
use std::time::Duration;

/// The largest percentage of a GPU's memory that may be reserved for tenants.
const TENANT_PERCENT_MAX: u32 = 95;

/// Parses bytes, or a percentage of a GPU's memory.
pub(crate) fn parse_tenant_memory(text: &str) -> Result<TenantMemory, String> {
    let Some(percent) = text.strip_suffix('%') else { return parse_bytes(text).map(TenantMemory::Bytes) };
    let percent = percent.parse().ok().filter(|percent| *percent <= TENANT_PERCENT_MAX);
    percent.map(TenantMemory::Percent).ok_or_else(|| format!("expected bytes, or 0% to {TENANT_PERCENT_MAX}%"))
}

/// Prints text to standard output.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints a value as JSON.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    Ok(print(&text)?)
}

/// A progress bar on standard error. Hidden if standard error is not a terminal, or if this process
/// runs in the background, where the bar would overwrite the shell's prompt.
pub fn progress(length: u64) -> ProgressBar {
    let target = if is_in_foreground() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    ProgressBar::with_draw_target(Some(length), target)
}

/// Whether standard error is a terminal and this process belongs to its foreground process group.
pub fn is_in_foreground() -> bool {
    tcgetpgrp(io::stderr()).is_ok_and(|group| group == getpgrp())
}

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Left: for text.
    Left,
    /// Right: for numbers.
    Right,
}

/// A table with a header; columns are as wide as their contents.
pub struct Table {
    columns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these columns.
    pub fn new<const N: usize>(header: [(&str, Align); N]) -> Table {
        Table {
            columns: header.iter().map(|h| h.1).collect(),
            rows: vec![header.iter().map(|h| h.0.to_string()).collect()],
        }
    }

    /// An empty table whose columns are known at run time.
    pub fn of_columns(header: impl Iterator<Item = (String, Align)>) -> Table {
        let (titles, columns): (Vec<String>, Vec<Align>) = header.unzip();
        Table { columns, rows: vec![titles] }
    }

    /// Adds a row to such a table.
    pub fn cells(&mut self, cells: impl Iterator<Item = String>) {
        self.rows.push(cells.take(self.columns.len()).collect());
    }

    /// Adds a row with one cell per column.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// Removes a column.
    pub fn hide(&mut self, column: usize) {
        self.columns.remove(column);
        for row in &mut self.rows {
            row.remove(column);
        }
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        for row in &self.rows {
            let mut line = String::from("  ");
            for ((cell, align), width) in row.iter().zip(&self.columns).zip(&widths) {
                let padding = " ".repeat(width - cell.chars().count());
                match align {
                    Align::Left => line.extend([cell.as_str(), &padding, "  "]),
                    Align::Right => line.extend([padding.as_str(), cell, "  "]),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Formats a size, as in `12.3 MiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Formats a count, as in `1 node`, `2 nodes`.
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    let plural = if count == N::from(1) { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Milliseconds of a duration.
pub fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Parses a time limit of launches, in seconds.
pub fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
    // No kernel runs for a day, and the limit keeps conversions to `Duration` safe.
    if seconds > 0.0 && seconds <= 86_400.0 { Ok(seconds) } else { Err("it must be above 0 and at most 86400".into()) }
}

/// Parses a block shape: `256`, `16,16` or `8x8x4`.
pub fn parse_block(text: &str) -> Result<[u32; 3]> {
    let extents: Option<Vec<u32>> =
        text.split([',', 'x']).map(|extent| extent.trim().parse().ok().filter(|e| *e > 0)).collect();
    match extents.as_deref() {
        Some(&[x]) => Ok([x, 1, 1]),
        Some(&[x, y]) => Ok([x, y, 1]),
        Some(&[x, y, z]) => Ok([x, y, z]),
        _ => Err(user_error(format!("--block {text}: expected one to three positive numbers"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written() {
        assert_eq!([0, 1023, 1024, 1 << 20, 3 << 40].map(bytes), ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "3.0 TiB"]);
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new([("name", Align::Left), ("ms", Align::Right)]);
        table.row(["é".into(), "1.5".into()]);
        table.row(["longer".into(), "12.5".into()]);
        assert_eq!(table.to_string(), "  name      ms\n  é        1.5\n  longer  12.5\n");
    }
}
