//! `atoll inspect`

mod flow;
mod text;

use crate::drawing;
use crate::failure::{OrUserError, user_error};
use crate::output::{print, print_json};
use anyhow::{Context, Result};
use atoll_kgraph::{
    AmdFacts, BUFFER_ALIGN, BufferKind, Bundle, InvocationLayout, KernelFacts, KernelGraph, LaunchSpec, NodeKind,
    Place, RerunFact, TargetImage, features, node_may_run_again,
};
use atoll_protocol::TensorMetadata;
use atoll_proxy_kernels::{AmdModel, DeviceModel, KernelNeeds, RegisterClass};
use atoll_server::tensor_metadata;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use text::text;

const EXAMPLES: &str = "\
Examples:
  atoll inspect resnet50.kg
  atoll inspect bert.kg --symbol sequence=128 --json
  atoll inspect resnet50.kg --target nvidia-sm_75 --device t4
  atoll inspect resnet50.kg --source > kernels.ptx
  atoll inspect resnet50.kg --svg resnet50.svg
  atoll inspect resnet50.kg --dot | dot -Tpdf > resnet50.pdf";

/// Show the contents of a bundle: kernels, shapes, buffers, memory plan, sizes
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Bundle to show
    #[arg(value_name = "FILE.kg")]
    bundle: PathBuf,

    /// Value of a symbol [default: its smallest value]
    #[arg(long, value_name = "NAME=VALUE")]
    symbol: Vec<String>,

    /// Target whose launches are shown [default: the first]
    #[arg(long)]
    target: Option<String>,

    /// Device whose occupancy is shown: v100, t4, a100, h100, mi50, … [default: host, t4 for NVIDIA
    /// targets, or a device of the architecture for AMD targets]
    #[arg(long)]
    device: Option<String>,

    /// Print JSON
    #[arg(long, group = "form")]
    json: bool,

    /// Print the graph in the DOT language of Graphviz
    #[arg(long, group = "form")]
    dot: bool,

    /// Print the PTX of the kernels as it was before the passes
    #[arg(long, group = "form")]
    source: bool,

    /// Draw the graph into a file with Graphviz, which must be installed
    #[arg(long, group = "form", value_name = "FILE.svg")]
    svg: Option<PathBuf>,
}

/// Everything that is shown.
#[derive(Debug, Serialize)]
struct Inspection {
    name: String,
    digest: String,
    format: u32,
    /// Features of the file beyond format 1.
    features: Vec<&'static str>,
    producer: String,
    file_bytes: u64,
    targets: Vec<String>,
    /// The targets for which it has the PTX before the passes, from which a daemon compiles the code
    /// of tenants.
    sources: Vec<String>,
    symbols: Vec<Symbol>,
    batch: Option<Batch>,
    inputs: Vec<TensorMetadata>,
    outputs: Vec<TensorMetadata>,
    memory: Memory,
    kernels: Vec<Kernel>,
    nodes: Vec<NodeRow>,
    /// Control flow over the nodes; empty if all run in order.
    segments: Vec<flow::SegmentRow>,
    buffers: Vec<BufferRow>,
}

#[derive(Debug, Serialize)]
struct Symbol {
    name: String,
    min: i64,
    max: i64,
    /// The value for which sizes are shown.
    value: i64,
}

/// A symbol that counts independent rows.
#[derive(Debug, Serialize)]
struct Batch {
    symbol: String,
    /// The analysis that proved it.
    proof: String,
    /// The axis of the rows in each input and output, by name.
    axes: BTreeMap<String, u32>,
}

