//! Hedged requests: a slow request is also sent to a second device, and the first answer is used.

use crate::support::{Answer, Behaviour, Daemon, Options, write_bundle};
use atoll_engine::InvokeError;
use serde_json::json;

fn daemon(settings: &str) -> Daemon {
    Daemon::with(Options::default(), |repository| {
        write_bundle(&repository.join("toy.kg"));
        std::fs::write(repository.join("toy.toml"), settings).unwrap();
    })
}

fn ask(daemon: &Daemon) -> Answer {
    let request = json!({
        "inputs": [{ "name": "in", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0] }],
    });
    daemon.post("/v2/models/toy/infer", &request.to_string())
}

fn has(daemon: &Daemon, outcome: &str, count: u64) {
    let line = format!("atoll_hedged_requests_total{{model=\"toy\",outcome=\"{outcome}\"}} {count}\n");
    let metrics = daemon.metrics();
    assert!(metrics.contains(&line), "{line}{metrics}");
}

/// Sends enough requests to measure their latency and to collect a budget of hedges.
fn measure(daemon: &Daemon) {
    (0..40).for_each(|_| assert_eq!(ask(daemon).status, 200));
}

#[test]
fn the_second_device_answers_for_one_that_holds_the_request() {
    let daemon = daemon("[hedging]\nextra_percent = 5");
    measure(&daemon);
    daemon.engine.behave(Behaviour::Hold);
    let cancelled = daemon.engine.cancelled();
    let answer = ask(&daemon);
    assert_eq!(answer.status, 200, "{}", answer.text());
    has(&daemon, "won", 1);
    assert_eq!(daemon.engine.cancelled(), cancelled + 1, "the first device need not go on");
    // 40 requests at 5 % allow two hedges; each further request adds a twentieth. Slow requests
    // among the first ones may have used some.
    daemon.engine.behave(Behaviour::Echo);
    assert_eq!(ask(&daemon).status, 200);
}

#[test]
fn an_error_of_the_first_device_is_an_answer() {
    let daemon = daemon("[hedging]\npercentile = 99");
    measure(&daemon);
    daemon.engine.behave(Behaviour::Fail(InvokeError::Device("broken".into())));
    assert_eq!(ask(&daemon).status, 500);
}

#[test]
fn without_the_setting_nothing_is_sent_twice() {
    let daemon = daemon("");
    measure(&daemon);
    assert!(!daemon.metrics().contains("atoll_hedged_requests_total{"), "there is no sample");
    assert_eq!(daemon.engine.asked(), 40);
}
