//! The access log.

use crate::support::{Daemon, Options, write_bundle};
use atoll_server::{Access, IdentityConfig};
use serde_json::Value;

#[test]
fn every_request_of_the_inference_port_has_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let (config, log) = (folder.path().join("atoll.toml"), folder.path().join("access.log"));
    std::fs::write(&config, "access_log = \"access.log\"").unwrap();
    let identity = IdentityConfig { access: Access::read(&config, 0).unwrap(), ..IdentityConfig::own() };
    let options = Options { identity: Some(identity), ..Options::default() };
    let daemon = Daemon::with(options, |repository| write_bundle(&repository.join("toy.kg")));
    let body = r#"{"id": "r1", "parameters": {"priority": 1},
        "inputs": [{"name": "in", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}"#;
    let answer = daemon.post("/v2/models/toy/infer", body);
    assert_eq!(answer.status, 200);
    assert_eq!(daemon.get("/v2/models/unknown").status, 404);
    assert_eq!(daemon.post("/v2/models/toy/infer", "{").status, 400);
    drop(daemon.stop());
    let text = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let field = |name: &str| lines.iter().map(|line| line[name].clone()).collect::<Vec<_>>();
    assert_eq!(field("status"), [200, 404, 400]);
    assert_eq!(field("tenant"), ["local"; 3]);
    assert_eq!(field("path"), ["/v2/models/toy/infer", "/v2/models/unknown", "/v2/models/toy/infer"]);
    let first = &lines[0];
    assert_eq!((&first["model"], &first["class"], &first["id"]), (&"toy".into(), &"real-time".into(), &"r1".into()));
    assert_eq!(first["request_bytes"], body.len());
    assert_eq!(first["response_bytes"], answer.body.len());
    assert!(first["ms"].as_f64().unwrap() > 0.0 && first["at_s"].as_f64().unwrap() > 1e9);
    assert_eq!(lines[2]["model"], Value::Null, "the request named no valid inference");
}
