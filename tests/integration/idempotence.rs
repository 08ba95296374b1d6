//! Claims of the compiler about re-executing blocks, tested on the kernels of models.

use anyhow::{Context, Result, ensure};
use atoll_core::rng::Rng;
use atoll_kgraph::{Bundle, InvocationLayout, node_may_run_again};
use atoll_passes::{Rerun, analyze_idempotence};
use atoll_pipeline::Target;
use atoll_tests::corpus;
use atoll_tests::stopping::{Stopping, Trial, differences};
use atoll_tests::walk::Walk;
use atoll_tests::{LARGE, built, built_small, family, full, sample, seed, trained};
use atoll_workbench::{Arg, Buffer, Inputs, Launch};
use std::path::Path;

/// Minimum share of the models' kernel nodes that must be proven re-executable, in percent.
const PROVEN_PERCENT_MIN: usize = 95;

const BUILT: [&str; 10] = [
    "resnet18",
    "resnet50",
    "resnet152",
    "densenet121",
    "densenet201",
    "vgg19",
    "inception_v3",
    "squeezenet",
    "mobilenet_v2",
    "distilbert",
];
/// Models whose kernels are stopped. The interpreter takes seconds for a block of a small variant,
/// and far longer for one of the published size.
const STOPPED: [&str; 1] = ["squeezenet"];
const TRAINED: [&str; 3] = ["magika", "common_det", "silero_vad"];

/// Number of kernel nodes of a model and of re-executable ones, and why the others are not.
fn nodes(path: &Path, name: &str, folder: &Path) -> Result<(usize, usize, Vec<String>)> {
    let file = folder.join(format!("{name}-rerun.kg"));
    // PTX only, since the claims are about PTX.
    let options =
        atoll_pipeline::CompileOptions { targets: vec![atoll_pipeline::Target::NVIDIA], ..Default::default() };
    atoll_pipeline::compile(path, &file, &options, &atoll_pipeline::Silent)
        .with_context(|| format!("compiling {name}"))?;
    let bundle = Bundle::open(&file)?;
    let graph = bundle.graph();
    let target = bundle.target_names().next().and_then(|t| bundle.target(t)).context("a target")?;
    let symbols: Vec<i64> = graph.symbols.iter().map(|s| s.min.max(2).min(s.max)).collect();
    let layout = InvocationLayout::new(graph, target, &symbols)?;
    let kernels: Vec<usize> = (0..graph.nodes.len()).filter(|&node| target.launches[node].is_some()).collect();
    let refused: Vec<String> = kernels
        .iter()
        .filter_map(|&node| {
            node_may_run_again(graph, target, &layout, node)
                .err()
                .map(|e| format!("{name}: {}: {e}", graph.nodes[node].name))
        })
        .collect();
    Ok((kernels.len(), kernels.len() - refused.len(), refused))
}

#[test]
#[expect(clippy::print_stdout, reason = "the shares are what the test is run for by hand")]
fn nearly_all_nodes_of_the_models_are_proven() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut all = (0, 0, Vec::new());
    let names = BUILT.into_iter().chain(TRAINED).filter(|name| full() || !LARGE.contains(name)).collect();
    for name in sample("idempotence", names, 1, |&name| family(name)) {
        let model = if TRAINED.contains(&name) { trained(name, &[]) } else { built(name, folder.path()) }?;
        let (kernels, proven, refused) = nodes(&model.path, name, folder.path())?;
        println!("{name}: {proven} of {kernels} kernel nodes may be run again");
        all = (all.0 + kernels, all.1 + proven, [all.2, refused].concat());
    }
    println!("together: {} of {}\n{}", all.1, all.0, all.2.join("\n"));
    ensure!(
        all.1 * 100 >= all.0 * PROVEN_PERCENT_MIN,
        "only {} of {} nodes are proven:\n{}",
        all.1,
        all.0,
        all.2.join("\n")
    );
    Ok(())
}

/// Instruction limit of a block, counted per thread. No kernel of the tests reaches it, unless it
/// waits for another block.
const STEPS_MAX: u64 = 50_000_000;

