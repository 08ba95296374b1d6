//! The borders of the checks of targets, and of sizes that are read back from the device.

use super::borders::check;
use super::*;

fn symbol(id: u32) -> Expr {
    Expr::from(SymbolId(id))
}

/// The launch of the node `work`.
fn work(image: &mut TargetImage) -> &mut LaunchSpec {
    image.launches[3].as_mut().unwrap()
}

#[test]
fn sizes_are_read_after_a_node_that_writes_them_and_before_they_are_used() {
    fn copy(graph: &mut KernelGraph, from: Expr, to: Expr, bytes: Expr) {
        graph.nodes[2].kind = NodeKind::Copy { from: X, from_offset: from, to: CACHE, to_offset: to, bytes };
    }
    /// The size is read after the copy, of which one expression depends on it.
    fn late(graph: &mut KernelGraph) {
        graph.nodes[2].writes.push(COUNT);
        graph.read_backs[0].after = NodeId(2);
        graph.segments.clear();
    }
    /// The first node has the size as its offset or number of bytes, and the size is read after it.
    fn fill(graph: &mut KernelGraph, offset: Expr, bytes: Expr) {
        graph.read_backs[0].after = NodeId(0);
        graph.nodes[0].kind = NodeKind::Fill { to: COUNT, offset, bytes, pattern: vec![0; 4] };
    }
    let remember = "the size `found`: remember depends on it, but comes before it is read";
    let clear = "the size `found`: clear depends on it, but comes before it is read";
    let twice = "symbol 1 does not exist or is read back twice";
    let grid = "the size `found`: count uses it in its launch, but comes before it is read";
    check(&[
        // The copy comes right after the node that computes the size.
        ("", |g, _| copy(g, symbol(1), symbol(1), symbol(1))),
        ("", |g, _| late(g)),
        (remember, |g, _| {
            late(g);
            copy(g, symbol(1), zero(), zero());
        }),
        (remember, |g, _| {
            late(g);
            copy(g, zero(), symbol(1), zero());
        }),
        (remember, |g, _| {
            late(g);
            copy(g, zero(), zero(), symbol(1));
        }),
        ("", |g, _| fill(g, zero(), Expr::Const(8))),
        (clear, |g, _| fill(g, symbol(1), Expr::Const(8))),
        (clear, |g, _| fill(g, zero(), symbol(1))),
        ("symbol 2 does not exist or is read back twice", |g, _| g.read_backs[0].symbol = SymbolId(2)),
        (twice, |g, _| g.read_backs.push(g.read_backs[0].clone())),
        ("the size `found`: node 4 does not exist", |g, _| g.read_backs[0].after = NodeId(4)),
        ("the size `found`: remember does not write it", |g, _| g.read_backs[0].after = NodeId(2)),
        ("the size `found`: buffer 5 does not exist", |g, _| g.read_backs[0].value.buffer = BufferId(5)),
        ("the size `found`: a F32", |g, _| g.read_backs[0].value.dtype = DType::F32),
        ("", |g, _| g.read_backs[0].most = None),
        ("the size `found`: cache depends on it, but is allocated before it is read", |g, _| {
            g.buffers[CACHE.0 as usize].shape[0] = symbol(1);
        }),
        ("", |g, _| {
            g.batch = None;
            g.buffers[Y.0 as usize].shape[0] = symbol(1);
        }),
        // Launches: `count` is the node after which the size is read, `work` comes later.
        (grid, |_, t| t.launches[1].as_mut().unwrap().grid[2] = symbol(1)),
        (grid, |_, t| t.launches[1].as_mut().unwrap().args[0] = Argument::Buffer { buffer: COUNT, offset: symbol(1) }),
        (grid, |_, t| {
            t.launches[1].as_mut().unwrap().args[0] = Argument::Int { dtype: DType::U64, value: symbol(1) };
        }),
        (grid, |_, t| {
            let relocations = vec![Relocation { at: 0, buffer: COUNT, offset: symbol(1) }];
            t.launches[1].as_mut().unwrap().args[0] = Argument::Bytes { align: 8, bytes: vec![0; 8], relocations };
        }),
        (grid, |_, t| {
            let launch = t.launches[1].as_mut().unwrap();
            let ranges = vec![SymbolRange { symbol: SymbolId(1), min: 0, max: 1 }];
            launch.variants = vec![LaunchVariant { ranges, launch: launch.clone() }];
        }),
        (grid, |_, t| {
            let launch = t.launches[1].as_mut().unwrap();
            let ranges = vec![SymbolRange { symbol: SymbolId(0), min: 1, max: 1 }];
            let one = [symbol(1), Expr::Const(1), Expr::Const(1)];
            let inner = LaunchSpec::new(launch.kernel, one, launch.args.clone());
            launch.variants = vec![LaunchVariant { ranges, launch: inner }];
        }),
        ("", |_, t| work(t).variants[0].ranges[0] = SymbolRange { symbol: SymbolId(1), min: 0, max: 1 }),
    ]);
}

