//! Autoscaled models: the first request waits for an instance, and an idle model has no instances.

use crate::support::{Behaviour, Daemon, eventually};

const ASK: &str = r#"{"inputs":[{"name":"in","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}"#;

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
    sample(daemon, "atoll_scaling_instances{model=\"toy\"}")
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
    let part = "`toy~2` is not a valid function name";
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