/// Results of stopping kernels.
#[derive(Default)]
struct Tally {
    /// Proven kernels with equal results.
    proven: usize,
    /// Kernels that were not proven,
    refused: usize,
    /// and those among them with different results.
    differ: usize,
}

impl Tally {
    /// Stops the blocks of a kernel; a proven kernel must give equal results.
    fn stop(&mut self, trial: &Trial<'_>, stopping: &Stopping, place: &str) -> Result<()> {
        let kernel = trial.module.function(trial.entry).with_context(|| format!("{place}: no such kernel"))?;
        let proven = !matches!(analyze_idempotence(trial.module, kernel), Rerun::Never(_));
        // An unproven kernel may wait for blocks that do not run here.
        let steps = if proven { stopping.steps } else { stopping.steps / 50 };
        let different = differences(trial, &Stopping { steps, ..*stopping });
        if proven {
            let different = different.with_context(|| format!("{place}: ATOLL_SEED={}", seed()))?;
            let rounds = stopping.rounds;
            ensure!(
                different == 0,
                "{place} was proven, and {different} of {rounds} runs differ: ATOLL_SEED={}",
                seed()
            );
            self.proven += 1;
        } else {
            self.refused += 1;
            self.differ += usize::from(different.is_ok_and(|rounds| rounds > 0));
        }
        Ok(())
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Tally { proven, refused, differ } = self;
        write!(
            f,
            "{proven} proven kernels came out the same; of {refused} that were refused, {differ} did not \
            (ATOLL_SEED={})",
            seed()
        )
    }
}

/// A launch, its block shape, and its buffers.
type Setting = (Launch, [u32; 3], Vec<Buffer>);

/// Parses `4 32 buf:512 zero:512 u32:128`, as in the headers of the labelled kernels. `None` if an
/// argument contains addresses of other arguments.
fn launch(line: &str, random: &mut Rng) -> Result<Option<Setting>> {
    let mut words = line.split(' ');
    let mut shape = || -> Result<[u32; 3]> {
        let extents: Vec<u32> =
            words.next().context("a shape")?.split(',').map(str::parse).collect::<Result<_, _>>()?;
        Ok([extents[0], *extents.get(1).unwrap_or(&1), *extents.get(2).unwrap_or(&1)])
    };
    let (grid, block) = (shape()?, shape()?);
    let mut buffers = Vec::new();
    let mut args = Vec::new();
    for word in words {
        match word.strip_prefix("struct[").and_then(|inner| inner.strip_suffix(']')) {
            Some(inner) => args.push(structure(inner, &mut buffers, random)?),
            None => match argument(word, &mut buffers, random)? {
                Some(arg) => args.push(arg),
                None => return Ok(None),
            },
        }
    }
    Ok(Some((Launch { grid, shared_bytes: 0, args }, block, buffers)))
}

fn structure(inner: &str, buffers: &mut Vec<Buffer>, random: &mut Rng) -> Result<Arg> {
    let (mut bytes, mut addresses) = (Vec::new(), Vec::new());
    for word in inner.split(',') {
        match argument(word, buffers, random)?.context("no tables in structures")? {
            Arg::Value(value) => bytes.extend(value),
            Arg::Buffer { index, offset } => {
                addresses.push((bytes.len(), index, offset));
                bytes.extend([0; 8]);
            }
            Arg::Struct { .. } => anyhow::bail!("a structure in a structure"),
        }
    }
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    Ok(Arg::Struct { bytes, addresses })
}

