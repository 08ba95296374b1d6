//! Features of format 2 in the engine: copies and fills by kernels in the queue, structures as
//! arguments, launches chosen by shape; and refusals of unsupported features.

use crate::functions::packed;
use anyhow::{Context, Result, ensure};
use atoll_engine::EngineConfig;
use atoll_kgraph::*;
use atoll_tests::{Case, Loaded, Tensor, root};
use std::path::Path;
use std::sync::Arc;

/// `y = 3 x + b` with a kernel and a copy, plus copies and fills of types of every size.
const MANIFEST: &str = r#"
name = "transfers"
ptx = ["PTX"]
[symbols]
n = { min = 0, max = 1048576 }
[buffers]
x = { kind = "input", dtype = "f32", shape = ["n"] }
b = { kind = "input", dtype = "f32", shape = ["n"] }
c = { kind = "input", dtype = "u8", shape = ["n"] }
t = { kind = "temp", dtype = "f32", shape = ["n"] }
y = { kind = "output", dtype = "f32", shape = ["n"] }
copied = { kind = "output", dtype = "u8", shape = ["n"] }
bytes = { kind = "output", dtype = "u8", shape = ["n"] }
halves = { kind = "output", dtype = "f16", shape = ["n"] }
floats = { kind = "output", dtype = "f32", shape = ["n"] }
longs = { kind = "output", dtype = "i64", shape = ["n"] }
[[step]]
kernel = "affine"
grid = ["ceil(n / 128)"]
block = [128]
args = ["x", "b", "t", "n"]
[[step]]
copy = { from = "t", to = "y" }
[[step]]
copy = { from = "c", to = "copied" }
[[step]]
fill = { to = "bytes", value = 7 }
[[step]]
fill = { to = "halves", value = 1.5 }
[[step]]
fill = { to = "floats", value = -2 }
[[step]]
fill = { to = "longs", value = -81985529216486896 }
"#;

fn pack(folder: &Path) -> Result<Arc<Bundle>> {
    let manifest = folder.join("transfers.toml");
    std::fs::write(&manifest, MANIFEST.replace("PTX", &root().join("tests/functions/affine.ptx").to_string_lossy()))?;
    let bundle = folder.join("transfers.kg");
    packed(&manifest, &bundle)?;
    Ok(Bundle::open(&bundle)?)
}

/// Writes the bundle with a changed graph or launches and the same code.
fn changed(
    folder: &Path,
    bundle: &Bundle,
    change: impl FnOnce(&mut KernelGraph, &mut TargetImage),
) -> Result<Arc<Bundle>> {
    let target = bundle.target_names().next().context("a target")?;
    let (mut graph, mut image) = (bundle.graph().clone(), bundle.target(target).context("its image")?.clone());
    image.source = None;
    change(&mut graph, &mut image);
    let contents =
        TargetContents { image, code: bundle.code(target).context("its code")?.to_vec(), ptx: None, source: None };
    let path = folder.join("changed.kg");
    write_bundle(
        &path,
        &BundleContents { producer: "test".into(), graph: &graph, weights: vec![], targets: vec![contents] },
    )?;
    Ok(Bundle::open(&path)?)
}

fn floats(name: &str, values: impl Iterator<Item = f32>) -> Tensor {
    let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
    Tensor { name: name.into(), dtype: "float32".into(), shape: vec![bytes.len() as i64 / 4], bytes }
}

/// Inputs of `n` elements.
fn case(n: usize) -> Case {
    let c = Tensor {
        name: "c".into(),
        dtype: "uint8".into(),
        shape: vec![n as i64],
        bytes: (0..n).map(|i| (i * 7 + 1) as u8).collect(),
    };
    Case {
        seed: 0,
        inputs: vec![floats("x", (0..n).map(|i| i as f32)), floats("b", (0..n).map(|i| i as f32 / 2.0)), c],
        outputs: vec![],
    }
}

/// Expected outputs of the function.
fn expected(n: usize) -> Vec<Vec<u8>> {
    let case = case(n);
    let affine = floats("y", (0..n).map(|i| 3.0 * i as f32 + i as f32 / 2.0)).bytes;
    let filled = |element: &[u8]| element.repeat(n);
    vec![
        filled(&[7]),
        case.inputs[2].bytes.clone(),
        filled(&(-2.0_f32).to_le_bytes()),
        filled(&[0x00, 0x3E]),
        filled(&(-81_985_529_216_486_896_i64).to_le_bytes()),
        affine,
    ]
}

