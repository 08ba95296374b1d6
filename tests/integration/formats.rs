//! Files of an earlier version are still readable: bundles and profiles of format 1, and the state
//! folder of its daemon (`tests/fixtures/f95a0d3`).

use crate::serve::{Daemon, atoll};
use anyhow::{Context, Result, ensure};
use atoll_engine::EngineConfig;
use atoll_kgraph::{Bundle, Profile};
use atoll_tests::http::ask;
use atoll_tests::{Case, Loaded, Model, Tensor, root};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The object in the state folder: the numbers 0, 0.25, … 1.75 as a tensor.
const OBJECT: &str = "4d116713db1fcd25655501d0ab20ccaef04a2fda35cd2d71480429addcdfb102";

fn fixture(name: &str) -> PathBuf {
    root().join("tests/fixtures/f95a0d3").join(name)
}

/// A tensor of a fixture, with its elements in a file.
fn tensor(file: &str, name: &str, shape: &[i64]) -> Result<Tensor> {
    let bytes = std::fs::read(fixture(file)).with_context(|| file.to_owned())?;
    Ok(Tensor { name: name.into(), dtype: "float32".into(), shape: shape.to_vec(), bytes })
}

/// Opens a bundle of format 1 and runs it.
fn run(name: &str, inputs: Vec<Tensor>, output: Tensor) -> Result<()> {
    let bundle = Bundle::open(&fixture(&format!("{name}.kg")))?;
    ensure!(bundle.format() == 1 && bundle.graph().format == 1, "{name} is of format {}", bundle.format());
    let target = "host-x86-64-v3";
    ensure!(
        bundle.target(target).is_some() && bundle.source(target)?.is_none(),
        "format 1 keeps no kernels from before the passes"
    );
    let loaded = Loaded::start(&bundle, EngineConfig::default())?;
    let model = Model { name: name.into(), path: bundle.path().into(), symbols: vec![] };
    loaded.check(&model, &Case { seed: 0, inputs, outputs: vec![output] })?;
    loaded.stop();
    Ok(())
}

#[test]
fn bundles_of_format_1_run() -> Result<()> {
    run("small", vec![tensor("small.x.f32", "x", &[2, 3, 12, 12])?], tensor("small.y.f32", "y", &[2, 10])?)?;
    let matrix = |name: &str| tensor(&format!("chain.{name}.f32"), name, &[16, 16]);
    run("chain", vec![matrix("x")?, matrix("b")?], matrix("y")?)
}

#[test]
fn a_profile_of_format_1_is_read_and_rewritten() -> Result<()> {
    let mut profile = Profile::read(&fixture("small.profile.json"))?;
    ensure!(
        profile.shape(&[2]).is_some_and(|shape| shape.launches.len() == 4) && profile.points.is_empty(),
        "{profile:?}"
    );
    let bundle = Bundle::open(&fixture("small.kg"))?;
    ensure!(profile.bundle == bundle.digest(), "the profile is of the bundle beside it");
    profile.compute_units = 3;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("p.json");
    profile.write(&path)?;
    ensure!(Profile::read(&path)? == profile && std::fs::read_to_string(&path)?.contains("\"format\": 3"));
    Ok(())
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?
        } else {
            std::fs::copy(entry.path(), &target).map(drop)?
        }
    }
    Ok(())
}

#[test]
fn an_earlier_state_folder_is_served() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (state, repository) = (folder.path().join("state"), folder.path().join("repository"));
    copy_folder(&fixture("state"), &state)?;
    std::fs::create_dir(&repository)?;
    let daemon = Daemon::start_with(&repository, folder.path(), &["--state", &state.to_string_lossy()])?;
    let run = |arguments: &[&str]| -> Result<String> {
        let output = Command::new(atoll())
            .args(arguments)
            .env("ATOLL_CONTROL_SOCKET", folder.path().join("atoll.sock"))
            .output()?;
        ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    let functions = run(&["fn", "ls", "--json"])?;
    ensure!(functions.contains("\"affine\"") && functions.contains("\"affine2\""), "{functions}");
    let tensor = |name: &str| format!(r#"{{"name":"{name}","datatype":"FP32","shape":[3],"data":[1,2,4]}}"#);
    let body = format!(r#"{{"inputs":[{},{}]}}"#, tensor("x"), tensor("b"));
    for function in ["affine", "affine2"] {
        let (status, answer) = ask(&daemon.http, "POST", &format!("/v2/models/{function}/infer"), &body)?;
        ensure!(status == 200 && answer.replace(".0", "").contains("[4,8,16]"), "{status}: {answer}");
    }
    let file = folder.path().join("object.bin");
    run(&["object", "get", OBJECT, "-o", &file.to_string_lossy()])?;
    let expected: Vec<u8> = (0..8_u8).flat_map(|i| (f32::from(i) / 4.0).to_le_bytes()).collect();
    ensure!(std::fs::read(&file)? == expected, "the object differs");
    Ok(())
}