fn argument(word: &str, buffers: &mut Vec<Buffer>, random: &mut Rng) -> Result<Option<Arg>> {
    let (kind, value) = word.split_once(':').context("KIND:VALUE")?;
    let (bytes, bound) = value.split_once(':').unwrap_or((value, "16"));
    let mut content = |width: usize, bound: u64| -> Result<Vec<u8>> {
        let count = bytes.parse::<usize>()?.div_ceil(width);
        Ok((0..count).flat_map(|_| random.below(bound).to_le_bytes()[..width].to_vec()).collect())
    };
    let content = match kind {
        "u32" => return Ok(Some(Arg::Value(value.parse::<u32>()?.to_le_bytes().to_vec()))),
        "u64" => return Ok(Some(Arg::Value(value.parse::<u64>()?.to_le_bytes().to_vec()))),
        "f32" => return Ok(Some(Arg::Value(value.parse::<f32>()?.to_le_bytes().to_vec()))),
        "table" => return Ok(None),
        "zero" => vec![0; bytes.parse()?],
        "buf" | "idx" => content(4, bound.parse()?)?,
        "idx64" => content(8, bound.parse()?)?,
        other => anyhow::bail!("no argument of kind {other}"),
    };
    buffers.push(Buffer { name: format!("{kind}{}", buffers.len()), bytes: content, writable: true });
    Ok(Some(Arg::buffer(buffers.len() - 1)))
}

/// The labelled kernels: name and text.
fn labelled() -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(atoll_tests::root().join("compiler/passes/tests/idempotence"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "ptx") {
            found.push((
                path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
                std::fs::read_to_string(&path)?,
            ));
        }
    }
    found.sort();
    Ok(found)
}

#[test]
#[expect(clippy::print_stdout, reason = "the count is what the test is run for by hand")]
fn labelled_kernels_are_stopped_anywhere_and_run_again() -> Result<()> {
    let mut tally = Tally::default();
    for (name, text) in labelled()? {
        let module = atoll_ptx::parse(&text)?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("// launch: "))
            .with_context(|| format!("{name}: no launch"))?;
        let mut random = Rng::new(seed());
        let Some((launch, block, buffers)) = launch(line, &mut random).with_context(|| name.clone())? else { continue };
        let trial = Trial { module: &module, entry: &name, block, launch, buffers };
        tally.stop(&trial, &Stopping { rounds: 12, blocks: u64::MAX, steps: STEPS_MAX, seed: seed() }, &name)?;
    }
    println!("labelled: {tally}");
    // Stopping must change the results of kernels that update in place; otherwise the test would
    // prove nothing.
    ensure!(tally.proven > 40 && tally.differ > 25, "{tally}");
    Ok(())
}

#[test]
#[expect(clippy::print_stdout, reason = "the count is what the test is run for by hand")]
fn proven_nodes_of_models_are_stopped_anywhere_and_run_again() -> Result<()> {
    if !full() {
        atoll_tests::skip("the kernels of models are stopped in full runs");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    for name in STOPPED {
        let mut walk =
            Walk::new(&built_small(name, folder.path())?, Target::NVIDIA, folder.path(), &mut Rng::new(seed()))?;
        let mut tally = Tally::default();
        let mut number = 0;
        walk.each_kernel(&mut |trial| {
            number += 1;
            let stopping = Stopping { rounds: 2, blocks: 1, steps: STEPS_MAX, seed: seed() + number };
            tally.stop(trial, &stopping, &format!("{name}: {}", trial.entry))
        })?;
        println!("{name}: {tally}");
        ensure!(tally.proven > 0, "{name}: nothing was proven");
    }
    Ok(())
}

#[test]
#[expect(clippy::print_stdout, reason = "the count is what the test is run for by hand")]
fn kernels_of_the_corpus_are_stopped_anywhere_and_run_again() -> Result<()> {
    let mut tally = Tally::default();
    for (number, case) in corpus::cases()?.iter().enumerate() {
        let files = &case.ptx;
        // Compilers alternate unless the run is full.
        let turn = number % files.len().max(1);
        for (_, file) in files.iter().enumerate().filter(|(index, _)| full() || *index == turn) {
            let module = atoll_ptx::parse(&std::fs::read_to_string(file)?)?;
            let Inputs { launch, block, buffers, .. } = case.inputs(0)?;
            let trial = Trial { module: &module, entry: &case.name, block, launch, buffers };
            let stopping = Stopping { rounds: 2, blocks: u64::MAX, steps: STEPS_MAX, seed: seed() + number as u64 };
            tally.stop(&trial, &stopping, &format!("{} of {}", case.name, file.display()))?;
        }
    }
    println!("corpus: {tally}");
    ensure!(tally.proven > tally.refused, "{tally}");
    Ok(())
}
