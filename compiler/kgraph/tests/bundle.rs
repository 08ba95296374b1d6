//! Writing and opening bundles, and rejecting damaged and inconsistent ones.

use atoll_kgraph::*;
use std::path::Path;

/// `out = kernel(in, w)` with a symbolic batch size.
fn graph() -> KernelGraph {
    let batch = Expr::from(SymbolId(0));
    let buffer = |name: &str, kind, weights_offset| BufferSpec {
        name: name.into(),
        kind,
        dtype: DType::F32,
        shape: vec![if kind == BufferKind::Const { Expr::Const(4) } else { batch.clone() }, Expr::Const(8)],
        weights_offset,
    };
    KernelGraph {
        format: FORMAT_VERSION,
        name: "toy".into(),
        symbols: vec![SymbolSpec::new("batch", 1, 64)],
        buffers: vec![
            buffer("in", BufferKind::Input, None),
            buffer("w", BufferKind::Const, Some(256)),
            buffer("out", BufferKind::Output, None),
        ],
        nodes: vec![Node {
            name: "node".into(),
            kind: NodeKind::Kernel,
            reads: vec![BufferId(0), BufferId(1)],
            writes: vec![BufferId(2)],
            after: vec![],
        }],
        plan: MemoryPlan { restore_points: vec![NodeId(0)], ..MemoryPlan::default() },
        ..KernelGraph::default()
    }
}

fn target() -> TargetContents {
    let argument = |id| Argument::Buffer { buffer: BufferId(id), offset: Expr::Const(0) };
    let kernel = KernelFacts {
        name: "k".into(),
        block: [32, 1, 1],
        params_bytes: 24 + 8 + preempt_params::BYTES,
        preempt_offset: Some(32),
        shared_bytes: 0,
        scratch_bytes: 0,
        ..KernelFacts::default()
    };
    let launch = LaunchSpec::new(
        KernelId(0),
        [Expr::from(SymbolId(0)).ceil_div(32), Expr::Const(1), Expr::Const(1)],
        vec![argument(0), argument(1), argument(2), Argument::Int { dtype: DType::U32, value: SymbolId(0).into() }],
    );
    let image = TargetImage {
        name: "nvidia-sm_75".into(),
        kernels: vec![kernel],
        launches: vec![Some(launch)],
        ..TargetImage::default()
    };
    TargetContents { image, code: b".version 7.0".to_vec(), ptx: None, source: None }
}

fn write(path: &Path, graph: &KernelGraph) -> Result<String, BundleError> {
    let weights: Vec<u8> = (0..128).collect();
    let contents =
        BundleContents { producer: "test".into(), graph, weights: vec![(256, &weights)], targets: vec![target()] };
    write_bundle(path, &contents)
}

#[test]
fn a_written_bundle_is_read_back_and_aligned() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("toy.kg");
    let digest = write(&path, &graph()).unwrap();
    let bundle = Bundle::open(&path).unwrap();
    assert_eq!(bundle.digest(), digest);
    assert_eq!(bundle.graph(), &graph());
    assert_eq!(bundle.weights()[256..], (0..128).collect::<Vec<u8>>()[..]);
    assert_eq!(bundle.weights().as_ptr().align_offset(256), 0);
    assert_eq!(bundle.target("nvidia-sm_75"), Some(&target().image));
    assert_eq!(bundle.code("nvidia-sm_75"), Some(&b".version 7.0"[..]));
    assert_eq!(bundle.code("host-x86-64-v3"), None);
    let again = folder.path().join("again.kg");
    assert_eq!(write(&again, &graph()).unwrap(), digest);
    assert_eq!(std::fs::read(&again).unwrap(), std::fs::read(&path).unwrap(), "equal content gives equal files");
}

#[test]
fn the_outline_of_a_bundle_is_that_of_its_graph() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("toy.kg");
    write(&path, &graph()).unwrap();
    let outline = |path: &Path| Bundle::outline(&std::fs::File::open(path).unwrap(), path);
    let bundle = Bundle::open(&path).unwrap();
    let constants = bundle.graph().buffers.iter().filter(|buffer| buffer.kind == BufferKind::Const).count() as u64;
    assert!(constants > 0);
    assert_eq!(outline(&path).unwrap(), Outline { name: bundle.graph().name.clone(), constants });
    for bad in [&b""[..], b"PK", &std::fs::read(&path).unwrap()[..100]] {
        let other = folder.path().join("bad.kg");
        std::fs::write(&other, bad).unwrap();
        assert!(matches!(outline(&other), Err(BundleError::Corrupt { .. })), "{} bytes", bad.len());
    }
}

