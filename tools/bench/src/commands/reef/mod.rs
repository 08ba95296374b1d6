//! `atoll bench reef`

mod host_queues;
mod padding;
mod preemption;
mod runs;

use super::disb::{REEF_FILES, read_reef};
use crate::failure::user_error;
use crate::figures::{Cells, Figures};
use crate::report::Findings;
use anyhow::Result;
use atoll_sim::Model;
use clap::builder::PossibleValuesParser;
use runs::{MI50, Runs};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  atoll bench reef --profiles reef-mi50
  atoll bench reef --profiles reef-mi50 --figure 12,20 --seconds 60
  atoll bench reef --profiles reef-mi50 --figure 11 --real REAL.json --json

All figures but 14-host, 18 and 19 are simulations with the daemon's scheduler, not measurements of a GPU. The \
simulated devices have the costs that REEF published, with guesses where it published none. Profiles are \
REEF's, measured on an MI50, on every device. The column `paper` has the published value that the row compares \
with, in its words. Figure 18 counts proxy kernels. Figures 14-host and 19 are measured on this machine.";

/// The figures, by their names on the command line.
const FIGURES: [&str; 14] =
    ["11", "12", "13", "14", "14-host", "15", "16", "17", "18", "19", "20", "mi100", "longer", "bandwidth"];

/// Memory bandwidth of an MI50, in bytes per microsecond.
const MI50_BYTES_PER_US: u64 = 1_024_000;

/// The figures of REEF's evaluation (11 to 20), simulated
///
/// 11: policies on DISB's workloads. 12: preemption by eviction and by waiting. 13: preemption by
/// launches in a queue and by the time of a kernel. 14: preemption by clients, and with long
/// queues. 14-host: the decision to preempt, by clients. 15: capacity of queues, and repeated work.
/// 16: policies on pairs of models. 17: use of compute units, and launches that padding slows down.
/// 18: proxy kernels. 19: time to choose padding. 20: preemption on an MI50 and a V100. mi100: the
/// policies of GPREEMPT's table, on an MI100. longer, bandwidth: padding that may delay real-time
/// calls, and that is chosen by memory bandwidth, which REEF does not have.
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Figures
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "11,12,13,14,14-host,15,16,17,18,19,20,mi100,longer,bandwidth",
        value_parser = PossibleValuesParser::new(FIGURES),
        hide_possible_values = true
    )]
    figure: Vec<String>,

    /// Folder with REEF's profiles of its five models
    #[arg(long, value_name = "DIR")]
    profiles: PathBuf,

    /// DISB's REAL.json, as one more workload of figure 11
    #[arg(long, value_name = "FILE")]
    real: Option<PathBuf>,

    /// Duration of each simulated run
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,

    /// Seed of random arrivals
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    if !(args.seconds > 0.0 && args.seconds <= 3600.0) {
        return Err(user_error(format!("--seconds {} must be above 0 and at most 3600", args.seconds)));
    }
    let plain = models(args, 0)?;
    let runs = Runs { models: &plain, duration_ns: (args.seconds * 1e9) as u64, seed: args.seed };
    let mut figures = Figures::default();
    for figure in args.figure.iter().map(String::as_str).collect::<BTreeSet<&str>>() {
        tracing::info!(figure, "running");
        let (title, rows) = figure_of(args, &runs, figure)?;
        let name = if figure == "mi100" { "MI100".to_owned() } else { format!("Figure {figure}") };
        let kind = if matches!(figure, "14-host" | "18" | "19") { "" } else { " (simulated)" };
        let key = key(figure);
        figures.add(&key, &format!("{name}{kind}: {title}"), &rows)?;
    }
    figures.findings()
}

/// The title and the rows of a figure.
fn figure_of(args: &Args, runs: &Runs<'_>, figure: &str) -> Result<(&'static str, Vec<Cells>)> {
    Ok(match figure {
        "11" => ("policies on DISB's workloads, MI50", preemption::workloads(runs, args.real.as_deref())?),
        "12" => ("from a real-time call to its first block, MI50", preemption::latencies(runs)?),
        "13" => ("the same, by launches in a queue and time of a kernel", preemption::growth(runs)?),
        "14" => ("the same, by best-effort clients, and with long queues", preemption::queues(runs)?),
        "14-host" => ("decisions to preempt, measured on this machine", host_queues::resets(runs)?),
        "15" => ("capacity of queues, and repeated work", preemption::capacities(runs)?),
        "16" => ("policies on pairs of models, MI50", padding::pairs(runs)?),
        "17" => ("use of compute units by pairs of models, MI50", padding::utilisation(runs)?),
        "18" => ("proxy kernels, counted", padding::proxies()),
        "19" => ("time to choose padding, measured on this machine", padding::selection(runs)?),
        "20" => ("from a real-time call to its first block, MI50 and V100", preemption::devices(runs)?),
        "mi100" => ("GPREEMPT's table, MI100", preemption::mi100(runs)?),
        "longer" => ("longer blocks beside real-time launches, by the delay that they may add", padding::longer(runs)?),
        _ => {
            let measured = models(args, MI50_BYTES_PER_US)?;
            ("padding chosen by memory bandwidth", padding::bandwidth(&Runs { models: &measured, ..*runs })?)
        }
    })
}

