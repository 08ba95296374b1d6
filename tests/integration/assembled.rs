//! The cost of passes in machine code, as measured by `atoll bench assembled`: for NVIDIA GPUs, if
//! `ptxas` is installed, and for AMD GPUs. Every kernel that assembles still does; the preemption
//! flag costs neither occupancy nor spills; checks in loops cost no spills and keep inner loops
//! unrolled.
//!
//! For NVIDIA GPUs, a normal run takes two kernels of each file of the corpus, drawn by `ATOLL_SEED`, each for one
//! architecture in turn, and one small model. A full run takes the corpus for all four, and each
//! model for one in turn: `ptxas` needs half an hour for all models and architectures.

use crate::corpus::modules;
use crate::serve::atoll;
use anyhow::{Context, Result, ensure};
use atoll_passes::TransformOptions;
use atoll_ptx::Name;
use atoll_target_nvidia::find_ptxas;
use atoll_tests::corpus::{cases, ptx_files};
use atoll_tests::{Model, built, built_small, full, sample, skip, trained};
use atoll_workbench::without_others;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;

const ARCHITECTURES: [&str; 4] = ["sm_75", "sm_80", "sm_90", "sm_120"];

/// Sets of passes that must cost no occupancy, and those that must cost no spills.
const KEEP_WARPS: [&str; 2] = ["flag", "models"];
const SPILL_NOTHING: [&str; 3] = ["flag", "models", "loops"];

/// Minimum share of inner-loop work that must remain with checks. Not all of it: `ptxas` unrolls a
/// loop of 65,536 iterations by up to 51, and strips of 1,024 iterations of the same loop by 38.
const KEPT_MIN: f64 = 0.75;

/// Kernels that lose warps with the flag, because they would spill with the same number of
/// registers.
const LOSE_WARPS: [(&str, &str); 1] = [("batch_norm", "sm_80")];

#[derive(Deserialize)]
struct Report {
    kernels: Vec<Row>,
    refused: Vec<Refused>,
    faults: Vec<Refused>,
}

