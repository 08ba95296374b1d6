//! Ensembles of Triton's repositories.

use crate::support::{Behaviour, Connection, Daemon, Options, eventually, write_bundle, write_changed_bundle};
use atoll_engine::FunctionKey;
use atoll_server::ModelControl;
use serde_json::{Value, json};
use std::path::Path;

const ASK: &str = r#"{"inputs":[{"name":"X","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}"#;

/// A step that takes a tensor and makes one.
fn step(model: &str, from: &str, to: &str) -> String {
    format!(
        "step {{ model_name: '{model}' model_version: -1 input_map {{ key: 'in' value: '{from}' }} \
         output_map {{ key: 'out' value: '{to}' }} }} "
    )
}

/// Writes an ensemble with the input `X` and the output `Y`.
fn ensemble(repository: &Path, name: &str, steps: &[String]) {
    let folder = repository.join(name);
    std::fs::create_dir_all(folder.join("1")).unwrap();
    let config = format!(
        "platform: 'ensemble' input {{ name: 'X' data_type: TYPE_FP32 dims: [ -1, 4 ] }} \
         output {{ name: 'Y' data_type: TYPE_FP32 dims: [ -1, 4 ] }} ensemble_scheduling {{ {} }}",
        steps.concat()
    );
    std::fs::write(folder.join("config.pbtxt"), config).unwrap();
}

fn model(repository: &Path, name: &str) {
    std::fs::create_dir_all(repository.join(name).join("1")).unwrap();
    write_bundle(&repository.join(name).join("1/model.kg"));
}

fn daemon(fill: impl FnOnce(&Path)) -> Daemon {
    Daemon::with(Options { lax_readiness: true, ..Options::default() }, |repository| {
        model(repository, "pre");
        model(repository, "post");
        fill(repository);
    })
}

fn entry(daemon: &Daemon, name: &str) -> Value {
    let index = daemon.post("/v2/repository/index", "").json();
    index.as_array().unwrap().iter().find(|entry| entry["name"] == name).cloned().unwrap_or_default()
}

fn load(daemon: &Daemon, name: &str) -> (u16, String) {
    let answer = daemon.post(&format!("/v2/repository/models/{name}/load"), "");
    (answer.status, answer.text())
}

