//! The live display.

use super::sample::{DeviceRow, Sampler, Snapshot, UnitRow, Whole};
use super::{COLUMNS, cells, headline, whole_lines};
use crate::output::Align;
use anyhow::Result;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use std::time::{Duration, Instant};

/// Minimum width of a compute unit, in columns.
const UNIT_WIDTH: u16 = 26;

/// Maximum number of lines for compute units. Further ones are placed side by side; those that do
/// not fit are summed up.
const UNIT_LINES: u16 = 8;

const COLUMN_SPACING: u16 = 2;

/// Columns that a narrow terminal drops, in this order.
const DROPPED_COLUMNS: [&str; 7] = ["mean ms", "failed/s", "p50 ms", "class", "preempted/s", "device", "tenant"];

/// Shows snapshots until the user ends the display.
pub(super) fn run(sampler: &mut Sampler, interval: Duration) -> Result<()> {
    let mut terminal = ratatui::init();
    let shown = show(&mut terminal, sampler, interval);
    ratatui::restore();
    shown
}

fn show(terminal: &mut ratatui::DefaultTerminal, sampler: &mut Sampler, interval: Duration) -> Result<()> {
    let mut snapshot = sampler.sample()?;
    loop {
        terminal.draw(|frame| draw(frame, &snapshot))?;
        let until = Instant::now() + interval;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            if !event::poll(left)? {
                continue;
            }
            match event::read()? {
                Event::Key(key) if is_end(key.code, key.modifiers) => return Ok(()),
                Event::Resize(..) => {
                    terminal.draw(|frame| draw(frame, &snapshot))?;
                }
                _ => {}
            }
        }
        snapshot = sampler.sample()?;
    }
}

fn is_end(code: KeyCode, modifiers: KeyModifiers) -> bool {
    matches!(code, KeyCode::Char('q') | KeyCode::Esc)
        || code == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL)
}

/// Draws a snapshot.
pub(super) fn draw(frame: &mut Frame<'_>, snapshot: &Snapshot) {
    let heights = snapshot
        .devices
        .iter()
        .map(|device| device_height(device, frame.area().width))
        .chain([1])
        .map(Constraint::Length);
    let areas = Layout::vertical(heights.chain([Constraint::Min(0)])).split(frame.area());
    let [devices @ .., gap, table] = &*areas else { return };
    for (device, area) in snapshot.devices.iter().zip(devices) {
        draw_device(frame, snapshot, device, *area);
    }
    let note = if snapshot.lost_records > 0 {
        "latencies cover part of the requests: some records were overwritten before they were read"
    } else {
        ""
    };
    frame.render_widget(Line::from(note).fg(Color::Yellow), *gap);
    frame.render_widget(function_table(snapshot, table.width), *table);
}

/// Number of compute units per line, and number of lines.
fn unit_lines(units: usize, width: u16) -> (u16, u16) {
    let across = (width / UNIT_WIDTH).clamp(1, units.max(1) as u16);
    (across, (units as u16).div_ceil(across).min(UNIT_LINES))
}

fn device_height(device: &DeviceRow, width: u16) -> u16 {
    let units = device.whole.as_ref().map_or(0, |whole| whole.units.len());
    1 + whole_text(device.whole.as_ref()).height() as u16 + unit_lines(units, width).1
}

fn draw_device(frame: &mut Frame<'_>, snapshot: &Snapshot, device: &DeviceRow, area: Rect) {
    let lines = whole_text(device.whole.as_ref());
    let units = device.whole.as_ref().map_or(&[][..], |whole| &whole.units);
    let (across, unit_lines) = unit_lines(units.len(), area.width);
    let [head, whole, bars] =
        Layout::vertical([1, lines.height() as u16, unit_lines].map(Constraint::Length)).areas(area);
    frame.render_widget(Line::from(headline(snapshot, device)).bold(), head);
    frame.render_widget(Paragraph::new(lines), whole);
    frame.render_widget(Paragraph::new(unit_text(units, across, bars)), bars);
}

fn whole_text(whole: Option<&Whole>) -> Text<'static> {
    let Some(whole) = whole else { return Text::default() };
    let lines = whole_lines(whole).into_iter().enumerate().map(|(at, line)| {
        let is_urgent = at == 0 && whole.real_time_share > 0.0;
        Line::from(line).style(if is_urgent { Style::new().fg(Color::Red) } else { Style::new() })
    });
    lines.collect()
}

/// Compute units as bars, `across` per line.
fn unit_text(units: &[UnitRow], across: u16, area: Rect) -> Text<'static> {
    let places = usize::from(across) * usize::from(area.height);
    let shown = if units.len() <= places { units.len() } else { places.saturating_sub(1) };
    let width = usize::from(area.width / across);
    let mut cells: Vec<String> =
        units[..shown].iter().map(|unit| bar(&format!("cu {:<3}", unit.unit), unit.used, width)).collect();
    let rest = &units[shown..];
    if !rest.is_empty() && places > 0 {
        let used = rest.iter().map(|unit| unit.used).sum::<f64>() / rest.len() as f64;
        cells.push(bar(&format!("{} more", rest.len()), used, width));
    }
    cells.chunks(usize::from(across)).map(|cells| Line::from(cells.concat()).fg(Color::Cyan)).collect()
}

/// A bar of the given width, as in `cu 3   ██████     60 % `.
fn bar(name: &str, used: f64, width: usize) -> String {
    let room = width.saturating_sub(name.chars().count() + 8);
    let full = (used * room as f64).round() as usize;
    format!("{name} {}{} {:>3.0} %  ", "█".repeat(full.min(room)), "·".repeat(room - full.min(room)), used * 100.0)
}

/// The function table, with as many columns as fit.
fn function_table(snapshot: &Snapshot, width: u16) -> Table<'static> {
    let aligned = |text: String, align: Align| {
        let line = Line::from(text);
        Cell::from(if align == Align::Right { line.right_aligned() } else { line })
    };
    let rows: Vec<[String; COLUMNS.len()]> = snapshot.functions.iter().map(cells).collect();
    let widest = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(COLUMNS[column].0.chars().count())
    };
    let first = usize::from(snapshot.devices.len() <= 1);
    let mut columns: Vec<usize> = (first..COLUMNS.len()).collect();
    for given_up in DROPPED_COLUMNS {
        let taken: usize = columns.iter().map(|&column| widest(column) + usize::from(COLUMN_SPACING)).sum();
        if taken <= usize::from(width + COLUMN_SPACING) {
            break;
        }
        columns.retain(|column| COLUMNS[*column].0 != given_up);
    }
    let header = Row::new(columns.iter().map(|&column| aligned(COLUMNS[column].0.to_owned(), COLUMNS[column].1)));
    let body =
        rows.iter().map(|row| Row::new(columns.iter().map(|&column| aligned(row[column].clone(), COLUMNS[column].1))));
    let widths = columns.iter().map(|&column| Constraint::Length(widest(column) as u16));
    Table::new(body.collect::<Vec<_>>(), widths.collect::<Vec<_>>())
        .header(header.style(Style::new().reversed()))
        .column_spacing(COLUMN_SPACING)
}
