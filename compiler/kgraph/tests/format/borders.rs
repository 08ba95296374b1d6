//! The borders of the checks of graphs: the last value that is accepted, and the first one that is
//! not, with its cause.

use super::*;
use atoll_kgraph::validate::{self, NODES_MAX};
use std::sync::Arc;

/// Bytes of the weights of the graph.
const WEIGHTS: u64 = 320;

pub(super) type Change = fn(&mut KernelGraph, &mut TargetImage);

/// The error of the changed graph and target; empty if they are valid.
pub(super) fn error(change: Change) -> String {
    let (mut graph, mut image) = (graph(), image());
    change(&mut graph, &mut image);
    let checked = validate::graph(&graph, WEIGHTS).and_then(|()| validate::target(&graph, &image, WEIGHTS));
    checked.err().map_or_else(String::new, |error| error.to_string())
}

/// Checks the error of each change. An empty text stands for a valid graph.
pub(super) fn check(cases: &[(&str, Change)]) {
    for (index, (expected, change)) in cases.iter().enumerate() {
        let found = error(*change);
        let is_expected = if expected.is_empty() { found.is_empty() } else { found.contains(expected) };
        assert!(is_expected, "case {index}: expected `{expected}`, found `{found}`");
    }
}

fn symbol(id: u32) -> Expr {
    Expr::from(SymbolId(id))
}

fn number(value: i64) -> Expr {
    Expr::Const(value)
}

#[test]
fn a_graph_has_the_format_of_its_bundle_and_of_its_features() {
    let invalid = |checked: Result<(), validate::Invalid>| checked.expect_err("invalid").to_string();
    assert_eq!(validate::format(2, 2), Ok(()));
    for (bundle, graph) in [(1, 2), (2, 1)] {
        let expected = format!("graph: it has format {graph}, its bundle has format {bundle}");
        assert_eq!(invalid(validate::format(bundle, graph)), expected);
    }
    assert_eq!((validate::features(1, &[]), validate::features(2, &[Feature::Loop])), (Ok(()), Ok(())));
    let missing = invalid(validate::features(1, &[Feature::Loop, Feature::If]));
    assert_eq!(missing, "graph: it uses loop segments, which format 1 does not have");
}

#[test]
fn numbers_of_symbols_nodes_and_checks_are_limited() {
    fn symbols(graph: &mut KernelGraph, count: usize) {
        graph.symbols.resize_with(count, || SymbolSpec::new("more", 0, 1));
    }
    fn nodes(graph: &mut KernelGraph, count: usize) {
        let node = graph.nodes[1].clone();
        graph.nodes.resize(count, node);
    }
    fn checks(graph: &mut KernelGraph, count: usize) {
        let check = graph.checks[0].clone();
        graph.checks.resize(count, check);
    }
    check(&[
        ("", |_, _| {}),
        ("", |g, _| symbols(g, 256)),
        ("257 symbols, at most 256 are allowed", |g, _| symbols(g, 257)),
        ("two nodes have this name", |g, _| nodes(g, NODES_MAX)),
        ("200001 nodes, at most 200000 are allowed", |g, _| nodes(g, NODES_MAX + 1)),
        ("", |g, _| checks(g, 65_536)),
        ("65537 checks, at most 65536 are allowed", |g, _| checks(g, 65_537)),
    ]);
}

#[test]
fn constants_lie_in_the_weights_and_names_are_unique() {
    fn shape(graph: &mut KernelGraph, rank: usize) {
        graph.buffers[CACHE.0 as usize].shape = vec![Expr::Const(1); rank];
    }
    fn weights(graph: &mut KernelGraph, offset: u64, elements: i64) {
        let buffer = &mut graph.buffers[W.0 as usize];
        (buffer.weights_offset, buffer.shape) = (Some(offset), vec![Expr::Const(elements)]);
    }
    let outside = "w: a constant lies outside the weights or is not aligned";
    check(&[
        ("x: two buffers have this name", |g, _| g.buffers[3].name = "x".into()),
        ("", |g, _| shape(g, 16)),
        ("cache: 17 dimensions, at most 16 are allowed", |g, _| shape(g, 17)),
        ("x: symbol 2 does not exist", |g, _| g.buffers[0].shape[1] = symbol(2)),
        ("", |g, _| weights(g, 0, 80)),
        (outside, |g, _| weights(g, 0, 81)),
        ("", |g, _| weights(g, 256, 16)),
        (outside, |g, _| weights(g, 256, 17)),
        (outside, |g, _| weights(g, 128, 8)),
        (outside, |g, _| weights(g, 255, 8)),
        (outside, |g, _| weights(g, u64::MAX - 255, 64)),
        (outside, |g, _| weights(g, 0, -1)),
        (outside, |g, _| g.buffers[W.0 as usize].shape = vec![symbol(0)]),
        ("w: a constant needs an offset", |g, _| g.buffers[W.0 as usize].weights_offset = None),
        ("x: a constant needs an offset in the weights, and only a constant has one", |g, _| {
            g.buffers[0].weights_offset = Some(0);
        }),
    ]);
}

