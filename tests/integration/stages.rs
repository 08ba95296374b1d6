//! CPU stages of graphs in a daemon: images and texts, compared with Python; WASM modules that work
//! and that misbehave.

use crate::functions::{manifest, packed};
use crate::graphs::{deploy, run, succeed};
use crate::serve::Daemon;
use anyhow::{Context, Result, bail, ensure};
use atoll_tests::{built_small, http, python, root};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

fn fixtures() -> PathBuf {
    root().join("tests/fixtures/stages")
}

/// Calls a graph over HTTP with one input. Returns the status, and the outputs by name or the error.
fn call(daemon: &Daemon, graph: &str, datatype: &str, data: &Value) -> Result<(u16, Value)> {
    let count = data.as_array().map_or(0, Vec::len);
    let request = json!({ "inputs": [{ "name": "x", "datatype": datatype, "shape": [count], "data": data }] });
    let (status, body) = http::ask(&daemon.http, "POST", &format!("/v2/models/{graph}/infer"), &request.to_string())?;
    let body: Value = serde_json::from_str(&body)?;
    let Some(outputs) = body["outputs"].as_array() else { return Ok((status, body)) };
    let named =
        outputs.iter().map(|output| (output["name"].as_str().unwrap_or_default().into(), output["data"].clone()));
    Ok((status, Value::Object(named.collect())))
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

/// Checks that a manifest is refused, with an error that contains `expected`.
fn refused(folder: &Path, text: &str, expected: &str) -> Result<()> {
    let output = deploy(folder, text)?;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(!output.status.success() && message.contains(expected), "{expected}: {message}");
    Ok(())
}

fn deployed(folder: &Path, text: &str) -> Result<()> {
    let output = deploy(folder, text)?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

const VISION: &str = r#"
name = "vision"
[inputs]
x = { datatype = "UINT8", shape = [-1] }
[[stage]]
name = "pixels"
builtin = "decode_image"
inputs = { x = "x" }
[[stage]]
name = "image"
builtin = "resize_image"
options = { size = [64, 64], shorter = 72 }
inputs = { x = "pixels.y" }
[[stage]]
name = "net"
function = "squeezenet"
inputs = { input = "image.y" }
[[stage]]
name = "scores"
builtin = "softmax"
inputs = { x = "net.output" }
[[stage]]
name = "best"
builtin = "top_k"
k = 5
inputs = { x = "scores.y" }
[outputs]
indices = "best.indices"
values = "best.values"
"#;

#[test]
fn an_image_file_gives_the_classes_that_python_computes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let repository = folder.path().join("repository");
    std::fs::create_dir(&repository)?;
    let model = built_small("squeezenet", &repository)?;
    let script = root().join("tests/python/stages.py");
    let output = Command::new(python()).arg(script).arg(fixtures()).arg(&model.path).args(["72", "64"]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected: Value = serde_json::from_slice(&output.stdout)?;

    let daemon = Daemon::start_with(&repository, folder.path(), &[])?;
    deployed(folder.path(), VISION)?;
    // Pillow and this decoder interpolate the colours of photo.jpg differently. Values differ by up
    // to 12 of 255.
    for (file, tolerance) in [("photo.png", 1e-3), ("photo.jpg", 1e-1)] {
        let bytes = std::fs::read(fixtures().join(file))?;
        let (status, answer) = call(&daemon, "vision", "UINT8", &json!(bytes))?;
        ensure!(status == 200, "{file}: {answer}");
        let scores = numbers(&expected[file]);
        ensure!(scores.len() == 1000, "{expected}");
        let mut sorted = scores.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let (indices, values) = (numbers(&answer["indices"]), numbers(&answer["values"]));
        ensure!(indices.len() == 5 && values.len() == 5, "{answer}");
        for (place, (index, value)) in indices.iter().zip(&values).enumerate() {
            // Classes whose scores are nearly equal may change places.
            for other in [scores[*index as usize], sorted[place]] {
                ensure!((value - other).abs() <= tolerance * other, "{file}, place {place}: {value}, not {other}");
            }
        }
    }
    let (status, answer) = call(&daemon, "vision", "UINT8", &json!([1, 2, 3]))?;
    let error = answer["error"].as_str().unwrap_or_default();
    ensure!(status == 400 && error.contains("stage `pixels`: its input is neither a JPEG nor a PNG file"), "{answer}");
    let huge = std::fs::read(fixtures().join("photo.png"))?;
    let (status, answer) = call(&daemon, "vision", "UINT8", &json!(huge[..huge.len() / 2]))?;
    ensure!(status == 400 && answer.to_string().contains("cannot be decoded"), "{answer}");

    let explained: Value = serde_json::from_str(&succeed(folder.path(), &["graph", "explain", "vision", "--json"])?)?;
    let stage = &explained["stages"][0];
    ensure!(stage["builtin"] == "decode_image" && stage["device"] == "cpu", "{explained}");
    ensure!(stage["mean_ns"].as_u64().is_some_and(|ns| ns > 0), "{explained}");
    for (from, to, expected) in [
        ("size = [64, 64]", "size = [64, 65]", "wants FP32"),
        ("size = [64, 64]", "size = [0, 64]", "`size` has to be"),
        ("size = [64, 64]", "sice = [64, 64]", "unknown field `sice`"),
        ("options = { size = [64, 64], shorter = 72 }", "", "missing field `size`"),
        ("builtin = \"softmax\"", "builtin = \"softmax\"\noptions = {}", "`options` belong to"),
        ("x = \"pixels.y\"", "x = \"x\"", "wants UINT8[?, ?, 3], but input `x` of the graph is UINT8[?]"),
        ("datatype = \"UINT8\", shape = [-1]", "datatype = \"FP32\", shape = [-1]", "wants UINT8[?]"),
    ] {
        refused(folder.path(), &VISION.replacen(from, to, 1), expected)?;
    }
    Ok(())
}

const TEXT: &str = r#"
name = "text"
[inputs]
x = { datatype = "UINT8", shape = [-1] }
[[stage]]
name = "tokens"
builtin = "tokenize"
options = { tokenizer = "tokenizer.json", length = 128 }
inputs = { x = "x" }
[outputs]
ids = "tokens.ids"
mask = "tokens.mask"
"#;

#[test]
fn a_text_gives_the_tokens_of_the_tokenizers_library() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let at = folder.path();
    let repository = at.join("repository");
    std::fs::create_dir(&repository)?;
    let daemon = Daemon::start_with(&repository, at, &[])?;
    refused(at, TEXT, "tokenizer.json: No such file")?;
    std::fs::write(at.join("tokenizer.json"), "{}")?;
    refused(at, TEXT, "stage `tokens`: its `tokenizer.json` cannot be used")?;
    for name in ["word_piece", "gpt2"] {
        let fixture: Value = serde_json::from_slice(&std::fs::read(fixtures().join(format!("{name}.json")))?)?;
        std::fs::write(at.join("tokenizer.json"), fixture["tokenizer"].to_string())?;
        deployed(at, TEXT)?;
        for case in fixture["cases"].as_array().context("cases")?.iter().skip(2).take(4) {
            let text = case["text"].as_str().unwrap_or_default();
            let (status, answer) = call(&daemon, "text", "UINT8", &json!(text.as_bytes()))?;
            ensure!(status == 200, "{answer}");
            let (ids, mask) = (numbers(&answer["ids"]), numbers(&answer["mask"]));
            let expected = numbers(&case["ids"]);
            let count = expected.len();
            ensure!(ids.len() == 128 && ids[..count] == expected && ids[count..].iter().all(|id| *id == 0.0), "{text}");
            ensure!(mask[..count].iter().all(|one| *one == 1.0) && mask[count..].iter().all(|zero| *zero == 0.0));
        }
    }
    let (status, answer) = call(&daemon, "text", "UINT8", &json!([255]))?;
    ensure!(status == 400 && answer.to_string().contains("not UTF-8"), "{answer}");
    // The same text as a string.
    let text = "Strings of the protocol pass, too.";
    let (_, bytes) = call(&daemon, "text", "UINT8", &json!(text.as_bytes()))?;
    deployed(at, &TEXT.replacen("UINT8", "BYTES", 1))?;
    let (status, string) = call(&daemon, "text", "BYTES", &json!([text]))?;
    ensure!(status == 200 && string == bytes && numbers(&string["ids"]).len() == 128, "{string}");
    for texts in [json!([]), json!(["one", "two"])] {
        let (status, answer) = call(&daemon, "text", "BYTES", &texts)?;
        ensure!(status == 400 && answer.to_string().contains("has to be one string"), "{answer}");
    }
    let (status, answer) = call(&daemon, "text", "BYTES", &json!(["x".repeat((1 << 20) + 1)]))?;
    ensure!(status == 400 && answer.to_string().contains("stage `tokens`"), "a text that is too long: {answer}");
    Ok(())
}

const ECHO: &str = r#"
name = "echo"
[inputs]
x = { datatype = "BYTES", shape = [-1] }
[[stage]]
name = "same"
wasm = "module.wasm"
inputs = { x = "x" }
outputs = { y = { datatype = "BYTES", shape = [-1] } }
[[stage]]
name = "again"
wasm = "module.wasm"
inputs = { x = "same.y" }
outputs = { y = { datatype = "BYTES", shape = [-1] } }
[outputs]
y = "again.y"
"#;

#[test]
fn strings_are_inputs_outputs_and_results_between_stages() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let at = folder.path();
    let repository = at.join("repository");
    std::fs::create_dir(&repository)?;
    packed(&manifest("affine"), &repository.join("affine.kg"))?;
    let daemon = Daemon::start_with(&repository, at, &[])?;
    // The outputs are the inputs.
    let (head, _) = DOUBLE.split_once("(local $at i32)").context("the beginning of a module")?;
    let head = head.replacen("(memory (export \"memory\") 2)", "(memory (export \"memory\") 16)", 1);
    let same = "(memory.copy (local.get $out) (local.get $in) (i32.const 16)) (i32.const 0)))";
    std::fs::write(at.join("module.wasm"), wat::parse_str(format!("{head}{same}"))?)?;
    deployed(at, ECHO)?;
    for strings in [json!(["ä", "", "three words here"]), json!([]), json!(["long ".repeat(100_000)])] {
        let (status, answer) = call(&daemon, "echo", "BYTES", &strings)?;
        ensure!(status == 200 && answer["y"] == strings, "{status}: {:.200}", answer.to_string());
    }
    let (status, answer) = call(&daemon, "echo", "UINT8", &json!([1]))?;
    ensure!(status == 400 && answer.to_string().contains("BYTES"), "{answer}");
    // Strings from the command line: texts, and files of any format.
    std::fs::write(at.join("any"), b"\xff\n")?;
    let arguments = ["graph", "invoke", "echo", "x=text:three = words, ä", "x=file:any", "x=text:", "--save", "out"];
    let shown = succeed(at, &arguments)?;
    ensure!(shown.starts_with("y: BYTES[3]\n  \"three = words, ä\"\n  \"\u{fffd}\\n\"\n  \"\"\n"), "{shown}");
    ensure!(std::fs::read(at.join("out/y.1"))? == b"\xff\n" && std::fs::read(at.join("out/y.2"))?.is_empty());
    let json: Value = serde_json::from_str(&succeed(at, &["graph", "invoke", "echo", "x=text:a", "--json"])?)?;
    ensure!(json["outputs"][0]["strings"] == json!(["a"]), "{json}");
    let number = run(at, &["graph", "invoke", "echo", "x=5"])?;
    ensure!(String::from_utf8_lossy(&number.stderr).contains("give each as x=text:TEXT or x=file:FILE"));
    // A stage that declares another number of strings than it gives.
    deployed(at, &ECHO.replacen("shape = [-1] } }\n[outputs]", "shape = [1] } }\n[outputs]", 1))?;
    let (status, answer) = call(&daemon, "echo", "BYTES", &json!(["a", "b"]))?;
    ensure!(status == 400 && answer.to_string().contains("is BYTES[2], and is declared as BYTES[1]"), "{answer}");
    // Stages that take numbers only, and conditions.
    let (_, again) = ECHO.split_once("name = \"again\"\n").context("the second stage")?;
    let (again, _) = again.split_once("\n[outputs]").context("its end")?;
    let when = format!("{again}\nwhen = \"same.y < 1\"\notherwise = {{ y = \"x\" }}");
    for (instead, expected) in [
        (
            "builtin = \"softmax\"\ninputs = { x = \"same.y\" }",
            "wants FP32[?], but output `y` of stage `same` is BYTES[?]",
        ),
        ("function = \"affine\"\ninputs = { x = \"same.y\", b = \"x\" }", "is BYTES[?]"),
        (when.as_str(), "which is BYTES[?]; use a number"),
    ] {
        refused(at, &ECHO.replacen(again, instead, 1), expected)?;
    }
    Ok(())
}

