//! The live display.

use super::sample::{DeviceRow, FunctionRow, Sampler, Snapshot, UnitRow, Whole};
use super::view::{Effect, View};
use super::{COLUMNS, Column, cells, headline, whole_lines};
use crate::output::Align;
use anyhow::Result;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event};
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
    let (mut snapshot, mut view) = (sampler.sample()?, View::default());
    loop {
        terminal.draw(|frame| draw(frame, &snapshot, &mut view))?;
        let until = Instant::now() + interval;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            if !event::poll(left)? {
                continue;
            }
            let effect = match event::read()? {
                Event::Key(key) => view.press(key),
                Event::Resize(..) => Effect::Draw,
                _ => Effect::Nothing,
            };
            match effect {
                Effect::End => return Ok(()),
                Effect::Draw => {
                    terminal.draw(|frame| draw(frame, &snapshot, &mut view))?;
                }
                Effect::Nothing => {}
            }
        }
        snapshot = sampler.sample()?;
    }
}

/// Draws a snapshot.
pub(super) fn draw(frame: &mut Frame<'_>, snapshot: &Snapshot, view: &mut View) {
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
    let rows = view.rows(&snapshot.functions);
    // The first line is the header.
    let shown = view.window(rows.len(), usize::from(table.height).saturating_sub(1));
    let mut note = view.line(&shown, rows.len(), snapshot.functions.len());
    if note.is_empty() && snapshot.lost_records > 0 {
        note = "latencies cover part of the requests: some records were overwritten before they were read".into();
    }
    frame.render_widget(Line::from(note).fg(Color::Yellow), *gap);
    let columns = columns(&rows, snapshot.devices.len(), view, table.width);
    frame.render_widget(function_table(&rows[shown], &columns, view), *table);
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

/// The columns that fit, with their widths. The device is a column if there are several.
fn columns(rows: &[&FunctionRow], devices: usize, view: &View, width: u16) -> Vec<(Column, u16)> {
    let header = |column: Column| COLUMNS[column].0.chars().count() + view.mark(column).chars().count();
    let mut widest: Vec<usize> = (0..COLUMNS.len()).map(header).collect();
    for row in rows {
        let cells = cells(row);
        widest.iter_mut().zip(&cells).for_each(|(widest, cell)| *widest = (*widest).max(cell.chars().count()));
    }
    let mut columns: Vec<Column> = (usize::from(devices <= 1)..COLUMNS.len()).collect();
    for given_up in DROPPED_COLUMNS {
        let taken: usize = columns.iter().map(|&column| widest[column] + usize::from(COLUMN_SPACING)).sum();
        if taken <= usize::from(width + COLUMN_SPACING) {
            break;
        }
        columns.retain(|column| COLUMNS[*column].0 != given_up);
    }
    columns.into_iter().map(|column| (column, widest[column] as u16)).collect()
}

/// The function table with these rows and columns.
fn function_table(rows: &[&FunctionRow], columns: &[(Column, u16)], view: &View) -> Table<'static> {
    let aligned = |text: String, column: Column| {
        let line = Line::from(text);
        Cell::from(if COLUMNS[column].1 == Align::Right { line.right_aligned() } else { line })
    };
    let title = |column: Column| COLUMNS[column].0.to_owned() + view.mark(column);
    let header = Row::new(columns.iter().map(|&(column, _)| aligned(title(column), column)));
    let body = rows.iter().map(|row| {
        let cells = cells(row);
        Row::new(columns.iter().map(|&(column, _)| aligned(cells[column].clone(), column)).collect::<Vec<_>>())
    });
    let widths = columns.iter().map(|&(_, width)| Constraint::Length(width));
    Table::new(body.collect::<Vec<_>>(), widths.collect::<Vec<_>>())
        .header(header.style(Style::new().reversed()))
        .column_spacing(COLUMN_SPACING)
}