#[test]
fn facts_of_kernels_have_limits() {
    /// Adds a kernel that no node launches.
    fn kernel(image: &mut TargetImage, change: fn(&mut KernelFacts)) {
        let mut kernel = KernelFacts { name: "k".into(), block: [1, 1, 1], ..KernelFacts::default() };
        change(&mut kernel);
        image.kernels.push(kernel);
    }
    fn amd(vgprs: u32, agprs: u32, sgprs: u32, wave_lanes: u32) -> Option<AmdFacts> {
        Some(AmdFacts { vgprs, sgprs, agprs, wave_lanes, private_bytes: 0 })
    }
    fn fenced(kernel: &mut KernelFacts, own: u32, all: u32) {
        kernel.fence = Some(FenceFacts { offset: 0, dynamic_shared_bytes: own, fault_word: false });
        kernel.shared_bytes = all;
    }
    fn preemptible(kernel: &mut KernelFacts, offset: u32, bytes: u32) {
        (kernel.preempt_offset, kernel.params_bytes) = (Some(offset), bytes);
    }
    let last = "k: the preemption parameters must be the last parameters";
    let own = "k: its own dynamic shared memory is more than all its shared memory";
    let device = "k: no AMD device has waves of";
    check(&[
        ("", |_, t| kernel(t, |k| k.name = "k".repeat(16 << 10))),
        ("a kernel: its name has 16385 bytes, at most 16384 are allowed", |_, t| {
            kernel(t, |k| k.name = "k".repeat((16 << 10) + 1));
        }),
        ("", |_, t| kernel(t, |k| k.block = [32, 32, 1])),
        ("k: a block of 1025 threads, 1 to 1024 are allowed", |_, t| kernel(t, |k| k.block = [41, 25, 1])),
        ("k: a block of 0 threads", |_, t| kernel(t, |k| k.block = [32, 0, 1])),
        ("k: a block of 18446744073709551615 threads", |_, t| kernel(t, |k| k.block = [u32::MAX; 3])),
        ("", |_, t| kernel(t, |k| k.params_bytes = 4096)),
        ("k: 4097 bytes of parameters, at most 4096 are allowed", |_, t| kernel(t, |k| k.params_bytes = 4097)),
        ("", |_, t| kernel(t, |k| preemptible(k, 16, 16 + preempt_params::BYTES))),
        (last, |_, t| kernel(t, |k| preemptible(k, 16, 15 + preempt_params::BYTES))),
        (last, |_, t| kernel(t, |k| preemptible(k, 16, 17 + preempt_params::BYTES))),
        (last, |_, t| kernel(t, |k| preemptible(k, 12, 12 + preempt_params::BYTES))),
        (last, |_, t| kernel(t, |k| preemptible(k, u32::MAX - 7, 20))),
        ("", |_, t| kernel(t, |k| fenced(k, 64, 64))),
        (own, |_, t| kernel(t, |k| fenced(k, 65, 64))),
        ("k: `leaves_silently` is set, but it has no preemption parameters", |_, t| {
            kernel(t, |k| k.exits_unreported = true);
        }),
        ("", |_, t| {
            kernel(t, |k| {
                preemptible(k, 0, preempt_params::BYTES);
                k.exits_unreported = true;
            });
        }),
        ("", |_, t| kernel(t, |k| k.amd = amd(512, 512, 128, 32))),
        (device, |_, t| kernel(t, |k| k.amd = amd(513, 0, 0, 64))),
        (device, |_, t| kernel(t, |k| k.amd = amd(0, 513, 0, 64))),
        (device, |_, t| kernel(t, |k| k.amd = amd(0, 0, 129, 64))),
        (device, |_, t| kernel(t, |k| k.amd = amd(0, 0, 0, 16))),
    ]);
}

