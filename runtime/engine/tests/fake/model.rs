//! The model that the tests serve: `out = steps(x)` on `x[n]`, where step `k` makes `3 x + k + w[i mod 8]` of `x`, in place.
//!
//! It has everything in it that an engine meets: a copy, launches that may leave, launches that may not, constants, a literal, a symbol.

use super::{Launch, u64_at};
use atoll_kgraph::*;
use std::path::Path;
use std::sync::Arc;

pub(crate) const TARGET: &str = "fake";
/// In-place steps of the model.
const FUNCTION_STEPS: u32 = 12;
/// Elements a block works on.
const PER_BLOCK: u32 = 16;
/// Where a step traps instead of working.
const TRAP: u32 = 0xDEAD;

fn weights() -> Vec<u32> {
    (0..8).map(|i| i * i + 1).collect()
}

/// What the function gives.
pub(crate) fn expected(input: &[u32]) -> Vec<u32> {
    let w = weights();
    let steps = |i: usize, x: u32| (0..FUNCTION_STEPS).fold(x, |x, k| x.wrapping_mul(3).wrapping_add(k).wrapping_add(w[i % 8]));
    input.iter().enumerate().map(|(i, &x)| steps(i, x)).collect()
}

/// One block of a launch: `step(x, w, n, k)`, or `move(from, to, n)`.
pub(super) fn run(launch: &mut Launch, block: u32, memory: &mut [u8]) {
    let word = |memory: &[u8], at: u64| u32::from_le_bytes(memory[at as usize..at as usize + 4].try_into().expect("four bytes"));
    let int = |params: &[u8], at: usize| u32::from_le_bytes(params[at..at + 4].try_into().expect("four bytes"));
    let (first, second, n) = (u64_at(&launch.params, 0), u64_at(&launch.params, 8), int(&launch.params, 16));
    assert_eq!(launch.record.address_slots & 0b111, 0b011, "two addresses, then numbers");
    for i in (block * PER_BLOCK..(block + 1) * PER_BLOCK).take_while(|&i| i < n) {
        let offset = u64::from(i) * 4;
        let x = word(memory, first + offset);
        let (to, value) = match launch.kernel.name.as_str() {
            "step" => {
                let k = int(&launch.params, 20);
                (first + offset, x.wrapping_mul(3).wrapping_add(k).wrapping_add(word(memory, second + u64::from(i % 8) * 4)))
            }
            "move" => (second + offset, x),
            other => panic!("there is no kernel {other}"),
        };
        launch.failed |= x == TRAP && launch.kernel.name == "step";
        memory[to as usize..to as usize + 4].copy_from_slice(&value.to_le_bytes());
    }
}

const X: BufferId = BufferId(0);
const W: BufferId = BufferId(1);
const TMP: BufferId = BufferId(2);
const OUT: BufferId = BufferId(3);

fn graph() -> KernelGraph {
    let n = Expr::from(SymbolId(0));
    let buffer = |name: &str, kind, shape: Expr| {
        let weights_offset = (kind == BufferKind::Const).then_some(0);
        BufferSpec { name: name.into(), kind, dtype: DType::U32, shape: vec![shape], weights_offset }
    };
    let node = |name: String, kind, reads: Vec<BufferId>, to| Node { name, kind, reads, writes: vec![to], after: vec![] };
    let mut nodes = vec![node("begin".into(), NodeKind::Copy { from: X, to: TMP, bytes: n.clone() * 4 }, vec![X], TMP)];
    nodes.extend((0..FUNCTION_STEPS).map(|k| node(format!("step_{k}"), NodeKind::Kernel, vec![TMP, W], TMP)));
    nodes.push(node("end".into(), NodeKind::Kernel, vec![TMP], OUT));
    KernelGraph {
        format: FORMAT_VERSION,
        name: "toy".into(),
        symbols: vec![SymbolSpec { name: "n".into(), min: 0, max: 1 << 20 }],
        buffers: vec![
            buffer("x", BufferKind::Input, n.clone()),
            buffer("w", BufferKind::Const, Expr::Const(8)),
            buffer("tmp", BufferKind::Temp, n.clone()),
            buffer("out", BufferKind::Output, n.clone()),
        ],
        plan: MemoryPlan {
            arena_bytes: Some(n * 4),
            temps: vec![TempPlacement { buffer: TMP, offset: Expr::Const(0) }],
            restore_points: (0..nodes.len() as u32).map(NodeId).collect(),
            unshared_bytes: None,
        },
        nodes,
    }
}

fn target() -> TargetImage {
    let n = Expr::from(SymbolId(0));
    let kernel = |name: &str, own_bytes: u32, cuttable: bool| KernelFacts {
        name: name.into(),
        block: [PER_BLOCK, 1, 1],
        params_bytes: own_bytes + if cuttable { preempt_params::BYTES } else { 0 },
        preempt_offset: cuttable.then_some(own_bytes),
        shared_bytes: 0,
        scratch_bytes: 0,
        registers: None,
        spill_bytes: None,
    };
    let address = |buffer| Argument::Buffer { buffer, offset: Expr::Const(0) };
    let number = |value| Argument::Int { dtype: DType::U32, value };
    let launch = |kernel, args| {
        Some(LaunchSpec { kernel: KernelId(kernel), grid: [n.clone().ceil_div(i64::from(PER_BLOCK)), 1.into(), 1.into()], args })
    };
    let mut launches = vec![None];
    launches.extend((0..i64::from(FUNCTION_STEPS)).map(|k| launch(0, vec![address(TMP), address(W), number(n.clone()), number(k.into())])));
    launches.push(launch(1, vec![address(TMP), address(OUT), number(n.clone())]));
    TargetImage { name: TARGET.into(), kernels: vec![kernel("step", 24, true), kernel("move", 20, false)], launches }
}

/// Bytes of device memory an invocation with `n` elements is promised to take.
pub(crate) fn invocation_memory(n: i64) -> u64 {
    invocation_bytes(&graph(), &target(), &[n]).expect("a layout")
}

/// Writes the model's bundle, with this code, and opens it.
pub(crate) fn write_bundle(folder: &Path, code: &[u8]) -> Arc<Bundle> {
    let weights: Vec<u8> = weights().into_iter().flat_map(u32::to_le_bytes).collect();
    let target = TargetContents { image: target(), code: code.to_vec(), ptx: None };
    let contents = BundleContents { producer: "test".into(), graph: &graph(), weights: vec![(0, &weights)], targets: vec![target] };
    let path = folder.join("toy.kg");
    atoll_kgraph::write_bundle(&path, &contents).expect("a valid bundle");
    Bundle::open(&path).expect("a valid bundle")
}