pub(crate) const MODULE: &str = r#"
name = "scale"
[inputs]
x = { datatype = "FP32", shape = [-1] }
[[stage]]
name = "double"
wasm = "module.wasm"
inputs = { x = "x" }
outputs = { y = { datatype = "FP32", shape = [-1] } }
options = { fuel = 1000000, memory_bytes = 1048576 }
[outputs]
y = "double.y"
"#;

/// `y` is twice `x`. If `x` begins with one of some numbers, the module misbehaves instead.
pub(crate) const DOUBLE: &str = r#"(module
  (memory (export "memory") 2)
  (global $next (mut i32) (i32.const 1024))
  (func (export "alloc") (param $bytes i32) (result i32)
    (global.get $next)
    (global.set $next (i32.and (i32.add (i32.add (global.get $next) (local.get $bytes)) (i32.const 7)) (i32.const -8))))
  (func (export "run") (param $in i32) (param i32) (param $out i32) (param i32) (result i32)
    (local $at i32) (local $end i32) (local $first f32)
    (local.set $at (i32.load (local.get $in)))
    (local.set $end (i32.add (local.get $at) (i32.load offset=4 (local.get $in))))
    (local.set $first (f32.load (local.get $at)))
    (if (f32.eq (local.get $first) (f32.const 666)) (then (loop $again (br $again))))
    (if (f32.eq (local.get $first) (f32.const 667)) (then (unreachable)))
    (if (f32.eq (local.get $first) (f32.const 668))
      (then (loop $more (drop (memory.grow (i32.const 16))) (br $more))))
    (if (f32.eq (local.get $first) (f32.const 669)) (then (return (i32.const 7))))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
        (f32.store (local.get $at) (f32.mul (f32.load (local.get $at)) (f32.const 2)))
        (local.set $at (i32.add (local.get $at) (i32.const 4)))
        (br $next)))
    (memory.copy (local.get $out) (local.get $in) (i32.const 16))
    (i32.const 0)))"#;

