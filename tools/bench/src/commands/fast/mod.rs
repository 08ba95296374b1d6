//! `atoll bench fast`

mod figures;
mod pods;

use crate::figures::Figures;
use crate::report::Findings;
use anyhow::Result;
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

pub(crate) fn run(args: &Args) -> Result<Findings> {
    let mut figures = Figures::default();
    for figure in args.figure.iter().copied().collect::<BTreeSet<u8>>() {
        let (title, rows) = match figure {
            8 => ("throughput by partition and quota", figures::profile(args)?),
            9 => ("two pods that share in time, and in space", figures::isolation(args)?),
            10 => ("pods with partitions, and pods that race", figures::spatial(args)?),
            11 => ("devices for eight pods", figures::packed(args)?),
            12 => ("instances that follow a load", figures::scaled(args)),
            _ => ("memory with shared constants", figures::memory()),
        };
        figures.add(&format!("figure_{figure}"), &format!("Figure {figure}: {title}"), &rows)?;
    }
    figures.findings()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

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