#[test]
fn kernels_and_the_host_copy_and_fill_the_same() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let queued = pack(folder.path())?;
    let by_host = changed(folder.path(), &queued, |graph, image| {
        for (node, launch) in graph.nodes.iter().zip(&mut image.launches) {
            launch.take_if(|_| node.kind != NodeKind::Kernel);
        }
    })?;
    for (bundle, launches) in [(&queued, 7), (&by_host, 1)] {
        let loaded = Loaded::start(bundle, EngineConfig::default())?;
        // Zero elements, less than the kernels' unit, part of a block, whole blocks, and more.
        for n in [0, 1, 3, 13, 4096, 4099, 100_001] {
            let result = loaded.run(&case(n))?;
            let found: Vec<Vec<u8>> = result.outputs.iter().map(|output| output.bytes.clone()).collect();
            ensure!(found == expected(n), "{n} elements with {launches} launches");
            ensure!(
                result.launches.len() == if n == 0 { 0 } else { launches },
                "{n}: {} launches",
                result.launches.len()
            );
        }
        loaded.stop();
    }
    Ok(())
}

#[test]
fn copies_have_offsets() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let bundle = changed(folder.path(), &*pack(folder.path())?, |graph, image| {
        // Elements 1 and 2 of `c` are copied to elements 2 and 3 of `copied`, which is filled
        // before.
        let id = |name: &str| BufferId(graph.buffers.iter().position(|b| b.name == name).expect(name) as u32);
        let (from, to) = (id("c"), id("copied"));
        let copy = NodeKind::Copy { from, from_offset: 1.into(), to, to_offset: 2.into(), bytes: 2.into() };
        let fill = NodeKind::Fill { to, offset: 1.into(), bytes: 3.into(), pattern: vec![9] };
        let node = |name: &str, kind, reads| Node { name: name.into(), kind, reads, writes: vec![to], after: vec![] };
        graph.nodes.extend([node("part", fill, vec![]), node("shifted", copy, vec![from])]);
        let count = graph.nodes.len() as u32;
        graph.plan.restore_points.extend([count - 2, count - 1].map(NodeId));
        image.launches.extend([None, None]);
    })?;
    let loaded = Loaded::start(&bundle, EngineConfig::default())?;
    let result = loaded.run(&case(5))?;
    ensure!(result.outputs[1].bytes == [1, 9, 8, 15, 29], "{:?}", result.outputs[1].bytes);
    loaded.stop();
    Ok(())
}

#[test]
fn structures_are_arguments_and_shapes_choose_launches() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let bundle = changed(folder.path(), &*pack(folder.path())?, |_, image| {
        let spec = image.launches[0].as_mut().expect("a kernel");
        // The four parameters are the fields of one structure.
        let relocations = |order: [usize; 3]| {
            let buffer = |field: usize| match &spec.args[order[field]] {
                Argument::Buffer { buffer, .. } => *buffer,
                other => panic!("{other:?}"),
            };
            (0..3).map(|field| Relocation { at: field as u32 * 8, buffer: buffer(field), offset: 0.into() }).collect()
        };
        let structure = |order, n: u32| {
            let bytes = [&[0xEE; 24][..], &n.to_le_bytes()].concat();
            LaunchSpec::new(
                spec.kernel,
                spec.grid.clone(),
                vec![Argument::Bytes { align: 8, bytes, relocations: relocations(order) }],
            )
        };
        // With five elements the roles of `x` and `b` are swapped; with six the function is
        // unchanged.
        let range = |value| vec![SymbolRange { symbol: SymbolId(0), min: value, max: value }];
        let variants = vec![
            LaunchVariant { ranges: range(5), launch: structure([1, 0, 2], 5) },
            LaunchVariant { ranges: range(6), launch: structure([0, 1, 2], 6) },
        ];
        spec.variants = variants;
    })?;
    let loaded = Loaded::start(&bundle, EngineConfig::default())?;
    for n in [4, 5, 6, 7] {
        let result = loaded.run(&case(n))?;
        let other_way = floats("y", (0..n).map(|i| i as f32 + 3.0 * i as f32 / 2.0)).bytes;
        let expected = if n == 5 { other_way } else { expected(n).remove(5) };
        ensure!(result.outputs[5].bytes == expected, "{n} elements");
    }
    loaded.stop();
    Ok(())
}

#[test]
fn an_unsupported_feature_is_refused_by_name() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let bundle = pack(folder.path())?;
    let refused = |expected: &str, change: &dyn Fn(&mut KernelGraph, &mut TargetImage)| -> Result<()> {
        let bundle = changed(folder.path(), &bundle, change)?;
        let message = Loaded::start(&bundle, EngineConfig::default()).err().context(expected.to_owned())?.to_string();
        ensure!(message.contains(expected), "{message}");
        Ok(())
    };
    refused("it has state buffers, but none of them is declared as state of a session", &|graph, _| {
        let state = BufferSpec {
            name: "cache".into(),
            kind: BufferKind::State,
            dtype: DType::F32,
            shape: vec![64.into()],
            weights_offset: None,
        };
        graph.plan.states.push(TempPlacement { buffer: BufferId(graph.buffers.len() as u32), offset: 0.into() });
        graph.plan.state_bytes = Some(256.into());
        graph.buffers.push(state);
    })
}
