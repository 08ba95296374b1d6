//! What the compiler proves about running blocks again, on the kernels of the models.

use anyhow::{Context, Result, ensure};
use atoll_kgraph::{Bundle, InvocationLayout, node_may_run_again};
use atoll_passes::{Rerun, analyze_idempotence};
use atoll_tests::stopping::{Random, Trial, differences};
use atoll_tests::{built, trained};
use atoll_workbench::{Arg, Buffer, HostBench, HostOptions, Launch};
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
const TRAINED: [&str; 3] = ["magika", "common_det", "silero_vad"];

/// Kernel nodes of a model, those that may be run again, and why the others may not.
fn nodes(path: &Path, name: &str, folder: &Path) -> Result<(usize, usize, Vec<String>)> {
    let file = folder.join(format!("{name}-rerun.kg"));
    // PTX alone: nothing has to be lowered for a fact about PTX.
    let options = atoll_pipeline::CompileOptions { targets: vec![atoll_pipeline::Target::NVIDIA], assemble: false };
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

/// Runs of each kernel that are stopped.
const ROUNDS: u64 = 12;

fn seed() -> u64 {
    std::env::var("ATOLL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

fn bench() -> Result<HostBench> {
    Ok(HostBench::start(HostOptions { compute_units: 1, time_limit: Duration::from_secs(20), ..HostOptions::default() })?)
}

/// `4 32 buf:512 zero:512 u32:128`, as in the headers of the labelled kernels; `None` where an argument holds addresses of others.
fn launch(line: &str, random: &mut Random) -> Result<Option<(Launch, [u32; 3], Vec<Buffer>)>> {
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
    let mut bench = bench()?;
    let (mut proven, mut caught) = (0, 0);
    for (name, text) in labelled()? {
        let module = atoll_ptx::parse(&text)?;
        let answer = analyze_idempotence(&module, module.function(&name).context("the kernel")?);
        let line = text.lines().find_map(|line| line.strip_prefix("// launch: ")).with_context(|| format!("{name}: no launch"))?;
        // These wait for others that may have been stopped.
        if matches!(name.as_str(), "lock" | "spin_on_flag") {
            continue;
        }
        let mut random = Random::new(seed());
        let Some((launch, block, buffers)) = launch(line, &mut random).with_context(|| name.clone())? else { continue };
        let trial = Trial { module: &module, entry: &name, block, launch, buffers };
        let different = differences(&mut bench, &trial, ROUNDS, seed());
        match answer {
            Rerun::Never(_) => caught += usize::from(different.is_ok_and(|n| n > 0)),
            _ => {
                let different = different.with_context(|| name.clone())?;
                ensure!(different == 0, "{name} was proven, and {different} of {ROUNDS} runs differ: ATOLL_SEED={}", seed());
                proven += 1;
            }
        }
    }
    println!("{proven} proven kernels came out the same; {caught} of those that were refused did not");
    // If stopping changed nothing for kernels that update in place, it would prove nothing for the others.
    ensure!(proven > 40 && caught > 25, "{proven} proven, {caught} caught");
    Ok(())
}