#[derive(Debug, Deserialize)]
struct Row {
    source: String,
    kernel: String,
    architecture: String,
    passes: String,
    before: Figures,
    after: Figures,
    inner_kept: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct Figures {
    spill_bytes: u32,
    warps: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct Refused {
    kernel: String,
    architecture: String,
}

impl Row {
    fn wrong(&self) -> Option<&'static str> {
        let expected = LOSE_WARPS.contains(&(self.kernel.as_str(), self.architecture.as_str()));
        let is_of = |sets: &[&str]| sets.contains(&self.passes.as_str());
        if is_of(&SPILL_NOTHING) && self.after.spill_bytes > self.before.spill_bytes {
            Some("spills more")
        } else if is_of(&KEEP_WARPS) && self.after.warps < self.before.warps && !expected {
            Some("has fewer warps")
        } else if self.passes == "loops" && self.inner_kept.is_some_and(|kept| kept < KEPT_MIN) {
            Some("keeps less of its inner loops")
        } else {
            None
        }
    }
}

/// Runs the program on files, for some architectures, with one set of passes or the usual ones.
fn measure(files: &[String], architectures: &[&str], passes: Option<&str>) -> Result<Report> {
    let mut command = Command::new(atoll());
    command.args(["bench", "assembled", "--json", "--architecture", &architectures.join(",")]).args(files);
    if let Some(passes) = passes {
        command.args(["--pass", passes]);
    }
    for case in cases()? {
        let block: Vec<String> = case.inputs(0)?.block.iter().map(u32::to_string).collect();
        command.args(["--block", &format!("{}={}", case.name, block.join(","))]);
    }
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).with_context(|| format!("{files:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Some kernels of each file of the corpus, or of all files together, each in a file of its own.
fn some_kernels(test: &str, count: usize, of_each_file: bool, folder: &Path) -> Result<Vec<String>> {
    let modules = modules()?;
    let kernels = modules.iter().flat_map(|(path, module)| module.kernels().map(move |kernel| (path, &kernel.name)));
    let kernels = sample(test, kernels.collect(), count, |&(path, _)| of_each_file.then_some(path));
    let write = |(path, name): (&PathBuf, &Name)| {
        let file = path.file_stem().unwrap_or_default().to_string_lossy();
        let to = folder.join(format!("{file}.{name}.ptx"));
        std::fs::write(&to, atoll_ptx::print(&without_others(&modules[path], name)))?;
        Ok(to.to_string_lossy().into_owned())
    };
    kernels.into_iter().map(write).collect()
}

/// The measurements: files, and their architectures.
fn tasks(folder: &Path) -> Result<Vec<(Vec<String>, Vec<&'static str>)>> {
    let corpus = ptx_files()?.into_iter().map(|path| path.to_string_lossy().into_owned());
    let turn = |(index, file)| (vec![file], vec![ARCHITECTURES[index % ARCHITECTURES.len()]]);
    if !full() {
        let small = built("squeezenet", folder)?.path.to_string_lossy().into_owned();
        let mut tasks = ARCHITECTURES.map(|architecture| (Vec::new(), vec![architecture]));
        for (index, file) in some_kernels("assembled", 2, true, folder)?.into_iter().enumerate() {
            tasks[index % ARCHITECTURES.len()].0.push(file);
        }
        return Ok(tasks.into_iter().chain([(vec![small], vec!["sm_90"])]).collect());
    }
    let models = models(built, folder)?.into_iter();
    Ok([(corpus.collect(), ARCHITECTURES.to_vec())].into_iter().chain(models.enumerate().map(turn)).collect())
}

/// The files of all models.
fn models(build: fn(&str, &Path) -> Result<Model>, folder: &Path) -> Result<Vec<String>> {
    let built = atoll_models::ARCHITECTURES.iter().map(|model| build(model.name, folder));
    let models = built.chain(["magika", "common_det", "silero_vad"].map(|name| trained(name, &[])));
    models.map(|model| Ok(model?.path.to_string_lossy().into_owned())).collect()
}

#[test]
#[expect(
    clippy::print_stdout,
    reason = "what was measured, and what the assembler does not take, is part of the test's output"
)]
fn passes_cost_no_occupancy_no_spills_and_no_unrolling() -> Result<()> {
    if find_ptxas().is_none() {
        skip("ptxas is not installed; `make setup` installs it");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let (mut measured, mut failures) = (0, Vec::new());
    for (files, architectures) in tasks(folder.path())? {
        let report = measure(&files, &architectures, None)?;
        measured += report.kernels.len();
        for refused in &report.refused {
            println!("{} is not assembled for {} as it is", refused.kernel, refused.architecture);
        }
        failures.extend(report.faults.iter().map(|fault| format!("the assembler refuses what passes made: {fault:?}")));
        failures.extend(
            report
                .kernels
                .iter()
                .filter_map(|row| Some(format!("{} of {} {}: {row:?}", row.kernel, row.source, row.wrong()?))),
        );
    }
    println!("{measured} transformed kernels");
    ensure!(measured > if full() { 1000 } else { 150 }, "only {measured} kernels were measured");
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

const AMD: [&str; 7] = ["gfx906", "gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201"];

/// In code for AMD GPUs. A normal run takes some kernels of the corpus for one architecture, a full
/// run each file for one in turn.
#[test]
#[expect(clippy::print_stdout, reason = "kernels that spill are part of the test's output")]
fn passes_cost_no_spills_on_amd_gpus() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let architecture = sample("assembled-amd-architecture", AMD.to_vec(), 1, |_| ())[0];
    let tasks: Vec<(Vec<String>, &str)> = if full() {
        let files = ptx_files()?.into_iter().map(|path| vec![path.to_string_lossy().into_owned()]);
        files.zip(AMD.into_iter().cycle()).collect()
    } else {
        vec![(some_kernels("assembled-amd", 6, false, folder.path())?, architecture)]
    };
    let (mut measured, mut failures) = (0, Vec::new());
    for (files, architecture) in tasks {
        let report = measure(&files, &[architecture], None)?;
        measured += report.kernels.len();
        for row in report.kernels.iter().filter(|row| row.after.spill_bytes > 0) {
            println!("{} spills {} bytes: {row:?}", row.kernel, row.after.spill_bytes);
            let is_new = SPILL_NOTHING.contains(&row.passes.as_str()) && row.before.spill_bytes == 0;
            failures.extend(is_new.then(|| format!("{row:?}")));
        }
    }
    ensure!(measured > if full() { 1000 } else { 5 }, "only {measured} kernels were measured");
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// Kernels of all models spill nothing on any AMD GPU, before the passes and after those of models.
#[test]
#[expect(clippy::print_stdout, reason = "kernels that spill are part of the test's output")]
fn kernels_of_models_spill_nothing_on_amd_gpus() -> Result<()> {
    if !full() {
        skip("code of all models for all AMD GPUs takes half an hour; `make test-full` makes it");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let passes = TransformOptions::default().names().collect::<Vec<_>>().join(",");
    let report = measure(&models(built_small, folder.path())?, &AMD, Some(&passes))?;
    let spilling = |row: &&Row| row.before.spill_bytes + row.after.spill_bytes > 0;
    report.kernels.iter().filter(spilling).for_each(|row| println!("spills: {row:?}"));
    println!("{} kernels for {} architectures", report.kernels.len(), AMD.len());
    ensure!(report.kernels.len() > 1000, "only {} kernels were measured", report.kernels.len());
    ensure!(report.refused.is_empty() && report.faults.is_empty(), "{:?} {:?}", report.refused, report.faults);
    ensure!(!report.kernels.iter().any(|row| spilling(&row)), "kernels of models spill");
    Ok(())
}
