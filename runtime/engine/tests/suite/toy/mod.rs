//! The model that the tests serve: `out = steps(x)` on `x[n]`, where step `k` computes
//! `3 x + k + w[i mod 8]` in place.
//!
//! It uses everything that the engine supports: a copy, preemptible and not preemptible launches,
//! constants, a literal, a symbol.

use atoll_engine::{Class, FunctionKey, InputTensor, InvocationRequest};
use atoll_kgraph::strings::{StringOp, StringOperand, StringStep, Strings};
use atoll_kgraph::*;
use std::process::Command;
use std::sync::Arc;

/// In-place steps of the model.
const FUNCTION_STEPS: u32 = 12;
/// Elements per block.
pub(crate) const PER_BLOCK: u32 = 16;
/// An input value at which a step traps.
pub(crate) const TRAP: u32 = 0xDEAD;
/// On the host device: input values at which a step writes to this address, and at which it never
/// ends.
pub(crate) const WILD: u32 = 0x317D;
pub(crate) const HANG: u32 = 0x4A46;
/// An input value that the checked function refuses.
pub(crate) const BAD: u32 = 0xBAD;

/// Compiles the kernels of the host device with the C compiler that links Rust programs.
pub(crate) fn compile() -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let (source, object) =
        (concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/toy/kernels.c"), folder.path().join("kernels.so"));
    let flags = ["-O2", "-shared", "-fPIC", "-nostdlib", "-fno-stack-protector", "-fcf-protection=none"];
    let status = Command::new("cc").args(flags).arg("-o").arg(&object).arg(source).status().expect("a C compiler");
    assert!(status.success());
    std::fs::read(&object).expect("an object")
}

/// The constants of a model: eight numbers used by its steps, and further ones that only take
/// memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Constants {
    /// Models with different numbers give different results.
    pub(crate) model: u32,
    /// Sizes and fill bytes of the further constants; equal ones are equal constants.
    pub(crate) more: Vec<(u32, u8)>,
}

impl Constants {
    pub(crate) fn weights(&self) -> Vec<u32> {
        (0..8).map(|i| i * i + 1 + 977 * self.model).collect()
    }
}

/// A request to run a local function.
pub(crate) fn request(function: &str, class: Class, input: &[u32]) -> InvocationRequest {
    request_of(FunctionKey::local(function), class, input)
}

/// A request to run a function of any tenant.
pub(crate) fn request_of(function: FunctionKey, class: Class, input: &[u32]) -> InvocationRequest {
    let bytes = input.iter().flat_map(|x| x.to_le_bytes()).collect();
    let inputs = vec![InputTensor { dtype: Some(DType::U32), shape: vec![input.len() as i64], bytes }];
    InvocationRequest { function, inputs, class: Some(class), priority: 0, instance: None, deadline: None }
}

/// The expected result of the function.
pub(crate) fn expected(input: &[u32]) -> Vec<u8> {
    expected_of(&Constants::default(), input)
}

/// The expected result of the function with these constants.
pub(crate) fn expected_of(constants: &Constants, input: &[u32]) -> Vec<u8> {
    let w = constants.weights();
    let steps =
        |i: usize, x: u32| (0..FUNCTION_STEPS).fold(x, |x, k| x.wrapping_mul(3).wrapping_add(k).wrapping_add(w[i % 8]));
    input.iter().enumerate().flat_map(|(i, &x)| steps(i, x).to_le_bytes()).collect()
}

pub(crate) const X: BufferId = BufferId(0);
pub(crate) const W: BufferId = BufferId(1);
pub(crate) const TMP: BufferId = BufferId(2);
pub(crate) const OUT: BufferId = BufferId(3);

