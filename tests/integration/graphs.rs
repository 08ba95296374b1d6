//! Graphs of functions in a daemon: an ensemble and a cascade of real models, compared with the
//! same calls by a client; invalid manifests, replaced functions, and restarts.

use crate::functions::{manifest, packed};
use crate::serve::{Daemon, atoll};
use anyhow::{Context, Result, ensure};
use atoll_tests::{built_small, http};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};

/// The average of two image models; the second one runs only if the first is not sure.
const GRAPH: &str = r#"
name = "vision"
deadline_ms = 60000

[inputs]
image = { datatype = "FP32", shape = [1, 3, 64, 64] }

[[stage]]
name = "a"
function = "squeezenet"
inputs = { input = "image" }

[[stage]]
name = "a_scores"
builtin = "softmax"
inputs = { x = "a.output" }

[[stage]]
name = "confidence"
builtin = "max"
inputs = { x = "a_scores.y" }

[[stage]]
name = "b"
function = "mobilenet_v2"
inputs = { input = "image" }
when = "confidence.y < THRESHOLD"
otherwise = { output = "a.output" }

[[stage]]
name = "b_scores"
builtin = "softmax"
inputs = { x = "b.output" }

[[stage]]
name = "both"
builtin = "average"
inputs = { a = "a_scores.y", b = "b_scores.y" }

[[stage]]
name = "best"
builtin = "top_k"
k = 3
inputs = { x = "both.y" }

[outputs]
scores = "both.y"
best = "best.indices"
"#;

pub(crate) fn run(folder: &Path, arguments: &[&str]) -> Result<Output> {
    let command = Command::new(atoll()).args(arguments).env("XDG_RUNTIME_DIR", folder).current_dir(folder).output();
    Ok(command?)
}

