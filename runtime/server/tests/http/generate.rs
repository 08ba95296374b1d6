//! The generate extension.

use crate::support::{Behaviour, Daemon};
use atoll_engine::{Class, InvokeError};
use serde_json::json;

#[test]
fn inputs_and_outputs_are_fields() {
    let daemon = Daemon::start();
    let body = json!({ "in": [1, 2, 3, 4], "id": "seven", "priority": 1, "parameters": { "timeout": 5_000_000 } });
    let expected = json!({ "model_name": "toy", "model_version": "1", "id": "seven", "out": [1.0, 2.0, 3.0, 4.0] });
    for prefix in ["/v2/models/toy", "/v2/models/toy/versions/1"] {
        let answer = daemon.post(&format!("{prefix}/generate"), &body.to_string());
        assert_eq!(answer.header("content-type").as_deref(), Some("application/json"));
        assert_eq!(answer.json(), expected);
        let request = daemon.engine.last_request();
        assert_eq!((request.inputs[0].shape.as_slice(), request.class), (&[1, 4][..], Some(Class::RealTime)));
        assert!(request.deadline.is_some());

        let stream = daemon.post(&format!("{prefix}/generate_stream"), &body.to_string());
        assert_eq!(stream.header("content-type").as_deref(), Some("text/event-stream; charset=utf-8"));
        let text = stream.text();
        let event = text.strip_prefix("data: ").and_then(|rest| rest.strip_suffix("\n\n")).expect("one event");
        assert_eq!(serde_json::from_str::<serde_json::Value>(event).unwrap(), expected);
    }
    let two = daemon.post("/v2/models/toy/generate", r#"{"in": [[1, 2, 3, 4], [5, 6, 7, 8]]}"#).json();
    assert_eq!(two["out"], json!([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]));
}

#[test]
fn mistakes_have_the_status_and_body_of_the_protocol() {
    let daemon = Daemon::start();
    for (model, body, status, expected) in [
        ("toy", "{", 400, "not valid JSON"),
        ("toy", "{}", 400, "in"),
        ("toy", r#"{"on": [1]}"#, 400, "no such input; it has `in`"),
        ("toy", r#"{"in": [1, 2]}"#, 400, "input `in` is "),
        ("toy", r#"{"in": [1, 2, 3, 4], "priority": "x"}"#, 400, "priority"),
        ("toy/versions/2", r#"{"in": [1, 2, 3, 4]}"#, 404, "version"),
        ("unknown", r#"{"in": [1, 2, 3, 4]}"#, 404, "unknown"),
    ] {
        for route in ["generate", "generate_stream"] {
            let answer = daemon.post(&format!("/v2/models/{model}/{route}"), body);
            let error = answer.error();
            assert!(answer.status == status && error.contains(expected), "{model} {body}: {} {error}", answer.status);
        }
    }
    assert_eq!(daemon.get("/v2/models/toy/generate").status, 405);
    daemon.engine.behave(Behaviour::Fail(InvokeError::DeadlineExceeded));
    assert_eq!(daemon.post("/v2/models/toy/generate_stream", r#"{"in": [1, 2, 3, 4]}"#).status, 504);
}