pub(crate) fn graph(constants: &Constants) -> KernelGraph {
    let n = Expr::from(SymbolId(0));
    let buffer = |name: &str, kind, shape: Expr| {
        let weights_offset = (kind == BufferKind::Const).then_some(0);
        BufferSpec { name: name.into(), kind, dtype: DType::U32, shape: vec![shape], weights_offset }
    };
    let node =
        |name: String, kind, reads: Vec<BufferId>, to| Node { name, kind, reads, writes: vec![to], after: vec![] };
    let mut nodes = vec![node("begin".into(), NodeKind::copy(X, TMP, n.clone() * 4), vec![X], TMP)];
    nodes.extend((0..FUNCTION_STEPS).map(|k| node(format!("step_{k}"), NodeKind::Kernel, vec![TMP, W], TMP)));
    nodes.push(node("end".into(), NodeKind::Kernel, vec![TMP], OUT));
    let mut buffers = vec![
        buffer("x", BufferKind::Input, n.clone()),
        buffer("w", BufferKind::Const, Expr::Const(8)),
        buffer("tmp", BufferKind::Temp, n.clone()),
        buffer("out", BufferKind::Output, n.clone()),
    ];
    let mut offset = BUFFER_ALIGN;
    for (index, &(bytes, _)) in constants.more.iter().enumerate() {
        let (name, shape) = (format!("more_{index}"), vec![Expr::Const(bytes.into())]);
        buffers.push(BufferSpec {
            name,
            kind: BufferKind::Const,
            dtype: DType::U8,
            shape,
            weights_offset: Some(offset),
        });
        offset += u64::from(bytes).next_multiple_of(BUFFER_ALIGN);
    }
    KernelGraph {
        format: FORMAT_VERSION,
        name: "toy".into(),
        symbols: vec![SymbolSpec::new("n", 0, 1 << 20)],
        buffers,
        plan: MemoryPlan {
            arena_bytes: Some(n * 4),
            temps: vec![TempPlacement { buffer: TMP, offset: Expr::Const(0) }],
            restore_points: (0..nodes.len() as u32).map(NodeId).collect(),
            ..MemoryPlan::default()
        },
        nodes,
        ..KernelGraph::default()
    }
}

pub(crate) fn target(name: &str) -> TargetImage {
    let n = Expr::from(SymbolId(0));
    // Each kernel reads its first parameter and writes another one; a step has one buffer for both.
    let kernel = |name: &str, own_bytes: u32, preemptible: bool, written: u32| KernelFacts {
        name: name.into(),
        block: [PER_BLOCK, 1, 1],
        params_bytes: own_bytes + if preemptible { preempt_params::BYTES } else { 0 },
        preempt_offset: preemptible.then_some(own_bytes),
        shared_bytes: 0,
        scratch_bytes: 0,
        rerun: Some(RerunFact::IfDisjoint(vec![DisjointPair { read: 0, written }])),
        ..KernelFacts::default()
    };
    let address = |buffer| Argument::Buffer { buffer, offset: Expr::Const(0) };
    let number = |value| Argument::Int { dtype: DType::U32, value };
    let launch = |kernel, args| {
        Some(LaunchSpec::new(KernelId(kernel), [n.clone().ceil_div(i64::from(PER_BLOCK)), 1.into(), 1.into()], args))
    };
    let mut launches = vec![None];
    launches.extend(
        (0..i64::from(FUNCTION_STEPS))
            .map(|k| launch(0, vec![address(TMP), address(W), number(n.clone()), number(k.into())])),
    );
    launches.push(launch(1, vec![address(TMP), address(OUT), number(n.clone())]));
    TargetImage {
        name: name.into(),
        kernels: vec![kernel("step", 24, true, 0), kernel("move", 20, false, 1)],
        launches,
        ..TargetImage::default()
    }
}

/// Bytes of device memory of an invocation with `n` elements.
pub(crate) fn invocation_memory(n: i64) -> u64 {
    invocation_bytes(&graph(&Constants::default()), &target("any"), &[n]).expect("a layout")
}

/// The same function with kernels that exit early without reporting it. Each works from one of
/// three buffers to the next, except for one that works in place.
pub(crate) fn silent_bundle(target_name: &str, code: &[u8]) -> Arc<Bundle> {
    const IN_PLACE: u32 = 5;
    let mut graph = graph(&Constants::default());
    let mut image = target(target_name);
    let temps = [TMP, BufferId(4), BufferId(5)];
    for temp in &temps[1..] {
        graph.buffers.push(BufferSpec { name: format!("tmp_{}", temp.0), ..graph.buffers[TMP.0 as usize].clone() });
    }
    let n = Expr::from(SymbolId(0));
    let aligned = n.clone().ceil_div(BUFFER_ALIGN as i64 / 4) * BUFFER_ALIGN as i64;
    let place = |(i, &buffer): (i64, &BufferId)| TempPlacement { buffer, offset: aligned.clone() * i };
    graph.plan.temps = (0..).zip(&temps).map(place).collect();
    graph.plan.arena_bytes = Some(aligned.clone() * 3);
    image.kernels.push(KernelFacts { name: "hop".into(), exits_unreported: true, ..image.kernels[0].clone() });
    let mut at = 0;
    for k in 0..FUNCTION_STEPS {
        let from = temps[at];
        at = (at + usize::from(k != IN_PLACE)) % 3;
        let node = k as usize + 1;
        (graph.nodes[node].reads, graph.nodes[node].writes) = (vec![from], vec![temps[at]]);
        let launch = image.launches[node].as_mut().expect("a kernel");
        launch.kernel = KernelId(2);
        let address = |buffer| Argument::Buffer { buffer, offset: Expr::Const(0) };
        (launch.args[0], launch.args[1]) = (address(from), address(temps[at]));
    }
    let end = graph.nodes.len() - 1;
    graph.nodes[end].reads = vec![temps[at]];
    image.launches[end].as_mut().expect("a kernel").args[0] =
        Argument::Buffer { buffer: temps[at], offset: Expr::Const(0) };
    graph.plan.restore_points = restore_points(&graph);
    write(&graph, vec![(0, &[0; 32])], TargetContents { image, code: code.to_vec(), ptx: None, source: None })
}