#[test]
fn launches_fit_their_nodes_and_kernels() {
    /// The facts of the kernel of `work`, which has 40 bytes of parameters.
    fn many(image: &mut TargetImage, change: fn(&mut KernelFacts)) {
        change(&mut image.kernels[0]);
    }
    fn fenced(kernel: &mut KernelFacts, offset: u32, bytes: u32) {
        kernel.fence = Some(FenceFacts { offset, dynamic_shared_bytes: 0, fault_word: false });
        kernel.params_bytes = bytes;
    }
    let unfit = "work: 40 bytes of arguments do not fit kernel many";
    let unlisted = "work: uses buffer 3, which it does not list";
    check(&[
        ("amd-gfx90a: 3 launches for 4 nodes", |_, t| drop(t.launches.pop())),
        ("amd-gfx90a: 5 launches for 4 nodes", |_, t| t.launches.push(None)),
        ("count: a kernel node needs a launch", |_, t| t.launches[1] = None),
        // A fill without a kernel.
        ("", |_, t| t.launches[0] = None),
        ("work: names a kernel that does not exist", |_, t| work(t).kernel = KernelId(3)),
        ("work: symbol 2 does not exist", |_, t| work(t).grid[2] = symbol(2)),
        (unlisted, |_, t| work(t).args[0] = Argument::Buffer { buffer: COUNT, offset: zero() }),
        ("work: symbol 2 does not exist", |_, t| work(t).args[0] = Argument::Buffer { buffer: X, offset: symbol(2) }),
        ("", |_, t| work(t).args[0] = Argument::Int { dtype: DType::I64, value: symbol(1) }),
        ("work: symbol 2 does not exist", |_, t| {
            work(t).args[0] = Argument::Int { dtype: DType::I64, value: symbol(2) };
        }),
        ("work: an integer literal must have 32 or 64 bits", |_, t| {
            work(t).args[0] = Argument::Int { dtype: DType::I16, value: zero() };
        }),
        // Four bytes, and four of padding before the structure.
        ("", |_, t| work(t).args[0] = Argument::F32 { bits: 0 }),
        ("work: uses check 1, which does not exist", |_, t| work(t).args[2] = Argument::Check { check: 1 }),
        (unfit, |_, t| many(t, |k| k.params_bytes = 39)),
        (unfit, |_, t| many(t, |k| k.params_bytes = 41)),
        ("", |_, t| many(t, |k| fenced(k, 40, 40 + fence_params::BYTES))),
        (unfit, |_, t| many(t, |k| fenced(k, 32, 32 + fence_params::BYTES))),
        (unfit, |_, t| many(t, |k| fenced(k, 48, 48 + fence_params::BYTES))),
        (unfit, |_, t| many(t, |k| fenced(k, 40, 41 + fence_params::BYTES))),
        (unfit, |_, t| many(t, |k| fenced(k, u32::MAX, 40))),
        // 36 bytes of the fence, then padding to 80.
        ("", |_, t| {
            many(t, |k| {
                fenced(k, 40, 80 + preempt_params::BYTES);
                k.preempt_offset = Some(80);
            });
        }),
        (unfit, |_, t| {
            many(t, |k| (k.preempt_offset, k.params_bytes) = (Some(48), 48 + preempt_params::BYTES));
        }),
        ("", |_, t| many(t, |k| (k.preempt_offset, k.params_bytes) = (Some(40), 40 + preempt_params::BYTES))),
    ]);
}

#[test]
fn structures_have_aligned_addresses_inside() {
    fn structure(image: &mut TargetImage, change: fn(&mut u32, &mut Vec<u8>, &mut Vec<Relocation>)) {
        match &mut work(image).args[1] {
            Argument::Bytes { align, bytes, relocations } => change(align, bytes, relocations),
            other => panic!("{other:?}"),
        }
    }
    let outside = "overlaps another or lies outside of its 24 bytes";
    check(&[
        ("", |_, t| structure(t, |align, _, _| *align = 4)),
        ("a structure of 24 bytes aligned to 0", |_, t| structure(t, |align, _, _| *align = 0)),
        ("a structure of 24 bytes aligned to 32", |_, t| structure(t, |align, _, _| *align = 32)),
        ("a structure of 0 bytes aligned to 8", |_, t| structure(t, |_, bytes, _| bytes.clear())),
        (outside, |_, t| structure(t, |_, _, relocations| relocations[1].at = 15)),
        (outside, |_, t| structure(t, |_, _, relocations| relocations[1].at = 17)),
        (outside, |_, t| structure(t, |_, _, relocations| relocations[1].at = 8)),
        (outside, |_, t| structure(t, |_, _, relocations| relocations[0].at = 9)),
        ("", |_, t| structure(t, |_, _, relocations| relocations[0].at = 0)),
        ("work: uses buffer 3, which it does not list", |_, t| {
            structure(t, |_, _, relocations| relocations[0].buffer = COUNT);
        }),
        ("work: symbol 2 does not exist", |_, t| {
            structure(t, |_, _, relocations| relocations[0].offset = symbol(2));
        }),
        // At byte 4 of the parameter block, the addresses are not aligned.
        ("work: a relocation must be aligned to 8 bytes in the parameter block", |_, t| {
            structure(t, |align, _, _| *align = 4);
            work(t).args[0] = Argument::F32 { bits: 0 };
        }),
    ]);
}