/// REEF's models, with the memory bandwidth of their kernels on a device of this bandwidth, if it
/// is not 0.
fn models(args: &Args, bytes_per_us: u64) -> Result<BTreeMap<String, Model>> {
    let read = |(model, file): (&str, &str)| {
        let units = MI50.parameters()?.compute_units;
        Ok((model.to_owned(), read_reef(&args.profiles, model, file, units, bytes_per_us)?))
    };
    REEF_FILES.into_iter().map(read).collect()
}

/// The key of a figure in the JSON.
fn key(figure: &str) -> String {
    match figure {
        "mi100" => figure.to_owned(),
        _ => format!("figure_{}", figure.replace('-', "_")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Profiles in which each model has `kernels` kernels of 70 blocks and 20 µs.
    fn profiles() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (kernels, (_, file)) in (20..).step_by(10).zip(REEF_FILES) {
            let kernel = json!({ "name": "k", "launch_params": [70, 1, 1, 64, 1, 1], "args": [] });
            let graph = json!({ "storage": [], "kernels": vec![kernel; kernels], "args": [] });
            let times = json!({ "total_latency": 24, "latency": [20, 24] });
            let profile = json!({ "model_latency": 100_000, "kernel_latency": { "k": times } });
            std::fs::write(folder.path().join(format!("{file}.graph.json")), graph.to_string()).unwrap();
            std::fs::write(folder.path().join(format!("{file}.profile.json")), profile.to_string()).unwrap();
        }
        folder
    }

    fn args(profiles: &tempfile::TempDir, figures: &[&str]) -> Args {
        let figure = figures.iter().map(|figure| (*figure).to_owned()).collect();
        Args { figure, profiles: profiles.path().to_owned(), real: None, seconds: 0.2, seed: 1 }
    }

    #[test]
    fn every_figure_has_rows_with_the_values_of_the_paper() {
        let profiles = profiles();
        let (published, own) = FIGURES.split_at(12);
        let findings = run(&args(&profiles, published)).unwrap();
        let mut json: Value = serde_json::from_str(&findings.json).unwrap();
        let options = run(&Args { seconds: 0.02, ..args(&profiles, own) }).unwrap();
        let options: serde_json::Map<String, Value> = serde_json::from_str(&options.json).unwrap();
        json.as_object_mut().unwrap().extend(options);
        for figure in FIGURES {
            let rows = json[key(figure)].as_array().unwrap_or_else(|| panic!("{figure}"));
            assert!(!rows.is_empty() && rows.iter().all(|row| row["paper"].is_string()), "{figure}: {rows:?}");
            let has_null = rows.iter().any(|row| row.as_object().unwrap().values().any(Value::is_null));
            assert!(!has_null, "{figure}: {rows:?}");
        }
        assert!(findings.text.contains("Figure 11 (simulated): ") && findings.text.contains("Figure 18: "));
        let of = |figure: &str, policy: &str, field: &str| {
            let rows = json[figure].as_array().unwrap().iter();
            rows.filter(|row| row["policy"] == policy).map(|row| row[field].as_f64().unwrap()).sum::<f64>()
        };
        let first = |policy| of("figure_12", policy, "first_block_us");
        assert!(first("block-wait") > first("reset"), "waiting takes longer than evicting");
        assert!(of("figure_16", "reef", "all_over_rt_only") >= of("figure_16", "rt-only", "all_over_rt_only"));
        for row in json["figure_17"].as_array().unwrap() {
            assert!(row["padded_launches"].as_u64().unwrap() > 0, "{row}");
            assert!(row["part_below_4_us_slower"].as_f64().unwrap() > 0.9, "{row}");
        }
        let proxies = json["figure_18"].as_array().unwrap();
        assert_eq!(proxies[0]["proxy_kernels"], 10, "as many levels as in the paper: {proxies:?}");
    }

    #[test]
    fn missing_profiles_are_the_users_mistake() {
        let folder = tempfile::tempdir().unwrap();
        let error = run(&args(&folder, &["18"])).err().unwrap().to_string();
        assert!(error.contains("model resnet152-imagenet"), "{error}");
        let wrong = Args { seconds: 0.0, ..args(&folder, &["18"]) };
        assert!(run(&wrong).err().unwrap().to_string().contains("--seconds 0"));
    }
}
