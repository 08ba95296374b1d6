//! Format 2: everything in it round-trips; inconsistent content and other formats are rejected.

mod borders;
mod borders_of_targets;
mod rerun;

use atoll_kgraph::strings::Strings;
use atoll_kgraph::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// Buffers of the graph below.
const X: BufferId = BufferId(0);
const W: BufferId = BufferId(1);
const CACHE: BufferId = BufferId(2);
const COUNT: BufferId = BufferId(3);
const Y: BufferId = BufferId(4);

fn zero() -> Expr {
    Expr::Const(0)
}

/// A graph that uses every feature except elements of inputs and strings: rows `n`, a size `found` that a node
/// computes, a state, a fill, a copy, an if, a loop, and a check.
fn graph() -> KernelGraph {
    let n = Expr::from(SymbolId(0));
    let buffer = |name: &str, kind, dtype, shape: &[Expr], weights_offset| BufferSpec {
        name: name.into(),
        kind,
        dtype,
        shape: shape.to_vec(),
        weights_offset,
    };
    let node = |name: &str, kind, reads: &[BufferId], writes: &[BufferId]| Node {
        name: name.into(),
        kind,
        reads: reads.to_vec(),
        writes: writes.to_vec(),
        after: vec![],
    };
    let remember =
        NodeKind::Copy { from: X, from_offset: zero(), to: CACHE, to_offset: Expr::Const(16), bytes: Expr::Const(16) };
    let clear = NodeKind::Fill { to: COUNT, offset: zero(), bytes: Expr::Const(8), pattern: vec![1, 0, 0, 0] };
    let nodes = |first, end| Segment::Nodes { first: NodeId(first), end: NodeId(end) };
    let condition = Scalar { buffer: COUNT, offset: 4, dtype: DType::I32 };
    KernelGraph {
        format: FORMAT_VERSION,
        name: "everything".into(),
        symbols: vec![SymbolSpec::new("n", 1, 64), SymbolSpec::new("found", 0, 8)],
        buffers: vec![
            buffer("x", BufferKind::Input, DType::F32, &[n.clone(), Expr::Const(4)], None),
            buffer("w", BufferKind::Const, DType::F32, &[Expr::Const(8)], Some(0)),
            buffer("cache", BufferKind::State, DType::F32, &[Expr::Const(16), Expr::Const(4)], None),
            buffer("count", BufferKind::Temp, DType::I32, &[Expr::Const(2)], None),
            buffer("y", BufferKind::Output, DType::F32, &[n.clone(), Expr::Const(4)], None),
        ],
        nodes: vec![
            node("clear", clear, &[], &[COUNT]),
            node("count", NodeKind::Kernel, &[X], &[COUNT]),
            node("remember", remember, &[X], &[CACHE]),
            node("work", NodeKind::Kernel, &[X, W, CACHE], &[Y]),
        ],
        plan: MemoryPlan {
            arena_bytes: Some(Expr::Const(256)),
            temps: vec![TempPlacement { buffer: COUNT, offset: zero() }],
            restore_points: [0, 0, 2, 3].map(NodeId).to_vec(),
            unshared_bytes: None,
            state_bytes: Some(Expr::Const(256)),
            states: vec![TempPlacement { buffer: CACHE, offset: zero() }],
        },
        batch: Some(BatchAxis {
            symbol: SymbolId(0),
            axes: vec![Some(0), None, None, None, Some(0)],
            proof: "test".into(),
        }),
        read_backs: vec![ReadBack {
            symbol: SymbolId(1),
            after: NodeId(1),
            value: Scalar { buffer: COUNT, offset: 0, dtype: DType::I32 },
            most: Some(n.clone() + 1),
        }],
        segments: vec![
            nodes(0, 2),
            Segment::If { condition, then: vec![nodes(2, 3)], otherwise: vec![] },
            Segment::Loop {
                trips: Some(n.clone()),
                count: Some(condition),
                condition: Some(condition),
                trips_max: 64,
                body: vec![nodes(3, 4)],
            },
        ],
        elements: vec![],
        conditions: vec![Condition {
            place: "node work".into(),
            relation: Relation::AtLeast,
            left: n.clone(),
            right: Expr::Const(1),
        }],
        checks: vec![Check { node: NodeId(3), text: "a value is not below {}".into(), values: vec![n] }],
        session: Session {
            symbols: vec![],
            states: vec![StateSpec {
                buffer: CACHE,
                input: "before".into(),
                output: "behind".into(),
                shape: vec![Expr::Const(16), Expr::Const(4)],
            }],
        },
        strings: Strings::default(),
    }
}

