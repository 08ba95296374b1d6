//! KServe v1.

use crate::support::{Behaviour, Connection, Daemon, Options, write_bundle};
use atoll_engine::{Class, InvokeError};
use serde_json::json;

#[test]
fn models_are_listed_and_say_whether_they_are_ready() {
    let daemon = Daemon::with(Options { lax_readiness: true, ..Options::default() }, |repository| {
        write_bundle(&repository.join("toy.kg"));
        std::fs::write(repository.join("broken.kg"), "no bundle").unwrap();
    });
    assert_eq!(daemon.get("/").json(), json!({ "status": "alive" }));
    assert_eq!(daemon.get("/v1/models").json(), json!({ "models": ["broken", "toy"] }));
    assert_eq!(daemon.get("/v1/models/toy").json(), json!({ "name": "toy", "ready": true }));
    let broken = daemon.get("/v1/models/broken");
    assert_eq!((broken.status, broken.error()), (503, "model `broken` is not ready".into()));
    assert_eq!(daemon.get("/v1/models/unknown").status, 404);
}

#[test]
fn rows_are_answered_by_rows_and_columns_by_columns() {
    let daemon = Daemon::start();
    let rows = json!([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]);
    let named = json!([{ "in": [1, 2, 3, 4] }, { "in": [5, 6, 7, 8] }]);
    let ask = |body: serde_json::Value| {
        let answer = daemon.post("/v1/models/toy:predict", &body.to_string());
        assert_eq!(answer.header("content-type").as_deref(), Some("application/json"));
        answer.json()
    };
    for instances in [&rows, &named] {
        assert_eq!(ask(json!({ "instances": instances })), json!({ "predictions": rows }));
    }
    for inputs in [rows.clone(), json!({ "in": rows })] {
        assert_eq!(ask(json!({ "inputs": inputs })), json!({ "outputs": rows }));
    }
    let request = daemon.engine.last_request();
    assert_eq!((request.inputs[0].shape.as_slice(), request.class), (&[2, 4][..], None));
    ask(json!({ "instances": rows, "parameters": { "priority": 1, "timeout": 5_000_000 } }));
    let request = daemon.engine.last_request();
    assert_eq!((request.class, request.deadline.is_some()), (Some(Class::RealTime), true));
}

#[test]
fn mistakes_have_the_status_and_body_of_the_protocol() {
    let daemon = Daemon::start();
    let ask = |path: &str, body: &str| {
        let answer = daemon.post(path, body);
        (answer.status, answer.error())
    };
    for (path, body, status, expected) in [
        ("/v1/models/toy:predict", "{", 400, "not valid JSON"),
        ("/v1/models/toy:predict", "{}", 400, "needs `instances` (rows) or `inputs` (columns)"),
        ("/v1/models/toy:predict", r#"{"instances": [[1, 2], [1]]}"#, 400, "element 1 of an array has shape [1]"),
        ("/v1/models/toy:predict", r#"{"inputs": {"on": [1]}}"#, 400, "no such input; it has `in`"),
        ("/v1/models/toy:predict", r#"{"instances": [[1, 2]]}"#, 400, "input `in` is "),
        ("/v1/models/toy:predict", r#"{"instances": [1], "parameters": {"priority": "x"}}"#, 400, "priority"),
        ("/v1/models/unknown:predict", r#"{"instances": [1]}"#, 404, "unknown"),
        ("/v1/models/toy:explain", r#"{"instances": [1]}"#, 404, "/v1/models/NAME:predict"),
        ("/v1/models/toy", r#"{"instances": [1]}"#, 404, "/v1/models/NAME:predict"),
    ] {
        let (found, error) = ask(path, body);
        assert!(found == status && error.contains(expected), "{path} {body}: {found} {error}");
    }
    let deleted = Connection::open(daemon.http).request("DELETE", "/v1/models/toy", &[], b"");
    assert_eq!(deleted.status, 405);
    daemon.engine.behave(Behaviour::Fail(InvokeError::QueueFull { capacity: 1 }));
    assert_eq!(ask("/v1/models/toy:predict", r#"{"instances": [[1, 2, 3, 4]]}"#).0, 503);
    daemon.engine.behave(Behaviour::Fail(InvokeError::DeadlineExceeded));
    assert_eq!(ask("/v1/models/toy:predict", r#"{"instances": [[1, 2, 3, 4]]}"#).0, 504);
}