#[test]
fn a_bundle_that_readers_would_reject_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep.kg");
    let mut graph = graph();
    // Each term adds two levels of JSON nesting.
    graph.plan.unshared_bytes =
        Some((0..400).fold(Expr::from(SymbolId(0)), |sum, _| sum.max(Expr::from(SymbolId(0)) * 3)));
    let error = write(&path, &graph).expect_err("nested too deep").to_string();
    assert!(error.contains("could not be read again"), "{error}");
    assert!(!path.exists());
}

#[test]
fn every_damaged_byte_of_content_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("toy.kg");
    write(&path, &graph()).unwrap();
    let whole = std::fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(97) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x40;
        std::fs::write(&path, &damaged).unwrap();
        // The outline is not checked against digests, and must be read or refused.
        drop(Bundle::outline(&std::fs::File::open(&path).unwrap(), &path));
        // A flipped bit in padding or in a date has no effect. Any other flipped bit must be
        // rejected. No flipped bit may cause a panic or change the content.
        if let Ok(bundle) = Bundle::open(&path) {
            assert_eq!(bundle.graph(), &graph(), "flipped byte {at}");
            assert_eq!(bundle.code("nvidia-sm_75"), Some(&b".version 7.0"[..]));
        }
    }
    for length in [0, 1, 100, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).unwrap();
        let error = Bundle::open(&path).unwrap_err();
        assert!(matches!(error, BundleError::Corrupt { .. } | BundleError::Io { .. }), "{length}: {error}");
    }
}

#[test]
fn inconsistencies_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("toy.kg");
    let rejected = |change: &dyn Fn(&mut KernelGraph), expected: &str| {
        let mut changed = graph();
        change(&mut changed);
        let message = write(&path, &changed).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    };
    rejected(&|g| g.nodes[0].reads.push(BufferId(9)), "node: names a buffer that does not exist");
    rejected(&|g| g.nodes[0].writes.push(BufferId(1)), "writes an input or a constant");
    rejected(&|g| g.nodes[0].after.push(NodeId(0)), "comes before a node that it depends on");
    rejected(&|g| g.buffers[1].weights_offset = Some(512), "outside the weights");
    rejected(&|g| g.buffers[0].shape[0] = SymbolId(3).into(), "symbol 3 does not exist");
    rejected(&|g| g.buffers[0].kind = BufferKind::Temp, "has no place");
    rejected(&|g| g.plan.restore_points.clear(), "one restore point per node");
    assert!(!path.exists(), "a rejected bundle leaves no file");
}

#[test]
fn code_that_was_compiled_anew_replaces_all_targets() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("toy.kg");
    write(&path, &graph()).unwrap();
    let bundle = Bundle::open(&path).unwrap();
    let mut made = target();
    made.image.name = "host-x86-64-v3".into();
    let kernel = &mut made.image.kernels[0];
    let fence = FenceFacts { offset: 32, dynamic_shared_bytes: 0, fault_word: false };
    (kernel.fence, kernel.preempt_offset) = (Some(fence), Some(72));
    kernel.params_bytes = 72 + preempt_params::BYTES;
    (made.code, made.ptx) = (vec![1, 2, 3], Some("ptx".into()));
    let bytes = encode_code(&[made]).unwrap();
    let other = bundle.with_code(decode_code(&bytes).unwrap()).unwrap();
    assert_eq!((bundle.is_recompiled(), other.is_recompiled()), (false, true));
    assert_eq!(other.target_names().collect::<Vec<_>>(), ["host-x86-64-v3"]);
    assert_eq!((other.code("host-x86-64-v3"), other.ptx("host-x86-64-v3")), (Some(&[1, 2, 3][..]), Some(&b"ptx"[..])));
    assert_eq!((other.digest(), other.graph(), other.weights()), (bundle.digest(), bundle.graph(), bundle.weights()));
    assert_eq!(other.constants(), bundle.constants());
    for length in 0..bytes.len() {
        assert!(decode_code(&bytes[..length]).is_err(), "cut at {length}");
    }
    assert!(decode_code(&[bytes.as_slice(), &[0]].concat()).is_err());
    for damage in [
        |kernel: &mut KernelFacts| kernel.fence = None,
        |kernel: &mut KernelFacts| kernel.preempt_offset = None,
        |kernel: &mut KernelFacts| {
            kernel.fence = Some(FenceFacts { offset: 40, dynamic_shared_bytes: 0, fault_word: false })
        },
        |kernel: &mut KernelFacts| {
            kernel.fence = Some(FenceFacts { offset: 32, dynamic_shared_bytes: 4, fault_word: false })
        },
    ] {
        let mut wrong = decode_code(&bytes).unwrap();
        damage(&mut wrong[0].image.kernels[0]);
        assert!(matches!(bundle.with_code(wrong), Err(BundleError::Invalid { .. })));
    }
}
