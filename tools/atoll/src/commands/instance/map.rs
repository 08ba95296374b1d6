//! `atoll instance map`: the rectangles of instances in the plan of each device.

use crate::control::{Classify, ControlArgs};
use crate::failure::OrUserError;
use crate::output::print;
use anyhow::{Context, Result};
use atoll_client::{InstanceReport, ShareArea};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;

/// Draw the plan of each device: compute units from top to bottom, time from left to right, a
/// rectangle for each instance and each tenant with a share
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Write a picture instead
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,

    #[command(flatten)]
    control: ControlArgs,
}

/// Columns of the drawing: 2 % of the time each.
const COLUMNS: usize = 50;

/// A device with more compute units has this many rows in the drawing, and one more for each unit
/// where a rectangle begins or ends. A row stands for the units up to the next row.
const ROWS: u32 = 16;

/// Width of a device in the picture, in its units; a thousandth of the time is one of them.
const WIDTH: f64 = 1000.0;

/// Height of a device in the picture.
const HEIGHT: f64 = 400.0;

/// Margin above a device in the picture, for its name.
const MARGIN: f64 = 40.0;

pub(super) fn run(args: &Args) -> Result<()> {
    let instances = args.control.connect()?.instances().classify()?;
    let devices = devices(&instances);
    match &args.svg {
        None => Ok(print(&drawing(&devices))?),
        Some(path) => {
            let failed = || format!("cannot write {}", path.display());
            std::fs::write(path, picture(&devices)).with_context(failed).or_user_error()
        }
    }
}

/// The plan of a device.
#[derive(Debug, Default)]
struct Device {
    units: u32,
    placed: Vec<(String, ShareArea)>,
    /// Clients without a place in the plan.
    others: Vec<String>,
}

fn devices(instances: &[InstanceReport]) -> BTreeMap<String, Device> {
    let mut devices: BTreeMap<String, Device> = BTreeMap::new();
    for report in instances {
        for entry in &report.devices {
            let device = devices.entry(entry.device.clone()).or_default();
            device.units = entry.compute_units;
            match entry.area {
                Some(area) => device.placed.push((name(report), area)),
                None => device.others.push(name(report)),
            }
        }
    }
    devices
}

/// The name of a client, and whether it is draining.
fn name(report: &InstanceReport) -> String {
    let draining = if report.draining { " (draining)" } else { "" };
    super::name(report) + draining
}

/// The character of a client in the drawing: a letter, a digit or, on a device with many clients, a
/// letter with an accent. A device has at most [`CLIENTS_MAX`] clients.
///
/// [`CLIENTS_MAX`]: atoll_core::tokens::CLIENTS_MAX
fn letter(at: usize) -> char {
    let letters = ('A'..='Z').chain('a'..='z').chain('0'..='9').chain('Ā'..);
    letters.into_iter().nth(at).unwrap_or('?')
}

/// The first compute unit of each row. The clients are the same on all units of a row.
fn rows(device: &Device) -> BTreeSet<u32> {
    let count = device.units.clamp(1, ROWS);
    let even = (0..count).map(|row| row * device.units / count);
    let edges = device.placed.iter().flat_map(|(_, area)| [area.first_unit, area.first_unit + area.units]);
    even.chain(edges.filter(|unit| *unit < device.units)).collect()
}

fn drawing(devices: &BTreeMap<String, Device>) -> String {
    let mut text = String::new();
    if devices.is_empty() {
        text += "no device has shares\n";
    }
    for (name, device) in devices {
        // Writing to a string cannot fail; here and below.
        let _ = writeln!(text, "{name}, {} compute units", device.units);
        for unit in rows(device) {
            let _ = write!(text, "{unit:>4} ");
            text.extend((0..COLUMNS).map(|column| cell(device, unit, column)));
            text.push('\n');
        }
        let _ = writeln!(text, "     0 %{:>width$}", "100 %", width = COLUMNS - 3);
        for (at, (client, area)) in device.placed.iter().enumerate() {
            let last = (area.first_unit + area.units).saturating_sub(1);
            let _ = writeln!(
                text,
                "  {}  {client}: units {}-{last}, {:.1} % of the time",
                letter(at),
                area.first_unit,
                area.time * 100.0
            );
        }
        device.others.iter().for_each(|client| {
            let _ = writeln!(text, "     {client}: no place");
        });
    }
    text
}

/// The letter at a compute unit and a time: that of the client there, or a dot.
fn cell(device: &Device, unit: u32, column: usize) -> char {
    let time = (column as f64 + 0.5) / COLUMNS as f64;
    let is_there = |area: &ShareArea| {
        (area.first_unit..area.first_unit + area.units).contains(&unit)
            && (area.time_from..area.time_from + area.time).contains(&time)
    };
    device.placed.iter().position(|(_, area)| is_there(area)).map_or('.', letter)
}