/// Device memory, in bytes.
#[derive(Debug, Serialize)]
struct Memory {
    /// Constants, shared by all invocations.
    weights_bytes: u64,
    /// Memory of one invocation.
    invocation_bytes: u64,
    /// Temporary buffers, a part of it.
    arena_bytes: u64,
    /// Size of the temporary buffers without reuse of memory.
    unshared_bytes: Option<u64>,
    /// Flags and progress maps, a part of it.
    control_bytes: u64,
    /// State buffers of one session.
    state_bytes: u64,
    /// Constants plus one invocation.
    peak_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Kernel {
    name: String,
    block: [u32; 3],
    launches: usize,
    params_bytes: u32,
    shared_bytes: u32,
    scratch_bytes: u32,
    registers: Option<u32>,
    /// Whether the number is an estimate because no assembler counted them.
    registers_estimated: bool,
    spill_bytes: Option<u32>,
    amd: Option<AmdFacts>,
    occupancy: OccupancyRow,
    preemptible: bool,
    /// Loops that check the epoch word, in addition to the check at entry.
    loop_checks: u32,
    padding: PaddingRow,
    /// Whether a block may be re-executed after an interruption.
    rerun: RerunRow,
}

/// A fact about a kernel, and what it means for its launches.
#[derive(Debug, Serialize)]
struct RerunRow {
    /// `always`, `if_disjoint`, `never`; `None` if it was not analyzed.
    proven: Option<&'static str>,
    /// Pairs of parameters (read, written) whose buffers must not overlap.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    disjoint: Vec<[u32; 2]>,
    /// Number of launches whose blocks may be re-executed, for the shown symbols.
    launches: usize,
    /// Why the other launches may not.
    reason: Option<String>,
}

/// Blocks of a kernel that fit on a compute unit at the same time.
#[derive(Debug, Serialize)]
struct OccupancyRow {
    device: &'static str,
    /// `None` if the number of registers is unknown.
    blocks: Option<u32>,
    warps: Option<u32>,
    /// The limiting resource: `blocks`, `warps`, `registers` or `shared`.
    limited_by: Option<String>,
}

/// Whether a kernel can be padded.
#[derive(Debug, Serialize)]
struct PaddingRow {
    /// Register class of the dkp modules that can contain it; `None` if there is none, or if
    /// registers are no limit on the device.
    class: Option<u32>,
    /// Why no dkp module can contain it.
    reason: Option<String>,
}

#[derive(Debug, Serialize)]
struct NodeRow {
    name: String,
    /// The kernel, or `copy` or `fill`.
    what: String,
    /// Number of alternative launches, selected by the symbols, besides the default one.
    variants: usize,
    /// Blocks; `None` if nothing is launched.
    grid: Option<[u32; 3]>,
    reads: Vec<String>,
    writes: Vec<String>,
    /// Node from which the graph may run again once this node has started.
    restore_point: Option<String>,
}

#[derive(Debug, Serialize)]
struct BufferRow {
    name: String,
    kind: BufferKind,
    datatype: String,
    shape: Vec<i64>,
    bytes: u64,
    /// Offset in the memory of the invocation, or in the constants.
    offset: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let bundle = Bundle::open(&args.bundle).or_user_error()?;
    if args.dot {
        return Ok(print(&drawing::dot(bundle.graph()))?);
    }
    if args.source {
        let target = target(args, &bundle)?;
        let source = bundle.source(&target.name).or_user_error()?;
        return Ok(print(&source.ok_or_else(|| {
            user_error("the bundle does not contain the original PTX of its kernels; compile the model again")
        })?)?);
    }
    if let Some(path) = &args.svg {
        let picture = drawing::svg(bundle.graph())?;
        return std::fs::write(path, picture).with_context(|| path.display().to_string()).or_user_error();
    }
    let inspection = inspect(args, &bundle)?;
    if args.json { print_json(&inspection) } else { Ok(print(&text(&inspection))?) }
}

fn inspect(args: &Args, bundle: &Bundle) -> Result<Inspection> {
    let graph = bundle.graph();
    let symbols = symbol_values(args, graph)?;
    let target = target(args, bundle)?;
    let device = device(args, target)?;
    let layout = InvocationLayout::new(graph, target, &symbols)
        .context("cannot lay out an invocation with these symbols")
        .or_user_error()?;
    let name =
        |ids: &[atoll_kgraph::BufferId]| ids.iter().map(|id| graph.buffers[id.0 as usize].name.clone()).collect();
    let nodes = graph.nodes.iter().enumerate().map(|(index, node)| NodeRow {
        name: node.name.clone(),
        what: match (&node.kind, &target.launches[index]) {
            (_, Some(spec)) => target.kernels[spec.choose(&symbols).1.kernel.0 as usize].name.clone(),
            (NodeKind::Fill { .. }, None) => "fill".into(),
            (NodeKind::Kernel | NodeKind::Copy { .. }, None) => "copy".into(),
        },
        variants: target.launches[index].as_ref().map_or(0, |spec| spec.variants.len()),
        grid: layout.launches[index].map(|launch| launch.grid),
        reads: name(&node.reads),
        writes: name(&node.writes),
        // The last node may overwrite its own input; then there is no later restore point.
        restore_point: graph.nodes.get(graph.plan.restore_points[index].0 as usize).map(|point| point.name.clone()),
    });
    let symbol = |(symbol, &value): (&atoll_kgraph::SymbolSpec, &i64)| Symbol {
        name: symbol.name.clone(),
        min: symbol.min,
        max: symbol.max,
        value,
    };
    Ok(Inspection {
        name: graph.name.clone(),
        digest: bundle.digest().into(),
        format: bundle.format(),
        features: features::of_graph(graph)
            .union(&features::of_target(graph, target))
            .map(|feature| feature.name())
            .collect(),
        producer: bundle.producer().into(),
        file_bytes: bundle.file_bytes(),
        targets: bundle.target_names().map(String::from).collect(),
        sources: bundle
            .target_names()
            .filter(|name| bundle.target(name).is_some_and(|image| image.source.is_some()))
            .map(String::from)
            .collect(),
        symbols: graph.symbols.iter().zip(&symbols).map(symbol).collect(),
        batch: graph.batch.as_ref().map(|batch| Batch {
            symbol: graph.symbols[batch.symbol.0 as usize].name.clone(),
            proof: batch.proof.clone(),
            axes: graph
                .buffers
                .iter()
                .zip(&batch.axes)
                .filter_map(|(buffer, axis)| Some((is_io(buffer.kind).then(|| buffer.name.clone())?, (*axis)?)))
                .collect(),
        }),
        inputs: tensor_metadata(graph, BufferKind::Input),
        outputs: tensor_metadata(graph, BufferKind::Output),
        memory: memory(bundle, target, &layout, &symbols),
        kernels: kernels(graph, target, &layout, device),
        nodes: nodes.collect(),
        segments: flow::rows(graph),
        buffers: buffers(graph, &layout, &symbols)?,
    })
}

fn is_io(kind: BufferKind) -> bool {
    matches!(kind, BufferKind::Input | BufferKind::Output)
}

fn symbol_values(args: &Args, graph: &KernelGraph) -> Result<Vec<i64>> {
    let mut values: Vec<i64> = graph.symbols.iter().map(|symbol| symbol.min).collect();
    let names = || graph.symbols.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", ");
    for text in &args.symbol {
        let parsed = text.split_once('=').and_then(|(name, value)| Some((name, value.parse::<i64>().ok()?)));
        let (name, value) = parsed.ok_or_else(|| user_error(format!("--symbol {text}: expected NAME=VALUE")))?;
        let index = graph.symbols.iter().position(|s| s.name == name);
        let index = index.ok_or_else(|| user_error(format!("the model has no symbol `{name}`; it has {}", names())))?;
        let symbol = &graph.symbols[index];
        if !(symbol.min..=symbol.max).contains(&value) {
            return Err(user_error(format!("`{name}` must be {} to {}", symbol.min, symbol.max)));
        }
        values[index] = value;
    }
    Ok(values)
}