#[test]
fn an_ensemble_runs_its_steps() {
    let two = |repository: &Path| ensemble(repository, "e", &[step("post", "t", "Y"), step("pre", "X", "t")]);
    let daemon = daemon(two);
    let entry_of = || entry(&daemon, "e");
    assert_eq!((&entry_of()["state"], &entry_of()["version"]), (&json!("READY"), &json!("1")));
    let metadata = daemon.get("/v2/models/e").json();
    assert_eq!((&metadata["platform"], &metadata["inputs"][0]["name"]), (&json!("atoll_graph"), &json!("X")));
    assert_eq!(metadata["outputs"][0]["shape"], json!([-1, 4]));
    let before = daemon.engine.asked();
    let answer = daemon.post("/v2/models/e/infer", ASK);
    let data =
        answer.json()["outputs"][0]["data"].as_array().unwrap().iter().map(|it| it.as_f64().unwrap()).sum::<f64>();
    assert_eq!((answer.status, data), (200, 10.0));
    assert_eq!(daemon.engine.asked() - before, 2);
    assert_eq!(daemon.engine.last_request().function, FunctionKey::local("post"), "the steps ran in their order");
    assert_eq!(daemon.post("/v2/models/e/versions/1/infer", ASK).status, 200);
    assert_eq!(daemon.get("/v2/models/e/versions/2").status, 404);
    assert_eq!(daemon.get("/v2/models/e/ready").status, 200);
    let stats = daemon.get("/v2/models/e/stats").json();
    assert_eq!(stats["model_stats"][0]["inference_count"], 2);
    assert_eq!(daemon.post("/v2/models/e/infer", &ASK.replace("[1,4]", "[4]")).status, 400);
    let fail = &daemon.get("/v2/models/e/stats").json()["model_stats"][0]["inference_stats"]["fail"];
    assert!(fail["count"] == 1 && fail["ns"].as_u64() > Some(0), "{fail}");
    let metrics = daemon.metrics();
    for (name, value) in [("success", 2), ("failure", 1)] {
        let line = format!("nv_inference_request_{name}{{model=\"e\",version=\"1\",device=\"host:0\"}} {value}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
}

#[test]
fn an_ensemble_is_ready_as_long_as_its_models_are() {
    let daemon = daemon(|repository| ensemble(repository, "e", &[step("pre", "X", "Y")]));
    assert_eq!(daemon.post("/v2/repository/models/pre/unload", "").status, 200);
    let entry_now = entry(&daemon, "e");
    assert_eq!(entry_now["state"], "UNAVAILABLE");
    assert!(entry_now["reason"].as_str().unwrap().contains("calls function `pre`, which is not loaded"), "{entry_now}");
    assert_eq!(daemon.post("/v2/models/e/infer", ASK).status, 503);
    assert_eq!(load(&daemon, "e").0, 200, "its models are loaded with it");
    assert_eq!(daemon.post("/v2/models/e/infer", ASK).status, 200);
    assert_eq!(daemon.post("/v2/repository/models/e/unload", "").status, 200);
    assert_eq!(
        (daemon.post("/v2/models/e/infer", ASK).status, &entry(&daemon, "e")["reason"]),
        (503, &json!("not loaded"))
    );
    assert_eq!(daemon.get("/v2/models/pre/ready").status, 200);
    assert_eq!(load(&daemon, "e").0, 200);
    let dependents = r#"{"parameters":{"unload_dependents":true}}"#;
    assert_eq!(daemon.post("/v2/repository/models/e/unload", dependents).status, 200);
    assert_eq!(daemon.get("/v2/models/pre/ready").json()["ready"], false);
}

/// The configuration of an ensemble with a limit of rows.
fn limited(rows: u32, output: &str) -> String {
    format!(
        "platform: 'ensemble' max_batch_size: {rows} input {{ name: 'X' data_type: TYPE_FP32 dims: [ 4 ] }} \
         output {{ name: 'Y' {output} }} ensemble_scheduling {{ {} }}",
        step("pre", "X", "Y")
    )
}

#[test]
fn the_configuration_of_an_ensemble_holds() {
    let daemon = daemon(|repository| {
        ensemble(repository, "e", &[step("pre", "X", "Y")]);
        std::fs::write(repository.join("e/config.pbtxt"), limited(2, "dims: [ 4 ] label_filename: 'l'")).unwrap();
        std::fs::write(repository.join("e/l"), "a\nb\nc\nd").unwrap();
        ensemble(repository, "of", &[step("pre", "X", "Y")]);
        std::fs::write(repository.join("pre/config.pbtxt"), "output { name: 'out' label_filename: 'l' }").unwrap();
        std::fs::write(repository.join("pre/l"), "of\nthe\nmodel\nd").unwrap();
    });
    let ask = |name: &str, rows: usize| {
        let data = [4, 3, 2, 1].repeat(rows);
        let body = json!({
            "inputs": [{ "name": "X", "datatype": "FP32", "shape": [rows, 4], "data": data }],
            "outputs": [{ "name": "Y", "parameters": { "classification": 1 } }],
        });
        daemon.post(&format!("/v2/models/{name}/infer"), &body.to_string())
    };
    let answer = ask("e", 2);
    assert!(answer.status == 200 && answer.text().contains(":0:a"), "{}", answer.text());
    assert!(ask("of", 2).text().contains(":0:of"), "the labels of the model that it calls");
    let refused = ask("e", 3);
    assert!(
        refused.status == 400 && refused.error().contains("has 3 rows, and max_batch_size of the ensemble `e` is 2")
    );
    let config = daemon.get("/v2/models/e/config").json();
    assert_eq!((&config["max_batch_size"], &config["input"][0]["dims"]), (&json!(2), &json!([4])));
    let called = &config["ensemble_scheduling"]["step"][0];
    assert_eq!((&called["model_name"], &called["input_map"]), (&json!("pre"), &json!({ "in": "X" })));
    assert_eq!(config["output"][0]["label_filename"], "l");
}

#[test]
fn an_ensemble_that_its_models_do_not_fit_is_refused_and_the_old_one_stays() {
    let daemon = daemon(|repository| ensemble(repository, "e", &[step("pre", "X", "Y")]));
    let config = |text: &str| std::fs::write(daemon.repository().join("e/config.pbtxt"), text).unwrap();
    for (text, expected) in [
        (limited(2, "data_type: TYPE_INT32 dims: [ 4 ]"), "output `Y` is declared as TYPE_INT32"),
        (limited(2, "dims: [ 5 ]"), "output `Y` is declared as [5] with the rows of a batch in front"),
        (limited(2, "label_filename: 'none'"), "none: No such file"),
        (limited(2, "").replace("'pre'", "'nothing'"), "calls function `nothing`, which is not deployed"),
        (limited(2, "").replace("'ensemble'", "'ensemble' dynamic_batching { }"), "contradict each other"),
    ] {
        config(&text);
        let (status, answer) = load(&daemon, "e");
        assert!(status == 400 && answer.contains(expected), "{text}: {answer}");
        assert_eq!(
            (daemon.post("/v2/models/e/infer", ASK).status, &entry(&daemon, "e")["state"]),
            (200, &json!("READY"))
        );
    }
    config(&limited(8, ""));
    assert_eq!(load(&daemon, "e").0, 200, "the model has no limit");
    std::fs::write(daemon.repository().join("pre/config.pbtxt"), "max_batch_size: 4").unwrap();
    assert_eq!(load(&daemon, "pre").0, 200);
    let reason = entry(&daemon, "e")["reason"].to_string();
    assert!(reason.contains("max_batch_size of the ensemble is 8, and that of the model `pre`"), "{reason}");
}

#[test]
fn an_ensemble_that_is_named_at_start_brings_its_models() {
    let model_control = Some(ModelControl::Explicit { load: Some(["e".to_owned()].into()) });
    let options = Options { lax_readiness: true, model_control, ..Options::default() };
    let daemon = Daemon::with(options, |repository| {
        model(repository, "pre");
        model(repository, "post");
        ensemble(repository, "e", &[step("pre", "X", "Y")]);
    });
    assert_eq!(daemon.post("/v2/models/e/infer", ASK).status, 200);
    assert_eq!(daemon.get("/v2/models/post/ready").status, 404, "it was not loaded");
}

#[test]
fn a_model_takes_the_place_of_an_ensemble_only_if_it_can_be_loaded() {
    let daemon = daemon(|repository| ensemble(repository, "e", &[step("pre", "X", "Y")]));
    let folder = daemon.repository().join("e");
    std::fs::remove_file(folder.join("config.pbtxt")).unwrap();
    for version in ["1", "2"] {
        std::fs::create_dir_all(folder.join(version)).unwrap();
        std::fs::write(folder.join(version).join("model.kg"), "no bundle").unwrap();
        assert_eq!(load(&daemon, "e").0, 400);
        assert_eq!(daemon.get("/v2/models/e").json()["platform"], "atoll_graph", "it stays");
    }
    write_bundle(&folder.join("2/model.kg"));
    assert_eq!(load(&daemon, "e").0, 200);
    let metadata = daemon.get("/v2/models/e").json();
    assert_eq!((&metadata["platform"], &metadata["versions"]), (&json!("atoll_kgraph"), &json!(["2"])));
    std::fs::remove_dir_all(&folder).unwrap();
    ensemble(&daemon.repository(), "e", &[step("post", "X", "Y")]);
    assert_eq!(load(&daemon, "e").0, 200);
    assert_eq!(daemon.get("/v2/models/e").json()["platform"], "atoll_graph");
    assert!(daemon.engine.bundle("e").is_none(), "the model is unloaded");
}

#[test]
fn an_ensemble_follows_a_model_whose_versions_are_exchanged() {
    let daemon = daemon(|repository| {
        ensemble(repository, "e", &[step("pre", "X", "Y")]);
        let sample = "inputs { key: 'in' value { data_type: TYPE_FP32 dims: [ 1, 4 ] zero_data: true } }";
        let config = format!("version_policy {{ all {{}} }} model_warmup {{ batch_size: 1 {sample} }}");
        std::fs::write(repository.join("pre/config.pbtxt"), config).unwrap();
    });
    let asked = || {
        assert_eq!(daemon.post("/v2/models/e/infer", ASK).status, 200);
        daemon.engine.last_request().function
    };
    assert_eq!(asked(), FunctionKey::local("pre"));
    std::fs::create_dir(daemon.repository().join("pre/2")).unwrap();
    write_changed_bundle(&daemon.repository().join("pre/2/model.kg"));
    daemon.engine.behave(Behaviour::Hold);
    let mut connection = Connection::open(daemon.http);
    connection.send("POST", "/v2/repository/models/pre/load", &[], b"");
    // The samples of version 2, and of version 1 under its new key, run before anything changes.
    for _ in 0..2 {
        eventually(|| daemon.engine.held() == 1);
        daemon.engine.behave(Behaviour::Echo);
        assert_eq!(asked(), FunctionKey::local("pre"), "version 1 answers meanwhile");
        assert_eq!(daemon.engine.bundle("pre").unwrap().graph().name, "toy");
        daemon.engine.behave(Behaviour::Hold);
        daemon.engine.answer_all();
    }
    // The sample of version 2 under the key of the model.
    eventually(|| daemon.engine.held() == 1);
    daemon.engine.behave(Behaviour::Echo);
    assert_eq!(asked(), FunctionKey::local("pre/2/1"), "version 2 answers meanwhile");
    daemon.engine.answer_all();
    assert_eq!(connection.receive().status, 200);
    assert_eq!(daemon.engine.bundle("pre").unwrap().graph().name, "changed");
    assert_eq!(asked(), FunctionKey::local("pre"), "the newest version answers again");
}

#[test]
fn a_load_may_bring_the_steps_of_an_ensemble() {
    let daemon = daemon(|repository| ensemble(repository, "e", &[step("pre", "X", "Y")]));
    assert_eq!(daemon.post("/v2/repository/models/post/unload", "").status, 200);
    let maps = |model: &str| json!([{ "model_name": model, "input_map": { "in": "X" }, "output_map": { "out": "Y" } }]);
    let tensor = |name: &str| json!([{ "name": name, "data_type": "TYPE_FP32", "dims": [-1, 4] }]);
    let config = |model: &str| {
        let config = json!({
            "input": tensor("X"), "output": tensor("Y"), "ensemble_scheduling": { "step": maps(model) },
        });
        json!({ "parameters": { "config": config.to_string() } }).to_string()
    };
    let answer = daemon.post("/v2/repository/models/e/load", &config("post"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(daemon.post("/v2/models/e/infer", ASK).status, 200);
    assert_eq!(daemon.engine.last_request().function, FunctionKey::local("post"), "loaded with the ensemble");
    let answer = daemon.post("/v2/repository/models/e/load", &config("e"));
    assert!(answer.status == 400 && answer.error().contains("circular"), "{}", answer.text());
}

#[test]
fn what_contradicts_itself_is_refused_with_the_cause() {
    let daemon = daemon(|repository| {
        ensemble(repository, "tensors", &[step("pre", "b", "a"), step("post", "a", "b"), step("pre", "X", "Y")]);
        ensemble(repository, "self", &[step("self", "X", "Y")]);
        ensemble(repository, "one", &[step("two", "X", "Y")]);
        ensemble(repository, "two", &[step("one", "X", "Y")]);
        ensemble(repository, "outer", &[step("inner", "X", "Y")]);
        ensemble(repository, "inner", &[step("pre", "X", "Y")]);
        ensemble(repository, "twice", &[step("pre", "X", "Y"), step("post", "X", "Y")]);
        ensemble(repository, "unknown", &[step("nothing", "X", "Y")]);
    });
    for (name, expected) in [
        ("tensors", "the steps of the ensemble wait for each other: pre, post"),
        ("self", "circular dependency between ensembles: self -> self"),
        ("one", "circular dependency between ensembles: one -> two -> one"),
        ("outer", "unexpected input `in` of the ensemble `inner`; it has X"),
        ("twice", "the tensor `Y` of the ensemble is made twice"),
        ("unknown", "calls function `nothing`, which is not deployed"),
    ] {
        let (status, text) = load(&daemon, name);
        assert!(status == 400 && text.contains(expected), "{name}: {text}");
        let entry_of = entry(&daemon, name);
        assert_eq!(entry_of["state"], "UNAVAILABLE", "{name}");
        let explained = daemon.get(&format!("/v2/repository/models/{name}/explain")).json()["problem"].to_string();
        assert!(explained.contains(expected) || ["outer", "unknown"].contains(&name), "{explained}");
        assert!(entry_of["reason"].as_str().unwrap().contains(expected), "{entry_of}");
    }
    assert_eq!(daemon.post("/v2/models/inner/infer", ASK).status, 200);
}

/// A step that calls an ensemble of [`ensemble`].
fn outer_step(name: &str, version: i64, from: &str, to: &str) -> String {
    format!(
        "step {{ model_name: '{name}' model_version: {version} input_map {{ key: 'X' value: '{from}' }} \
         output_map {{ key: 'Y' value: '{to}' }} }} "
    )
}

#[test]
fn a_step_may_call_an_ensemble() {
    let daemon = daemon(|repository| {
        // The name comes before that of the ensemble that it calls.
        ensemble(repository, "all", &[step("pre", "X", "t"), outer_step("inner", 1, "t", "Y")]);
        ensemble(repository, "inner", &[]);
        std::fs::write(repository.join("inner/config.pbtxt"), limited(8, "label_filename: 'l'")).unwrap();
        std::fs::write(repository.join("inner/l"), "a\nb\nc\nd").unwrap();
    });
    let ask = || {
        let input = json!({ "name": "X", "datatype": "FP32", "shape": [1, 4], "data": [4, 3, 2, 1] });
        let output = json!({ "name": "Y", "parameters": { "classification": 1 } });
        let before = daemon.engine.asked();
        let answer =
            daemon.post("/v2/models/all/infer", &json!({ "inputs": [input], "outputs": [output] }).to_string());
        (answer.status, answer.text(), daemon.engine.asked() - before)
    };
    let (status, text, asked) = ask();
    assert!(status == 200 && asked == 2 && text.contains(":0:a"), "with the labels of the called ensemble: {text}");
    let called = &daemon.get("/v2/models/all/config").json()["ensemble_scheduling"]["step"][1];
    assert_eq!((&called["model_name"], &called["model_version"]), (&json!("inner"), &json!(1)));
    let two = [step("pre", "X", "t"), step("post", "t", "Y")];
    ensemble_again(&daemon.repository(), "inner", &two);
    assert_eq!(load(&daemon, "inner").0, 200);
    let (status, text, asked) = ask();
    assert_eq!((status, asked), (200, 3), "it follows the called ensemble: {text}");
    let dependents = r#"{"parameters":{"unload_dependents":true}}"#;
    assert_eq!(daemon.post("/v2/repository/models/all/unload", dependents).status, 200);
    for name in ["pre", "post", "inner"] {
        assert_eq!(entry(&daemon, name)["state"], "UNAVAILABLE", "{name}");
    }
    assert_eq!(load(&daemon, "all").0, 200, "with all that it calls");
    assert_eq!(ask().0, 200);
    assert_eq!(daemon.post("/v2/repository/models/inner/unload", "").status, 200);
    let reason = entry(&daemon, "all")["reason"].to_string();
    assert!(reason.contains("calls function `inner/1`, which is not loaded"), "{reason}");
    assert_eq!(ask().0, 503);
}

/// Replaces the steps of an ensemble.
fn ensemble_again(repository: &Path, name: &str, steps: &[String]) {
    std::fs::remove_dir_all(repository.join(name)).unwrap();
    ensemble(repository, name, steps);
}

#[test]
fn ensembles_that_call_each_other_are_refused_with_their_limits() {
    let daemon = daemon(|repository| {
        ensemble(repository, "all", &[outer_step("inner", -1, "X", "Y")]);
        let config = limited(8, "").replace(&step("pre", "X", "Y"), &outer_step("inner", -1, "X", "Y"));
        std::fs::write(repository.join("all/config.pbtxt"), config).unwrap();
        ensemble(repository, "inner", &[]);
        std::fs::write(repository.join("inner/config.pbtxt"), limited(4, "")).unwrap();
        for depth in 0..9 {
            ensemble(repository, &format!("deep{depth}"), &[outer_step(&format!("deep{}", depth + 1), -1, "X", "Y")]);
        }
        ensemble(repository, "deep9", &[step("pre", "X", "Y")]);
    });
    let (status, text) = load(&daemon, "all");
    assert!(status == 400 && text.contains("is 8, and that of the ensemble `inner`, which it calls, is 4"), "{text}");
    let (status, text) = load(&daemon, "deep0");
    assert!(status == 400 && text.contains("more than 8 ensembles are nested: deep0 -> deep1"), "{text}");
    assert_eq!(daemon.post("/v2/models/deep2/infer", ASK).status, 200);
    let tensor = |name: &str| json!([{ "name": name, "data_type": "TYPE_FP32", "dims": [-1, 4] }]);
    let back = json!({ "model_name": "deep0", "input_map": { "X": "X" }, "output_map": { "Y": "Y" } });
    let back = json!({ "input": tensor("X"), "output": tensor("Y"), "ensemble_scheduling": { "step": [back] } });
    let body = json!({ "parameters": { "config": back.to_string() } }).to_string();
    let answer = daemon.post("/v2/repository/models/deep2/load", &body);
    let circle = "circular dependency between ensembles: deep2 -> deep0 -> deep1 -> deep2";
    assert!(answer.status == 400 && answer.error().contains(circle), "{}", answer.text());
}

#[test]
fn a_failed_step_fails_the_request() {
    let daemon = daemon(|repository| ensemble(repository, "e", &[step("pre", "X", "Y")]));
    daemon.engine.behave(Behaviour::Fail(atoll_engine::InvokeError::Device("gone".into())));
    let answer = daemon.post("/v2/models/e/infer", ASK);
    assert!(answer.status == 500 && answer.error().contains("gone"), "{} {}", answer.status, answer.text());
}
