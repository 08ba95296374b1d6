//! `atoll bench fast`

mod clients;
mod figures;
#[cfg(feature = "compiler")]
mod host;
mod memory;
mod packing;
mod plots;
mod pods;

use crate::figures::{Cells, Figures};
use crate::report::Findings;
use anyhow::Result;
use clap::builder::PossibleValuesParser;
use std::collections::BTreeSet;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  atoll bench fast
  atoll bench fast --figure 8,10 --seconds 10 --plot plots
  atoll bench fast --figure 11 --json
  atoll bench fast --figure 9,9-host,13,13-host
  atoll bench fast --figure clients --profiles reef-mi50 --host-profile squeezenet.kg

Kernels are in the shape of the paper's: ResNet and RNNT use a quarter of a V100, GNMT and BERT half of it, \
and a request takes alone what it takes there. The figures of `clients` have profiles that were measured on \
another device, which the column `profiles` names. Figure 12 with other loads is `atoll bench scaling`. The \
column `paper` has the published value or finding.";

/// The figures, by their names on the command line.
const FIGURES: [&str; 9] = ["8", "9", "10", "11", "12", "13", "clients", "9-host", "13-host"];

/// The figures of FaST-GShare's evaluation (8 to 13), on a simulated V100
///
/// 8: throughput by quota and partition. 9: two pods that share in time, and in space. 10: several
/// pods with partitions beside pods that race. 11: devices that a set of pods needs. 12: instances
/// that follow a load, by the daemon's rule. 13: memory with shared constants. clients:
/// lanes beside turns of the whole device, by the number of clients. 9-host, 13-host: the same as 9
/// and 13, measured on this machine.
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Figures
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "8,9,10,11,12,13",
        value_parser = PossibleValuesParser::new(FIGURES),
        hide_possible_values = true
    )]
    figure: Vec<String>,

    /// Folder with REEF's profiles of its five models, for the figure `clients`
    #[arg(long, value_name = "DIR")]
    profiles: Option<PathBuf>,

    /// Models that `atoll profile` has profiled on this machine's CPUs, for the figure `clients`
    #[arg(long, value_name = "MODEL.kg", value_delimiter = ',')]
    host_profile: Vec<PathBuf>,

    /// Duration of each run
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// Seed of random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Folder for plots of the figures
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    let asked: BTreeSet<&str> = args.figure.iter().map(String::as_str).collect();
    let mut figures = Figures::default();
    for figure in FIGURES.into_iter().filter(|figure| asked.contains(figure)) {
        let (title, rows) = figure_of(args, figure)?;
        if let Some(folder) = &args.plot {
            plots::write(folder, figure, &rows)?;
        }
        let name = if figure == "clients" { "Clients".to_owned() } else { format!("Figure {figure}") };
        figures.add(&format!("figure_{}", figure.replace('-', "_")), &format!("{name}: {title}"), &rows)?;
    }
    figures.findings()
}

/// The title and the rows of a figure.
fn figure_of(args: &Args, figure: &str) -> Result<(&'static str, Vec<Cells>)> {
    Ok(match figure {
        "8" => ("throughput by partition and quota", figures::profile(args)?),
        "9" => ("two pods that share in time, and in space", figures::isolation(args)?),
        "10" => ("pods with partitions, and pods that race", figures::spatial(args)?),
        "11" => ("devices for eight pods", packing::packed(args)?),
        "12" => ("instances that follow a load", figures::scaled(args)?),
        "13" => ("memory with shared constants", memory::memory()),
        "clients" => ("lanes beside turns of the whole device", clients::lanes_and_turns(args)?),
        host => on_host(args, host)?,
    })
}

#[cfg(feature = "compiler")]
fn on_host(args: &Args, figure: &str) -> Result<(&'static str, Vec<Cells>)> {
    Ok(match figure {
        "9-host" => ("two pods on two cores of this machine", host::isolation(args)?),
        _ => ("memory and starts of instances on this machine", host::memory(args)?),
    })
}