#[test]
fn nodes_list_what_they_touch() {
    fn copy(graph: &mut KernelGraph, change: fn(&mut Expr, &mut Expr, &mut Expr)) {
        match &mut graph.nodes[2].kind {
            NodeKind::Copy { from_offset, to_offset, bytes, .. } => change(from_offset, to_offset, bytes),
            other => panic!("{other:?}"),
        }
    }
    fn fill(graph: &mut KernelGraph, change: fn(&mut Expr, &mut Expr, &mut Vec<u8>)) {
        match &mut graph.nodes[0].kind {
            NodeKind::Fill { offset, bytes, pattern, .. } => change(offset, bytes, pattern),
            other => panic!("{other:?}"),
        }
    }
    check(&[
        ("count: two nodes have this name", |g, _| g.nodes[3].name = "count".into()),
        ("count: names a buffer that does not exist", |g, _| g.nodes[1].reads.push(BufferId(5))),
        ("count: names a buffer that does not exist", |g, _| g.nodes[1].writes.push(BufferId(5))),
        ("count: writes an input or a constant", |g, _| g.nodes[1].writes.push(X)),
        ("count: writes an input or a constant", |g, _| g.nodes[1].writes.push(W)),
        ("", |g, _| g.nodes[1].after = vec![NodeId(0)]),
        ("count: comes before a node that it depends on", |g, _| g.nodes[1].after = vec![NodeId(1)]),
        ("remember: copies buffers it does not list", |g, _| g.nodes[2].reads.clear()),
        ("remember: copies buffers it does not list", |g, _| g.nodes[2].writes.clear()),
        ("clear: fills a buffer it does not list", |g, _| g.nodes[0].writes = vec![Y]),
        ("remember: symbol 2 does not exist", |g, _| copy(g, |from, _, _| *from = symbol(2))),
        ("remember: symbol 2 does not exist", |g, _| copy(g, |_, to, _| *to = symbol(2))),
        ("remember: symbol 2 does not exist", |g, _| copy(g, |_, _, bytes| *bytes = symbol(2))),
        ("clear: symbol 2 does not exist", |g, _| fill(g, |offset, _, _| *offset = symbol(2))),
        ("clear: symbol 2 does not exist", |g, _| fill(g, |_, bytes, _| *bytes = symbol(2))),
        ("a pattern of 0 bytes, 1, 2, 4 and 8 are allowed", |g, _| fill(g, |_, _, pattern| pattern.clear())),
        ("", |g, _| fill(g, |_, _, pattern| pattern.truncate(1))),
        ("", |g, _| fill(g, |_, _, pattern| pattern.truncate(2))),
        ("", |g, _| fill(g, |_, _, pattern| pattern.resize(8, 0))),
        ("a pattern of 16 bytes", |g, _| fill(g, |_, _, pattern| pattern.resize(16, 0))),
    ]);
}

#[test]
fn both_sides_of_an_expression_are_checked() {
    fn of(graph: &mut KernelGraph, both: fn(Arc<Expr>, Arc<Expr>) -> Expr, is_left: bool) {
        let (known, unknown) = (Arc::new(symbol(1)), Arc::new(symbol(2)));
        // Not in a launch, where `known` is not known yet.
        graph.plan.state_bytes = Some(if is_left { both(unknown, known) } else { both(known, unknown) });
    }
    let unknown = "memory plan: symbol 2 does not exist";
    check(&[
        (unknown, |g, _| of(g, Expr::Add, true)),
        (unknown, |g, _| of(g, Expr::Add, false)),
        (unknown, |g, _| of(g, Expr::Sub, true)),
        (unknown, |g, _| of(g, Expr::Mul, false)),
        (unknown, |g, _| of(g, Expr::FloorDiv, true)),
        (unknown, |g, _| of(g, Expr::CeilDiv, false)),
        (unknown, |g, _| of(g, Expr::Max, true)),
        (unknown, |g, _| of(g, Expr::Min, false)),
        ("", |g, _| g.plan.state_bytes = Some(symbol(1) + 256)),
    ]);
}