/// A target for the graph, with a structure as argument, a variant, a fill by a kernel, and a
/// packed constant.
fn image() -> TargetImage {
    let kernel = |name: &str, params_bytes| KernelFacts {
        name: name.into(),
        block: [32, 1, 1],
        params_bytes,
        ..KernelFacts::default()
    };
    let amd = AmdFacts { vgprs: 40, sgprs: 32, agprs: 0, wave_lanes: 64, private_bytes: 16 };
    let address = |buffer| Argument::Buffer { buffer, offset: zero() };
    let one = || [Expr::from(SymbolId(1)), Expr::Const(1), Expr::Const(1)];
    let relocations = vec![
        Relocation { at: 8, buffer: W, offset: Expr::Const(4) },
        Relocation { at: 16, buffer: CACHE, offset: zero() },
    ];
    let structure = Argument::Bytes { align: 8, bytes: (0..24).collect(), relocations };
    let work = LaunchSpec {
        variants: vec![LaunchVariant {
            ranges: vec![SymbolRange { symbol: SymbolId(0), min: 1, max: 1 }],
            launch: LaunchSpec::new(KernelId(1), one(), vec![address(Y), structure.clone()]),
        }],
        ..LaunchSpec::new(KernelId(0), one(), vec![address(X), structure, Argument::Check { check: 0 }])
    };
    let fixed = |args| Some(LaunchSpec::new(KernelId(2), [1, 1, 1].map(Expr::Const), args));
    TargetImage {
        name: "amd-gfx90a".into(),
        kernels: vec![KernelFacts { amd: Some(amd), ..kernel("many", 40) }, kernel("one", 32), kernel("count", 8)],
        launches: vec![fixed(vec![address(COUNT)]), fixed(vec![address(COUNT)]), None, Some(work)],
        source: None,
        packed: vec![PackedConstant { buffer: W, layout: "pairs".into(), weights_offset: 256, bytes: 64 }],
    }
}

fn write(path: &Path, graph: &KernelGraph, image: TargetImage) -> Result<String, BundleError> {
    let weights: Vec<u8> = (0..64).collect();
    let targets = [image.clone(), TargetImage { name: "amd-gfx942".into(), ..image }];
    let contents =
        |image| TargetContents { image, code: vec![7], ptx: None, source: Some(".version 7.0\n".repeat(1000)) };
    let contents = BundleContents {
        producer: "test".into(),
        graph,
        weights: vec![(0, &weights[..32]), (256, &weights)],
        targets: targets.map(contents).into(),
    };
    write_bundle(path, &contents)
}

#[test]
fn everything_round_trips() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.kg");
    write(&path, &graph(), image()).unwrap();
    let bundle = Bundle::open(&path).unwrap();
    assert_eq!((bundle.format(), bundle.graph()), (FORMAT_VERSION, &graph()));
    let read = bundle.target("amd-gfx90a").unwrap();
    assert_eq!(TargetImage { source: None, ..read.clone() }, image());
    assert_eq!(
        features::of_graph(&graph()).len() + features::of_target(&graph(), &image()).len(),
        13,
        "every feature except elements of inputs, which have no rows"
    );
    let layout = InvocationLayout::new(&graph(), &image(), &[1, 3]).unwrap();
    assert_eq!(
        (layout.launches[3].unwrap().variant, layout.state_bytes, layout.buffer(CACHE).bytes),
        (Some(0), 256, 256)
    );
    assert_eq!(InvocationLayout::new(&graph(), &image(), &[2, 3]).unwrap().launches[3].unwrap().variant, None);
}

