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

/// The error of a changed graph and target with `n` = 9; empty if there is a layout.
fn error(change: impl FnOnce(&mut KernelGraph, &mut TargetImage)) -> String {
    let (mut graph, mut target) = (graph(), target());
    change(&mut graph, &mut target);
    InvocationLayout::new(&graph, &target, &[9]).err().map_or_else(String::new, |error| error.to_string())
}

fn launch(target: &mut TargetImage) -> &mut LaunchSpec {
    target.launches[0].as_mut().expect("a launch")
}

#[test]
fn the_last_byte_of_a_buffer_is_inside_and_the_next_one_is_not() {
    fn copy(graph: &mut KernelGraph, from: u32, to: u32, offsets: (i64, i64), bytes: i64) {
        graph.nodes[1].kind = NodeKind::Copy {
            from: BufferId(from),
            from_offset: Expr::Const(offsets.0),
            to: BufferId(to),
            to_offset: Expr::Const(offsets.1),
            bytes: Expr::Const(bytes),
        };
    }
    fn fill(graph: &mut KernelGraph, offset: i64, bytes: i64) {
        let (offset, bytes) = (Expr::Const(offset), Expr::Const(bytes));
        graph.nodes[1].kind = NodeKind::Fill { to: BufferId(2), offset, bytes, pattern: vec![0; 4] };
    }
    fn address(target: &mut TargetImage, offset: i64) {
        launch(target).args[1] = Argument::Buffer { buffer: BufferId(1), offset: Expr::Const(offset) };
    }
    fn relocation(target: &mut TargetImage, offset: i64) {
        let relocations = vec![Relocation { at: 0, buffer: BufferId(1), offset: Expr::Const(offset) }];
        launch(target).args[1] = Argument::Bytes { align: 8, bytes: vec![0; 8], relocations };
    }
    let pattern = |bytes: u64| {
        format!("copy: a fill of {bytes} bytes, or its offset, is not a multiple of the pattern's 4 bytes")
    };
    let overlap = "copy: overlapping ranges in tmp";
    // The buffers have 288 bytes, and the arena 512.
    assert_eq!(error(|g, _| g.plan.temps[0].offset = Expr::Const(224)), "");
    assert_eq!(error(|g, _| g.plan.temps[0].offset = Expr::Const(225)), "tmp: bytes 225 to 513 exceed its 512 bytes");
    assert_eq!(error(|g, _| copy(g, 1, 2, (0, 0), 288)), "");
    assert_eq!(error(|g, _| copy(g, 1, 2, (280, 0), 8)), "");
    assert_eq!(error(|g, _| copy(g, 1, 2, (281, 0), 8)), "copy: bytes 281 to 289 exceed its 288 bytes");
    assert_eq!(error(|g, _| copy(g, 1, 2, (0, 281), 8)), "copy: bytes 281 to 289 exceed its 288 bytes");
    assert_eq!(error(|g, _| copy(g, 1, 2, (-1, 0), 8)), "copy: -1 is not a valid offset");
    assert_eq!(error(|g, _| copy(g, 1, 2, (0, 0), -1)), "copy: -1 is not a valid size");
    // Ranges of one buffer may touch, in either order, and not overlap.
    assert_eq!(error(|g, _| copy(g, 1, 1, (0, 8), 8)), "");
    assert_eq!(error(|g, _| copy(g, 1, 1, (8, 0), 8)), "");
    assert_eq!(error(|g, _| copy(g, 1, 1, (0, 7), 8)), overlap);
    assert_eq!(error(|g, _| copy(g, 1, 1, (7, 0), 8)), overlap);
    assert_eq!(error(|g, _| copy(g, 1, 1, (8, 8), 0)), "");
    assert_eq!(error(|g, _| fill(g, 284, 4)), "");
    assert_eq!(error(|g, _| fill(g, 288, 4)), "copy: bytes 288 to 292 exceed its 288 bytes");
    assert_eq!(error(|g, _| fill(g, 2, 4)), pattern(4));
    assert_eq!(error(|g, _| fill(g, 4, 6)), pattern(6));
    assert_eq!(error(|_, t| address(t, 288)), "");
    assert_eq!(error(|_, t| address(t, 289)), "double: bytes 289 to 289 exceed its 288 bytes");
    assert_eq!(error(|_, t| relocation(t, 288)), "");
    assert_eq!(error(|_, t| relocation(t, 289)), "double: bytes 289 to 289 exceed its 288 bytes");
    assert_eq!(error(|g, _| g.plan.arena_bytes = None), "tmp: bytes 0 to 288 exceed its 0 bytes");
    // Two negative dimensions have a positive product.
    assert_eq!(error(|g, _| g.buffers[0].shape = vec![Expr::Const(-2); 2]), "in: -2 is not a valid dimension");
    let huge = vec![Expr::Const(1 << 61)];
    let both = |g: &mut KernelGraph| g.buffers.iter_mut().for_each(|buffer| buffer.shape = huge.clone());
    assert_eq!(error(|g, _| both(g)), "in: the size overflows 64 bits");
}