#[test]
fn variants_can_all_be_selected() {
    fn range(image: &mut TargetImage, min: i64, max: i64) {
        work(image).variants[0].ranges[0] = SymbolRange { symbol: SymbolId(0), min, max };
    }
    /// Adds a variant for another range of `n`, and one of `found`.
    fn second(image: &mut TargetImage, min: i64, max: i64, found: Option<(i64, i64)>) {
        let mut ranges = vec![SymbolRange { symbol: SymbolId(0), min, max }];
        ranges.extend(found.map(|(min, max)| SymbolRange { symbol: SymbolId(1), min, max }));
        let launch = work(image).variants[0].launch.clone();
        work(image).variants.push(LaunchVariant { ranges, launch });
    }
    let outside = "is empty, given twice, or outside of 1 to 64";
    let covered = "work, variant 1: variant 0 precedes it and covers all of its values";
    check(&[
        ("", |_, t| range(t, -5, 1)),
        (outside, |_, t| range(t, -5, 0)),
        ("", |_, t| range(t, 64, 70)),
        (outside, |_, t| range(t, 65, 70)),
        ("work, variant 0: symbol 2 does not exist", |_, t| work(t).variants[0].ranges[0].symbol = SymbolId(2)),
        ("", |_, t| second(t, 1, 2, None)),
        (covered, |_, t| second(t, 1, 1, None)),
        // Smaller values than the smallest do not occur.
        (covered, |_, t| second(t, 0, 1, None)),
        (covered, |_, t| second(t, 1, 1, Some((0, 3)))),
        ("", |_, t| second(t, 2, 2, Some((0, 3)))),
        ("", |_, t| {
            work(t).variants[0].ranges.push(SymbolRange { symbol: SymbolId(1), min: 0, max: 7 });
            second(t, 1, 1, None);
        }),
        (covered, |_, t| {
            work(t).variants[0].ranges.push(SymbolRange { symbol: SymbolId(1), min: 0, max: 8 });
            second(t, 1, 1, None);
        }),
        ("", |_, t| (2..=64).for_each(|n| second(t, n, n, None))),
        ("work: 65 variants, at most 64 are allowed", |_, t| {
            (2..=64).for_each(|n| second(t, n, n, None));
            second(t, 2, 3, None);
        }),
    ]);
}

#[test]
fn packed_constants_lie_in_the_weights() {
    fn packed(image: &mut TargetImage, weights_offset: u64, bytes: u64) {
        image.packed[0] = PackedConstant { weights_offset, bytes, ..image.packed[0].clone() };
    }
    let outside = "the packed form of buffer 1 lies outside the weights or is not aligned";
    check(&[
        ("", |_, t| packed(t, 256, 64)),
        (outside, |_, t| packed(t, 256, 65)),
        (outside, |_, t| packed(t, 128, 64)),
        (outside, |_, t| packed(t, u64::MAX - 255, 256)),
        ("packs buffer 1, which is not a constant or is packed twice", |_, t| t.packed.push(t.packed[0].clone())),
        ("packs buffer 5, which is not a constant", |_, t| t.packed[0].buffer = BufferId(5)),
        ("", |_, t| t.packed[0].layout = "l".repeat(64)),
        ("has a name of 65 bytes, 1 to 64 are allowed", |_, t| t.packed[0].layout = "l".repeat(65)),
        ("has a name of 0 bytes", |_, t| t.packed[0].layout.clear()),
    ]);
}