#[test]
fn kernels_from_before_the_passes_are_stored_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.kg");
    write(&path, &graph(), image()).unwrap();
    let bundle = Bundle::open(&path).unwrap();
    for target in ["amd-gfx90a", "amd-gfx942"] {
        assert_eq!(bundle.source(target).unwrap(), Some(".version 7.0\n".repeat(1000)));
    }
    assert_eq!(bundle.source("amd-gfx1100").unwrap(), None);
    let sources = members(&path).into_keys().filter(|name| name.starts_with("sources/")).collect::<BTreeSet<_>>();
    assert_eq!(sources.len(), 1, "{sources:?}");
}

/// Checks the error when a changed graph or target is written.
fn rejected(expected: &str, change: impl FnOnce(&mut KernelGraph, &mut TargetImage)) {
    let folder = tempfile::tempdir().unwrap();
    let (mut graph, mut image) = (graph(), image());
    change(&mut graph, &mut image);
    let message = write(&folder.path().join("a.kg"), &graph, image).expect_err(expected).to_string();
    assert!(message.contains(expected), "{message}");
}

#[test]
fn invalid_batch_axes_are_rejected() {
    let batch = |change: fn(&mut BatchAxis)| {
        move |graph: &mut KernelGraph, _: &mut TargetImage| change(graph.batch.as_mut().unwrap())
    };
    rejected("symbol 9 does not exist", batch(|b| b.symbol = SymbolId(9)));
    rejected("axis 2 of 2 dimensions", batch(|b| b.axes[0] = Some(2)));
    rejected("axis 1 is 4, not the symbol", batch(|b| b.axes[0] = Some(1)));
    rejected("inputs and outputs need an axis", batch(|b| b.axes[4] = None));
    rejected("a constant must not have an axis", batch(|b| b.axes[1] = Some(0)));
    rejected("4 axes for 5 buffers", batch(|b| b.axes.truncate(4)));
    rejected("a proof with a name of 0 bytes", batch(|b| b.proof.clear()));
    rejected("another dimension depends on the symbol", |g, _| g.buffers[0].shape[1] = Expr::from(SymbolId(0)) * 2);
    rejected("is read back from the device", batch(|b| b.symbol = SymbolId(1)));
}

#[test]
fn invalid_checks_are_rejected() {
    let check =
        |change: fn(&mut Check)| move |graph: &mut KernelGraph, _: &mut TargetImage| change(&mut graph.checks[0]);
    rejected("node 9 does not exist", check(|c| c.node = NodeId(9)));
    rejected("work: uses check 0, which does not exist or belongs to another node", check(|c| c.node = NodeId(1)));
    rejected("a text of 0 bytes", check(|c| c.text.clear()));
    rejected("a text of 1025 bytes", check(|c| c.text = "x".repeat(1025)));
    rejected("its text has 2 placeholders for 1 values", check(|c| c.text = "{} {}".into()));
    rejected("symbol 9 does not exist", check(|c| c.values[0] = Expr::from(SymbolId(9))));
    rejected("uses check 0, which does not exist", |graph, _| graph.checks.clear());
    rejected("65537 checks, at most 65536", |graph, _| graph.checks = vec![graph.checks[0].clone(); 65_537]);
}

#[test]
fn invalid_structures_are_rejected() {
    fn relocations(
        change: fn(&mut u32, &mut Vec<u8>, &mut Vec<Relocation>),
    ) -> impl FnOnce(&mut KernelGraph, &mut TargetImage) {
        move |_, image| match &mut image.launches[3].as_mut().unwrap().args[1] {
            Argument::Bytes { align, bytes, relocations } => change(align, bytes, relocations),
            other => panic!("{other:?}"),
        }
    }
    rejected(
        "the relocation at byte 20 overlaps another or lies outside of its 24 bytes",
        relocations(|_, _, r| r[1].at = 20),
    );
    rejected("the relocation at byte 4294967295 overlaps", relocations(|_, _, r| r[1].at = u32::MAX));
    rejected("the relocation at byte 12 overlaps", relocations(|_, _, r| r[1].at = 12));
    rejected("must be aligned to 8", relocations(|_, _, r| r[0].at = 4));
    rejected("uses buffer 9", relocations(|_, _, r| r[0].buffer = BufferId(9)));
    rejected("a structure of 24 bytes aligned to 3", relocations(|align, _, _| *align = 3));
    rejected("a structure of 4097 bytes", relocations(|_, bytes, _| bytes.resize(4097, 0)));
    rejected("48 bytes of arguments do not fit kernel many", relocations(|_, bytes, _| bytes.resize(32, 0)));
    rejected("4104 bytes of parameters, at most 4096", |_, image| image.kernels[1].params_bytes = 4104);
}