/// The symbol that counts rows, for a function whose elements are rows. They are independent as long
/// as each request has a multiple of eight: the constants repeat after so many.
pub(crate) fn rows_axis(buffers: usize) -> BatchAxis {
    let axes = (0..buffers as u32).map(|buffer| (BufferId(buffer) != W).then_some(0)).collect();
    BatchAxis { symbol: SymbolId(0), axes, proof: "eight rows at a time".into() }
}

/// The same function with rows that are declared independent, and with or without the two nodes of
/// [`checked_bundle`].
pub(crate) fn batched_bundle(target_name: &str, code: &[u8], checked: bool) -> Arc<Bundle> {
    let bundle = if checked { checked_bundle(target_name, code) } else { bundle(target_name, code) };
    let graph = KernelGraph { batch: Some(rows_axis(bundle.graph().buffers.len())), ..bundle.graph().clone() };
    let image = bundle.target(target_name).expect("its only target").clone();
    let own: Vec<u8> = Constants::default().weights().into_iter().flat_map(u32::to_le_bytes).collect();
    write(&graph, vec![(0, &own)], TargetContents { image, code: code.to_vec(), ptx: None, source: None })
}

/// The same function, with two nodes before the steps that check every element of the input.
pub(crate) fn checked_bundle(target_name: &str, code: &[u8]) -> Arc<Bundle> {
    let (mut graph, mut image) = (graph(&Constants::default()), target(target_name));
    let n = Expr::from(SymbolId(0));
    let facts =
        KernelFacts { params_bytes: 24 + preempt_params::BYTES, preempt_offset: Some(24), ..image.kernels[1].clone() };
    image.kernels.push(KernelFacts { name: "judge".into(), ..facts });
    let grid = [n.clone().ceil_div(i64::from(PER_BLOCK)), 1.into(), 1.into()];
    for (check, at) in [(0, 1), (1, 2)] {
        let name = format!("judge_{check}");
        graph.nodes.insert(at, Node { name, kind: NodeKind::Kernel, reads: vec![TMP], writes: vec![], after: vec![] });
        let args = vec![
            Argument::Buffer { buffer: TMP, offset: Expr::Const(0) },
            Argument::Check { check },
            Argument::Int { dtype: DType::U32, value: n.clone() },
        ];
        image.launches.insert(at, Some(LaunchSpec::new(KernelId(2), grid.clone(), args)));
        graph.checks.push(Check {
            node: NodeId(at as u32),
            text: "one of {} numbers is bad".into(),
            values: vec![n.clone()],
        });
    }
    graph.plan.restore_points = (0..graph.nodes.len() as u32).map(NodeId).collect();
    let own: Vec<u8> = Constants::default().weights().into_iter().flat_map(u32::to_le_bytes).collect();
    write(&graph, vec![(0, &own)], TargetContents { image, code: code.to_vec(), ptx: None, source: None })
}

