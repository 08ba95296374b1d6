//! What the compiler proves about running blocks again, on the kernels of the models.

use anyhow::{Context, Result, ensure};
use atoll_kgraph::{Argument, BufferKind, Bundle, DType, InvocationLayout, NodeKind, node_may_run_again};
use atoll_passes::{Rerun, analyze_idempotence};
use atoll_tests::corpus::{self, Inputs};
use atoll_tests::stopping::{Random, Stopping, Trial, differences};
use atoll_tests::{Model, built, built_small, full, trained};
use atoll_workbench::{Arg, Buffer, HostBench, HostOptions, Kernel, KernelDevice, Launch};
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

/// Least share of the models' kernel nodes that must be proven, in percent.
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
/// Models whose kernels are stopped: the interpreter takes seconds for a block of a small variant and far longer for one of the published size.
const STOPPED: [&str; 1] = ["squeezenet"];
const TRAINED: [&str; 3] = ["magika", "common_det", "silero_vad"];

/// Kernel nodes of a model, those that may be run again, and why the others may not.
fn nodes(path: &Path, name: &str, folder: &Path) -> Result<(usize, usize, Vec<String>)> {
    let file = folder.join(format!("{name}-rerun.kg"));
    // PTX alone: nothing has to be lowered for a fact about PTX.
    let options = atoll_pipeline::CompileOptions { targets: vec![atoll_pipeline::Target::NVIDIA], ..Default::default() };
    atoll_pipeline::compile(path, &file, &options, &atoll_pipeline::Silent).with_context(|| format!("compiling {name}"))?;
    let bundle = Bundle::open(&file)?;
    let graph = bundle.graph();
    let target = bundle.target_names().next().and_then(|t| bundle.target(t)).context("a target")?;
    let symbols: Vec<i64> = graph.symbols.iter().map(|s| s.min.max(2).min(s.max)).collect();
    let layout = InvocationLayout::new(graph, target, &symbols)?;
    let kernels: Vec<usize> = (0..graph.nodes.len()).filter(|&node| target.launches[node].is_some()).collect();
    let refused: Vec<String> = kernels
        .iter()
        .filter_map(|&node| {
            node_may_run_again(graph, target, &layout, node).err().map(|e| format!("{name}: {}: {e}", graph.nodes[node].name))
        })
        .collect();
    Ok((kernels.len(), kernels.len() - refused.len(), refused))
}

#[test]
#[expect(clippy::print_stdout, reason = "the shares are what the test is run for by hand")]
fn nearly_all_nodes_of_the_models_are_proven() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut all = (0, 0, Vec::new());
    for name in BUILT.iter().chain(&TRAINED) {
        let model = if TRAINED.contains(name) { trained(name, &[]) } else { built(name, folder.path()) }?;
        let (kernels, proven, refused) = nodes(&model.path, name, folder.path())?;
        println!("{name}: {proven} of {kernels} kernel nodes may be run again");
        all = (all.0 + kernels, all.1 + proven, [all.2, refused].concat());
    }
    println!("together: {} of {}\n{}", all.1, all.0, all.2.join("\n"));
    ensure!(all.1 * 100 >= all.0 * PROVEN_PERCENT_MIN, "only {} of {} nodes are proven:\n{}", all.1, all.0, all.2.join("\n"));
    Ok(())
}

/// Instructions of a block that a kernel of the tests never takes, each counted once for each thread: who takes them waits for somebody else.
const STEPS_MAX: u64 = 50_000_000;

