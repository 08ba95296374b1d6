//! Random ONNX graphs, compiled and run on the host device, compared with ONNX Runtime.
//!
//! `tests/python/random_graphs.py` makes a graph for each seed, with inputs and ONNX Runtime's
//! results. A run tests one batch of seeds, starting at `ATOLL_SEED` (1 by default), and further
//! batches until `ATOLL_RANDOM_ONNX_SECONDS` have passed. The importer may refuse a graph; the test
//! prints how many it refused and why. If a graph gives a wrong result, the test removes parts of
//! it as long as the result stays wrong, and keeps the smallest such graph in the folder
//! `ATOLL_RANDOM_ONNX_KEEP`, or in the folder for temporary files.

use anyhow::{Context, Result, ensure};
use atoll_engine::EngineConfig;
use atoll_frontend::onnx::ImportError;
use atoll_pipeline::CompileError;
use atoll_tests::{Loaded, Model, compile, cut_graph, random_graphs, read_case};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Number of graphs of a batch; one Python process makes them.
const BATCH: u64 = 32;
/// Largest difference of an element, relative to the largest element of its output.
const TOLERANCE: f64 = 1e-3;
/// Maximum number of reduction rounds.
const ROUNDS_MAX: usize = 32;

#[test]
fn random_graphs_answer_as_onnx_runtime_does() -> Result<()> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let end = Instant::now() + Duration::from_secs(number("ATOLL_RANDOM_ONNX_SECONDS").unwrap_or(0));
    let first = number("ATOLL_SEED").unwrap_or(1);
    let mut tally = Tally::default();
    for batch in (first..).step_by(BATCH as usize) {
        let folder = tempfile::tempdir()?;
        random_graphs(folder.path(), batch, BATCH)?;
        for seed in batch..batch + BATCH {
            let graph = folder.path().join(seed.to_string());
            if graph.join("model.onnx").exists() {
                tally.add(seed, &graph)?;
            }
        }
        if Instant::now() >= end {
            break;
        }
    }
    tally.print();
    ensure!(tally.run > 0, "no graph was compiled");
    ensure!(
        tally.wrong.is_empty(),
        "{} of {} graphs differ:\n{}",
        tally.wrong.len(),
        tally.run,
        tally.wrong.join("\n")
    );
    Ok(())
}

/// Result for a graph.
enum Outcome {
    Right,
    Refused(String),
    Wrong(String),
}

#[derive(Default)]
struct Tally {
    run: usize,
    refused: BTreeMap<String, usize>,
    wrong: Vec<String>,
}

impl Tally {
    fn add(&mut self, seed: u64, graph: &Path) -> Result<()> {
        match run(graph) {
            Outcome::Right => self.run += 1,
            Outcome::Refused(reason) => *self.refused.entry(reason).or_default() += 1,
            Outcome::Wrong(reason) => {
                self.run += 1;
                let kept = shrink(seed, graph)?;
                self.wrong.push(format!("ATOLL_SEED={seed}: {reason}; the smallest graph is {}", kept.display()));
            }
        }
        Ok(())
    }

    #[expect(clippy::print_stderr, reason = "the count of a run is read by people")]
    fn print(&self) {
        eprintln!(
            "random ONNX graphs: {} run, {} refused, {} wrong",
            self.run,
            self.refused.values().sum::<usize>(),
            self.wrong.len()
        );
        for (reason, count) in &self.refused {
            eprintln!("{count:5} refused: {reason}");
        }
        for wrong in &self.wrong {
            eprintln!("wrong: {wrong}");
        }
    }
}

fn run(graph: &Path) -> Outcome {
    let outcome = std::panic::catch_unwind(|| answer(graph));
    match outcome {
        Ok(Ok(())) => Outcome::Right,
        Ok(Err(error)) => match error.chain().find_map(|cause| cause.downcast_ref::<CompileError>()) {
            Some(CompileError::Import(ImportError::UnsupportedOperator { operator, .. })) => {
                Outcome::Refused(format!("no operator {operator}"))
            }
            Some(CompileError::Import(ImportError::Unsupported { operator, reason, .. })) => {
                Outcome::Refused(format!("{operator}: {reason}"))
            }
            Some(CompileError::Codegen(error)) => Outcome::Refused(error.to_string()),
            _ => Outcome::Wrong(format!("{error:#}")),
        },
        Err(_) => Outcome::Wrong("a panic".into()),
    }
}

/// Compiles the graph and runs every binding.
fn answer(graph: &Path) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let model = Model { name: "random".into(), path: graph.join("model.onnx"), symbols: vec![] };
    let loaded = Loaded::start(&compile(&model, folder.path())?, EngineConfig::default())?;
    for binding in (0..).map(|binding| graph.join(binding.to_string())).take_while(|folder| folder.exists()) {
        loaded.check_elements(&model, &read_case(0, &binding)?, TOLERANCE)?;
    }
    loaded.stop();
    Ok(())
}

/// Reduces the graph as long as it fails. Returns the folder with the smallest graph, its inputs
/// and its results.
fn shrink(seed: u64, graph: &Path) -> Result<PathBuf> {
    let kept = std::env::var_os("ATOLL_RANDOM_ONNX_KEEP")
        .map_or_else(|| std::env::temp_dir().join("atoll-random-onnx"), PathBuf::from);
    let kept = kept.join(seed.to_string());
    if kept.exists() {
        std::fs::remove_dir_all(&kept)?;
    }
    let rounds = tempfile::tempdir()?;
    let mut smallest = graph.to_path_buf();
    for round in 0..ROUNDS_MAX {
        let variants = rounds.path().join(round.to_string());
        cut_graph(&smallest, &variants)?;
        let mut folders: Vec<PathBuf> = match std::fs::read_dir(&variants) {
            Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?,
            Err(_) => break,
        };
        folders.sort();
        let Some(differs) = folders.into_iter().find(|variant| matches!(run(variant), Outcome::Wrong(_))) else {
            break;
        };
        smallest = differs;
    }
    copy(&smallest, &kept).with_context(|| format!("keeping {}", smallest.display()))?;
    Ok(kept)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to)?;
        } else {
            std::fs::copy(&from, &to)?;
        }
    }
    Ok(())
}
