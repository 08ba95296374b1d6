//! What the compiler proves about running blocks again, on the kernels of the models.

use anyhow::{Context, Result, ensure};
use atoll_kgraph::{Bundle, InvocationLayout, node_may_run_again};
use atoll_tests::{built, trained};
use std::path::Path;

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