#[test]
fn every_buffer_has_one_place_and_every_node_a_restore_point() {
    let points = "memory plan: needs one restore point per node, at most the node after it";
    check(&[
        ("memory plan: symbol 2 does not exist", |g, _| g.plan.arena_bytes = Some(symbol(2))),
        ("memory plan: symbol 2 does not exist", |g, _| g.plan.unshared_bytes = Some(symbol(2))),
        ("memory plan: symbol 2 does not exist", |g, _| g.plan.temps[0].offset = symbol(2)),
        ("memory plan: symbol 2 does not exist", |g, _| g.plan.states[0].offset = symbol(2)),
        ("buffer 3 is not of kind Temp or is placed twice", |g, _| g.plan.temps.push(g.plan.temps[0].clone())),
        ("buffer 2 is not of kind State or is placed twice", |g, _| g.plan.states.push(g.plan.states[0].clone())),
        ("buffer 5 is not of kind Temp", |g, _| g.plan.temps[0].buffer = BufferId(5)),
        ("memory plan: buffer 3 has no place", |g, _| g.plan.temps.clear()),
        (points, |g, _| g.plan.restore_points.push(NodeId(0))),
        (points, |g, _| g.plan.restore_points.truncate(3)),
        ("", |g, _| g.plan.restore_points[3] = NodeId(4)),
        (points, |g, _| g.plan.restore_points[3] = NodeId(5)),
        ("", |g, _| g.plan.restore_points[0] = NodeId(1)),
        (points, |g, _| g.plan.restore_points[0] = NodeId(2)),
        ("", |g, _| g.plan.restore_points[2] = NodeId(2)),
        ("the segment from node 2 has a restore point in another segment", |g, _| {
            g.plan.restore_points[2] = NodeId(1);
        }),
    ]);
}

#[test]
fn names_and_texts_of_axes_and_checks_are_limited() {
    fn proof(graph: &mut KernelGraph, bytes: usize) {
        graph.batch.as_mut().unwrap().proof = "p".repeat(bytes);
    }
    check(&[
        ("", |g, _| proof(g, 64)),
        ("a proof with a name of 65 bytes, 1 to 64 are allowed", |g, _| proof(g, 65)),
        ("batch axis: symbol 2 does not exist", |g, _| g.batch.as_mut().unwrap().symbol = SymbolId(2)),
        ("batch axis of x: inputs and outputs need an axis", |g, _| g.batch.as_mut().unwrap().axes[0] = None),
        ("", |g, _| g.batch = None),
        ("check 0: node 4 does not exist", |g, _| g.checks[0].node = NodeId(4)),
        ("", |g, _| g.checks[0].text = format!("{{}}{}", "x".repeat(1022))),
        ("check 0: a text of 1025 bytes", |g, _| g.checks[0].text = format!("{{}}{}", "x".repeat(1023))),
        ("check 0: its text has 1 placeholders for 2 values", |g, _| g.checks[0].values.push(symbol(0))),
        ("check 0: symbol 2 does not exist", |g, _| g.checks[0].values[0] = symbol(2)),
    ]);
}

