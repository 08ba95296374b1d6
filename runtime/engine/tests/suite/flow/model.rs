//! A graph with a loop that contains an `if` and an inner loop. Its first three inputs are the
//! largest number of iterations, the number of iterations after which the condition is false, and
//! the iteration that takes the other branch.

use crate::toy::{self, Constants, OUT, TMP, W, X};
use atoll_kgraph::*;
use std::sync::Arc;

/// Limit of the outer loop.
pub(crate) const TRIPS_MAX: u64 = 400;
/// Iterations of the inner loop.
const INNER_TRIPS: i64 = 2;
/// The three scalars.
const SCALARS: BufferId = BufferId(4);

/// Nodes: the copy, three scalars, the first step, a step for each branch, two that count down, the
/// step of the inner loop, and the end.
pub(crate) fn bundle(target_name: &str, code: &[u8]) -> Arc<Bundle> {
    let (mut graph, mut image) = (toy::graph(&Constants::default()), toy::target(target_name));
    let n = Expr::from(SymbolId(0));
    graph.symbols[0].min = 3;
    let whole = graph.buffers[TMP.0 as usize].clone();
    graph.buffers.push(BufferSpec { name: "scalars".into(), shape: vec![Expr::Const(3)], ..whole });
    let behind = n.clone().ceil_div(BUFFER_ALIGN as i64 / 4) * BUFFER_ALIGN as i64;
    graph.plan.temps.push(TempPlacement { buffer: SCALARS, offset: behind.clone() });
    graph.plan.arena_bytes = Some(behind + BUFFER_ALIGN as i64);
    let facts =
        KernelFacts { params_bytes: 24 + preempt_params::BYTES, preempt_offset: Some(24), ..image.kernels[1].clone() };
    let in_place = Some(RerunFact::IfDisjoint(vec![DisjointPair { read: 0, written: 0 }]));
    image.kernels.push(KernelFacts { name: "size".into(), ..facts.clone() });
    image.kernels.push(KernelFacts { name: "tick".into(), rerun: in_place, ..facts });

    let (begin, end) = (graph.nodes[0].clone(), graph.nodes.pop().expect("the last node"));
    let move_out = image.launches.pop().expect("the last node");
    let steps = image.launches[1].clone().expect("a kernel");
    (graph.nodes, image.launches) = (vec![begin], vec![None]);
    let mut push = |name: &str, reads: Vec<BufferId>, to, launch| {
        graph.nodes.push(Node { name: name.into(), kind: NodeKind::Kernel, reads, writes: vec![to], after: vec![] });
        image.launches.push(Some(launch));
    };
    let scalar = |kernel, from, at: i64| {
        let place = |buffer| Argument::Buffer { buffer, offset: Expr::Const(4 * at) };
        let args = vec![place(from), place(SCALARS), Argument::Int { dtype: DType::U32, value: Expr::Const(1) }];
        LaunchSpec::new(KernelId(kernel), [1, 1, 1].map(Expr::Const), args)
    };
    let step = |k: i64| {
        let mut launch = steps.clone();
        launch.args[3] = Argument::Int { dtype: DType::U32, value: Expr::Const(k) };
        launch
    };
    (0..3).for_each(|at| push(&format!("scalar_{at}"), vec![X], SCALARS, scalar(2, X, at)));
    push("step_0", vec![TMP, W], TMP, step(0));
    push("step_1", vec![TMP, W], TMP, step(1));
    push("step_2", vec![TMP, W], TMP, step(2));
    push("left", vec![SCALARS], SCALARS, scalar(3, SCALARS, 1));
    push("other", vec![SCALARS], SCALARS, scalar(3, SCALARS, 2));
    push("step_3", vec![TMP, W], TMP, step(3));
    push("end", end.reads, OUT, move_out.expect("a kernel"));

    let nodes = |first, end| Segment::Nodes { first: NodeId(first), end: NodeId(end) };
    let at = |index: u64| Scalar { buffer: SCALARS, offset: 4 * index, dtype: DType::U32 };
    let choice = Segment::If { condition: at(2), then: vec![nodes(5, 6)], otherwise: vec![nodes(6, 7)] };
    let inner = Segment::Loop {
        trips: Some(Expr::Const(INNER_TRIPS)),
        count: None,
        condition: None,
        trips_max: 10,
        body: vec![nodes(9, 10)],
    };
    let outer = Segment::Loop {
        trips: None,
        count: Some(at(0)),
        condition: Some(at(1)),
        trips_max: TRIPS_MAX,
        body: vec![nodes(4, 5), choice, nodes(7, 9), inner],
    };
    graph.segments = vec![nodes(0, 4), outer, nodes(10, 11)];
    graph.plan.restore_points = (0..graph.nodes.len() as u32).map(NodeId).collect();
    let own: Vec<u8> = Constants::default().weights().into_iter().flat_map(u32::to_le_bytes).collect();
    toy::write(&graph, vec![(0, &own)], TargetContents { image, code: code.to_vec(), ptx: None, source: None })
}

/// The expected result.
pub(crate) fn expected(input: &[u32]) -> Vec<u8> {
    let w = Constants::default().weights();
    let [count, mut left, mut other] = [input[0], input[1], input[2]];
    let mut x = input.to_vec();
    let mut step = |k: u32| {
        let next = |(i, x): (usize, &u32)| x.wrapping_mul(3).wrapping_add(k).wrapping_add(w[i % 8]);
        x = x.iter().enumerate().map(next).collect();
    };
    for _ in 0..count {
        if left == 0 {
            break;
        }
        step(0);
        step(if other == 0 { 2 } else { 1 });
        (left, other) = (left.wrapping_sub(1), other.wrapping_sub(1));
        (0..INNER_TRIPS).for_each(|_| step(3));
    }
    x.into_iter().flat_map(u32::to_le_bytes).collect()
}