#[test]
fn states_may_touch_and_not_overlap() {
    fn states(graph: &mut KernelGraph, places: &[(i64, i64)]) {
        for (index, (offset, rows)) in places.iter().enumerate() {
            graph.buffers.push(BufferSpec {
                name: format!("s{index}"),
                kind: BufferKind::State,
                shape: vec![Expr::Const(*rows), Expr::Const(8)],
                ..graph.buffers[0].clone()
            });
            let buffer = BufferId(3 + index as u32);
            graph.plan.states.push(TempPlacement { buffer, offset: Expr::Const(*offset) });
        }
        graph.plan.state_bytes = Some(Expr::Const(64));
    }
    // A row has 32 bytes.
    assert_eq!(error(|g, _| states(g, &[(0, 1), (32, 1)])), "");
    assert_eq!(error(|g, _| states(g, &[(32, 1), (0, 1)])), "");
    assert_eq!(error(|g, _| states(g, &[(0, 1), (31, 1)])), "s1: overlapping ranges in s0");
    assert_eq!(error(|g, _| states(g, &[(31, 1), (0, 1)])), "s0: overlapping ranges in s1");
    assert_eq!(error(|g, _| states(g, &[(0, 2), (8, 0)])), "");
    assert_eq!(error(|g, _| states(g, &[(0, 2)])), "");
    assert_eq!(error(|g, _| states(g, &[(1, 2)])), "s0: bytes 1 to 65 exceed its 64 bytes");
}

#[test]
fn progress_maps_have_a_byte_for_each_block_of_kernels_that_record_them() {
    let map = |change: fn(&mut TargetImage)| -> Result<u64, String> {
        let mut target = target();
        change(&mut target);
        let layout = InvocationLayout::new(&graph(), &target, &[9]).map_err(|error| error.to_string())?;
        Ok(layout.launches[0].expect("a launch").progress.bytes)
    };
    fn grid(target: &mut TargetImage, grid: [i64; 3]) {
        launch(target).grid = grid.map(Expr::Const);
    }
    assert_eq!(map(|_| {}), Ok(5));
    assert_eq!(map(|t| grid(t, [2, 3, 4])), Ok(24));
    assert_eq!(map(|t| t.kernels[0].preempt_offset = None), Ok(0));
    assert_eq!(map(|t| t.kernels[0].exits_unreported = true), Ok(0));
    let most = i64::from(u32::MAX);
    assert_eq!(map(|t| grid(t, [i64::from(u32::MAX), 1, 1])), Ok(u64::from(u32::MAX)));
    let beyond = format!("double: {} is not a valid number of blocks", most + 1);
    assert_eq!(map(|t| grid(t, [1, i64::from(u32::MAX) + 1, 1])), Err(beyond));
    assert_eq!(map(|t| grid(t, [1, 1, -1])), Err("double: -1 is not a valid number of blocks".into()));
    let overflow = Err("the invocation's memory overflows 64 bits".into());
    assert_eq!(map(|t| grid(t, [i64::from(u32::MAX); 3])), overflow);
    assert!(map(|t| grid(t, [i64::from(u32::MAX), i64::from(u32::MAX), 1])).is_ok(), "this product fits");
}

/// A graph whose node `double` has as many blocks as a size that is read back, at most 16.
fn sized() -> (KernelGraph, TargetImage) {
    let (mut graph, mut target) = (graph(), target());
    graph.symbols.push(SymbolSpec::new("found", 0, 16));
    let value = Scalar { buffer: BufferId(1), offset: 0, dtype: DType::I32 };
    graph.read_backs = vec![ReadBack { symbol: SymbolId(1), after: NodeId(0), value, most: None }];
    launch(&mut target).grid[0] = Expr::from(SymbolId(1));
    (graph, target)
}

