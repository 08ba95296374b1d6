//! Every model against ONNX Runtime: undisturbed, and evicted and resumed at random points.

use anyhow::{Result, ensure};
use atoll_engine::{Class, EngineConfig, FunctionKey, FunctionOptions};
use atoll_kgraph::{BufferKind, Bundle, invocation_bytes};
use atoll_tests::{LARGE, Loaded, Model, built, compile, full, oracle, symbolic_small, trained};
use std::path::Path;
use std::sync::Arc;

/// Seeds of the inputs and the evictions.
fn seeds() -> &'static [u64] {
    if full() { &[0, 1, 2] } else { &[0] }
}

fn check(model: &Model, folder: &Path) -> Result<()> {
    check_compiled(model, &compile(model, folder)?, folder)
}

/// Checks a model with several bindings of its symbols. It is compiled once.
fn check_bindings(model: &Model, bindings: &[&[(&str, i64)]], folder: &Path) -> Result<()> {
    let bundle = compile(model, folder)?;
    for binding in bindings {
        let symbols = binding.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        check_compiled(&Model { symbols, ..model.clone() }, &bundle, folder)?;
    }
    Ok(())
}

fn check_compiled(model: &Model, bundle: &Arc<Bundle>, folder: &Path) -> Result<()> {
    let cases = oracle(model, seeds(), folder)?;
    let plain = Loaded::start(bundle, EngineConfig::default())?;
    for case in &cases {
        plain.check(model, case)?;
    }
    check_memory(model, &plain, bundle)?;
    check_sharing(model, &plain, bundle)?;
    plain.stop();
    for case in &cases {
        let evicted =
            Loaded::start(bundle, EngineConfig { evict_at_random: Some(case.seed), ..EngineConfig::default() })?;
        let result = evicted.check(model, case)?;
        ensure!(result.preemptions > 0, "{}: nothing was evicted under seed {}", model.name, case.seed);
        evicted.stop();
    }
    Ok(())
}

/// Checks that the peak memory that `inspect` reports was used.
fn check_memory(model: &Model, loaded: &Loaded, bundle: &atoll_kgraph::Bundle) -> Result<()> {
    let graph = bundle.graph();
    let device = loaded.handle.device_info();
    let target = device.targets.iter().find_map(|name| bundle.target(name)).expect("compiled for this machine");
    let symbols: Vec<i64> = graph
        .symbols
        .iter()
        .map(|s| model.symbols.iter().find(|(name, _)| *name == s.name).map_or(2, |&(_, value)| value))
        .collect();
    let promised = bundle.constant_bytes(device.constants_granule) + invocation_bytes(graph, target, &symbols)?;
    let used = loaded.handle.statistics().device.memory_used_bytes_max;
    // Each of the two allocations is rounded up to the alignment of buffers.
    ensure!(used.abs_diff(promised) < 1024, "{}: {promised} bytes promised, {used} used", model.name);
    Ok(())
}

/// Checks that nine further functions of the same file, opened again, need no memory for constants,
/// and that unloading all frees everything.
fn check_sharing(model: &Model, loaded: &Loaded, bundle: &Bundle) -> Result<()> {
    let used = || loaded.handle.statistics().device.memory_used_bytes;
    let (before, again) = (used(), Bundle::open(bundle.path())?);
    let others: Vec<FunctionKey> = (0..9).map(|i| FunctionKey::local(format!("other-{i}"))).collect();
    for key in &others {
        let info = loaded.handle.load(
            again.clone(),
            FunctionOptions {
                key: key.clone(),
                class: Class::BestEffort,
                queue_capacity: None,
                lane: Default::default(),
                batching: None,
            },
        )?;
        ensure!(info.weights_shared || info.weights_bytes == 0, "{}: {key} holds constants of its own", model.name);
    }
    ensure!(used() == before, "{}: ten functions use {} bytes, one used {before}", model.name, used());
    for key in others.iter().chain([&FunctionKey::local("model")]) {
        loaded.handle.unload(key)?;
    }
    ensure!(used() == 0, "{}: {} bytes are left of functions that are gone", model.name, used());
    Ok(())
}

macro_rules! built_models {
    ($($name:ident),* $(,)?) => {$(
        #[test]
        fn $name() -> Result<()> {
            if !full() && LARGE.contains(&stringify!($name)) {
                atoll_tests::skip(concat!(stringify!($name), ": its smaller sibling runs; `make test-full` runs both"));
                return Ok(());
            }
            let folder = tempfile::tempdir()?;
            check(&built(stringify!($name), folder.path())?, folder.path())
        }
    )*};
}

built_models!(
    resnet18,
    resnet50,
    resnet152,
    densenet121,
    densenet201,
    vgg19,
    inception_v3,
    squeezenet,
    mobilenet_v2,
    distilbert
);
built_models!(vit_b_16, gpt2, lstm, convnext_tiny, resnext50, rnnt, gnmt, unet3d);

/// Models with symbolic batch and sequence: a request of one token, which has its own kernels, and
/// larger ones.
#[test]
fn symbolic() -> Result<()> {
    for (name, sizes) in [("distilbert", [(1, 1), (2, 9)]), ("gpt2", [(1, 1), (3, 5)]), ("lstm", [(1, 3), (2, 5)])] {
        let folder = tempfile::tempdir()?;
        let bindings = sizes.map(|(batch, sequence)| [("batch", batch), ("sequence", sequence)]);
        let model = symbolic_small(name, &[], folder.path())?;
        check_bindings(&model, &bindings.each_ref().map(|binding| &binding[..]), folder.path())?;
    }
    Ok(())
}

#[test]
fn magika() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let bindings: [&[_]; 2] = [&[("unk__214", 1)], &[("unk__214", 5)]];
    check_bindings(&trained("magika", &[])?, &bindings, folder.path())
}

#[test]
fn common_det() -> Result<()> {
    let folder = tempfile::tempdir()?;
    check(&trained("common_det", &[])?, folder.path())
}

#[test]
fn silero_vad() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let bindings: [&[_]; 2] = [&[("sequence_length", 1)], &[("sequence_length", 31)]];
    check_bindings(&trained("silero_vad", &[])?, &bindings, folder.path())
}

/// On ResNet-50 the memory plan saves at least half of the activations.
#[test]
fn buffers_are_reused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let bundle = compile(&built("resnet50", folder.path())?, folder.path())?;
    let plan = &bundle.graph().plan;
    let bytes = |expr: &Option<atoll_kgraph::Expr>| expr.as_ref().and_then(|e| e.eval(&[]).ok()).unwrap_or(0);
    let (shared, unshared) = (bytes(&plan.arena_bytes), bytes(&plan.unshared_bytes));
    assert!(bundle.graph().buffers_of(BufferKind::Temp).count() > 10);
    assert!(shared > 0 && shared * 2 <= unshared, "{shared} bytes with reuse, {unshared} without");
    Ok(())
}