/// The process that runs the CPU stages of the daemon's tenant.
fn stage_process(daemon: &Daemon) -> Result<u32> {
    let parent = daemon.process().id();
    for entry in std::fs::read_dir("/proc")? {
        let folder = entry?.path();
        let Some(id) = folder.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok()) else { continue };
        let read = |name: &str| std::fs::read(folder.join(name)).unwrap_or_default();
        let (line, status) = (read("cmdline"), String::from_utf8_lossy(&read("status")).into_owned());
        let is_child = status.lines().any(|line| line.split_whitespace().eq(["PPid:", &parent.to_string()]));
        if is_child && line.split(|byte| *byte == 0).any(|word| word == b"stages") {
            ensure!(status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"])), "no filter: {status}");
            // Limits that need no control group.
            ensure!(read("oom_score_adj") == b"900\n", "{:?}", read("oom_score_adj"));
            let limits = String::from_utf8_lossy(&read("limits")).into_owned();
            let is_data = |line: &&str| line.starts_with("Max data size");
            let data = limits.lines().find(is_data).context("a limit of memory")?;
            ensure!(data.split_whitespace().nth(3) == Some(&(1_u64 << 30).to_string()), "{data}");
            return Ok(id);
        }
    }
    bail!("the daemon has no stage process")
}