#[test]
fn blocks_of_a_size_that_was_read_fit_the_map_of_the_largest_one() {
    let (graph, target) = sized();
    let layout = InvocationLayout::new(&graph, &target, &[9, 16]).expect("a layout");
    let with = |layout: &InvocationLayout, target: &TargetImage, found: i64| -> Result<Option<(u32, bool)>, String> {
        let sized = layout.with_sizes(&graph, target, &[9, found]).map_err(|error| error.to_string())?;
        assert_eq!((sized.bytes, &sized.buffers), (layout.bytes, &layout.buffers));
        Ok(sized.launches[0].map(|launch| (launch.grid[0], launch.progress == layout.launches[0].unwrap().progress)))
    };
    let exceeds =
        |blocks: u32, limit: u32| format!("double: {blocks} blocks, but its progress map has room for {limit}");
    assert_eq!(with(&layout, &target, 16), Ok(Some((16, true))));
    assert_eq!(with(&layout, &target, 1), Ok(Some((1, true))));
    assert_eq!(with(&layout, &target, 0), Ok(None));
    assert_eq!(with(&layout, &target, 17), Err(exceeds(17, 16)));
    // A kernel without a map may have more blocks.
    let mut free = target.clone();
    free.kernels[0].exits_unreported = true;
    let free_layout = InvocationLayout::new(&graph, &free, &[9, 16]).expect("a layout");
    assert_eq!(with(&free_layout, &free, 17), Ok(Some((17, true))));
    // For no blocks, there was no launch that could have a word.
    let none = InvocationLayout::new(&graph, &target, &[9, 0]).expect("a layout");
    let refused = none.with_sizes(&graph, &target, &[9, 1]).expect_err("no launch").to_string();
    assert_eq!(refused, exceeds(1, 0));
    // Buffers keep their places, so they must not grow.
    let larger = layout.with_sizes(&graph, &target, &[10, 1]).expect_err("larger").to_string();
    assert_eq!(larger, "in: bytes 0 to 320 exceed its 288 bytes");
}

#[test]
fn a_map_has_room_for_every_variant_that_a_size_may_select() {
    let blocks = |count: Expr| [count, Expr::Const(1), Expr::Const(1)];
    let found = || Expr::from(SymbolId(1));
    let bytes = |ranges: &[SymbolRange], of_variant: Expr, of_launch: Expr, keeps: [bool; 2]| {
        let (graph, mut target) = sized();
        let mut second = target.kernels[0].clone();
        target.kernels[0].exits_unreported = !keeps[0];
        second.exits_unreported = !keeps[1];
        target.kernels.push(second);
        let spec = launch(&mut target);
        let inner = LaunchSpec::new(KernelId(1), blocks(of_variant), spec.args.clone());
        spec.variants = vec![LaunchVariant { ranges: ranges.to_vec(), launch: inner }];
        spec.grid = blocks(of_launch);
        // The largest value selects the launch itself.
        InvocationLayout::new(&graph, &target, &[9, 16]).expect("a layout").launches[0]
            .expect("a launch")
            .progress
            .bytes
    };
    let range = |symbol: u32, min: i64, max: i64| SymbolRange { symbol: SymbolId(symbol), min, max };
    // The variant has a hundred blocks for each unit of the size, up to 7.
    assert_eq!(bytes(&[range(1, 0, 7)], found() * 100, found(), [true, true]), 700);
    assert_eq!(bytes(&[range(1, 0, 7)], found() * 100, found(), [true, false]), 16);
    assert_eq!(bytes(&[range(1, 0, 7)], found() * 2, found(), [true, true]), 16);
    assert_eq!(bytes(&[range(1, 0, 7)], found() * 2, found(), [false, true]), 14);
    assert_eq!(bytes(&[range(1, 0, 7)], found() * 2, found(), [false, false]), 0);
    // A range of a size that the client gives is decided when the invocation begins.
    assert_eq!(bytes(&[range(0, 1, 8)], found() * 100, found(), [true, true]), 16);
    // If the largest value selects the variant, the launch itself needs room, too.
    assert_eq!(bytes(&[range(1, 8, 16)], found(), found() * 3, [true, true]), 48);
    assert_eq!(bytes(&[range(1, 8, 16)], found(), found() * 3, [false, true]), 16);
    assert_eq!(bytes(&[range(0, 1, 9)], found(), found() * 3, [true, true]), 16);
}

#[test]
fn words_of_checks_follow_the_epoch_word_and_maps_of_nodes_are_found() {
    let mut graph = graph();
    let check = |text: &str| Check { node: NodeId(0), text: text.into(), values: vec![] };
    graph.checks = vec![check("a"), check("b"), check("c")];
    let layout = InvocationLayout::new(&graph, &target(), &[9]).expect("a layout");
    let words = [0, 1, 2].map(|index| layout.check_word(index) - layout.epoch_word);
    assert_eq!((layout.checks.bytes, words), (12, [256, 260, 264]));
    let map = layout.launches[0].expect("a launch").progress;
    assert!(map.offset >= layout.check_word(2) + 4 + 4, "behind the words of checks and launches");
    assert_eq!((layout.progress_of(0..2), layout.progress_of(0..1)), (Some(map), Some(map)));
    assert_eq!((layout.progress_of(1..2), layout.progress_of(0..0), layout.progress_of(0..3)), (None, None, None));
}