#[test]
fn sizes_come_from_integers_that_are_known_in_time() {
    /// Adds an input of four integers, and a symbol that is an element of it.
    fn element(graph: &mut KernelGraph, dtype: DType, shape: &[i64], index: u32) {
        graph.batch = None;
        graph.symbols.push(SymbolSpec::new("v[0]", -1, 9));
        let shape = shape.iter().map(|dimension| Expr::Const(*dimension)).collect();
        graph.buffers.push(BufferSpec {
            name: "v".into(),
            kind: BufferKind::Input,
            dtype,
            shape,
            weights_offset: None,
        });
        graph.elements.push(InputElement { symbol: SymbolId(2), input: 1, index });
    }
    fn condition(graph: &mut KernelGraph, left: Expr, right: Expr) {
        (graph.conditions[0].left, graph.conditions[0].right) = (left, right);
    }
    let range = "a symbol's range is empty or negative";
    let integers = "v: its elements must be integers";
    let bound = "symbol 2 does not exist or is bound to two elements";
    let read_back = "node work: a condition on a size that is read back cannot be checked";
    check(&[
        ("", |g, _| (g.symbols[1].min, g.symbols[1].max) = (0, 0)),
        ("", |g, _| (g.symbols[0].min, g.symbols[0].max) = (1, 1)),
        (range, |g, _| (g.symbols[0].min, g.symbols[0].max) = (2, 1)),
        (range, |g, _| (g.symbols[0].min, g.symbols[0].max) = (-1, 1)),
        ("", |g, _| element(g, DType::I64, &[2, 2], 3)),
        ("v: its shape must be constant and contain element 4", |g, _| element(g, DType::I64, &[2, 2], 4)),
        ("v: its shape must be constant and contain element 0", |g, _| element(g, DType::I64, &[0], 0)),
        ("v: its shape must be constant", |g, _| element(g, DType::I64, &[1 << 62, 4], 0)),
        ("", |g, _| element(g, DType::Bool, &[1], 0)),
        ("", |g, _| element(g, DType::I4, &[1], 0)),
        (integers, |g, _| element(g, DType::Strings, &[1], 0)),
        (integers, |g, _| element(g, DType::F16, &[1], 0)),
        (integers, |g, _| element(g, DType::Bf16, &[1], 0)),
        (integers, |g, _| element(g, DType::F32, &[1], 0)),
        (integers, |g, _| element(g, DType::F64, &[1], 0)),
        (integers, |g, _| element(g, DType::F4e2m1, &[1], 0)),
        (integers, |g, _| element(g, DType::F8e8m0, &[1], 0)),
        (bound, |g, _| {
            element(g, DType::I64, &[4], 0);
            g.elements.push(InputElement { index: 1, ..g.elements[0] });
        }),
        (bound, |g, _| {
            element(g, DType::I64, &[4], 0);
            g.symbols.pop();
        }),
        ("input 2 does not exist", |g, _| {
            element(g, DType::I64, &[4], 0);
            g.elements[0].input = 2;
        }),
        ("node work: symbol 2 does not exist", |g, _| condition(g, symbol(2), number(1))),
        ("node work: symbol 2 does not exist", |g, _| condition(g, number(1), symbol(2))),
        (read_back, |g, _| condition(g, symbol(1), number(1))),
        (read_back, |g, _| condition(g, number(1), symbol(1))),
    ]);
}

#[test]
fn a_symbol_of_a_session_has_one_source_and_begins_in_its_range() {
    fn own(graph: &mut KernelGraph, first: i64) {
        graph.symbols.push(SymbolSpec::new("length", 3, 7));
        graph.session.symbols.push(SessionSymbol { symbol: SymbolId(2), first, next: Expr::Const(0) });
    }
    check(&[
        ("", |g, _| own(g, 3)),
        ("", |g, _| own(g, 7)),
        ("session symbol 2: it begins with 2", |g, _| own(g, 2)),
        ("session symbol 2: it begins with 8", |g, _| own(g, 8)),
        ("session symbol 2: there is no such symbol", |g, _| {
            own(g, 3);
            g.symbols.pop();
        }),
        ("session symbol 2: its value has two sources", |g, _| {
            own(g, 3);
            g.session.symbols.push(g.session.symbols[0].clone());
        }),
        ("session symbol 2: its value has two sources", |g, _| {
            own(g, 3);
            g.batch = None;
            (g.buffers[0].dtype, g.buffers[0].shape) = (DType::I32, vec![Expr::Const(4)]);
            g.elements.push(InputElement { symbol: SymbolId(2), input: 0, index: 0 });
        }),
        ("session symbol 2: symbol 3 does not exist", |g, _| {
            own(g, 3);
            g.session.symbols[0].next = symbol(3);
        }),
        ("the size of state buffer cache depends on it", |g, _| {
            own(g, 3);
            g.buffers[CACHE.0 as usize].shape[1] = symbol(2) * 2;
        }),
        // Only state buffers have a fixed size.
        ("", |g, _| {
            own(g, 3);
            g.buffers[COUNT.0 as usize].shape[0] = symbol(2);
        }),
        ("state before: buffer 5 is not a state buffer", |g, _| g.session.states[0].buffer = BufferId(5)),
        ("", |g, _| g.session.states[0].shape = vec![Expr::Const(1); 16]),
        ("state before: 17 dimensions, at most 16 are allowed", |g, _| {
            g.session.states[0].shape = vec![Expr::Const(1); 17];
        }),
        ("state before: symbol 2 does not exist", |g, _| g.session.states[0].shape[0] = symbol(2)),
    ]);
}

