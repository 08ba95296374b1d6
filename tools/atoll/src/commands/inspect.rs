//! `atoll inspect`

use crate::drawing;
use crate::failure::{Blame, user_error};
use crate::output::{Align, Table, bytes, print, print_json};
use anyhow::{Context, Result};
use atoll_kgraph::{
    AmdFacts, BUFFER_ALIGN, BufferKind, Bundle, InvocationLayout, KernelFacts, KernelGraph, LaunchSpec, NodeKind,
    Place, RerunFact, TargetImage, features, node_may_run_again,
};
use atoll_protocol::TensorMetadata;
use atoll_proxy_kernels::{DeviceModel, KernelNeeds, RegisterClass};
use atoll_server::tensor_metadata;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  atoll inspect resnet50.kg
  atoll inspect bert.kg --symbol sequence=128 --json
  atoll inspect resnet50.kg --target nvidia-sm_75 --device t4
  atoll inspect resnet50.kg --source > kernels.ptx
  atoll inspect resnet50.kg --svg resnet50.svg
  atoll inspect resnet50.kg --dot | dot -Tpdf > resnet50.pdf";

/// Show what is in a bundle: kernels, shapes, buffers, memory plan, sizes.
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The bundle
    #[arg(value_name = "FILE.kg")]
    bundle: PathBuf,

    /// Value of a symbol in sizes; the smallest it can have otherwise
    #[arg(long, value_name = "NAME=VALUE")]
    symbol: Vec<String>,

    /// Show the launches for this target [default: the first]
    #[arg(long)]
    target: Option<String>,

    /// The device whose occupancy is shown, v100, t4, a100, h100, mi50, … [default: host, or t4 for
    /// NVIDIA targets]
    #[arg(long)]
    device: Option<String>,

    /// Print JSON
    #[arg(long, group = "form")]
    json: bool,

    /// Print the graph in Graphviz' language
    #[arg(long, group = "form")]
    dot: bool,

    /// Print the kernels as they were before the passes, in PTX
    #[arg(long, group = "form")]
    source: bool,

    /// Draw the graph into a file with Graphviz, which must be installed
    #[arg(long, group = "form", value_name = "FILE.svg")]
    svg: Option<PathBuf>,
}

/// What there is to see.
#[derive(Debug, Serialize)]
struct Inspection {
    name: String,
    digest: String,
    format: u32,
    /// What it asks for beyond format 1.
    features: Vec<&'static str>,
    producer: String,
    file_bytes: u64,
    targets: Vec<String>,
    symbols: Vec<Symbol>,
    batch: Option<Batch>,
    inputs: Vec<TensorMetadata>,
    outputs: Vec<TensorMetadata>,
    memory: Memory,
    kernels: Vec<Kernel>,
    nodes: Vec<NodeRow>,
    buffers: Vec<BufferRow>,
}

#[derive(Debug, Serialize)]
struct Symbol {
    name: String,
    min: i64,
    max: i64,
    /// What sizes are shown for.
    value: i64,
}

/// Rows that are independent of each other.
#[derive(Debug, Serialize)]
struct Batch {
    symbol: String,
    /// The analysis that proved it.
    proof: String,
    /// Where the rows of the inputs and outputs lie, by name.
    axes: BTreeMap<String, u32>,
}

/// Device memory, in bytes.
#[derive(Debug, Serialize)]
struct Memory {
    /// Shared by all invocations.
    weights_bytes: u64,
    /// Of one invocation.
    invocation_bytes: u64,
    /// Part of it for temporary buffers.
    arena_bytes: u64,
    /// What the temporary buffers would take if none shared memory.
    unshared_bytes: Option<u64>,
    /// Part of it for flags and progress.
    control_bytes: u64,
    /// Of a session, for state buffers.
    state_bytes: u64,
    /// Weights and one invocation.
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
    /// Whether no assembler counted them.
    registers_estimated: bool,
    spill_bytes: Option<u32>,
    amd: Option<AmdFacts>,
    occupancy: OccupancyRow,
    preemptible: bool,
    /// Loops in which a running block looks at the epoch word, beyond the check at entry.
    loop_checks: u32,
    padding: PaddingRow,
    /// Whether a block may be run again after it was stopped midway.
    rerun: RerunRow,
}

/// A kernel's fact, and what it comes to on the nodes.
#[derive(Debug, Serialize)]
struct RerunRow {
    /// `always`, `if_disjoint`, `never`; absent where nobody looked.
    proven: Option<&'static str>,
    /// Pairs of parameters, read and written, that must not overlap.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    disjoint: Vec<[u32; 2]>,
    /// Launches whose blocks may be run again, with the symbols shown.
    launches: usize,
    /// Why the others may not.
    reason: Option<String>,
}