fn target<'b>(args: &Args, bundle: &'b Bundle) -> Result<&'b TargetImage> {
    let known = bundle.target_names().collect::<Vec<_>>().join(", ");
    let name = args.target.as_deref().or_else(|| bundle.target_names().next());
    let image = name.and_then(|name| bundle.target(name));
    image.ok_or_else(|| user_error(format!("the bundle has no target {}; it has {known}", name.unwrap_or("at all"))))
}

/// The device whose occupancy is shown.
fn device(args: &Args, target: &TargetImage) -> Result<&'static DeviceModel> {
    if args.device.is_none()
        && let Some(model) = target.name.strip_prefix("amd-").and_then(AmdModel::find)
    {
        return Ok(&model.device);
    }
    let default = if target.name.starts_with("host") { "host" } else { "t4" };
    let name = args.device.as_deref().unwrap_or(default);
    let known = || DeviceModel::ALL.map(|device| device.name).join(", ");
    DeviceModel::find(name).ok_or_else(|| user_error(format!("unknown device `{name}`; the devices are {}", known())))
}

fn memory(bundle: &Bundle, target: &TargetImage, layout: &InvocationLayout, symbols: &[i64]) -> Memory {
    // On the host device, each constant occupies whole pages.
    let granule = if target.name.starts_with("host") { rustix::param::page_size() as u64 } else { BUFFER_ALIGN };
    let weights_bytes = bundle.constant_bytes(granule);
    let unshared = bundle.graph().plan.unshared_bytes.as_ref();
    Memory {
        weights_bytes,
        invocation_bytes: layout.bytes,
        arena_bytes: layout.arena.bytes,
        unshared_bytes: unshared.and_then(|bytes| u64::try_from(bytes.eval(symbols).ok()?).ok()),
        control_bytes: layout.control.bytes,
        state_bytes: layout.state_bytes,
        peak_bytes: weights_bytes + layout.bytes,
    }
}

