//! The memory planner: correctness for random graphs by simulation, and the saving for a real
//! network.

use crate::common;
use atoll_frontend::memory_plan::plan;
use atoll_frontend::tensor_graph::TensorGraph;
use atoll_frontend::transform::transform;
use atoll_kgraph::*;
use proptest::prelude::*;
use std::collections::HashMap;

/// Memory in units of the alignment, each with the value that was last written to it.
type Memory = HashMap<(BufferKind, u64), u64>;

fn kernel_graph(symbols: Vec<SymbolSpec>, buffers: Vec<BufferSpec>, nodes: Vec<Node>) -> KernelGraph {
    KernelGraph { format: FORMAT_VERSION, name: "test".into(), symbols, buffers, nodes, ..KernelGraph::default() }
}

fn symbols() -> Vec<SymbolSpec> {
    ["batch", "length"].map(|name| SymbolSpec::new(name, 1, 8)).into()
}

fn buffer(index: usize, kind: BufferKind, shape: Vec<Expr>) -> BufferSpec {
    BufferSpec { name: format!("b{index}"), kind, dtype: DType::U8, shape, weights_offset: None }
}

/// Sizes of every form: numbers, multiples of one or two symbols, and sums.
fn any_size() -> impl Strategy<Value = Vec<Expr>> {
    (1i64..1500, 0..5).prop_map(|(n, form)| {
        let [s, t] = [0, 1].map(|i| Expr::from(SymbolId(i)));
        match form {
            0 | 1 => vec![Expr::Const(n)],
            2 => vec![s, Expr::Const(n)],
            3 => vec![s, t, Expr::Const(n / 8 + 1)],
            _ => vec![s + 3, t.floor_div(2) + n],
        }
    })
}

/// Graphs in which every node reads some earlier buffers and writes new ones; some nodes also
/// overwrite an old one, in place or not.
fn any_graph() -> impl Strategy<Value = KernelGraph> {
    let node = (
        prop::collection::vec(any::<prop::sample::Index>(), 1..4),
        prop::collection::vec(any_size(), 1..3),
        0..8,
        any::<prop::sample::Index>(),
    );
    prop::collection::vec(node, 1..24).prop_map(|recipe| {
        let mut buffers = vec![
            buffer(0, BufferKind::Input, vec![Expr::Const(700)]),
            buffer(1, BufferKind::Output, vec![Expr::Const(300)]),
        ];
        let mut nodes: Vec<Node> = Vec::new();
        let mut readable = vec![BufferId(0)];
        let last = recipe.len() - 1;
        for (index, (reads, sizes, again, which)) in recipe.into_iter().enumerate() {
            let mut reads: Vec<BufferId> = reads.into_iter().map(|i| *i.get(&readable)).collect();
            reads.sort();
            reads.dedup();
            let mut writes: Vec<BufferId> = Vec::new();
            for shape in sizes {
                writes.push(BufferId(buffers.len() as u32));
                buffers.push(buffer(buffers.len(), BufferKind::Temp, shape));
            }
            let old = *which.get(&readable);
            if again == 0 && old != BufferId(0) {
                writes.push(old);
            }
            readable.extend(&writes);
            if index == last {
                writes.push(BufferId(1));
            }
            let touched: Vec<BufferId> = reads.iter().chain(&writes).copied().collect();
            // All dependencies between accesses of one buffer, independent of its offset.
            let after = (0..index).filter(|i| {
                let node: &Node = &nodes[*i];
                node.writes.iter().any(|b| touched.contains(b)) || node.reads.iter().any(|b| writes.contains(b))
            });
            let after = after.map(|i| NodeId(i as u32)).collect();
            nodes.push(Node { name: format!("n{index}"), kind: NodeKind::Kernel, reads, writes, after });
        }
        kernel_graph(symbols(), buffers, nodes)
    })
}

/// A planned graph with its sizes evaluated.
struct Machine<'a> {
    graph: &'a KernelGraph,
    /// First unit and number of units of every buffer.
    places: Vec<(u64, u64)>,
}