fn seed() -> u64 {
    std::env::var("ATOLL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// What is known about kernels by stopping them.
#[derive(Default)]
struct Tally {
    /// Proven ones that came out the same.
    proven: usize,
    /// Those that were refused,
    refused: usize,
    /// and among them those that came out differently.
    differ: usize,
}

impl Tally {
    /// Stops a kernel; one that was proven must come out the same.
    fn stop(&mut self, trial: &Trial<'_>, stopping: &Stopping, place: &str) -> Result<()> {
        let kernel = trial.module.function(trial.entry).with_context(|| format!("{place}: no such kernel"))?;
        let proven = !matches!(analyze_idempotence(trial.module, kernel), Rerun::Never(_));
        // Those that were refused may wait for blocks that do not run here.
        let steps = if proven { stopping.steps } else { stopping.steps / 50 };
        let different = differences(trial, &Stopping { steps, ..*stopping });
        if proven {
            let different = different.with_context(|| format!("{place}: ATOLL_SEED={}", seed()))?;
            let rounds = stopping.rounds;
            ensure!(different == 0, "{place} was proven, and {different} of {rounds} runs differ: ATOLL_SEED={}", seed());
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
        write!(f, "{proven} proven kernels came out the same; of {refused} that were refused, {differ} did not (ATOLL_SEED={})", seed())
    }
}

/// A launch, the shape of its blocks, and what it is launched on.
type Setting = (Launch, [u32; 3], Vec<Buffer>);

/// `4 32 buf:512 zero:512 u32:128`, as in the headers of the labelled kernels; `None` where an argument holds addresses of others.
fn launch(line: &str, random: &mut Random) -> Result<Option<Setting>> {
    let mut words = line.split(' ');
    let mut shape = || -> Result<[u32; 3]> {
        let extents: Vec<u32> = words.next().context("a shape")?.split(',').map(str::parse).collect::<Result<_, _>>()?;
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

fn structure(inner: &str, buffers: &mut Vec<Buffer>, random: &mut Random) -> Result<Arg> {
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

fn argument(word: &str, buffers: &mut Vec<Buffer>, random: &mut Random) -> Result<Option<Arg>> {
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

/// The labelled kernels: name, text.
fn labelled() -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(atoll_tests::root().join("compiler/passes/tests/idempotence"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "ptx") {
            found.push((path.file_stem().unwrap_or_default().to_string_lossy().into_owned(), std::fs::read_to_string(&path)?));
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
        let line = text.lines().find_map(|line| line.strip_prefix("// launch: ")).with_context(|| format!("{name}: no launch"))?;
        let mut random = Random::new(seed());
        let Some((launch, block, buffers)) = launch(line, &mut random).with_context(|| name.clone())? else { continue };
        let trial = Trial { module: &module, entry: &name, block, launch, buffers };
        tally.stop(&trial, &Stopping { rounds: 12, blocks: u64::MAX, steps: STEPS_MAX, seed: seed() }, &name)?;
    }
    println!("labelled: {tally}");
    // If stopping changed nothing for kernels that update in place, it would prove nothing for the others.
    ensure!(tally.proven > 40 && tally.differ > 25, "{tally}");
    Ok(())
}

/// A model whose kernels are run one by one, each on buffers of its own.
struct Walk {
    bundle: std::sync::Arc<Bundle>,
    module: atoll_ptx::Module,
    symbols: Vec<i64>,
    /// The content of every buffer.
    contents: Vec<Vec<u8>>,
}

impl Walk {
    fn new(model: &Model, folder: &Path, random: &mut Random) -> Result<Walk> {
        let file = folder.join(format!("{}-walk.kg", model.name));
        let options = atoll_pipeline::CompileOptions { targets: vec![atoll_pipeline::Target::NVIDIA], ..Default::default() };
        atoll_pipeline::compile(&model.path, &file, &options, &atoll_pipeline::Silent)?;
        let text = atoll_pipeline::show(&model.path, atoll_pipeline::Form::Ptx, atoll_pipeline::Target::NVIDIA)?;
        let bundle = Bundle::open(&file)?;
        let graph = bundle.graph();
        let symbols: Vec<i64> = graph.symbols.iter().map(|s| s.min.max(3).min(s.max)).collect();
        let mut contents = Vec::new();
        for buffer in &graph.buffers {
            let bytes = usize::try_from(buffer.bytes().eval(&symbols)?)?;
            contents.push(match (buffer.kind, buffer.weights_offset) {
                (BufferKind::Const, Some(at)) => bundle.weights()[at as usize..at as usize + bytes].to_vec(),
                (BufferKind::Input, _) => input(buffer.dtype, bytes, random),
                _ => vec![0; bytes],
            });
        }
        Ok(Walk { module: atoll_ptx::parse(&text)?, symbols, contents, bundle })
    }

    /// The launch of a node; `None` for a copy, which is made, and for nothing.
    fn trial(&mut self, node: usize) -> Result<Option<(Trial<'_>, Vec<usize>)>> {
        let (graph, target) =
            (self.bundle.graph(), self.bundle.target_names().next().and_then(|name| self.bundle.target(name)).context("a target")?);
        if let NodeKind::Copy { from, to, bytes } = &graph.nodes[node].kind {
            let bytes = usize::try_from(bytes.eval(&self.symbols)?)?;
            let copied = self.contents[from.0 as usize][..bytes].to_vec();
            self.contents[to.0 as usize][..bytes].copy_from_slice(&copied);
        }
        let Some(spec) = &target.launches[node] else { return Ok(None) };
        let facts = &target.kernels[spec.kernel.0 as usize];
        let grid = [0, 1, 2].map(|axis| spec.grid[axis].eval(&self.symbols).ok().and_then(|n| u32::try_from(n).ok()).unwrap_or(0));
        if grid.contains(&0) {
            return Ok(None);
        }
        let mut ids: Vec<usize> = Vec::new();
        let mut args = Vec::new();
        for argument in &spec.args {
            args.push(match argument {
                Argument::Buffer { buffer, offset } => {
                    let id = buffer.0 as usize;
                    let index = ids.iter().position(|known| *known == id).unwrap_or(ids.len());
                    ids.extend((index == ids.len()).then_some(id));
                    Arg::Buffer { index, offset: u64::try_from(offset.eval(&self.symbols)?)? }
                }
                Argument::Int { dtype, value } => Arg::Value(value.eval(&self.symbols)?.to_le_bytes()[..dtype.bytes() as usize].to_vec()),
                Argument::F32 { bits } => Arg::Value(bits.to_le_bytes().to_vec()),
                Argument::F64 { bits } => Arg::Value(bits.to_le_bytes().to_vec()),
            });
        }
        let buffers =
            ids.iter().map(|&id| Buffer { name: graph.buffers[id].name.clone(), bytes: self.contents[id].clone(), writable: true });
        let launch = Launch { grid, shared_bytes: 0, args };
        let entry = facts.name.as_str();
        Ok(Some((Trial { module: &self.module, entry, block: facts.block, launch, buffers: buffers.collect() }, ids)))
    }
}

/// Numbers that are no nonsense as any type: floats between -1 and 1, small integers.
fn input(dtype: DType, bytes: usize, random: &mut Random) -> Vec<u8> {
    let width = dtype.bytes() as usize;
    let element = |random: &mut Random| match dtype {
        DType::F32 => (random.below(2001) as f32 / 1000.0 - 1.0).to_le_bytes().to_vec(),
        _ => random.below(2).to_le_bytes()[..width].to_vec(),
    };
    (0..bytes / width).flat_map(|_| element(random)).collect()
}

#[test]
#[expect(clippy::print_stdout, reason = "the count is what the test is run for by hand")]
fn proven_nodes_of_models_are_stopped_anywhere_and_run_again() -> Result<()> {
    if !full() {
        atoll_tests::skip("the kernels of models are stopped in full runs");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let mut bench = HostBench::start(HostOptions { time_limit: Duration::from_secs(20), ..HostOptions::default() })?;
    for name in STOPPED {
        let mut random = Random::new(seed());
        let mut walk = Walk::new(&built_small(name, folder.path())?, folder.path(), &mut random)?;
        let mut loaded: HashMap<String, _> = HashMap::new();
        let mut tally = Tally::default();
        for node in 0..walk.bundle.graph().nodes.len() {
            let Some((mut trial, ids)) = walk.trial(node)? else { continue };
            // One node of each kernel is stopped.
            if !loaded.contains_key(trial.entry) {
                let stopping = Stopping { rounds: 2, blocks: 1, steps: STEPS_MAX, seed: seed() + node as u64 };
                tally.stop(&trial, &stopping, &format!("{name}: {}", trial.entry))?;
                let kernel = Kernel { module: trial.module, entry: trial.entry, report: None, block: trial.block };
                loaded.insert(trial.entry.to_owned(), bench.load(&kernel)?);
            }
            // The host, which is quicker, hands on the results.
            bench.launch(&loaded[trial.entry], &trial.launch, &mut trial.buffers, 1)?;
            let after = trial.buffers;
            ids.iter().zip(after).for_each(|(&id, buffer)| walk.contents[id] = buffer.bytes);
        }
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
        let files = case.ptx_files()?;
        // Compilers take turns unless everything is to be run.
        let turn = number % files.len().max(1);
        for (_, file) in files.iter().enumerate().filter(|(index, _)| full() || *index == turn) {
            let module = atoll_ptx::parse(&std::fs::read_to_string(file)?)?;
            let Inputs { launch, block, buffers } = case.inputs(0)?;
            let trial = Trial { module: &module, entry: &case.name, block, launch, buffers };
            let stopping = Stopping { rounds: 2, blocks: u64::MAX, steps: STEPS_MAX, seed: seed() + number as u64 };
            tally.stop(&trial, &stopping, &format!("{} of {}", case.name, file.display()))?;
        }
    }
    println!("corpus: {tally}");
    ensure!(tally.proven > tally.refused, "{tally}");
    Ok(())
}
