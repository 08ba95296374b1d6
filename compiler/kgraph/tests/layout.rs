//! The memory layout of an invocation, and layouts that are rejected.

use atoll_kgraph::*;

/// `in[n, 8] → double → tmp → (copy) → out`, where `double` runs `ceil(n / 2)` blocks.
fn graph() -> KernelGraph {
    let n = Expr::from(SymbolId(0));
    let buffer = |name: &str, kind| BufferSpec {
        name: name.into(),
        kind,
        dtype: DType::F32,
        shape: vec![n.clone(), Expr::Const(8)],
        weights_offset: None,
    };
    let (input, temp, output) = (BufferId(0), BufferId(1), BufferId(2));
    let node = |name: &str, kind, from, to| Node {
        name: name.into(),
        kind,
        reads: vec![from],
        writes: vec![to],
        after: vec![],
    };
    KernelGraph {
        format: FORMAT_VERSION,
        name: "toy".into(),
        symbols: vec![SymbolSpec::new("n", 0, 64)],
        buffers: vec![
            buffer("in", BufferKind::Input),
            buffer("tmp", BufferKind::Temp),
            buffer("out", BufferKind::Output),
        ],
        nodes: vec![
            node("double", NodeKind::Kernel, input, temp),
            node("copy", NodeKind::copy(temp, output, n.clone() * 32), temp, output),
        ],
        plan: MemoryPlan {
            arena_bytes: Some((n.clone() * 32).align_up(256)),
            temps: vec![TempPlacement { buffer: temp, offset: Expr::Const(0) }],
            restore_points: vec![NodeId(0), NodeId(1)],
            ..MemoryPlan::default()
        },
        ..KernelGraph::default()
    }
}

fn target() -> TargetImage {
    let kernel = KernelFacts {
        name: "double".into(),
        block: [32, 1, 1],
        params_bytes: 16 + preempt_params::BYTES,
        preempt_offset: Some(16),
        shared_bytes: 0,
        scratch_bytes: 0,
        ..KernelFacts::default()
    };
    let argument = |id| Argument::Buffer { buffer: BufferId(id), offset: Expr::Const(0) };
    let launch = LaunchSpec::new(
        KernelId(0),
        [Expr::from(SymbolId(0)).ceil_div(2), Expr::Const(1), Expr::Const(1)],
        vec![argument(0), argument(1)],
    );
    TargetImage {
        name: "host".into(),
        kernels: vec![kernel],
        launches: vec![Some(launch), None],
        ..TargetImage::default()
    }
}

#[test]
fn places_follow_the_symbols_and_do_not_overlap() {
    let layout = InvocationLayout::new(&graph(), &target(), &[9]).expect("a layout");
    let place = |offset, bytes| Place { offset, bytes };
    assert_eq!(layout.buffers, [place(0, 288), place(1024, 288), place(512, 288)]);
    assert_eq!((layout.arena, layout.control), (place(1024, 512), place(1536, 512)));
    let launch = layout.launches[0].expect("a launch");
    assert_eq!((launch.grid, launch.evicted_word, launch.progress), ([5, 1, 1], 1792, place(1808, 5)));
    assert_eq!((layout.epoch_word, layout.launches[1], layout.bytes), (1536, None, 2048));
    assert_eq!(invocation_bytes(&graph(), &target(), &[9]), Ok(2048));
}

#[test]
fn a_launch_without_blocks_is_none() {
    let layout = InvocationLayout::new(&graph(), &target(), &[0]).expect("a layout");
    assert_eq!(layout.launches, [None, None]);
}

#[test]
fn ranges_beyond_their_memory_are_rejected() {
    let rejected = |change: fn(&mut KernelGraph, &mut TargetImage), symbols: &[i64]| {
        let (mut graph, mut target) = (graph(), target());
        change(&mut graph, &mut target);
        InvocationLayout::new(&graph, &target, symbols).expect_err("out of range").to_string()
    };
    assert_eq!(
        rejected(|g, _| g.plan.temps[0].offset = Expr::Const(256), &[9]),
        "tmp: bytes 256 to 544 exceed its 512 bytes"
    );
    assert_eq!(rejected(|g, _| g.plan.temps[0].offset = Expr::Const(-4), &[9]), "tmp: -4 is not a valid offset");
    let oversized = |g: &mut KernelGraph, _: &mut TargetImage| {
        g.nodes[1].kind = NodeKind::copy(BufferId(1), BufferId(2), Expr::Const(289));
    };
    assert_eq!(rejected(oversized, &[9]), "copy: bytes 0 to 289 exceed its 288 bytes");
    let far = |_: &mut KernelGraph, t: &mut TargetImage| {
        t.launches[0].as_mut().expect("a launch").args[1] =
            Argument::Buffer { buffer: BufferId(1), offset: Expr::Const(1 << 40) };
    };
    assert!(rejected(far, &[9]).starts_with("double: bytes 1099511627776"));
    assert_eq!(rejected(|_, _| {}, &[-1]), "in: -1 is not a valid dimension");
    assert_eq!(rejected(|_, _| {}, &[i64::MAX]), "in: the size overflows 64 bits");
    assert_eq!(rejected(|_, _| {}, &[]), "in: symbol 0 is not bound");
}

#[test]
fn a_read_back_value_must_lie_in_its_buffer_for_all_symbols() {
    let mut graph = graph();
    let value = Scalar { buffer: BufferId(1), offset: 0, dtype: DType::I32 };
    graph.read_backs = vec![ReadBack { symbol: SymbolId(0), after: NodeId(0), value, most: None }];
    let layout = InvocationLayout::new(&graph, &target(), &[9]).expect("a layout");
    let beyond = "tmp: bytes 0 to 4 exceed its 0 bytes";
    assert_eq!(InvocationLayout::new(&graph, &target(), &[0]).expect_err("out of range").to_string(), beyond);
    assert_eq!(layout.with_sizes(&graph, &target(), &[0]).expect_err("out of range").to_string(), beyond);
}

#[test]
fn too_many_pairs_of_shared_buffers_give_no_dependencies() {
    let with_temps = |count: u32| {
        let buffer = |id: u32| BufferSpec { name: format!("t{id}"), ..graph().buffers[1].clone() };
        let placed = |id: u32| TempPlacement { buffer: BufferId(id), offset: Expr::Const(0) };
        let plan = MemoryPlan { temps: (0..count).map(placed).collect(), ..graph().plan };
        let graph = KernelGraph { buffers: (0..count).map(buffer).collect(), nodes: vec![], plan, ..graph() };
        let layout =
            InvocationLayout::new(&graph, &TargetImage { launches: vec![], ..target() }, &[9]).expect("a layout");
        dependencies(&graph, &layout, &[])
    };
    assert_eq!(with_temps(200), Some(vec![]));
    assert_eq!(with_temps(3000), None, "four million pairs");
}