#[test]
fn invalid_variants_are_rejected() {
    fn variant(change: fn(&mut Vec<LaunchVariant>)) -> impl FnOnce(&mut KernelGraph, &mut TargetImage) {
        move |_, image| change(&mut image.launches[3].as_mut().unwrap().variants)
    }
    rejected("work, variant 0: it has no range", variant(|v| v[0].ranges.clear()));
    rejected("the range 2 to 1 of `n` is empty", variant(|v| (v[0].ranges[0].min, v[0].ranges[0].max) = (2, 1)));
    rejected("outside of 1 to 64", variant(|v| (v[0].ranges[0].min, v[0].ranges[0].max) = (65, 70)));
    rejected("given twice", variant(|v| v[0].ranges = vec![v[0].ranges[0]; 2]));
    rejected("symbol 7 does not exist", variant(|v| v[0].ranges[0].symbol = SymbolId(7)));
    rejected("work, variant 1: variant 0 precedes it and covers all of its values", variant(|v| v.push(v[0].clone())));
    rejected("a variant must not have variants", variant(|v| v[0].launch.variants = v.clone()));
    rejected("names a kernel that does not exist", variant(|v| v[0].launch.kernel = KernelId(9)));
}

#[test]
fn invalid_segments_and_sizes_are_rejected() {
    let loop_of = |change: fn(&mut Option<Expr>, &mut Option<Scalar>, &mut u64)| {
        move |graph: &mut KernelGraph, _: &mut TargetImage| match &mut graph.segments[2] {
            Segment::Loop { trips, count, condition, trips_max, .. } => {
                *count = None;
                change(trips, condition, trips_max)
            }
            other => panic!("{other:?}"),
        }
    };
    rejected(
        "it needs a number of iterations or a condition that ends it",
        loop_of(|trips, condition, _| (*trips, *condition) = (None, None)),
    );
    rejected("a loop: its number of iterations depends on `found`, which is read back later", |graph, _| {
        let (condition, trips) = (None, Some(Expr::from(SymbolId(1))));
        let body = vec![graph.segments.remove(0)];
        graph.segments.insert(0, Segment::Loop { trips, count: None, condition, trips_max: 8, body });
    });
    rejected("at most 0 iterations", loop_of(|_, _, most| *most = 0));
    rejected("a F32 is neither an integer", loop_of(|_, condition, _| condition.as_mut().unwrap().dtype = DType::F32));
    let strings = loop_of(|_, condition, _| condition.as_mut().unwrap().dtype = DType::Strings);
    rejected("a Strings is neither an integer", strings);
    rejected(
        "byte 8 of count is misaligned, or outside",
        loop_of(|_, condition, _| condition.as_mut().unwrap().offset = 8),
    );
    rejected("the number of iterations of a loop: buffer 99 does not exist", |graph, _| match &mut graph.segments[2] {
        Segment::Loop { count, .. } => count.as_mut().unwrap().buffer = BufferId(99),
        other => panic!("{other:?}"),
    });
    rejected("`found` is read back after it, which is not possible inside an if or a loop", |graph, _| {
        let condition = Scalar { buffer: COUNT, offset: 0, dtype: DType::I32 };
        let then = vec![graph.segments.remove(0)];
        graph.segments.insert(0, Segment::If { condition, then, otherwise: vec![] });
    });
    rejected("they end before node 3", |graph, _| graph.segments.truncate(2));
    rejected("nodes 2 to 3, but node 0 is next", |graph, _| {
        graph.segments.remove(0);
    });
    rejected("has a restore point in another segment", |graph, _| graph.plan.restore_points[3] = NodeId(2));
    rejected("nested deeper than 16", |graph, _| {
        for _ in 0..20 {
            let condition = Scalar { buffer: COUNT, offset: 0, dtype: DType::I32 };
            graph.segments =
                vec![Segment::If { condition, then: std::mem::take(&mut graph.segments), otherwise: vec![] }];
        }
    });
    rejected("clear does not write it", |graph, _| {
        (graph.read_backs[0].after, graph.nodes[0].writes, graph.nodes[0].kind) = (NodeId(0), vec![], NodeKind::Kernel)
    });
    rejected("`found`: its largest value depends on `found`", |graph, _| {
        graph.read_backs[0].most = Some(Expr::from(SymbolId(1)))
    });
    rejected("symbol 9 does not exist", |graph, _| graph.read_backs[0].most = Some(Expr::from(SymbolId(9))));
    rejected("not in the order of their nodes", |graph, _| {
        let first = ReadBack { after: NodeId(0), ..graph.read_backs[0].clone() };
        graph.read_backs.push(first);
    });
    rejected("x depends on it, but is allocated before", |graph, _| graph.buffers[0].shape[1] = SymbolId(1).into());
    rejected("count uses it in its launch, but comes before it is read", |_, image| {
        image.launches[1].as_mut().unwrap().grid[0] = SymbolId(1).into()
    });
}