/// A function that copies its input in one preemptible launch. Blocks may be interrupted: each takes
/// as many thousand ticks of the CPU's time stamp counter as its first element says.
pub(crate) fn dwell_bundle(target_name: &str, code: &[u8]) -> Arc<Bundle> {
    let (mut graph, mut image) = (graph(&Constants::default()), target(target_name));
    let n = Expr::from(SymbolId(0));
    let facts =
        KernelFacts { params_bytes: 24 + preempt_params::BYTES, preempt_offset: Some(24), ..image.kernels[1].clone() };
    image.kernels.push(KernelFacts { name: "dwell".into(), ..facts });
    let address = |buffer| Argument::Buffer { buffer, offset: Expr::Const(0) };
    let args = vec![address(TMP), address(OUT), Argument::Int { dtype: DType::U32, value: n.clone() }];
    let grid = [n.ceil_div(i64::from(PER_BLOCK)), 1.into(), 1.into()];
    graph.nodes.truncate(1);
    let dwell =
        Node { name: "dwell".into(), kind: NodeKind::Kernel, reads: vec![TMP], writes: vec![OUT], after: vec![] };
    graph.nodes.push(dwell);
    image.launches = vec![None, Some(LaunchSpec::new(KernelId(2), grid, args))];
    graph.plan.restore_points = restore_points(&graph);
    let own: Vec<u8> = Constants::default().weights().into_iter().flat_map(u32::to_le_bytes).collect();
    write(&graph, vec![(0, &own)], TargetContents { image, code: code.to_vec(), ptx: None, source: None })
}

/// The same function with two sizes that are read back: the first two elements of the input. It
/// processes as many elements as the second says, which is at most the first.
pub(crate) fn counted_bundle(target_name: &str, code: &[u8]) -> Arc<Bundle> {
    const SIZES: BufferId = BufferId(4);
    let (mut graph, mut image) = (graph(&Constants::default()), target(target_name));
    let [n, found, kept] = [0, 1, 2].map(|id| Expr::from(SymbolId(id)));
    graph.symbols[0].min = 2;
    graph.symbols.extend(["found", "kept"].map(|name| SymbolSpec { name: name.into(), ..graph.symbols[0].clone() }));
    graph.symbols[1..].iter_mut().for_each(|symbol| symbol.min = 0);
    graph.buffers[OUT.0 as usize].shape = vec![kept.clone()];
    let spec =
        BufferSpec { name: "sizes".into(), shape: vec![Expr::Const(2)], ..graph.buffers[TMP.0 as usize].clone() };
    graph.buffers.push(spec);
    let behind = n.clone().ceil_div(BUFFER_ALIGN as i64 / 4) * BUFFER_ALIGN as i64;
    graph.plan.temps.push(TempPlacement { buffer: SIZES, offset: behind.clone() });
    graph.plan.arena_bytes = Some(behind + BUFFER_ALIGN as i64);
    let facts =
        KernelFacts { params_bytes: 24 + preempt_params::BYTES, preempt_offset: Some(24), ..image.kernels[1].clone() };
    image.kernels.push(KernelFacts { name: "size".into(), ..facts });
    for at in 0..2_u32 {
        let offset = Expr::Const(4 * i64::from(at));
        let place = |buffer| Argument::Buffer { buffer, offset: offset.clone() };
        let args = vec![place(X), place(SIZES), Argument::Int { dtype: DType::U32, value: Expr::Const(1) }];
        let node = Node {
            name: format!("size_{at}"),
            kind: NodeKind::Kernel,
            reads: vec![X],
            writes: vec![SIZES],
            after: vec![],
        };
        graph.nodes.insert(1 + at as usize, node);
        image.launches.insert(1 + at as usize, Some(LaunchSpec::new(KernelId(2), [1, 1, 1].map(Expr::Const), args)));
        let value = Scalar { buffer: SIZES, offset: 4 * u64::from(at), dtype: DType::U32 };
        let most = Some(if at == 0 { n.clone() } else { found.clone() });
        graph.read_backs.push(ReadBack { symbol: SymbolId(1 + at), after: NodeId(1 + at), value, most });
    }
    for (node, launch) in image.launches.iter_mut().enumerate().skip(3) {
        let launch = launch.as_mut().expect("a kernel");
        // Some use one size and some the other, which is not larger.
        let size = if node < 8 { &found } else { &kept };
        launch.grid[0] = size.clone().ceil_div(i64::from(PER_BLOCK));
        launch.args.iter_mut().for_each(|arg| {
            if *arg == (Argument::Int { dtype: DType::U32, value: n.clone() }) {
                *arg = Argument::Int { dtype: DType::U32, value: size.clone() };
            }
        });
    }
    graph.plan.restore_points = (0..graph.nodes.len() as u32).map(NodeId).collect();
    let own: Vec<u8> = Constants::default().weights().into_iter().flat_map(u32::to_le_bytes).collect();
    write(&graph, vec![(0, &own)], TargetContents { image, code: code.to_vec(), ptx: None, source: None })
}

