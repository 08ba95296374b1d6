//! The order, the filter and the position of the live display's function table.

use super::sample::{FunctionRow, Latency};
use super::{COLUMNS, Column, cells};
use crate::output::Align;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::cmp::Ordering;
use std::ops::Range;

/// Most characters of a filter.
const FILTER_CHARS_MAX: usize = 64;

/// What the user chose to see.
#[derive(Debug, Default)]
pub(super) struct View {
    /// The column that orders the rows; `None` for the order of the daemon.
    sort: Option<Column>,
    is_reversed: bool,
    /// Rows whose names do not contain this text are hidden.
    filter: String,
    /// Whether keys are added to the filter.
    is_typing: bool,
    /// The first row that is shown.
    first: usize,
    /// The largest value of `first`, and how many rows the screen had room for, when it was drawn.
    first_max: usize,
    room: usize,
}

/// What a key does besides changing the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Nothing,
    Draw,
    End,
}

impl View {
    /// Handles a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Effect {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Effect::End;
        }
        if self.is_typing {
            return self.type_filter(key.code);
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Effect::End,
            KeyCode::Right | KeyCode::Char('>') => self.sort_by(1),
            KeyCode::Left | KeyCode::Char('<') => self.sort_by(-1),
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Up | KeyCode::Char('k') => self.first = self.first.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.first = self.first_max.min(self.first + 1),
            KeyCode::PageUp => self.first = self.first.saturating_sub(self.room),
            KeyCode::PageDown => self.first = self.first_max.min(self.first + self.room),
            KeyCode::Home => self.first = 0,
            KeyCode::End => self.first = self.first_max,
            _ => return Effect::Nothing,
        }
        Effect::Draw
    }

    fn type_filter(&mut self, code: KeyCode) -> Effect {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.filter.clear();
                self.is_typing = false;
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(char) if self.filter.chars().count() < FILTER_CHARS_MAX => self.filter.push(char),
            _ => return Effect::Nothing,
        }
        self.first = 0;
        Effect::Draw
    }

    /// Sorts by the next column to the right or left. Before the first and behind the last column is
    /// the order of the daemon.
    fn sort_by(&mut self, step: isize) {
        let places = COLUMNS.len() + 1;
        let place = self.sort.map_or(0, |column| column + 1);
        let next = (place + places).saturating_add_signed(step) % places;
        self.sort = next.checked_sub(1);
        self.is_reversed = false;
    }

    /// The mark of a column in the header: whether the rows are sorted by it, and how.
    pub(super) fn mark(&self, column: Column) -> &'static str {
        match (self.sort == Some(column), self.is_descending()) {
            (false, _) => "",
            (true, true) => " ▼",
            (true, false) => " ▲",
        }
    }

    /// Numbers have the largest first, and texts are in alphabetical order, unless that is reversed.
    fn is_descending(&self) -> bool {
        self.sort.is_some_and(|column| COLUMNS[column].1 == Align::Right) != self.is_reversed
    }

    /// The rows that the filter lets through, in order.
    pub(super) fn rows<'s>(&self, functions: &'s [FunctionRow]) -> Vec<&'s FunctionRow> {
        let filter = self.filter.to_lowercase();
        let has = |row: &&FunctionRow| cells(row)[..4].join(" ").to_lowercase().contains(&filter);
        let mut rows: Vec<&FunctionRow> = functions.iter().filter(has).collect();
        if let Some(column) = self.sort {
            rows.sort_by(|a, b| compare(column, a, b));
        }
        if self.is_descending() {
            rows.reverse();
        }
        rows
    }

    /// The part of `rows` rows that is shown where there is room for `room`.
    pub(super) fn window(&mut self, rows: usize, room: usize) -> Range<usize> {
        (self.room, self.first_max) = (room, rows.saturating_sub(room));
        self.first = self.first.min(self.first_max);
        self.first..rows.min(self.first + room)
    }

    /// A line about the filter and the position; empty if all functions are shown.
    pub(super) fn line(&self, shown: &Range<usize>, rows: usize, functions: usize) -> String {
        let mut parts = Vec::new();
        if self.is_typing || !self.filter.is_empty() {
            let cursor = if self.is_typing { "_" } else { "" };
            parts.push(format!("filter: {}{cursor} ({rows} of {functions} functions)", self.filter));
        }
        if shown.len() < rows {
            parts.push(format!("functions {} to {} of {rows}", shown.start + 1, shown.end));
        }
        parts.join("; ")
    }
}

/// Compares two rows by a column: texts as texts, and numbers as numbers.
fn compare(column: Column, a: &FunctionRow, b: &FunctionRow) -> Ordering {
    match (number(column, a), number(column, b)) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        _ => cells(a)[column].cmp(&cells(b)[column]),
    }
}

/// The number in a column; `None` for a text. A missing latency is below all others.
fn number(column: Column, row: &FunctionRow) -> Option<f64> {
    let latency = |of: fn(&Latency) -> f64| row.latency_ms.as_ref().map_or(-1.0, of);
    Some(match COLUMNS[column].0 {
        "running" => row.running as f64,
        "waiting" => row.waiting as f64,
        "requests/s" => row.requests_per_s,
        "failed/s" => row.failures_per_s,
        "mean ms" => latency(|latency| latency.mean),
        "p50 ms" => latency(|latency| latency.p50),
        "p99 ms" => latency(|latency| latency.p99),
        "preempted/s" => row.preemptions_per_s,
        _ => return None,
    })
}