#[test]
fn invalid_elements_and_conditions_are_rejected() {
    fn element(input: u32, index: u32) -> impl FnOnce(&mut KernelGraph, &mut TargetImage) {
        move |graph, _| {
            graph.symbols.push(SymbolSpec::new("x[0]", -1, 9));
            graph.elements.push(InputElement { symbol: SymbolId(2), input, index });
        }
    }
    rejected("input 1 does not exist", element(1, 0));
    rejected("its shape must be constant and contain element 0", element(0, 0));
    rejected("its elements must be integers", |graph, image| {
        graph.batch = None;
        graph.buffers[0].shape = vec![Expr::Const(4)];
        element(0, 3)(graph, image);
    });
    rejected("range is empty or negative", |graph, _| graph.symbols[0].min = -1);
    rejected("symbol 7 does not exist", |graph, _| graph.conditions[0].right = Expr::from(SymbolId(7)));
}

#[test]
fn invalid_sessions_are_rejected() {
    let symbol = |symbol, first, next| SessionSymbol { symbol: SymbolId(symbol), first, next };
    rejected("buffer 3 is not a state buffer", |graph, _| graph.session.states[0].buffer = COUNT);
    rejected("there is no such symbol", |graph, _| graph.session.symbols.push(symbol(9, 0, zero())));
    rejected("its value has two sources", |graph, _| graph.session.symbols.push(symbol(1, 0, zero())));
    rejected("it begins with 99", |graph, _| graph.session.symbols.push(symbol(0, 99, zero())));
    rejected("symbol 7 does not exist", |graph, _| graph.session.symbols.push(symbol(0, 1, Expr::from(SymbolId(7)))));
    rejected("the size of state buffer cache depends on it", |graph, _| {
        graph.buffers[CACHE.0 as usize].shape[0] = Expr::from(SymbolId(0));
        graph.session.symbols.push(symbol(0, 1, Expr::Const(1)));
    });
}