/// The same function on the codes of strings, and an input that the host computes from them. The
/// steps change the codes, so its outputs have no strings.
pub(crate) fn strings_bundle(target_name: &str, code: &[u8]) -> Arc<Bundle> {
    let mut graph = graph(&Constants::default());
    for buffer in [X, TMP, OUT] {
        graph.buffers[buffer.0 as usize].dtype = DType::Strings;
    }
    let computed = BufferSpec { name: "computed".into(), dtype: DType::Bool, ..graph.buffers[X.0 as usize].clone() };
    graph.buffers.push(computed);
    let op = StringOp::FullMatch { pattern: "a*".into() };
    let step = StringStep { name: "match".into(), op, operands: vec![StringOperand::Input(0)] };
    graph.strings = Strings { table: vec![String::new()], steps: vec![step] };
    let own: Vec<u8> = Constants::default().weights().into_iter().flat_map(u32::to_le_bytes).collect();
    let target = TargetContents { image: target(target_name), code: code.to_vec(), ptx: None, source: None };
    write(&graph, vec![(0, &own)], target)
}

/// The same function with state of the shape of its input, which no node uses.
pub(crate) fn session_bundle(target_name: &str, code: &[u8]) -> Arc<Bundle> {
    const STATE: BufferId = BufferId(4);
    let mut graph = graph(&Constants::default());
    let n = Expr::from(SymbolId(0));
    let (kind, shape) = (BufferKind::State, vec![n.clone()]);
    let spec = BufferSpec { name: "state".into(), kind, shape, ..graph.buffers[TMP.0 as usize].clone() };
    graph.buffers.push(spec);
    graph.plan.states = vec![TempPlacement { buffer: STATE, offset: Expr::Const(0) }];
    graph.plan.state_bytes = Some((n.clone() * 4).align_up(256));
    let (input, output) = ("before".into(), "behind".into());
    graph.session.states = vec![StateSpec { buffer: STATE, input, output, shape: vec![n] }];
    let own: Vec<u8> = Constants::default().weights().into_iter().flat_map(u32::to_le_bytes).collect();
    let target = TargetContents { image: target(target_name), code: code.to_vec(), ptx: None, source: None };
    write(&graph, vec![(0, &own)], target)
}

/// The restore point of each node: behind every reader of a buffer that was overwritten since. No
/// two buffers share memory.
fn restore_points(graph: &KernelGraph) -> Vec<NodeId> {
    let overwrites = |writer: usize, reader: usize| {
        graph.nodes[writer].writes.iter().any(|buffer| graph.nodes[reader].reads.contains(buffer))
    };
    let mut point = 0;
    let points = (0..graph.nodes.len()).map(|node| {
        point =
            (point..=node).filter(|&reader| overwrites(node, reader)).map(|reader| reader + 1).max().unwrap_or(point);
        NodeId(point as u32)
    });
    points.collect()
}

/// The model's bundle with code for a target.
pub(crate) fn bundle(target_name: &str, code: &[u8]) -> Arc<Bundle> {
    bundle_of(&Constants::default(), target_name, code)
}

/// The same, with other constants.
pub(crate) fn bundle_of(constants: &Constants, target_name: &str, code: &[u8]) -> Arc<Bundle> {
    let graph = graph(constants);
    let own: Vec<u8> = constants.weights().into_iter().flat_map(u32::to_le_bytes).collect();
    let more = constants.more.iter().map(|&(bytes, fill)| vec![fill; bytes as usize]);
    let contents: Vec<Vec<u8>> = std::iter::once(own).chain(more).collect();
    let offsets = graph.buffers_of(BufferKind::Const).filter_map(|(_, buffer)| buffer.weights_offset);
    let weights = offsets.zip(&contents).map(|(offset, bytes)| (offset, &bytes[..])).collect();
    let target = TargetContents { image: target(target_name), code: code.to_vec(), ptx: None, source: None };
    write(&graph, weights, target)
}

pub(crate) fn write(graph: &KernelGraph, weights: Vec<(u64, &[u8])>, target: TargetContents) -> Arc<Bundle> {
    let folder = tempfile::tempdir().expect("a folder");
    let contents = BundleContents { producer: "test".into(), graph, weights, targets: vec![target] };
    let path = folder.path().join("toy.kg");
    atoll_kgraph::write_bundle(&path, &contents).expect("a valid bundle");
    // The mapping outlives the folder.
    Bundle::open(&path).expect("a valid bundle")
}
