//! The configuration of a model in Triton's form.

use crate::support::{Answer, Behaviour, Compiler, Daemon, Options, write_bundle};
use atoll_engine::{Class, InvokeError};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const ASK: &str = r#"{"inputs":[{"name":"in","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}"#;

/// Writes the model `m` with a configuration.
fn configure(repository: &Path, config: &str) {
    std::fs::create_dir_all(repository.join("m/1")).unwrap();
    write_bundle(&repository.join("m/1/model.kg"));
    std::fs::write(repository.join("m/config.pbtxt"), config).unwrap();
}

fn daemon(config: &str) -> Daemon {
    let options = Options { lax_readiness: true, compiler: Some(Arc::new(Compiler::default())), ..Options::default() };
    Daemon::with(options, |repository| configure(repository, config))
}

fn ask(daemon: &Daemon, shape: &[i64]) -> Answer {
    let data: Vec<i64> = (0..shape.iter().product()).collect();
    let input = json!({ "name": "in", "datatype": "FP32", "shape": shape, "data": data });
    daemon.post("/v2/models/m/infer", &json!({ "inputs": [input] }).to_string())
}

fn load(daemon: &Daemon, parameters: Value) -> (u16, String) {
    let body = json!({ "parameters": parameters }).to_string();
    let answer = daemon.post("/v2/repository/models/m/load", &body);
    (answer.status, answer.text())
}

fn reason(daemon: &Daemon) -> String {
    let index = daemon.post("/v2/repository/index", "").json();
    index[0]["reason"].as_str().unwrap().to_owned()
}

