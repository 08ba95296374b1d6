//! The response cache: requests that are answered from it, and requests that are not.

use crate::support::{Answer, Behaviour, Daemon, Options, write_bundle, write_changed_bundle};
use atoll_engine::InvokeError;
use serde_json::{Value, json};

fn daemon(settings: &str) -> Daemon {
    Daemon::with(Options::default(), |repository| {
        write_bundle(&repository.join("toy.kg"));
        std::fs::write(repository.join("toy.toml"), settings).unwrap();
    })
}

fn ask(daemon: &Daemon, first: f32, parameters: &Value) -> Answer {
    let data = [first, 2.0, 3.0, 4.0];
    let request = json!({
        "parameters": parameters,
        "inputs": [{ "name": "in", "datatype": "FP32", "shape": [1, 4], "data": data }],
    });
    daemon.post("/v2/models/toy/infer", &request.to_string())
}

fn outputs(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["outputs"][0]["data"].clone()
}

#[test]
fn the_same_question_is_run_once() {
    let daemon = daemon("response_cache = true");
    let first = outputs(&ask(&daemon, 1.0, &json!({})));
    // Neither the class nor the deadline of a request changes its answer.
    for parameters in [json!({}), json!({ "priority": 1 }), json!({ "deadline_us": 1_000_000 })] {
        assert_eq!(outputs(&ask(&daemon, 1.0, &parameters)), first);
    }
    assert_eq!(daemon.engine.asked(), 1);
    assert_ne!(outputs(&ask(&daemon, 5.0, &json!({}))), first);
    assert_eq!(daemon.engine.asked(), 2);

    let statistics = daemon.get("/v2/models/toy/stats").json();
    let parts = &statistics["model_stats"][0]["inference_stats"];
    assert_eq!((&parts["cache_hit"]["count"], &parts["cache_miss"]["count"]), (&json!(3), &json!(2)), "{parts}");
    assert!(parts["cache_hit"]["ns"].as_u64().unwrap() > 0);
    assert!(parts["success"]["count"].as_u64().unwrap() >= 3, "{parts}");
    let metrics = daemon.metrics();
    for line in [
        "nv_cache_num_hits_per_model{model=\"toy\",version=\"1\"} 3\n",
        "nv_cache_num_misses_per_model{model=\"toy\",version=\"1\"} 2\n",
    ] {
        assert!(metrics.contains(line), "{line}{metrics}");
    }
    assert!(!metrics.contains("atoll_response_cache_bytes 0\n"), "two responses are kept");
    let labels = "{model=\"toy\",version=\"1\",device=\"host:0\"}";
    let success = format!("nv_inference_request_success{labels} {}\n", parts["success"]["count"]);
    assert!(metrics.contains(&success), "answers from the cache count, as in Triton: {success}{metrics}");
}

#[test]
fn failures_are_not_kept() {
    let daemon = daemon("response_cache = true");
    daemon.engine.behave(Behaviour::Fail(InvokeError::Device("broken".into())));
    assert_eq!(ask(&daemon, 1.0, &json!({})).status, 500);
    daemon.engine.behave(Behaviour::Echo);
    outputs(&ask(&daemon, 1.0, &json!({})));
    assert_eq!(daemon.engine.asked(), 2);
}

#[test]
fn another_bundle_of_the_model_has_its_own_responses() {
    let daemon = daemon("response_cache = true");
    outputs(&ask(&daemon, 1.0, &json!({})));
    write_changed_bundle(&daemon.repository().join("toy.kg"));
    assert_eq!(daemon.post("/v2/repository/models/toy/load", "{}").status, 200);
    ask(&daemon, 1.0, &json!({}));
    assert_eq!(daemon.engine.asked(), 2);
}

#[test]
fn responses_are_kept_only_where_the_settings_say_so() {
    let daemon = daemon("");
    (0..3).for_each(|_| drop(outputs(&ask(&daemon, 1.0, &json!({})))));
    assert_eq!(daemon.engine.asked(), 3);
    let metrics = daemon.metrics();
    assert!(metrics.contains("nv_cache_num_misses_per_model{model=\"toy\",version=\"1\"} 0\n"), "{metrics}");
    assert!(metrics.contains("atoll_response_cache_bytes 0\n"), "{metrics}");
}