fn kernels(
    graph: &KernelGraph,
    target: &TargetImage,
    layout: &InvocationLayout,
    device: &'static DeviceModel,
) -> Vec<Kernel> {
    let launches = |index: usize| {
        target
            .launches
            .iter()
            .flatten()
            .flat_map(LaunchSpec::all)
            .filter(|launch| launch.kernel.0 as usize == index)
            .count()
    };
    let row = |(index, kernel): (usize, &atoll_kgraph::KernelFacts)| Kernel {
        name: kernel.name.clone(),
        block: kernel.block,
        launches: launches(index),
        params_bytes: kernel.params_bytes,
        shared_bytes: kernel.shared_bytes,
        scratch_bytes: kernel.scratch_bytes,
        registers: kernel.registers,
        registers_estimated: kernel.registers_estimated,
        spill_bytes: kernel.spill_bytes,
        amd: kernel.amd,
        occupancy: occupancy(device, kernel),
        preemptible: kernel.preempt_offset.is_some(),
        loop_checks: kernel.loop_checks,
        padding: padding(device, kernel),
        rerun: rerun(graph, target, layout, index),
    };
    target.kernels.iter().enumerate().map(row).collect()
}

/// Registers per thread, if they limit occupancy on the device; `None` if unknown.
fn registers(device: &DeviceModel, kernel: &KernelFacts) -> Option<u32> {
    if device.registers.per_thread_max == u32::MAX { Some(0) } else { kernel.registers }
}

fn occupancy(device: &'static DeviceModel, kernel: &KernelFacts) -> OccupancyRow {
    let threads = kernel.block.iter().product();
    let found = registers(device, kernel)
        .map(|registers| device.occupancy(KernelNeeds { registers, shared_bytes: kernel.shared_bytes, threads }));
    OccupancyRow {
        device: device.name,
        blocks: found.map(|o| o.blocks),
        warps: found.map(|o| o.warps),
        limited_by: found.map(|o| format!("{:?}", o.limit).to_lowercase()),
    }
}

fn padding(device: &'static DeviceModel, kernel: &KernelFacts) -> PaddingRow {
    if let Some(reason) = &kernel.not_padded {
        return PaddingRow { class: None, reason: Some(reason.clone()) };
    }
    let threads = kernel.block.iter().product::<u32>().next_multiple_of(device.warp_threads);
    match registers(device, kernel) {
        None => PaddingRow { class: None, reason: Some("its number of registers is unknown".into()) },
        Some(registers) => match RegisterClass::of_kernel(device, registers, threads) {
            None => PaddingRow {
                class: None,
                reason: Some(format!("no register class has {registers} registers for {threads} threads")),
            },
            Some(class) => {
                PaddingRow { class: Some(class.registers).filter(|registers| *registers != u32::MAX), reason: None }
            }
        },
    }
}

fn rerun(graph: &KernelGraph, target: &TargetImage, layout: &InvocationLayout, kernel: usize) -> RerunRow {
    let launched = |node: &usize| {
        target.launches[*node].as_ref().is_some_and(|spec| {
            let chosen = layout.launches[*node].and_then(|launch| launch.variant);
            spec.variant(chosen).kernel.0 as usize == kernel
        })
    };
    let outcomes: Vec<_> =
        (0..graph.nodes.len()).filter(launched).map(|node| node_may_run_again(graph, target, layout, node)).collect();
    let (proven, disjoint) = match &target.kernels[kernel].rerun {
        None => (None, Vec::new()),
        Some(RerunFact::Always) => (Some("always"), Vec::new()),
        Some(RerunFact::IfDisjoint(pairs)) => {
            (Some("if_disjoint"), pairs.iter().map(|pair| [pair.read, pair.written]).collect())
        }
        Some(RerunFact::Never(_)) => (Some("never"), Vec::new()),
    };
    let reason = outcomes.iter().find_map(|outcome| outcome.as_ref().err()).map(ToString::to_string);
    RerunRow { proven, disjoint, launches: outcomes.iter().filter(|outcome| outcome.is_ok()).count(), reason }
}

fn buffers(graph: &KernelGraph, layout: &InvocationLayout, symbols: &[i64]) -> Result<Vec<BufferRow>> {
    let row = |(buffer, place): (&atoll_kgraph::BufferSpec, &Place)| {
        let shape = buffer.shape.iter().map(|size| size.eval(symbols)).collect::<Result<_, _>>()?;
        let datatype = format!("{:?}", buffer.dtype).to_lowercase();
        Ok(BufferRow {
            name: buffer.name.clone(),
            kind: buffer.kind,
            datatype,
            shape,
            bytes: place.bytes,
            offset: place.offset,
        })
    };
    graph.buffers.iter().zip(&layout.buffers).map(row).collect()
}