#[test]
fn wasm_modules_run_in_a_jail_within_their_limits() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let at = folder.path();
    let repository = at.join("repository");
    std::fs::create_dir(&repository)?;
    let daemon = Daemon::start_with(&repository, at, &[])?;
    let module = |text: &str| -> Result<()> { Ok(std::fs::write(at.join("module.wasm"), wat::parse_str(text)?)?) };
    module(r#"(module (import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32) (result i32))))"#)?;
    refused(at, MODULE, "stage `double`: its module imports `wasi_snapshot_preview1.fd_write`")?;
    module(r#"(module (memory (export "memory") 1))"#)?;
    refused(at, MODULE, "its module does not export `alloc`")?;
    module(&DOUBLE.replace("(memory (export \"memory\") 2)", "(memory (export \"memory\") 20000)"))?;
    refused(at, MODULE, "begins with 1310720000 bytes of memory; `memory_bytes` is 1048576")?;
    std::fs::write(at.join("module.wasm"), "no module")?;
    refused(at, MODULE, "not a WASM module")?;
    module(DOUBLE)?;
    for (from, to, expected) in [
        ("outputs = { y = { datatype = \"FP32\", shape = [-1] } }", "", "it needs `outputs`"),
        ("fuel = 1000000,", "fuel = 0,", "`fuel` has to be"),
        ("memory_bytes = 1048576", "memory_bytes = 10000000000", "`memory_bytes` has to be"),
        ("wasm = ", "builtin = \"softmax\"\nwasm = ", "needs one of"),
        ("double.y", "double.z", "names output `z` of stage `double`, which has `y`"),
        ("[outputs]", "[files]\nother = \"AAAA\"\n[outputs]", "no stage names `other`"),
    ] {
        refused(at, &MODULE.replacen(from, to, 1), expected)?;
    }
    deployed(at, MODULE)?;
    let works = |daemon: &Daemon| -> Result<()> {
        let (status, answer) = call(daemon, "scale", "FP32", &json!([1.5, -2.0, 0.0]))?;
        ensure!(status == 200 && answer["y"] == json!([3.0, -4.0, 0.0]), "{answer}");
        Ok(())
    };
    works(&daemon)?;
    let before = stage_process(&daemon)?;
    for (first, expected) in [
        (666.0, "stage `double`: its module executed more than 1000000 instructions"),
        (667.0, "its module trapped: wasm `unreachable`"),
        (668.0, "its module needs more than 1048576 bytes of memory"),
        (669.0, "its module failed with the number 7"),
    ] {
        let (status, answer) = call(&daemon, "scale", "FP32", &json!([first]))?;
        let error = answer["error"].as_str().unwrap_or_default();
        ensure!(status == 400 && error.contains(expected), "{first}: {status} {answer}");
        works(&daemon)?;
    }
    ensure!(stage_process(&daemon)? == before, "errors of a module end no process");
    kill_process(Pid::from_raw(before.cast_signed()).context("a process id")?, Signal::KILL)?;
    // This call may still reach the process that is being killed, and fail.
    let _ = call(&daemon, "scale", "FP32", &json!([1.0]))?;
    works(&daemon)?;
    ensure!(stage_process(&daemon)? != before, "another process is started");

    let usage: Value = serde_json::from_str(&succeed(at, &["usage", "--json"])?)?;
    let rows = usage["executors"].as_array().context("executors")?;
    let row = rows.iter().find(|row| row["device"] == "cpu").with_context(|| usage.to_string())?;
    ensure!(row["tenant"] == "local" && row["cpu_s"].as_f64().is_some_and(|s| s > 0.0), "{row}");
    let (_, metrics) = http::ask(&daemon.metrics, "GET", "/metrics", "")?;
    let starts =
        metrics.lines().find_map(|line| line.strip_prefix("atoll_stage_process_starts_total{tenant=\"local\"} "));
    ensure!(starts.is_some_and(|count| count.parse::<f64>().is_ok_and(|count| count >= 2.0)), "{metrics}");
    let explained = succeed(at, &["graph", "explain", "scale"])?;
    ensure!(explained.contains("wasm module.wasm") && explained.contains("cpu"), "{explained}");

    drop(daemon);
    let daemon = Daemon::start_with(&repository, at, &[])?;
    works(&daemon)?;
    ensure!(run(at, &["graph", "rm", "scale"])?.status.success());
    Ok(())
}