impl<'a> Machine<'a> {
    fn new(graph: &'a KernelGraph, symbols: &[i64]) -> Machine<'a> {
        let offsets: HashMap<BufferId, u64> =
            graph.plan.temps.iter().map(|t| (t.buffer, t.offset.eval(symbols).unwrap() as u64)).collect();
        let mut private = 0;
        let places = graph.buffers.iter().enumerate().map(|(index, spec)| {
            let units = spec.bytes().eval(symbols).unwrap() as u64;
            let units = units.div_ceil(BUFFER_ALIGN);
            private += units;
            // Inputs and outputs do not share memory.
            (offsets.get(&BufferId(index as u32)).map_or(private - units, |o| o / BUFFER_ALIGN), units)
        });
        Machine { graph, places: places.collect() }
    }

    fn cells(&self, id: BufferId) -> impl Iterator<Item = (BufferKind, u64)> {
        let (start, units) = self.places[id.0 as usize];
        let kind = self.graph.buffers[id.0 as usize].kind;
        (start..start + units).map(move |unit| (kind, unit))
    }

    /// Fills the buffers that the node writes with a digest of its number and of everything that it
    /// reads.
    fn run(&self, node: usize, memory: &mut Memory, broken: bool) {
        let mut digest = node as u64 + 1 + u64::from(broken) * 77;
        let mix = |digest: u64, value: u64| (digest ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        for id in &self.graph.nodes[node].reads {
            for cell in self.cells(*id) {
                digest = mix(digest, memory.get(&cell).copied().unwrap_or(0));
            }
        }
        for (position, id) in self.graph.nodes[node].writes.iter().enumerate() {
            for (unit, cell) in self.cells(*id).enumerate() {
                memory.insert(cell, mix(digest, (position * 1000 + unit) as u64));
            }
        }
    }

    fn output(&self, memory: &Memory) -> Vec<u64> {
        self.cells(BufferId(1)).map(|cell| memory.get(&cell).copied().unwrap_or(0)).collect()
    }

    fn run_all(&self, order: impl Iterator<Item = usize>) -> Vec<u64> {
        let mut memory = Memory::new();
        order.for_each(|node| self.run(node, &mut memory, false));
        self.output(&memory)
    }
}

/// The expected outputs: those of the graph if no buffers share memory.
fn oracle(graph: &KernelGraph, symbols: &[i64]) -> Vec<u64> {
    let mut unshared = graph.clone();
    let mut offset = Expr::Const(0);
    unshared.plan.temps = unshared
        .buffers_of(BufferKind::Temp)
        .map(|(buffer, spec)| {
            let place = TempPlacement { buffer, offset: offset.clone() };
            offset = offset.clone() + spec.bytes().align_up(BUFFER_ALIGN as i64);
            place
        })
        .collect();
    Machine::new(&unshared, symbols).run_all(0..graph.nodes.len())
}

fn lifetime(graph: &KernelGraph, id: BufferId) -> Option<(usize, usize)> {
    let mut touching =
        (0..graph.nodes.len()).filter(|i| graph.nodes[*i].reads.contains(&id) || graph.nodes[*i].writes.contains(&id));
    let first = touching.next()?;
    Some((first, touching.next_back().unwrap_or(first)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn live_buffers_never_overlap(mut graph in any_graph(), symbols in prop::array::uniform2(1i64..9)) {
        plan(&mut graph);
        let arena = graph.plan.arena_bytes.as_ref().unwrap().eval(&symbols).unwrap();
        let unshared = graph.plan.unshared_bytes.as_ref().unwrap().eval(&symbols).unwrap();
        prop_assert!(arena >= 0 && unshared >= 0);
        let places: Vec<_> = graph.plan.temps.iter().map(|t| {
            let start = t.offset.eval(&symbols).unwrap();
            let bytes = graph.buffers[t.buffer.0 as usize].bytes().eval(&symbols).unwrap();
            (start, start + bytes, lifetime(&graph, t.buffer).unwrap())
        }).collect();
        let used = graph.buffers_of(BufferKind::Temp).filter(|(id, _)| lifetime(&graph, *id).is_some());
        prop_assert_eq!(places.len(), used.count());
        for (i, (start, end, (first, last))) in places.iter().enumerate() {
            prop_assert!(start % BUFFER_ALIGN as i64 == 0 && *end <= arena);
            for (other_start, other_end, (other_first, other_last)) in &places[i + 1..] {
                let both_live = first <= other_last && other_first <= last;
                prop_assert!(!both_live || end <= other_start || other_end <= start);
            }
        }
    }

    #[test]
    fn every_restore_point_is_safe(mut graph in any_graph(), symbols in prop::array::uniform2(1i64..9)) {
        let expected = oracle(&graph, &symbols);
        plan(&mut graph);
        let machine = Machine::new(&graph, &symbols);
        let count = graph.nodes.len();
        prop_assert_eq!(machine.run_all(0..count), expected.clone());
        prop_assert_eq!(graph.plan.restore_points.len(), count);
        for (stopped, point) in graph.plan.restore_points.iter().enumerate() {
            let mut before = Memory::new();
            (0..stopped).for_each(|node| machine.run(node, &mut before, false));
            // The stopped node left arbitrary data, unless it reads what it writes: then its
            // restore point is after it.
            if (point.0 as usize) <= stopped {
                machine.run(stopped, &mut before, true);
            }
            for from in (point.0 as usize..=stopped).chain([0]) {
                let mut memory = before.clone();
                (from..count).for_each(|node| machine.run(node, &mut memory, false));
                let output = machine.output(&memory);
                prop_assert_eq!(output, expected.clone(), "stopped at {}, again from {}", stopped, from);
            }
        }
    }

    #[test]
    fn any_order_that_respects_the_edges_is_correct(
        mut graph in any_graph(),
        symbols in prop::array::uniform2(1i64..9),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 24),
    ) {
        let expected = oracle(&graph, &symbols);
        plan(&mut graph);
        let mut done: Vec<usize> = Vec::new();
        for pick in picks.iter().take(graph.nodes.len()) {
            let ready: Vec<usize> = (0..graph.nodes.len())
                .filter(|n| !done.contains(n) && graph.nodes[*n].after.iter().all(|b| done.contains(&(b.0 as usize))))
                .collect();
            done.push(*pick.get(&ready));
        }
        prop_assert_eq!(Machine::new(&graph, &symbols).run_all(done.into_iter()), expected);
    }
}

/// One kernel per node, one buffer per value: the simplest lowering of a tensor graph.
fn lowered(graph: &TensorGraph) -> KernelGraph {
    let is =
        |list: &[atoll_frontend::tensor_graph::ValueId], index: usize| list.iter().any(|id| id.0 as usize == index);
    let buffers = graph.values.iter().enumerate().map(|(index, value)| {
        let kind = match value {
            v if v.constant.is_some() => BufferKind::Const,
            _ if is(&graph.inputs, index) => BufferKind::Input,
            _ if is(&graph.outputs, index) => BufferKind::Output,
            _ => BufferKind::Temp,
        };
        BufferSpec {
            name: value.name.clone(),
            kind,
            dtype: value.dtype,
            shape: value.shape.clone(),
            weights_offset: None,
        }
    });
    let ids = |list: &[atoll_frontend::tensor_graph::ValueId]| list.iter().map(|id| BufferId(id.0)).collect::<Vec<_>>();
    let producers = graph.producers();
    let nodes = graph.nodes.iter().map(|node| Node {
        name: node.name.clone(),
        kind: NodeKind::Kernel,
        reads: ids(&node.inputs),
        writes: ids(&node.outputs),
        after: node.inputs.iter().filter_map(|id| producers[id.0 as usize]).map(|i| NodeId(i as u32)).collect(),
    });
    kernel_graph(graph.symbols.clone(), buffers.collect(), nodes.collect())
}

#[test]
fn reuse_saves_at_least_half_on_resnet50() {
    let model = common::resnet50(8, 224);
    let mut graph = lowered(&transform(model.import().unwrap()).unwrap());
    plan(&mut graph);
    for batch in [1, 7, 64] {
        let bytes = |e: &Option<Expr>| e.as_ref().unwrap().eval(&[batch]).unwrap();
        let (arena, unshared) = (bytes(&graph.plan.arena_bytes), bytes(&graph.plan.unshared_bytes));
        assert!(arena * 2 <= unshared, "{arena} of {unshared} bytes at batch {batch}");
        // The largest total size of buffers that live at the same time is a lower bound for every
        // plan; greedy packing comes close to it.
        let lives: Vec<_> =
            graph.plan.temps.iter().filter_map(|t| Some((lifetime(&graph, t.buffer)?, t.buffer))).collect();
        let size = |id: BufferId| graph.buffers[id.0 as usize].bytes().eval(&[batch]).unwrap();
        let at = |node: usize| {
            lives.iter().filter(|((a, b), _)| *a <= node && node <= *b).map(|(_, id)| size(*id)).sum::<i64>()
        };
        let peak = (0..graph.nodes.len()).map(at).max().unwrap();
        assert!(arena >= peak && arena <= peak + peak / 4, "{arena} bytes where {peak} live at once");
    }
}

#[test]
fn restore_points_of_a_chain_reach_back_as_far_as_reuse_allows() {
    // a -> b -> c -> d: two slots suffice, so each node but the first overwrites the buffer that
    // the node before the previous one read.
    let sizes = || vec![Expr::Const(256)];
    let buffers = vec![
        buffer(0, BufferKind::Input, sizes()),
        buffer(1, BufferKind::Output, sizes()),
        buffer(2, BufferKind::Temp, sizes()),
        buffer(3, BufferKind::Temp, sizes()),
        buffer(4, BufferKind::Temp, sizes()),
    ];
    let chain = [0, 2, 3, 4, 1];
    let nodes = (0..4).map(|i| Node {
        name: format!("n{i}"),
        kind: NodeKind::Kernel,
        reads: vec![BufferId(chain[i])],
        writes: vec![BufferId(chain[i + 1])],
        after: if i == 0 { vec![] } else { vec![NodeId(i as u32 - 1)] },
    });
    let mut graph = kernel_graph(vec![], buffers, nodes.collect());
    plan(&mut graph);
    assert_eq!(graph.plan.arena_bytes, Some(Expr::Const(512)));
    assert_eq!(graph.plan.unshared_bytes, Some(Expr::Const(768)));
    // Node 2 overwrites the first temporary, which node 1 reads: after that only node 2 and later
    // nodes may run again.
    assert_eq!(graph.plan.restore_points, [0, 0, 2, 2].map(NodeId));
}