#[test]
fn an_optional_input_with_a_default_is_left_out() {
    let known = "input { name: 'in' data_type: TYPE_FP32 dims: [ -1, 4 ] }";
    let bias = "input { name: 'bias' data_type: TYPE_FP32 dims: [ 1 ] optional: true }";
    let daemon = daemon(&format!("{known} {bias}"));
    assert_eq!(ask(&daemon, &[1, 4]).status, 200);
    assert_eq!(daemon.get("/v2/models/m").json()["inputs"].as_array().map(Vec::len), Some(1));
    let given = r#"{"inputs":[{"name":"bias","datatype":"FP32","shape":[1],"data":[1]},"#;
    let refused = daemon.post("/v2/models/m/infer", &ASK.replace(r#"{"inputs":["#, given));
    assert!(refused.status == 400 && refused.error().contains("leave the input out"), "{}", refused.text());
    // The model needs an input without a default, and has to have one that is not optional.
    configure(&daemon.repository(), &known.replace("] }", "] optional: true }"));
    assert_eq!(load(&daemon, json!({})).0, 200);
    let missing = daemon.post("/v2/models/m/infer", r#"{"inputs":[]}"#);
    assert!(missing.status == 400 && missing.error().contains("needs input `in"), "{}", missing.text());
    configure(&daemon.repository(), &format!("{known} {}", bias.replace("optional: true", "")));
    let (status, text) = load(&daemon, json!({}));
    assert!(status == 400 && text.contains("unexpected input `bias`; the model has in"), "{text}");
}

#[test]
fn clients_see_the_shape_that_the_configuration_says() {
    let daemon = daemon(
        "input { name: 'in' data_type: TYPE_FP32 dims: [ -1, 2, 2 ] reshape { shape: [ -1, 4 ] } } \
         output { name: 'out' data_type: TYPE_FP32 dims: [ -1, 4, 1 ] reshape { shape: [ -1, 4 ] } }",
    );
    let answer = ask(&daemon, &[3, 2, 2]);
    assert_eq!((answer.status, &answer.json()["outputs"][0]["shape"]), (200, &json!([3, 4, 1])), "{}", answer.text());
    assert_eq!(daemon.engine.last_request().inputs[0].shape, [3, 4]);
    let refused = ask(&daemon, &[3, 4]);
    assert_eq!(refused.status, 400);
    assert!(refused.error().contains("in: FP32[3, 4]") && refused.error().contains("in: FP32[-1, 2, 2]"));
    let unknown = daemon.post("/v2/models/m/infer", &ASK.replace("\"in\"", "\"inn\""));
    assert!(unknown.error().ends_with("the model has no input `inn`; it has in: FP32[-1, 2, 2]"), "{}", unknown.text());
    let metadata = daemon.get("/v2/models/m").json();
    assert_eq!(
        (&metadata["inputs"][0]["shape"], &metadata["outputs"][0]["shape"]),
        (&json!([-1, 2, 2]), &json!([-1, 4, 1]))
    );
    assert_eq!(daemon.get("/v2/models/m/config").json()["input"][0]["dims"], json!([-1, 2, 2]));
    let predicted = daemon.post("/v1/models/m:predict", r#"{"inputs": [[[1, 2], [3, 4]]]}"#);
    assert_eq!(predicted.json(), json!({ "outputs": [[[1.0], [2.0], [3.0], [4.0]]] }), "{}", predicted.text());
}

#[test]
fn a_configuration_that_contradicts_the_model_is_refused() {
    for (config, expected) in [
        ("name: 'other'", "unexpected directory name 'm' for model 'other'"),
        ("input { name: 'inn' }", "unexpected input `inn`; the model has in"),
        ("input { name: 'in' data_type: TYPE_INT8 }", "declared as TYPE_INT8, and the model has TYPE_FP32"),
        ("output { name: 'out' dims: [ 5 ] }", "declared as [5], and the model has [-1, 4]"),
        ("max_batch_size: x", "max_batch_size is `x`"),
        ("input { name: 'in' } input { name: 'in' }", "input `in` is declared twice"),
        ("dynamic_batching { } sequence_batching { }", "dynamic_batching and sequence_batching contradict"),
    ] {
        let daemon = daemon(config);
        assert!(reason(&daemon).contains(expected), "{config}: {}", reason(&daemon));
    }
    // A size that the model leaves open and the configuration states holds for clients.
    let fixed = daemon("input { name: 'in' dims: [ 2, 4 ] }");
    let metadata = fixed.get("/v2/models/m").json();
    assert_eq!((&metadata["inputs"][0]["shape"], ask(&fixed, &[2, 4]).status), (&json!([2, 4]), 200));
    let refused = ask(&fixed, &[3, 4]);
    assert!(refused.status == 400 && refused.error().contains("in: FP32[2, 4]"), "{}", refused.text());
    let fits = daemon("name: 'm' input { name: 'in' data_type: TYPE_FP32 dims: [ -1, 4 ] } output { name: 'out' }");
    assert_eq!(ask(&fits, &[1, 4]).status, 200, "{}", reason(&fits));
}

#[test]
fn samples_run_before_the_model_takes_requests() {
    let sample = |input: &str| {
        format!("model_warmup {{ name: 's' batch_size: 1 count: 2 inputs {{ key: 'in' value {{ {input} }} }} }}")
    };
    let daemon = daemon(&sample("data_type: TYPE_FP32 dims: [ 2, 4 ] zero_data: true"));
    assert_eq!((daemon.engine.asked(), reason(&daemon).as_str()), (2, ""));
    let request = daemon.engine.last_request();
    assert_eq!((request.inputs[0].shape.as_slice(), request.inputs[0].bytes.as_slice()), (&[2, 4][..], &[0; 32][..]));
    assert_eq!(request.class, Some(Class::BestEffort));
    // A sample that fails is logged, and the model is served.
    daemon.engine.behave(Behaviour::Fail(InvokeError::DeadlineExceeded));
    configure(&daemon.repository(), &sample("data_type: TYPE_FP32 dims: [ 1, 4 ] random_data: true"));
    assert_eq!(load(&daemon, json!({})).0, 200);
    daemon.engine.behave(Behaviour::Echo);
    let warmup = daemon.repository().join("m/warmup");
    std::fs::create_dir(&warmup).unwrap();
    std::fs::write(warmup.join("in.raw"), [7; 16]).unwrap();
    configure(&daemon.repository(), &sample("data_type: TYPE_FP32 dims: [ 1, 4 ] input_data_file: 'in.raw'"));
    assert_eq!(load(&daemon, json!({})).0, 200);
    assert_eq!(daemon.engine.last_request().inputs[0].bytes, [7; 16]);
    for (input, expected) in [
        ("data_type: TYPE_FP32 dims: [ -1, 4 ] zero_data: true", "variable dims"),
        ("data_type: TYPE_STRING dims: [ 1, 4 ] zero_data: true", "`in: BYTES[1, 4]` does not fit model `m`"),
        ("data_type: TYPE_FLOAT dims: [ 1, 4 ] zero_data: true", "`TYPE_FLOAT`, which does not exist"),
        ("data_type: TYPE_FP32 dims: [ 1, 5 ] zero_data: true", "`in: FP32[1, 5]` does not fit model `m`"),
        ("data_type: TYPE_FP32 dims: [ 9, 4 ] input_data_file: 'in.raw'", "16 bytes, and 144 are needed"),
        ("data_type: TYPE_FP32 dims: [ 1, 4 ] input_data_file: '../config.pbtxt'", "no file in the folder `warmup`"),
        ("data_type: TYPE_FP32 dims: [ 99999999999 ] zero_data: true", "larger than"),
    ] {
        configure(&daemon.repository(), &sample(input));
        let (status, text) = load(&daemon, json!({}));
        assert!(status == 400 && text.contains(expected), "{input}: {text}");
    }
}

#[test]
fn the_timeout_of_the_queue_is_a_deadline() {
    let daemon = daemon("dynamic_batching { default_queue_policy { default_timeout_microseconds: 5000 } }");
    let deadline = |parameters: &str| {
        let body = format!("{}{parameters}}}", ASK.strip_suffix('}').unwrap());
        assert_eq!(daemon.post("/v2/models/m/infer", &body).status, 200);
        daemon.engine.last_request().deadline
    };
    assert_eq!(deadline(""), Some(Duration::from_micros(5000)));
    assert_eq!(deadline(r#","parameters":{"timeout":300}"#), Some(Duration::from_micros(300)));
    assert_eq!(deadline(r#","parameters":{"timeout":9000}"#), Some(Duration::from_micros(5000)));
}

#[test]
fn requests_without_a_priority_have_that_of_the_default_level() {
    let daemon = daemon("dynamic_batching { priority_levels: 4 default_priority_level: 3 }");
    let asked = |parameters: &str| {
        let body = format!("{}{parameters}}}", ASK.strip_suffix('}').unwrap());
        assert_eq!(daemon.post("/v2/models/m/infer", &body).status, 200);
        let request = daemon.engine.last_request();
        (request.class, request.priority)
    };
    assert_eq!(asked(""), (None, 1));
    assert_eq!(asked(r#","parameters":{"priority":0}"#), (None, 1));
    assert_eq!(asked(r#","parameters":{"priority":2}"#), (Some(Class::BestEffort), 0));
    assert_eq!(asked(r#","parameters":{"priority":4}"#), (Some(Class::BestEffort), 2));
    assert_eq!(asked(r#","parameters":{"priority":1}"#), (Some(Class::RealTime), 0));
}

#[test]
fn what_is_not_honoured_is_explained() {
    let daemon =
        daemon("instance_group { count: 3 } platform: 'onnxruntime_onnx' max_batch_size: 0 version_policy { all {} }");
    std::fs::create_dir(daemon.repository().join("m/02")).unwrap();
    let explained = daemon.get("/v2/repository/models/m/explain");
    let explained = explained.json();
    assert_eq!(
        (&explained["versions"], &explained["served"], &explained["version_policy"]),
        (&json!([1]), &json!([1]), &json!("all"))
    );
    assert!(explained["skipped"][0].as_str().unwrap().contains("`02`"), "{explained}");
    let treatments: Vec<(&str, &str)> = explained["fields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|note| (note["field"].as_str().unwrap(), note["treatment"].as_str().unwrap()))
        .collect();
    let expected = [
        ("instance_group.count", "not_honoured"),
        ("platform", "not_needed"),
        ("max_batch_size", "honoured"),
        ("version_policy.all", "honoured"),
    ];
    assert_eq!(treatments, expected);
    std::fs::write(daemon.repository().join("m/config.pbtxt"), "version_policy { specific { versions: 7 } }").unwrap();
    let problem = daemon.get("/v2/repository/models/m/explain").json()["problem"].to_string();
    assert!(problem.contains("version 7, which is missing"), "{problem}");
    std::fs::write(daemon.repository().join("m/config.pbtxt"), "name:").unwrap();
    let problem = daemon.get("/v2/repository/models/m/explain").json()["problem"].to_string();
    assert!(problem.contains("`name` has no value"), "{problem}");
    // A folder that is no model is explained, and a load of it says the same.
    std::fs::create_dir_all(daemon.repository().join("python/1")).unwrap();
    std::fs::write(daemon.repository().join("python/config.pbtxt"), "backend: 'python'").unwrap();
    let problem = daemon.get("/v2/repository/models/python/explain").json()["problem"].to_string();
    let refused = daemon.post("/v2/repository/models/python/load", "");
    for text in [problem, refused.error()] {
        assert!(text.contains("the folder `1` is no version") && text.contains("backend `python`"), "{text}");
    }
    assert_eq!(daemon.get("/v2/repository/models/nothing/explain").status, 404);
}

#[test]
fn a_load_may_bring_a_configuration() {
    let daemon = daemon("");
    let config = json!({ "name": "m", "dynamic_batching": { "default_priority_level": 1 } }).to_string();
    assert_eq!(load(&daemon, json!({ "config": config })).0, 200);
    assert_eq!(daemon.engine.options("m").unwrap().class, Class::RealTime);
    // The next load without one is that of the repository again.
    assert_eq!(load(&daemon, json!({})).0, 200);
    assert_eq!(daemon.engine.options("m").unwrap().class, Class::BestEffort);
    for (config, expected) in [
        (json!("{"), "the load parameter `config`: it is not valid JSON"),
        (json!(5), "must have string type"),
        (json!(r#"{"version_policy": {"specific": {"versions": [4]}}}"#), "no version is available"),
        (json!(r#"{"name": "x"}"#), "unexpected directory name"),
    ] {
        let (status, text) = load(&daemon, json!({ "config": config }));
        assert!(status == 400 && text.contains(expected), "{text}");
    }
    assert_eq!(ask(&daemon, &[1, 4]).status, 200, "what was loaded stays");
}

#[test]
fn a_configuration_names_no_files_beside_those_of_its_model() {
    let daemon = Daemon::start();
    std::fs::write(daemon.repository().join("other.toml"), "class = 'real-time'").unwrap();
    let config = json!({ "output": [{ "name": "out", "label_filename": "other.toml" }] }).to_string();
    let body = json!({ "parameters": { "config": config } }).to_string();
    let answer = daemon.post("/v2/repository/models/toy/load", &body);
    assert!(answer.status == 400 && answer.error().contains("no folder of its own"), "{}", answer.text());
    assert_eq!(daemon.get("/v2/models/toy/ready").status, 200, "it stays");
}

#[test]
fn a_load_may_bring_files() {
    let daemon = daemon("");
    // Not a model, and not looked at.
    std::fs::write(daemon.repository().join("m/1/other.kg"), "no bundle").unwrap();
    let named = json!({ "default_model_filename": "other.kg" }).to_string();
    let (status, text) = load(&daemon, json!({ "config": named }));
    assert!(status == 400 && text.contains("m/1/other.kg"), "{text}");
    // "good", which the compiler of the tests makes the toy model of.
    let file = "Z29vZA==";
    assert_eq!(load(&daemon, json!({ "config": "{}", "file:5/model.onnx": file })).0, 200);
    assert_eq!(ask(&daemon, &[1, 4]).json()["model_version"], "5", "the folder of the repository is not looked at");
    let cache = daemon.folder.path().join("cache");
    let folders = || std::fs::read_dir(&cache).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir()).count();
    assert_eq!(folders(), 0, "nothing is left of the files");
    let new = json!({ "parameters": { "config": "{}", "file:1/model.onnx": file } }).to_string();
    assert_eq!(daemon.post("/v2/repository/models/new/load", &new).status, 200, "a model that is in no folder");
    assert_eq!(daemon.get("/v2/models/new/ready").status, 200);
    for (parameters, expected) in [
        (json!({ "file:1/model.onnx": file }), "Load parameter 'config' must be specified"),
        (json!({ "config": "{}", "file:../x": file }), "must stay within model directory"),
        (json!({ "config": "{}", "file:1/model.kg": file }), "is a bundle"),
        (json!({ "config": "{}", "file:1/model.onnx": "?" }), "not valid base64"),
        (json!({ "config": "{}", "file:1/model.onnx": 5 }), "must have bytes type"),
    ] {
        let (status, text) = load(&daemon, parameters);
        assert!(status == 400 && text.contains(expected), "{text}");
    }
    let long = format!("file:{}", "A".repeat(256));
    let (status, text) = load(&daemon, json!({ "config": "{}", &long: file }));
    let begin = "failed to load 'm', failed to poll from model repository: the file parameter 'file:AAA";
    assert!(status == 500 && text.contains(begin) && text.contains("File name too long"), "{text}");
    assert!(text.len() < 300 && !text.contains(&*cache.to_string_lossy()), "{text}");
    assert_eq!(load(&daemon, json!({})).0, 200);
    assert_eq!(ask(&daemon, &[1, 4]).json()["model_version"], "1");
}

#[test]
fn clients_of_triton_find_the_words_that_they_look_for() {
    let daemon = daemon("");
    for (path, expected) in [
        ("/v2/models/none", "Request for unknown model: 'none' is not found"),
        ("/v2/models/m/versions/3", "Request for unknown model: 'm' version 3 is not found"),
    ] {
        assert!(daemon.get(path).error().starts_with(expected), "{}", daemon.get(path).error());
    }
    let unknown = daemon.post("/v2/models/m/infer", &ASK.replace("\"in\"", "\"other\"")).error();
    assert!(unknown.starts_with("unexpected inference input 'other' for model 'm'"), "{unknown}");
    let (_, invalid) = load(&daemon, json!({ "config": "{" }));
    assert!(
        invalid.contains("failed to load 'm', failed to poll from model repository: the load parameter"),
        "{invalid}"
    );
    let unknown = daemon.post("/v2/repository/models/none/load", "").error();
    assert!(unknown.starts_with("failed to load 'none', failed to poll from model repository"), "{unknown}");
    assert_eq!(daemon.post("/v2/repository/models/m/unload", "").status, 200);
    let unloaded = daemon.post("/v2/models/m/infer", ASK).error();
    assert!(unloaded.starts_with("Request for unknown model: 'm' has no available versions"), "{unloaded}");
}
