//! `atoll kernel compare`

mod pair;
mod report;
mod trial;

use super::place::Place;
use crate::failure::{OrUserError, user_error};
use crate::output::{parse_seconds, print, progress};
use anyhow::{Context, Result, ensure};
use atoll_workbench::corpus::Corpus;
use pair::Pair;
use report::Report;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use trial::{CaseFilter, Task, tasks};

/// Seeds that run if neither random kernels nor a corpus are requested.
const SEEDS: Range<u64> = 1..301;

const EXAMPLES: &str = "\
Each kernel runs on both devices with the same memory contents. Integers and all results of random kernels \
must be equal bit for bit; floating-point results of the corpus may differ within the tolerance of their case. \
Kernels that a device refuses are reported and counted separately. The exit status is 1 if a launch differs, \
fails or was left out.

Examples:
  atoll kernel compare --device cuda:0 --random 1..301 --corpus tests/kernels
  atoll kernel compare --device cuda:0 --corpus tests/kernels --case saxpy,softmax_rows
  atoll kernel compare --device host --random 17
  atoll kernel compare --device cuda:0 --against cuda:1 --duration-max 60 --save compared.json";

/// Run many kernels on a device and in the interpreter, and report where the results differ
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Device to test: cuda or cuda:N, host, interp
    #[arg(long, value_name = "DEVICE")]
    device: Place,

    /// Device to compare with
    #[arg(long, value_name = "DEVICE", default_value_t = Place::Interp)]
    against: Place,

    /// Seeds of random kernels: one, or FIRST..END (END excluded) [default: 1..301 without
    /// --corpus]
    #[arg(long, value_name = "SEEDS", value_parser = parse_seeds)]
    random: Option<Range<u64>>,

    /// Folder of kernels with `cases.toml` and `ptx/`; each runs with all launches of its case
    #[arg(long, value_name = "FOLDER")]
    corpus: Option<PathBuf>,

    /// Run only these kernels of the corpus: regular expressions that match the whole name
    #[arg(long = "case", value_name = "REGEX[,REGEX…]", value_delimiter = ',', requires = "corpus")]
    cases: Vec<CaseFilter>,

    /// Start no further kernel after this time; the others are counted as left out
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    duration_max: Option<f64>,

    /// File for the findings, as JSON
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let corpus = args.corpus.as_ref().map(|folder| Corpus::open(folder)).transpose().or_user_error()?;
    let seeds = args.random.clone().or_else(|| corpus.is_none().then_some(SEEDS)).unwrap_or_default();
    let tasks = tasks(seeds, corpus.as_ref().map_or(&[], |corpus| &corpus.cases), &args.cases)?;
    let mut pair = Pair::start(args.device, args.against)?;
    let mut report = Report::new(args.device, args.against, args.corpus.as_deref());
    let began = Instant::now();
    let deadline = args.duration_max.map(|seconds| began + Duration::from_secs_f64(seconds));
    let bar = progress(tasks.len() as u64);
    for task in &tasks {
        bar.inc(1);
        if pair.is_lost() || deadline.is_some_and(|deadline| Instant::now() > deadline) {
            report.leave_out(task.group(), task.launches());
            continue;
        }
        for line in compare(task, &mut pair, &mut report)? {
            bar.suspend(|| print(&line))?;
        }
    }
    bar.finish_and_clear();
    report.seconds = began.elapsed().as_secs_f64();
    if let Some(path) = &args.save {
        std::fs::write(path, serde_json::to_string_pretty(&report)? + "\n")
            .with_context(|| path.display().to_string())?;
    }
    print(&report.to_string())?;
    ensure!(
        report.has_passed(),
        "{} does not agree with {}, or some launches were left out",
        args.device,
        args.against
    );
    Ok(())
}

/// Compares all launches of a task; returns the lines to print.
fn compare(task: &Task<'_>, pair: &mut Pair, report: &mut Report) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for trial in task.trials()? {
        if pair.is_lost() {
            report.leave_out(task.group(), 1);
            continue;
        }
        let verdict = pair.compare(&trial)?;
        let shrunk = match task {
            Task::Random(seed) if report.is_worth_shrinking(&verdict) => Some(pair.shrink(*seed)?),
            _ => None,
        };
        lines.extend(report.note(task, &trial.name, verdict, shrunk));
    }
    Ok(lines)
}

/// Parses `17` or `1..301`.
fn parse_seeds(text: &str) -> Result<Range<u64>> {
    let number = |text: &str| {
        text.parse::<u64>().ok().with_context(|| format!("`{text}` is not a seed; expected for example 17 or 1..301"))
    };
    let seeds = match text.split_once("..") {
        Some((first, end)) => number(first)?..number(end)?,
        None => {
            let seed = number(text)?;
            seed..seed.checked_add(1).context("the last number is too large for a seed")?
        }
    };
    if seeds.is_empty() {
        Err(user_error(format!("the range of seeds {}..{} is empty", seeds.start, seeds.end)))
    } else {
        Ok(seeds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_one_or_a_range() {
        assert_eq!(parse_seeds("17").unwrap(), 17..18);
        assert_eq!(parse_seeds("1..301").unwrap(), 1..301);
        for text in ["", "x", "3..3", "5..2", "1..", "-1", "18446744073709551615"] {
            assert!(parse_seeds(text).is_err(), "{text}");
        }
    }
}