/// Runs a command that must succeed, and returns its output.
pub(crate) fn succeed(folder: &Path, arguments: &[&str]) -> Result<String> {
    let output = run(folder, arguments)?;
    ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

pub(crate) fn deploy(folder: &Path, text: &str) -> Result<Output> {
    std::fs::write(folder.join("graph.toml"), text)?;
    run(folder, &["graph", "deploy", "graph.toml"])
}

/// Calls a model over HTTP like any client. Returns the outputs by name.
fn infer(daemon: &Daemon, model: &str, input: &str, shape: &[usize], data: &[f32]) -> Result<(u16, Value)> {
    let request = json!({ "inputs": [{ "name": input, "datatype": "FP32", "shape": shape, "data": data }] });
    let (status, body) = http::ask(&daemon.http, "POST", &format!("/v2/models/{model}/infer"), &request.to_string())?;
    let body: Value = serde_json::from_str(&body)?;
    let Some(outputs) = body["outputs"].as_array() else { return Ok((status, body)) };
    let named =
        outputs.iter().map(|output| (output["name"].as_str().unwrap_or_default().to_owned(), output["data"].clone()));
    Ok((status, named.collect::<serde_json::Map<_, _>>().into()))
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

fn softmax(values: &[f64]) -> Vec<f64> {
    let most = values.iter().copied().fold(f64::MIN, f64::max);
    let sum: f64 = values.iter().map(|value| (value - most).exp()).sum();
    values.iter().map(|value| (value - most).exp() / sum).collect()
}

#[test]
fn an_ensemble_with_a_cascade_gives_what_a_client_computes_from_its_models() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let repository = folder.path().join("repository");
    std::fs::create_dir(&repository)?;
    for model in ["squeezenet", "mobilenet_v2"] {
        built_small(model, &repository)?;
    }
    let daemon = Daemon::start_with(&repository, folder.path(), &[])?;
    let shape = [1, 3, 64, 64];
    let image: Vec<f32> = (0..shape.iter().product()).map(|index: usize| ((index * 37) % 255) as f32 / 255.0).collect();
    let alone = |model| -> Result<Vec<f64>> {
        let (status, answer) = infer(&daemon, model, "input", &shape, &image)?;
        ensure!(status == 200, "{answer}");
        Ok(softmax(&floats(&answer["output"])))
    };
    let (a, b) = (alone("squeezenet")?, alone("mobilenet_v2")?);
    ensure!(a.len() == 1000 && a != b, "two models of 1,000 classes");
    // Scores are below 2 and above -1, so with these thresholds the second model always or never
    // runs.
    for (threshold, second) in [("2.0", &b), ("-1.0", &a)] {
        let deployed = deploy(folder.path(), &GRAPH.replace("THRESHOLD", threshold))?;
        ensure!(deployed.status.success(), "{}", String::from_utf8_lossy(&deployed.stderr));
        let (status, answer) = infer(&daemon, "vision", "image", &shape, &image)?;
        ensure!(status == 200, "{answer}");
        let scores = floats(&answer["scores"]);
        ensure!(scores.len() == 1000, "{answer}");
        for (index, score) in scores.iter().enumerate() {
            let expected = (a[index] + second[index]) / 2.0;
            ensure!((score - expected).abs() < 1e-5, "{threshold}: score {index} is {score}, not {expected}");
        }
        let best = floats(&answer["best"])[0] as usize;
        ensure!(scores.iter().all(|score| *score <= scores[best]), "{best} is not the best");
    }
    let (status, metadata) = http::ask(&daemon.http, "GET", "/v2/models/vision", "")?;
    ensure!(status == 200 && metadata.contains("atoll_graph") && metadata.contains("scores"), "{metadata}");
    ensure!(http::ask(&daemon.http, "GET", "/v2/models/vision/ready", "")?.0 == 200);

    let explained: Value = serde_json::from_str(&succeed(folder.path(), &["graph", "explain", "vision", "--json"])?)?;
    ensure!(explained["stages"][3]["after"] == json!(["a", "confidence"]), "{explained}");
    ensure!(explained["latency_ns"].as_u64().is_some_and(|ns| ns > 0), "both models were called: {explained}");
    let invoked = succeed(folder.path(), &["graph", "invoke", "vision", "--json"])?;
    ensure!(invoked.contains("scores"), "{invoked}");
    // A deadline that passes before the first stage is reported as a missed deadline.
    let late = run(folder.path(), &["graph", "invoke", "vision", "--deadline-us", "1"])?;
    ensure!(!late.status.success() && String::from_utf8_lossy(&late.stderr).contains("deadline"), "{late:?}");

    let (status, answer) = infer(&daemon, "vision", "image", &[1, 3, 8, 8], &image[..192])?;
    let error = answer["error"].as_str().unwrap_or_default();
    ensure!(status == 400 && error.contains("`image`") && error.contains("here it is FP32[1, 3, 8, 8]"), "{answer}");
    ensure!(succeed(folder.path(), &["graph", "ls"])?.contains("vision"));
    succeed(folder.path(), &["graph", "rm", "vision"])?;
    ensure!(infer(&daemon, "vision", "image", &shape, &image)?.0 == 404);
    Ok(())
}

/// The manifest of a graph that computes `y = 3 x + b` twice by a function of this name.
pub(crate) fn twice(function: &str) -> String {
    const MANIFEST: &str = r#"
name = "twice"
[inputs]
x = { datatype = "FP32", shape = [-1] }
b = { datatype = "FP32", shape = [-1] }
[[stage]]
name = "first"
function = "FUNCTION"
inputs = { x = "x", b = "b" }
[[stage]]
name = "second"
function = "FUNCTION"
inputs = { x = "first.y", b = "b" }
[outputs]
y = "second.y"
"#;
    MANIFEST.replace("FUNCTION", function)
}

#[test]
fn graphs_of_deployed_functions_survive_restarts_and_bad_manifests_are_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let at = folder.path();
    let repository = at.join("repository");
    std::fs::create_dir(&repository)?;
    packed(&manifest("affine"), &at.join("affine.kg"))?;
    let daemon = Daemon::start_with(&repository, at, &[])?;
    let twice = twice("line");
    let early = deploy(at, &twice)?;
    let message = String::from_utf8_lossy(&early.stderr).into_owned();
    ensure!(!early.status.success() && message.contains("calls function `line`, which is not deployed"), "{message}");
    succeed(at, &["fn", "deploy", "affine.kg", "--name", "line"])?;
    for (from, to, expected) in [
        ("\"first.y\"", "\"second.y\"", "stages form a cycle: second needs second"),
        ("\"first.y\"", "\"first.z\"", "names output `z` of stage `first`, which has `y`"),
        ("shape = [-1]", "shape = [-1, 2]", "wants FP32[?], but input `x` of the graph is FP32[?, 2]"),
        ("function = \"line\"", "builtin = \"median\"", "there is no built-in `median`"),
        ("name = \"twice\"", "name = \"line\"", "already has the name `line`"),
        ("name = \"second\"", "name = \"first\"", "two stages named `first`"),
        ("name = \"twice\"", "name = \"twice\"\ndeadline_ms = 0", "not a time above 0"),
    ] {
        let output = deploy(at, &twice.replacen(from, to, 1))?;
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success() && message.contains(expected), "{to}: {message}");
    }
    let deployed = deploy(at, &twice)?;
    ensure!(deployed.status.success(), "{}", String::from_utf8_lossy(&deployed.stderr));
    let call = |daemon: &Daemon| -> Result<(u16, String)> {
        let tensor =
            |name: &str, data: [f32; 2]| json!({ "name": name, "datatype": "FP32", "shape": [2], "data": data });
        let request = json!({ "inputs": [tensor("x", [1.0, 2.0]), tensor("b", [1.0, 0.0])] });
        Ok(http::ask(&daemon.http, "POST", "/v2/models/twice/infer", &request.to_string())?)
    };
    let (status, body) = call(&daemon)?;
    // 3 (3·1 + 1) + 1 and 3 (3·2).
    ensure!(status == 200 && body.contains("[13.0,18.0]"), "{body}");
    let taken = run(at, &["fn", "deploy", "affine.kg", "--name", "twice"])?;
    let message = String::from_utf8_lossy(&taken.stderr).into_owned();
    ensure!(!taken.status.success() && message.contains("a graph already has the name `twice`"), "{message}");
    let (_, statistics) = http::ask(&daemon.http, "GET", "/v2/models/twice/stats", "")?;
    let statistics: Value = serde_json::from_str(&statistics)?;
    let statistics = &statistics["model_stats"][0];
    ensure!(statistics["inference_count"] == 1, "{statistics}");
    ensure!(statistics["inference_stats"]["compute_infer"]["ns"].as_u64().is_some_and(|ns| ns > 0), "{statistics}");
    drop(daemon);
    let daemon = Daemon::start_with(&repository, at, &[])?;
    let (mut status, mut body) = call(&daemon)?;
    // Deployed functions are loaded again after the start.
    for _ in 0..200 {
        if status == 200 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        (status, body) = call(&daemon)?;
    }
    ensure!(status == 200 && body.contains("[13.0,18.0]"), "after a restart: {body}");
    succeed(at, &["fn", "rm", "line"])?;
    let (status, body) = call(&daemon)?;
    ensure!(status == 503 && body.contains("not deployed"), "without its function: {status} {body}");
    let list: Value = serde_json::from_str(&succeed(at, &["graph", "ls", "--json"])?)?;
    ensure!(list[0]["failure"].as_str().context("a reason")?.contains("`line`"), "{list}");
    succeed(at, &["fn", "deploy", "affine.kg", "--name", "line"])?;
    ensure!(call(&daemon)?.0 == 200, "it is checked again when the function is back");
    Ok(())
}