#[test]
fn segments_cover_the_nodes_and_read_integers_of_the_invocation() {
    fn nodes(first: u32, end: u32) -> Segment {
        Segment::Nodes { first: NodeId(first), end: NodeId(end) }
    }
    fn repeated(graph: &mut KernelGraph) -> (&mut Option<Expr>, &mut Option<Scalar>, &mut Option<Scalar>, &mut u64) {
        match &mut graph.segments[2] {
            Segment::Loop { trips, count, condition, trips_max, .. } => (trips, count, condition, trips_max),
            other => panic!("{other:?}"),
        }
    }
    fn condition(graph: &mut KernelGraph) -> &mut Scalar {
        match &mut graph.segments[1] {
            Segment::If { condition, .. } => condition,
            other => panic!("{other:?}"),
        }
    }
    /// Puts the last segment into this many ifs.
    fn nest(graph: &mut KernelGraph, depth: usize) {
        for _ in 0..depth {
            let condition = Scalar { buffer: COUNT, offset: 4, dtype: DType::I32 };
            let inner = graph.segments.pop().expect("a segment");
            graph.segments.push(Segment::If { condition, then: vec![], otherwise: vec![inner] });
        }
    }
    let misplaced = "of count is misaligned, or outside of it for the smallest symbol values";
    let whole = "is neither an integer nor a bool of whole bytes";
    check(&[
        ("", |g, _| g.segments.clear()),
        ("", |g, _| g.segments = vec![nodes(0, 4)]),
        ("they end before node 3, the graph has 4", |g, _| g.segments = vec![nodes(0, 3)]),
        ("nodes 0 to 5, but node 0 is next", |g, _| g.segments = vec![nodes(0, 5)]),
        ("nodes 0 to 0, but node 0 is next", |g, _| g.segments = vec![nodes(0, 0)]),
        ("nodes 1 to 4, but node 0 is next", |g, _| g.segments = vec![nodes(1, 4)]),
        // The body of the loop is a list, too.
        ("", |g, _| nest(g, 15)),
        ("nested deeper than 16", |g, _| nest(g, 16)),
        ("at most 0 iterations, 1 to 4294967296 are allowed", |g, _| *repeated(g).3 = 0),
        ("", |g, _| *repeated(g).3 = 1),
        ("", |g, _| *repeated(g).3 = 1 << 32),
        ("at most 4294967297 iterations", |g, _| *repeated(g).3 = (1 << 32) + 1),
        ("a loop: symbol 2 does not exist", |g, _| *repeated(g).0 = Some(symbol(2))),
        // Node 1, after which it is read back, comes before the loop.
        ("", |g, _| *repeated(g).0 = Some(symbol(1))),
        ("a loop: its number of iterations depends on `found`, which is read back later", |g, _| {
            g.read_backs[0].after = NodeId(0);
            let body = vec![g.segments.remove(0)];
            let trips = Some(symbol(1));
            g.segments.insert(0, Segment::Loop { trips, count: None, condition: None, trips_max: 8, body });
        }),
        ("", |g, _| (*repeated(g).0, *repeated(g).2) = (None, None)),
        ("", |g, _| (*repeated(g).0, *repeated(g).1) = (None, None)),
        ("", |g, _| (*repeated(g).1, *repeated(g).2) = (None, None)),
        ("w is a constant or a state", |g, _| condition(g).buffer = W),
        ("cache is a constant or a state", |g, _| condition(g).buffer = CACHE),
        ("", |g, _| condition(g).buffer = X),
        ("", |g, _| condition(g).buffer = Y),
        ("the condition of an if: buffer 5 does not exist", |g, _| condition(g).buffer = BufferId(5)),
        (misplaced, |g, _| condition(g).offset = 2),
        (misplaced, |g, _| condition(g).offset = 8),
        (misplaced, |g, _| condition(g).offset = u64::MAX - 3),
        ("", |g, _| (condition(g).dtype, condition(g).offset) = (DType::Bool, 7)),
        (misplaced, |g, _| (condition(g).dtype, condition(g).offset) = (DType::Bool, 8)),
        ("", |g, _| (condition(g).dtype, condition(g).offset) = (DType::I64, 0)),
        (misplaced, |g, _| (condition(g).dtype, condition(g).offset) = (DType::I64, 4)),
        (whole, |g, _| condition(g).dtype = DType::F16),
        (whole, |g, _| condition(g).dtype = DType::Bf16),
        (whole, |g, _| condition(g).dtype = DType::F64),
        (whole, |g, _| condition(g).dtype = DType::I4),
        (whole, |g, _| condition(g).dtype = DType::F8e5m2),
        ("the number of iterations of a loop: a F32", |g, _| repeated(g).1.as_mut().unwrap().dtype = DType::F32),
        ("the condition of a loop: buffer 5", |g, _| repeated(g).2.as_mut().unwrap().buffer = BufferId(5)),
    ]);
}
