//! Autoscaled models: the first request waits for an instance, and an idle model has no instances.

use crate::support::{Behaviour, Daemon, Options, eventually, write_bundle, write_state_bundle};
use serde_json::{Value, json};

const ASK: &str = r#"{"inputs":[{"name":"in","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}"#;

/// The request with parameters.
fn with(parameters: Value) -> String {
    let mut body: Value = serde_json::from_str(ASK).unwrap();
    body["parameters"] = parameters;
    body.to_string()
}

/// The toy model, with settings.
fn scaled(settings: &str) -> Daemon {
    let daemon = Daemon::start();
    set(&daemon, settings);
    let answer = daemon.post("/v2/repository/models/toy/load", "");
    assert_eq!(answer.status, 200, "{}", answer.text());
    daemon
}

fn set(daemon: &Daemon, settings: &str) {
    std::fs::write(daemon.repository().join("toy.toml"), format!("[scaling]\n{settings}")).unwrap();
}

/// A sample of a metric of the model.
fn sample(daemon: &Daemon, name: &str) -> Option<f64> {
    let text = daemon.metrics();
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().parse().ok()
}

fn instances(daemon: &Daemon) -> Option<f64> {
    instances_of(daemon, "toy")
}

/// The instances of a model that accept requests.
fn instances_of(daemon: &Daemon, model: &str) -> Option<f64> {
    sample(daemon, &format!("atoll_scaling_instances{{model=\"{model}\"}}"))
}

/// The requests of an instance that have ended; `None` if there is no such instance.
fn ended(daemon: &Daemon, instance: &str) -> Option<f64> {
    sample(daemon, &format!("atoll_instance_requests_total{{tenant=\"local\",instance=\"{instance}\"}}"))
}

#[test]
fn the_first_request_gets_an_instance_that_goes_when_no_more_come() {
    let daemon = scaled("latency_ms = 1000\ninterval_ms = 100\ncool_down_ms = 100\nidle_ms = 300");
    eventually(|| instances(&daemon) == Some(0.0));
    assert_eq!(daemon.engine.asked(), 0);
    assert_eq!(daemon.post("/v2/models/toy/infer", ASK).status, 200);
    assert_eq!(daemon.engine.last_request().instance.as_deref(), Some("toy-auto-1"));
    eventually(|| instances(&daemon) == Some(0.0));
    let decisions = |kind: &str| {
        let name = format!("atoll_scaling_decisions_total{{model=\"toy\",decision=\"{kind}\"}}");
        sample(&daemon, &name)
    };
    assert_eq!((decisions("create"), decisions("remove"), decisions("refused")), (Some(1.0), Some(1.0), Some(0.0)));
    assert_eq!(daemon.post("/v2/models/toy/infer", ASK).status, 200, "and again");
}

#[test]
fn an_instance_with_requests_is_not_removed_before_they_end() {
    let daemon = scaled("latency_ms = 1000\ninterval_ms = 100\ncool_down_ms = 100\nidle_ms = 100");
    daemon.engine.behave(Behaviour::Hold);
    let mut connection = crate::support::Connection::open(daemon.http);
    let slow =
        std::thread::spawn(move || connection.request("POST", "/v2/models/toy/infer", &[], ASK.as_bytes()).status);
    eventually(|| daemon.engine.asked() == 1);
    // The settings are removed, so the instance is drained.
    std::fs::write(daemon.repository().join("toy.toml"), "").unwrap();
    let mut loading = crate::support::Connection::open(daemon.http);
    loading.send("POST", "/v2/repository/models/toy/load", &[], b"");
    eventually(|| instances(&daemon).is_none());
    daemon.engine.behave(Behaviour::Echo);
    assert_eq!(daemon.post("/v2/models/toy/infer", ASK).status, 200);
    assert_eq!(daemon.engine.last_request().instance, None, "it takes no new requests");
    daemon.engine.answer_all();
    assert_eq!(slow.join().unwrap(), 200, "the request was not lost");
    assert_eq!(loading.receive().status, 200);
}