/// Blocks of a kernel that a compute unit holds at once.
#[derive(Debug, Serialize)]
struct OccupancyRow {
    device: &'static str,
    /// Absent where the registers are not known.
    blocks: Option<u32>,
    warps: Option<u32>,
    /// `blocks`, `warps`, `registers` or `shared`.
    limited_by: Option<String>,
}

/// Whether a kernel can share a launch with others.
#[derive(Debug, Serialize)]
struct PaddingRow {
    /// Registers of the dkp modules that it can be in; absent where it can be in none, and on
    /// devices where registers are no limit.
    class: Option<u32>,
    /// Why it can be in none.
    reason: Option<String>,
}

#[derive(Debug, Serialize)]
struct NodeRow {
    name: String,
    /// The kernel, or `copy` or `fill` where the host does it.
    what: String,
    /// Launches to choose from by the symbols, beside the one for all others.
    variants: usize,
    /// Blocks; none where nothing is launched.
    grid: Option<[u32; 3]>,
    reads: Vec<String>,
    writes: Vec<String>,
    /// Where the graph may be run again from once this node has started.
    restore_point: Option<String>,
}

#[derive(Debug, Serialize)]
struct BufferRow {
    name: String,
    kind: BufferKind,
    datatype: String,
    shape: Vec<i64>,
    bytes: u64,
    /// Offset in the invocation's memory, or in the weights.
    offset: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let bundle = Bundle::open(&args.bundle).blame_user()?;
    if args.dot {
        return Ok(print(&drawing::dot(bundle.graph()))?);
    }
    if args.source {
        let target = target(args, &bundle)?;
        let source = bundle.source(&target.name).blame_user()?;
        return Ok(print(&source.ok_or_else(|| {
            user_error("the bundle has no kernels from before the passes; compile the model again")
        })?)?);
    }
    if let Some(path) = &args.svg {
        let picture = drawing::svg(bundle.graph())?;
        return std::fs::write(path, picture).with_context(|| path.display().to_string()).blame_user();
    }
    let inspection = inspect(args, &bundle)?;
    if args.json { print_json(&inspection) } else { Ok(print(&text(&inspection))?) }
}

fn inspect(args: &Args, bundle: &Bundle) -> Result<Inspection> {
    let graph = bundle.graph();
    let symbols = symbol_values(args, graph)?;
    let target = target(args, bundle)?;
    let device = device(args, target)?;
    let layout = InvocationLayout::new(graph, target, &symbols).context("with these symbols").blame_user()?;
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
        // The last node may overwrite its own input, behind which there is none.
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
        let (name, value) = parsed.ok_or_else(|| user_error(format!("--symbol {text}: NAME=VALUE is expected")))?;
        let index = graph.symbols.iter().position(|s| s.name == name);
        let index = index.ok_or_else(|| user_error(format!("the model has no symbol `{name}`; it has {}", names())))?;
        let symbol = &graph.symbols[index];
        if !(symbol.min..=symbol.max).contains(&value) {
            return Err(user_error(format!("`{name}` is {} to {}", symbol.min, symbol.max)));
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

/// The device whose compute units are looked at.
fn device(args: &Args, target: &TargetImage) -> Result<&'static DeviceModel> {
    let default = if target.name.starts_with("host") { "host" } else { "t4" };
    let name = args.device.as_deref().unwrap_or(default);
    let known = || DeviceModel::ALL.map(|device| device.name).join(", ");
    DeviceModel::find(name).ok_or_else(|| user_error(format!("no device is called `{name}`; there are {}", known())))
}

fn memory(bundle: &Bundle, target: &TargetImage, layout: &InvocationLayout, symbols: &[i64]) -> Memory {
    // The host device gives each constant pages of its own.
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

/// Registers of a thread, as far as the device shares them out; none where they are not known.
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
        None => PaddingRow { class: None, reason: Some("its registers are not known".into()) },
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

/// Buffers are left to JSON: there are hundreds.
fn text(inspection: &Inspection) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}  {}, by {}", inspection.name, bytes(inspection.file_bytes), inspection.producer);
    let features = if inspection.features.is_empty() {
        String::new()
    } else {
        format!(", with {}", inspection.features.join(", "))
    };
    let _ = writeln!(
        text,
        "digest   {}\nformat   {}{features}\ntargets  {}",
        inspection.digest,
        inspection.format,
        inspection.targets.join(", ")
    );
    for symbol in &inspection.symbols {
        let _ = writeln!(text, "symbol   {} = {} ({} to {})", symbol.name, symbol.value, symbol.min, symbol.max);
    }
    if let Some(batch) = &inspection.batch {
        let _ = writeln!(text, "batch    {} counts independent rows, by {}", batch.symbol, batch.proof);
    }
    for (what, tensors) in [("input ", &inspection.inputs), ("output", &inspection.outputs)] {
        for tensor in tensors {
            let _ = writeln!(text, "{what}   {}: {}{:?}", tensor.name, tensor.datatype, tensor.shape);
        }
    }
    let _ = write!(
        text,
        "\nDevice memory\n{}\nKernels\n{}\nNodes\n{}",
        memory_table(&inspection.memory),
        kernel_table(&inspection.kernels),
        node_table(&inspection.nodes)
    );
    text
}