#[cfg(not(feature = "compiler"))]
fn on_host(_: &Args, figure: &str) -> Result<(&'static str, Vec<Cells>)> {
    Err(crate::failure::user_error(format!(
        "this program was built without the compiler, which figure {figure} needs; ask for another figure"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// Runs of a second.
    pub(super) fn args(figures: &[&str]) -> Args {
        let figure = figures.iter().map(|figure| (*figure).to_owned()).collect();
        Args { figure, profiles: None, host_profile: Vec::new(), seconds: 1, seed: 1, plot: None }
    }

    fn rows<'j>(json: &'j Value, figure: &str) -> &'j Vec<Value> {
        json[figure].as_array().unwrap_or_else(|| panic!("{figure}"))
    }

    fn number(row: &Value, column: &str) -> f64 {
        row[column].as_f64().unwrap_or_else(|| panic!("{column}: {row}"))
    }

    #[test]
    fn every_figure_has_rows_and_the_shape_of_the_paper() {
        let folder = tempfile::tempdir().unwrap();
        let simulated = &FIGURES[..6];
        let findings = run(&Args { plot: Some(folder.path().join("plots")), ..args(simulated) }).unwrap();
        let json: Value = serde_json::from_str(&findings.json).unwrap();
        let mut plots: Vec<String> = std::fs::read_dir(folder.path().join("plots"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        plots.sort();
        for figure in simulated {
            assert!(rows(&json, &format!("figure_{figure}")).len() > 1, "figure {figure}");
            assert!(findings.text.contains(&format!("Figure {figure}: ")));
            let prefix = format!("figure-{figure}");
            let of_figure = plots.iter().filter(|name| name.trim_end_matches(".svg").starts_with(&prefix)).count();
            assert_eq!(of_figure, if matches!(*figure, "8" | "10") { 3 } else { 1 }, "{figure}: {plots:?}");
        }
        saturates(rows(&json, "figure_8"));
        needs_one_device(rows(&json, "figure_11"));
        let often = rows(&json, "figure_12").iter().filter(|row| row["settings"] == "every 100 ms");
        let misses = often.map(|row| number(row, "missed")).fold(0.0, f64::max);
        assert!(misses < 0.01, "{misses} of the requests missed the target");
        let three = |model: &str, sharing: &str| {
            let is_it = |row: &&Value| row["model"] == model && row["sharing"] == sharing;
            number(rows(&json, "figure_13").iter().find(is_it).unwrap(), "three_pods_mib")
        };
        assert_eq!(three("ViT-huge", "constants in a process"), 9282.0, "as in the paper");
        assert!(three("ViT-huge", "constants") < 9282.0, "no context of another process");
    }

    #[test]
    fn pods_that_share_in_time_only_lose_what_they_had_beyond_their_request() {
        let findings = run(&Args { seconds: 4, ..args(&["9"]) }).unwrap();
        let json: Value = serde_json::from_str(&findings.json).unwrap();
        for row in rows(&json, "figure_9") {
            let kept = number(row, "beside_over_alone");
            if row["sharing"] == "time" && row["model"] == "ResNet" {
                // 80 % of the time alone, 50 % beside the other pod.
                assert!((kept - 0.625).abs() < 0.06, "{row}");
            } else {
                assert!(kept > 0.92, "{row}");
            }
        }
    }

    fn saturates(rows: &[Value]) {
        let point = |partition: u64, quota: u64| {
            let is_it =
                |row: &&Value| row["model"] == "ResNet" && row["partition"] == partition && row["quota"] == quota;
            number(rows.iter().find(is_it).unwrap(), "per_s")
        };
        assert!(point(50, 100) < point(24, 100) * 1.2, "it saturates at a quarter of the units");
        assert!(point(12, 100) < point(24, 100) * 0.8 && point(24, 20) < point(24, 100) * 0.4);
    }

    fn needs_one_device(rows: &[Value]) {
        let devices: Vec<f64> = rows.iter().map(|row| number(row, "devices")).collect();
        assert_eq!(devices, [4.0, 1.0, 1.0], "one device instead of four, also in listed order");
        for row in &rows[1..] {
            assert_eq!(number(row, "bound_pods"), 8.0, "{row}");
            assert!(number(row, "utilisation_over_time_sharing") > 1.0, "{row}");
            assert!(number(row, "occupancy_over_time_sharing") > 2.0, "{row}");
        }
    }
}