#[test]
fn the_least_number_of_instances_is_there_without_requests() {
    let daemon = scaled("latency_ms = 1000\ninterval_ms = 100\nmin_instances = 2\nquota_request = 0.1");
    eventually(|| instances(&daemon) == Some(2.0));
}

#[test]
fn bad_settings_are_refused_with_the_cause() {
    let daemon = Daemon::start();
    for (settings, part) in [
        ("min_instances = 1", "latency_ms"),
        ("latency_ms = 5\nmin_instances = 3\nmax_instances = 2", "scaling: at least 3 instances, and at most 2"),
        ("latency_ms = 5\nquota_request = 0.5\nquota_limit = 0.2", "quota_request 0.5 exceeds quota_limit 0.2"),
        ("latency_ms = 5\nquota_request = 2", "a quota of 2;"),
    ] {
        set(&daemon, settings);
        let answer = daemon.post("/v2/repository/models/toy/load", "");
        assert!(answer.status == 400 && answer.error().contains(part), "{settings}: {}", answer.text());
    }
    assert_eq!(daemon.post("/v2/models/toy/infer", ASK).status, 200, "the model serves as before");
    // The name of this model is not valid for its instances.
    let named = |file: &str| daemon.repository().join(file);
    std::fs::copy(named("toy.kg"), named("toy~2.kg")).unwrap();
    std::fs::write(named("toy~2.toml"), "[scaling]\nlatency_ms = 5").unwrap();
    let answer = daemon.post("/v2/repository/models/toy~2/load", "");
    let part = "`toy~2` is not a valid name";
    assert!(answer.status == 400 && answer.error().contains(part), "{}", answer.text());
}

#[test]
fn requests_that_wait_are_served_after_a_reload() {
    // At first no device accepts an instance.
    let daemon = scaled("latency_ms = 1000\ninterval_ms = 100\ncool_down_ms = 100\nidle_ms = 300");
    daemon.engine.refuse_shares(true);
    let mut connection = crate::support::Connection::open(daemon.http);
    let waiting =
        std::thread::spawn(move || connection.request("POST", "/v2/models/toy/infer", &[], ASK.as_bytes()).status);
    let waits = |daemon: &Daemon| sample(daemon, "atoll_scaling_waiting_requests{model=\"toy\"}");
    eventually(|| waits(&daemon) == Some(1.0));
    set(&daemon, "latency_ms = 2000\ninterval_ms = 100");
    assert_eq!(daemon.post("/v2/repository/models/toy/load", "").status, 200);
    eventually(|| waits(&daemon) == Some(1.0));
    daemon.engine.refuse_shares(false);
    assert_eq!(waiting.join().unwrap(), 200);
}

#[test]
fn an_instance_whose_share_is_lost_is_replaced() {
    let daemon = scaled("latency_ms = 1000\ninterval_ms = 100\nidle_ms = 60000");
    assert_eq!(daemon.post("/v2/models/toy/infer", ASK).status, 200);
    eventually(|| instances(&daemon) == Some(1.0));
    daemon.engine.lose_shares();
    assert_eq!(daemon.post("/v2/models/toy/infer", ASK).status, 200, "it does not wait for what is lost");
    let removed = || sample(&daemon, "atoll_scaling_decisions_total{model=\"toy\",decision=\"remove\"}");
    eventually(|| removed() == Some(1.0) && instances(&daemon) == Some(1.0));
}

#[test]
fn a_request_that_no_instance_can_finish_in_time_is_refused_at_once() {
    let daemon = scaled("latency_ms = 1000\ninterval_ms = 100\nidle_ms = 60000");
    let ask = |parameters| daemon.post("/v2/models/toy/infer", &with(parameters));
    assert_eq!(ask(json!({})).status, 200);
    let tiny = json!({ "timeout": 1 });
    assert_eq!(ask(tiny.clone()).status, 200, "how long it takes is not known");
    // The instance measures at most the time since it was created.
    daemon.engine.behave(Behaviour::Computed(1_000_000_000));
    assert_eq!(ask(json!({})).status, 200);
    let asked = daemon.engine.asked();
    let refused = ask(tiny);
    assert!(refused.status == 504 && refused.error().contains("the deadline passed"), "{}", refused.text());
    assert_eq!(daemon.engine.asked(), asked, "it did not reach the engine");
    assert_eq!(ask(json!({ "timeout": 3_600_000_000_u64 })).status, 200);
    let named = ask(json!({ "timeout": 1, "instance": "toy-auto-1" }));
    assert_eq!((named.status, daemon.engine.asked()), (200, asked + 2), "the engine decides: {}", named.text());
}