#[test]
fn invalid_memory_is_rejected() {
    rejected("buffer 2 has no place", |graph, _| graph.plan.states.clear());
    rejected("buffer 3 is not of kind State", |graph, _| graph.plan.states[0].buffer = COUNT);
    rejected("lies outside the weights", |_, image| image.packed[0].weights_offset = 512);
    rejected("packs buffer 0, which is not a constant", |_, image| image.packed[0].buffer = X);
    rejected("a pattern of 3 bytes", |graph, _| {
        graph.nodes[0].kind = NodeKind::Fill { to: COUNT, offset: zero(), bytes: Expr::Const(3), pattern: vec![0; 3] }
    });
    rejected("no AMD device has waves of 48 lanes", |_, image| image.kernels[0].amd.as_mut().unwrap().wave_lanes = 48);
    let layout = |change: fn(&mut KernelGraph)| {
        let mut graph = graph();
        change(&mut graph);
        InvocationLayout::new(&graph, &image(), &[2, 3]).expect_err("invalid").to_string()
    };
    assert!(
        layout(|g| g.plan.state_bytes = Some(Expr::Const(255))).contains("cache: bytes 0 to 256 exceed its 255 bytes")
    );
    assert!(
        layout(|g| g.nodes[2].kind = NodeKind::copy(CACHE, CACHE, Expr::Const(8)))
            .contains("remember: overlapping ranges in cache")
    );
    assert!(
        layout(|g| match &mut g.nodes[0].kind {
            NodeKind::Fill { bytes, .. } => *bytes = Expr::Const(6),
            other => panic!("{other:?}"),
        })
        .contains("a fill of 6 bytes, or its offset, is not a multiple of the pattern's 4 bytes")
    );
}

/// The members of a bundle, for tests that write invalid bundles.
fn members(path: &Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let mut archive = zip::ZipArchive::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut read = |index| {
        let mut member = archive.by_index(index).unwrap();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut member, &mut bytes).unwrap();
        (member.name().to_owned(), bytes)
    };
    (0..8).map(&mut read).collect()
}

/// Rewrites the JSON of one member together with its manifest entry, and opens the bundle.
fn rewritten(name: &str, change: impl FnOnce(&mut Value)) -> Result<std::sync::Arc<Bundle>, BundleError> {
    use sha2::{Digest, Sha256};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.kg");
    write(&path, &graph(), image()).unwrap();
    let mut members = members(&path);
    let mut value: Value = serde_json::from_slice(&members[name]).unwrap();
    change(&mut value);
    let bytes = serde_json::to_vec(&value).unwrap();
    let mut manifest: Value = serde_json::from_slice(&members["manifest.json"]).unwrap();
    if name == "manifest.json" {
        manifest = value;
    } else {
        let digest: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        manifest["members"][name] = json!({ "bytes": bytes.len(), "sha256": digest });
        members.insert(name.into(), bytes);
    }
    members.insert("manifest.json".into(), serde_json::to_vec(&manifest).unwrap());
    let mut writer = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
    for (name, bytes) in members {
        writer
            .start_file(
                name,
                zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored),
            )
            .unwrap();
        std::io::Write::write_all(&mut writer, &bytes).unwrap();
    }
    writer.finish().unwrap();
    Bundle::open(&path)
}

#[test]
fn other_formats_and_unknown_fields_are_rejected() {
    let rejected = |name: &str, expected: &str, change: &dyn Fn(&mut Value)| {
        let message = rewritten(name, change).expect_err(expected).to_string();
        assert!(message.contains(expected), "{message}");
    };
    rewritten("graph.json", |_| {}).expect("nothing was changed");
    for format in [0, 3, 4_000_000_000_u32] {
        let expected = format!("has bundle format {format}, this Atoll reads formats 1 to 2");
        rejected("manifest.json", &expected, &|manifest| {
            manifest["format"] = json!(format);
            manifest["something"] = json!("new");
        });
    }
    rejected("manifest.json", "graph: it has format 2, its bundle has format 1", &|manifest| {
        manifest["format"] = json!(1)
    });
    rejected("graph.json", "unknown field `quantum`, expected one of `format`", &|graph| graph["quantum"] = json!(1));
    rejected("graph.json", "unknown variant `sometimes`", &|graph| graph["nodes"][1]["kind"] = json!("sometimes"));
    let target = "targets/amd-gfx90a/target.json";
    rejected(target, "unknown field `speed`", &|target| target["kernels"][0]["speed"] = json!(1));
    rejected(target, "pairs of hexadecimal digits", &|target| {
        target["launches"][3]["args"][1]["bytes"]["bytes"] = json!("0x")
    });
    rejected(target, "sources/00.ptx.gz is missing", &|target| target["source"] = json!("00"));
}