fn picture(devices: &BTreeMap<String, Device>) -> String {
    let (width, height) = (WIDTH + 2.0 * MARGIN, devices.len() as f64 * (HEIGHT + 2.0 * MARGIN));
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"16\">\n"
    );
    for (at, (name, device)) in devices.iter().enumerate() {
        let top = at as f64 * (HEIGHT + 2.0 * MARGIN) + MARGIN;
        let _ = writeln!(
            text,
            "<text x=\"{MARGIN}\" y=\"{}\">{}, {} compute units (down), time (right)</text>\n\
             <rect x=\"{MARGIN}\" y=\"{top}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" stroke=\"black\"/>",
            top - 10.0,
            escaped(name),
            device.units
        );
        for (number, (client, area)) in device.placed.iter().enumerate() {
            text += &rectangle(client, *area, device.units, top, number);
        }
    }
    text + "</svg>\n"
}

fn rectangle(client: &str, area: ShareArea, units: u32, top: f64, number: usize) -> String {
    let of_units = |count: u32| f64::from(count) / f64::from(units.max(1)) * HEIGHT;
    let (x, y) = (MARGIN + area.time_from * WIDTH, top + of_units(area.first_unit));
    // Neighbouring numbers get colours that are far apart.
    let hue = number * 137 % 360;
    format!(
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"hsl({hue},60%,80%)\" \
         stroke=\"black\"/>\n<text x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
        area.time * WIDTH,
        of_units(area.units),
        x + 6.0,
        y + 20.0,
        escaped(client)
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> BTreeMap<String, Device> {
        let area = |first_unit, units, time_from, time| ShareArea { first_unit, units, time_from, time };
        let placed = vec![("a<b".to_owned(), area(0, 1, 0.0, 0.5)), ("c".to_owned(), area(0, 2, 0.5, 0.1))];
        BTreeMap::from([("host:0".into(), Device { units: 2, placed, others: vec!["d".into()] })])
    }

    #[test]
    fn a_drawing_has_a_letter_for_each_client() {
        let (half, tenth, rest) = ("A".repeat(25), "B".repeat(5), ".".repeat(20));
        let expected = format!(
            "host:0, 2 compute units\n   0 {half}{tenth}{rest}\n   1 {}{tenth}{rest}\n     0 %{:>47}\n  \
             A  a<b: units 0-0, 50.0 % of the time\n  B  c: units 0-1, 10.0 % of the time\n     d: no place\n",
            ".".repeat(25),
            "100 %"
        );
        assert_eq!(drawing(&two()), expected);
        assert_eq!(drawing(&BTreeMap::new()), "no device has shares\n");
    }

    #[test]
    fn an_instance_that_moves_is_on_both_devices_until_it_has_left() {
        let entry = |device: &str| atoll_client::ShareEntry {
            device: device.into(),
            compute_units: 2,
            area: Some(ShareArea { first_unit: 0, units: 2, time_from: 0.0, time: 0.5 }),
            ..atoll_client::ShareEntry::default()
        };
        let report = |name: &str, device: &str, draining: bool| InstanceReport {
            instance: Some(name.into()),
            tenant: atoll_client::Tenant::default(),
            function: Some("f".into()),
            class: None,
            sm_partition: 100.0,
            quota_request: 0.5,
            quota_limit: 0.5,
            gpu_mem: None,
            latency_ms: None,
            devices: vec![entry(device)],
            requests: 0,
            ended: 0,
            late: 0,
            service_ms: None,
            throughput: None,
            refused: None,
            device: Some(device.into()),
            autoscaled: Some("it made room".into()),
            draining,
        };
        let drawn = drawing(&devices(&[report("f-auto-1", "host:0", true), report("f-auto-2", "host:1", false)]));
        assert!(drawn.contains("host:0, 2 compute units") && drawn.contains("host:1, 2 compute units"), "{drawn}");
        assert!(
            drawn.contains("A  f-auto-1 (draining): units 0-1") && drawn.contains("A  f-auto-2: units 0-1"),
            "{drawn}"
        );
    }

    #[test]
    fn each_client_of_a_device_with_many_units_has_a_row() {
        let area = |first_unit| ShareArea { first_unit, units: 1, time_from: 0.0, time: 1.0 };
        let placed = vec![("small".to_owned(), area(50)), ("last".to_owned(), area(131))];
        let device = Device { units: 132, placed, others: Vec::new() };
        let drawn = drawing(&BTreeMap::from([("cuda:0".into(), device)]));
        let row = |unit: u32, of: &str| format!("{unit:>4} {}\n", of.repeat(COLUMNS));
        assert!(drawn.contains(&(row(50, "A") + &row(51, "."))) && drawn.contains(&row(131, "B")), "{drawn}");
        assert_eq!(drawn.lines().count(), 1 + ROWS as usize + 3 + 1 + 2, "{drawn}");
    }

    #[test]
    fn each_of_the_clients_of_a_device_has_a_character_of_its_own() {
        let letters: BTreeSet<char> = (0..atoll_core::tokens::CLIENTS_MAX).map(letter).collect();
        assert_eq!(letters.len(), atoll_core::tokens::CLIENTS_MAX);
        assert!(letters.iter().all(|letter| letter.is_alphanumeric()), "{letters:?}");
    }

    #[test]
    fn a_picture_is_svg_with_escaped_names() {
        let svg = picture(&two());
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"), "{svg}");
        assert!(svg.contains("a&lt;b") && svg.contains("width=\"500.0\" height=\"200.0\""), "{svg}");
    }
}
