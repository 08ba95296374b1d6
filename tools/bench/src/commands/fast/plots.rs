//! Plots of the figures, drawn from their rows.

use crate::drawing::{Axis, AxisScale, Gantt, Line, plot};
use crate::figures::{Cell, Cells};
use anyhow::{Context, Result};
use std::path::Path;

/// The smallest value on a logarithmic axis.
const LEAST: f64 = 0.01;

/// Duration of Fig. 12, in seconds.
const SCALED_S: f64 = 120.0;

/// Writes the plots of a figure into a folder, which is created if it is absent.
pub(super) fn write(folder: &Path, figure: &str, rows: &[Cells]) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for (name, svg) in pictures(figure, rows) {
        let path = folder.join(name);
        std::fs::write(&path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Names of files, and their contents.
fn pictures(figure: &str, rows: &[Cells]) -> Vec<(String, String)> {
    let bars = |title: &str, axis: &str, name: &[&str], columns: &[&str]| {
        vec![(format!("figure-{figure}.svg"), bars_of(rows, title, axis, name, columns))]
    };
    let pods = Axis { title: "pods", scale: AxisScale::Binary };
    let per_s = Axis { title: "requests per second", scale: AxisScale::Fine };
    match figure {
        "8" => {
            let axes = [Axis { title: "partition of the compute units", scale: AxisScale::Share }, per_s];
            let lines =
                Lines { of: "model", line: "quota", unit: " % of the time", x: ("partition", 100.0), y: "per_s" };
            lines.pictures(figure, "Throughput by partition and quota", axes, rows)
        }
        "9" | "9-host" => bars("Two pods beside each other", per_s.title, &["model", "sharing"], &ISOLATION),
        "10" => {
            let lines = Lines { of: "model", line: "sharing", unit: "", x: ("pods", 1.0), y: "per_s" };
            lines.pictures(figure, "Pods that race, and pods with partitions", [pods, per_s], rows)
        }
        "11" => bars("Use of the devices of eight pods", "part", &["scheduler"], &["utilisation", "occupancy"]),
        "12" => vec![(format!("figure-{figure}.svg"), scaled(rows))],
        "13" => bars("Memory of pods", "MiB", &["model", "sharing"], &["one_pod_mib", "three_pods_mib"]),
        "13-host" => bars("Memory of instances on this machine", "MiB", &["model"], &INSTANCES),
        _ => {
            let axes = [
                Axis { title: "clients", scale: AxisScale::Binary },
                Axis { title: "throughput over turns", scale: AxisScale::Fine },
            ];
            let lines = Lines { of: "profiles", line: "model", unit: "", x: ("clients", 1.0), y: "over_turns" };
            let lanes: Vec<Cells> = rows.iter().filter(|row| text(row, "sharing") == "lanes").cloned().collect();
            lines.pictures(figure, "Lanes beside turns of the whole device", axes, &lanes)
        }
    }
}

/// Columns that are bars.
const ISOLATION: [&str; 2] = ["alone_per_s", "beside_per_s"];
const INSTANCES: [&str; 4] = ["constants_mib", "one_instance_mib", "three_instances_mib", "three_without_sharing_mib"];

/// Which columns a line plot shows.
struct Lines<'a> {
    /// Each value of it has a plot.
    of: &'a str,
    /// Each value of it has a line, with a unit in the legend.
    line: &'a str,
    unit: &'a str,
    /// The column of the x axis, and its divisor.
    x: (&'a str, f64),
    y: &'a str,
}

impl Lines<'_> {
    fn pictures(&self, figure: &str, title: &str, axes: [Axis<'_>; 2], rows: &[Cells]) -> Vec<(String, String)> {
        let picture = |of: String| {
            let own: Vec<&Cells> = rows.iter().filter(|row| text(row, self.of) == of).collect();
            let line = |(group, name): (usize, String)| {
                let points = own.iter().filter(|row| text(row, self.line) == name);
                let point = |row: &&Cells| (number(row, self.x.0) / self.x.1, number(row, self.y).max(LEAST));
                Line { points: points.map(point).collect(), name: name + self.unit, group, dashed: false }
            };
            let lines: Vec<Line> = values(own.iter().copied(), self.line).into_iter().enumerate().map(line).collect();
            (format!("figure-{figure}-{}.svg", plain(&of)), plot(&format!("{title}: {of}"), axes, &lines))
        };
        values(rows.iter(), self.of).into_iter().map(picture).collect()
    }
}

/// Load over the run, and capacity and instances by the settings.
fn scaled(rows: &[Cells]) -> String {
    let line = |name: String, column: &str, group: usize, settings: &str| Line {
        name,
        group,
        dashed: group == 0,
        points: rows
            .iter()
            .filter(|row| text(row, "settings") == settings)
            .map(|row| (number(row, "from_s") / SCALED_S, number(row, column).max(LEAST)))
            .collect(),
    };
    let mut lines = Vec::new();
    for settings in values(rows.iter(), "settings") {
        if lines.is_empty() {
            lines.push(line("load".to_owned(), "load_per_s", 0, &settings));
        }
        for (name, column) in [("capacity", "capacity_per_s"), ("instances", "instances")] {
            lines.push(line(format!("{name}, {settings}"), column, lines.len(), &settings));
        }
    }
    let axes = [
        Axis { title: "part of the run", scale: AxisScale::Share },
        Axis { title: "requests per second; instances", scale: AxisScale::Fine },
    ];
    plot("Instances that follow a load", axes, &lines)
}

/// A bar for each of some columns of each row; `name` are the columns of its name.
fn bars_of(rows: &[Cells], title: &str, axis: &str, name: &[&str], columns: &[&str]) -> String {
    let of_row = |row: &Cells| {
        let name = name.iter().map(|column| text(row, column)).collect::<Vec<_>>().join(", ");
        let bar = |(group, column): (usize, &&str)| (name.clone(), group, number(row, column));
        columns.iter().enumerate().map(bar).collect::<Vec<_>>()
    };
    let bars: Vec<(String, usize, f64)> = rows.iter().flat_map(of_row).collect();
    Gantt::bars(title, axis, columns.iter().map(|column| column.replace('_', " ")).collect(), &bars).svg()
}

/// The distinct values of a column, in order.
fn values<'r>(rows: impl Iterator<Item = &'r Cells>, column: &str) -> Vec<String> {
    let mut values = Vec::new();
    for row in rows {
        let value = text(row, column);
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

fn cell<'r>(row: &'r Cells, column: &str) -> Option<&'r Cell> {
    row.iter().find(|(name, _)| *name == column).map(|(_, cell)| cell)
}

fn text(row: &Cells, column: &str) -> String {
    cell(row, column).map(Cell::to_string).unwrap_or_default()
}

fn number(row: &Cells, column: &str) -> f64 {
    match cell(row, column) {
        Some(Cell::Count(count)) => *count as f64,
        Some(Cell::Number(number)) => *number,
        _ => 0.0,
    }
}

/// A part of a file name: letters, digits and hyphens.
fn plain(text: &str) -> String {
    let parts = text.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_model_has_a_plot_with_a_line_for_each_sharing() {
        let row = |model: &str, sharing: &str, pods: u64, per_s: f64| -> Cells {
            vec![("model", model.into()), ("sharing", sharing.into()), ("pods", pods.into()), ("per_s", per_s.into())]
        };
        let rows = [
            row("A", "racing", 1, 5.0),
            row("A", "12 %", 1, 4.0),
            row("A", "12 %", 8, 30.0),
            row("B", "racing", 1, 2.0),
        ];
        let found = pictures("10", &rows);
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["figure-10-A.svg", "figure-10-B.svg"]);
        let has = |svg: &str, line: &str| svg.lines().any(|other| other == line);
        assert!(has(&found[0].1, "racing") && has(&found[0].1, "12 %") && !has(&found[1].1, "12 %"));
    }

    #[test]
    fn names_of_files_are_plain() {
        assert_eq!(plain("this host's, /etc"), "this-host-s-etc");
    }
}