#[test]
fn requests_that_miss_the_target_of_their_instance_are_counted() {
    let daemon = scaled("latency_ms = 1\ninterval_ms = 100\nidle_ms = 60000");
    daemon.engine.behave(Behaviour::Hold);
    let mut connection = crate::support::Connection::open(daemon.http);
    connection.send("POST", "/v2/models/toy/infer", &[], ASK.as_bytes());
    eventually(|| daemon.engine.held() == 1);
    std::thread::sleep(std::time::Duration::from_millis(2));
    daemon.engine.answer_all();
    assert_eq!(connection.receive().status, 200);
    let late = || sample(&daemon, "atoll_instance_late_requests_total{tenant=\"local\",instance=\"toy-auto-1\"}");
    eventually(|| (ended(&daemon, "toy-auto-1"), late()) == (Some(1.0), Some(1.0)));
}

/// A daemon with the autoscaled models `m`, which keeps state, and `n`, which keeps none.
fn stateful(settings: &str) -> Daemon {
    Daemon::with(Options::default(), |repository| {
        write_state_bundle(&repository.join("m.kg"));
        write_bundle(&repository.join("n.kg"));
        for model in ["m", "n"] {
            std::fs::write(repository.join(format!("{model}.toml")), format!("[scaling]\n{settings}")).unwrap();
        }
    })
}

/// Sends a step of a sequence of `m`, and returns the instance under which it ran.
fn step(daemon: &Daemon, parameters: Value) -> Option<String> {
    let answer = daemon.post("/v2/models/m/infer", &with(parameters));
    assert_eq!(answer.status, 200, "{}", answer.text());
    daemon.engine.last_request().instance
}

#[test]
fn a_sequence_stays_with_its_instance() {
    let daemon = stateful("latency_ms = 1000\ninterval_ms = 100\nmin_instances = 2\nquota_request = 0.1");
    eventually(|| instances_of(&daemon, "m") == Some(2.0));
    daemon.engine.behave(Behaviour::Computed(1_000_000));
    let first = step(&daemon, json!({ "sequence_id": 5, "sequence_start": true })).expect("an instance");
    assert_eq!(step(&daemon, json!({ "sequence_id": 5 })).as_ref(), Some(&first));
    // The other one is not measured yet, so it gets what may go anywhere.
    assert_ne!(step(&daemon, json!({ "sequence_id": 6, "sequence_start": true })), Some(first.clone()));
    assert_eq!(step(&daemon, json!({ "sequence_id": 5, "sequence_end": true })), Some(first));
}

#[test]
fn an_instance_that_drains_waits_for_its_sequences() {
    let daemon = stateful("latency_ms = 1000\ninterval_ms = 100\ncool_down_ms = 100\nidle_ms = 100");
    let instance = Some("m-auto-1".to_owned());
    assert_eq!(step(&daemon, json!({ "sequence_id": 5, "sequence_start": true })), instance);
    eventually(|| instances_of(&daemon, "m") == Some(0.0));
    // An instance without sequences is removed meanwhile.
    assert_eq!(daemon.post("/v2/models/n/infer", ASK).status, 200);
    eventually(|| ended(&daemon, "n-auto-1").is_none());
    assert_eq!(ended(&daemon, "m-auto-1"), Some(1.0), "it is still there");
    assert_eq!(step(&daemon, json!({ "sequence_id": 5 })), instance);
    assert_eq!(ended(&daemon, "m-auto-1"), Some(2.0), "it is the same");
    assert_eq!(step(&daemon, json!({ "sequence_id": 5, "sequence_end": true })), instance);
    eventually(|| ended(&daemon, "m-auto-1").is_none());
}
