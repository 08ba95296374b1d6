//! Models whose branches and iterations are decided at run time. They are compiled, run on the host
//! device with random evictions, and compared with ONNX Runtime.

use anyhow::{Context, Result, ensure};
use atoll_engine::EngineConfig;
use atoll_kgraph::{Feature, features};
use atoll_tests::{Loaded, Model, compile, full, program, python, read_case, root};
use std::path::Path;
use std::process::Command;

/// Largest allowed difference of an element, relative to the largest element of its output.
const TOLERANCE: f64 = 1e-4;

/// The models that `tests/python/control_flow.py` writes, with the segments that each must have.
const MODELS: [(&str, &[Feature]); 5] = [
    ("choice", &[Feature::If]),
    ("counted", &[Feature::Loop]),
    ("stopped", &[Feature::Loop, Feature::ReadBack]),
    ("nested", &[Feature::If, Feature::Loop]),
    ("scanned", &[Feature::Loop]),
];

fn write_models(folder: &Path) -> Result<()> {
    let script = root().join("tests/python/control_flow.py");
    let output = Command::new(python()).arg(script).arg(folder).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn check(name: &str, wanted: &[Feature], folder: &Path) -> Result<u32> {
    let model = Model { name: name.into(), path: folder.join(format!("{name}.onnx")), symbols: vec![] };
    let bundle = compile(&model, folder)?;
    let found = features::of_graph(bundle.graph());
    ensure!(wanted.iter().all(|feature| found.contains(feature)), "it has only {found:?}");
    let mut preemptions = 0;
    let seeds = if full() { 8 } else { 2 };
    for seed in 0..=seeds {
        let config = EngineConfig { evict_at_random: (seed > 0).then_some(seed), ..EngineConfig::default() };
        let loaded = Loaded::start(&bundle, config)?;
        for run in 0.. {
            let case = folder.join(name).join(run.to_string());
            if !case.exists() {
                ensure!(run >= 3, "only {run} runs");
                break;
            }
            let case = read_case(run, &case)?;
            let result = loaded.check_elements(&model, &case, TOLERANCE);
            preemptions += result.with_context(|| format!("run {run}, evictions of seed {seed}"))?.preemptions;
        }
        loaded.stop();
    }
    Ok(preemptions)
}

#[test]
fn control_flow_is_that_of_onnx_runtime() -> Result<()> {
    let folder = tempfile::tempdir()?;
    write_models(folder.path())?;
    let mut preemptions = 0;
    for (name, wanted) in MODELS {
        preemptions += check(name, wanted, folder.path()).with_context(|| name.to_owned())?;
    }
    ensure!(preemptions > 0, "no invocation was evicted");
    Ok(())
}

#[test]
fn inspect_shows_the_segments() -> Result<()> {
    let folder = tempfile::tempdir()?;
    write_models(folder.path())?;
    let path = folder.path().join("nested.onnx");
    let bundle = folder.path().join("nested.kg");
    compile(&Model { name: "nested".into(), path, symbols: vec![] }, folder.path())?;
    let run = |form: &[&str]| -> Result<String> {
        let output = Command::new(program("atoll")).arg("inspect").arg(&bundle).args(form).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    let text = run(&[])?;
    ensure!(text.contains("with if segments, loop segments"), "{text}");
    let lines = ["loop at most most[0] iterations, while", "  if ", "    loop at most ", "  else"];
    for line in lines {
        ensure!(text.lines().any(|found| found.starts_with(line)), "no line begins with `{line}`:\n{text}");
    }
    let json: serde_json::Value = serde_json::from_str(&run(&["--json"])?)?;
    ensure!(json["segments"].as_array().is_some_and(|segments| segments.len() >= 2), "{json}");
    Ok(())
}