fn memory_table(memory: &Memory) -> Table {
    let mut table = Table::new([("what", Align::Left), ("size", Align::Right)]);
    let mut row = |what: &str, size: u64| table.row([what.into(), bytes(size)]);
    row("weights, shared by all invocations", memory.weights_bytes);
    row("one invocation", memory.invocation_bytes);
    row("  of it temporary buffers", memory.arena_bytes);
    if let Some(unshared) = memory.unshared_bytes {
        row("  which without reuse would take", unshared);
    }
    row("  of it flags and progress", memory.control_bytes);
    if memory.state_bytes > 0 {
        row("state of a session", memory.state_bytes);
    }
    row("peak: weights and one invocation", memory.peak_bytes);
    table
}

fn kernel_table(kernels: &[Kernel]) -> Table {
    let mut table = Table::new([
        ("kernel", Align::Left),
        ("launches", Align::Right),
        ("block", Align::Right),
        ("shared", Align::Right),
        ("scratch", Align::Right),
        ("registers", Align::Right),
        ("occupancy", Align::Right),
        ("preemptible", Align::Left),
        ("padding", Align::Left),
        ("may run again", Align::Left),
    ]);
    for kernel in kernels {
        let [shared, scratch] = [kernel.shared_bytes, kernel.scratch_bytes].map(|n| bytes(n.into()));
        let estimated = if kernel.registers_estimated { "~" } else { "" };
        let registers = kernel.registers.map_or("-".into(), |n| format!("{estimated}{n}"));
        let occupancy = match (kernel.occupancy.blocks, &kernel.occupancy.limited_by) {
            (Some(blocks), Some(limit)) => format!("{blocks} ({limit})"),
            _ => "-".into(),
        };
        let preemptible = match (kernel.preemptible, kernel.loop_checks) {
            (false, _) => "no".into(),
            (true, 0) => "at entry".into(),
            (true, loops) => format!("at entry, {loops} loops"),
        };
        let padding = match (&kernel.padding.reason, kernel.padding.class) {
            (Some(reason), _) => format!("no: {reason}"),
            (None, Some(class)) => format!("class {class}"),
            (None, None) => "yes".into(),
        };
        table.row([
            kernel.name.clone(),
            kernel.launches.to_string(),
            dimensions(kernel.block),
            shared,
            scratch,
            registers,
            occupancy,
            preemptible,
            padding,
            may_run_again(kernel),
        ]);
    }
    table
}

/// `yes`, or the reason; some launches of a kernel may differ from others.
fn may_run_again(kernel: &Kernel) -> String {
    match &kernel.rerun.reason {
        None => "yes".into(),
        Some(reason) if kernel.rerun.launches > 0 => {
            format!("{} of {} launches: {reason}", kernel.rerun.launches, kernel.launches)
        }
        Some(reason) => format!("no: {reason}"),
    }
}

fn node_table(nodes: &[NodeRow]) -> Table {
    let mut table =
        Table::new([("", Align::Right), ("node", Align::Left), ("does", Align::Left), ("blocks", Align::Right)]);
    for (index, node) in nodes.iter().enumerate() {
        table.row([index.to_string(), node.name.clone(), node.what.clone(), node.grid.map_or("-".into(), dimensions)]);
    }
    table
}

/// `128`, `16×16`, `8×8×2`.
fn dimensions(sizes: [u32; 3]) -> String {
    let used = 3 - sizes.iter().rev().take_while(|size| **size == 1).count().min(2);
    sizes[..used].iter().map(u32::to_string).collect::<Vec<_>>().join("×")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailing_ones_are_left_out() {
        assert_eq!([[128, 1, 1], [1, 1, 1], [16, 16, 1], [1, 1, 4]].map(dimensions), ["128", "1", "16×16", "1×1×4"]);
    }
}
