//! Inference requests, valid and invalid.

use crate::support::{Answer, Behaviour, Connection, Daemon, Options, eventually, write_bundle};
use atoll_engine::{Class, InvokeError};
use atoll_protocol::{InferRequest, InferResponse, Parameters, RequestedOutput, Tensor, to_f64};
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use proptest::prelude::*;
use serde_json::json;
use std::cell::RefCell;
use std::io::Write;
use std::time::Duration;

const INFER: &str = "/v2/models/toy/infer";

fn tensor() -> Tensor {
    Tensor::from_f64("in", atoll_protocol::DataType::Fp32, vec![1, 4], &[0.5, 3.0, -1.0, 2.0]).unwrap()
}

fn request() -> InferRequest {
    InferRequest { id: "r1".into(), inputs: vec![tensor()], ..InferRequest::default() }
}

/// Sends a request with binary tensors.
fn send(daemon: &Daemon, request: &InferRequest) -> Answer {
    let encoded = request.encode();
    let length = encoded.json_bytes.unwrap().to_string();
    Connection::open(daemon.http).request(
        "POST",
        INFER,
        &[("Inference-Header-Content-Length", &length)],
        &encoded.bytes,
    )
}

fn decoded(answer: &Answer) -> InferResponse {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let length = answer.header("inference-header-content-length").map(|v| v.parse().unwrap());
    InferResponse::decode(&answer.body, length).unwrap()
}

#[test]
fn a_body_without_json_is_the_only_input() {
    let daemon = Daemon::start();
    let raw = |body: &[u8]| {
        Connection::open(daemon.http).request("POST", INFER, &[("Inference-Header-Content-Length", "0")], body)
    };
    let answer = raw(&tensor().bytes.repeat(2));
    let output = decoded(&answer).outputs.remove(0);
    assert_eq!((output.binary, output.tensor.shape, output.tensor.bytes), (true, vec![2, 4], tensor().bytes.repeat(2)));
    let refused = raw(&tensor().bytes[..12]);
    assert_eq!(refused.status, 400);
    assert!(refused.error().contains("3 elements do not fill whole rows of shape [-1, 4]"), "{}", refused.text());
}

#[test]
fn both_forms_work_in_both_directions() {
    let daemon = Daemon::start();
    let json = daemon
        .post(INFER, r#"{"id":"r1","inputs":[{"name":"in","datatype":"FP32","shape":[1,4],"data":[[0.5,3,-1,2]]}]}"#);
    assert_eq!(json.header("content-type").unwrap(), "application/json");
    assert_eq!(
        json.json(),
        json!({ "id": "r1", "model_name": "toy", "model_version": "1",
                "outputs": [{ "name": "out", "datatype": "FP32", "shape": [1, 4], "data": [0.5, 3.0, -1.0, 2.0] }] })
    );
    let mut binary = request();
    binary.parameters.set("binary_data_output", true);
    let answer = send(&daemon, &binary);
    assert_eq!(answer.header("content-type").unwrap(), "application/octet-stream");
    assert_eq!(decoded(&answer).outputs[0].tensor.bytes, tensor().bytes);
    let output = |binary| RequestedOutput { name: "out".into(), binary: Some(binary), classes: None, shared: None };
    for (wanted, default) in [(true, false), (false, true)] {
        let mut request = InferRequest { outputs: vec![output(wanted)], ..request() };
        request.parameters.set("binary_data_output", default);
        assert_eq!(
            decoded(&send(&daemon, &request)).outputs[0].binary,
            wanted,
            "the output's own parameter takes precedence"
        );
    }
}

#[test]
fn classes_take_the_place_of_scores() {
    let daemon = Daemon::start();
    let outputs = vec![RequestedOutput { name: "out".into(), binary: Some(false), classes: Some(2), shared: None }];
    let answer = send(&daemon, &InferRequest { outputs, ..request() });
    let output = &answer.json()["outputs"][0];
    assert_eq!(
        output,
        &json!({ "name": "out", "datatype": "BYTES", "shape": [1, 2], "data": ["3.000000:1", "2.000000:3"] })
    );
}

#[test]
fn classes_have_the_names_of_a_labels_file() {
    let fill = |repository: &std::path::Path| {
        write_bundle(&repository.join("toy.kg"));
        std::fs::write(repository.join("toy.toml"), "[labels]\nout = \"names.txt\"").unwrap();
        std::fs::write(repository.join("names.txt"), "tea pot\ncoffee mug\n").unwrap();
    };
    let daemon = Daemon::with(Options::default(), fill);
    let outputs = vec![RequestedOutput { name: "out".into(), binary: Some(false), classes: Some(2), shared: None }];
    let answer = send(&daemon, &InferRequest { outputs, ..request() });
    // The file names the first two of four classes.
    assert_eq!(answer.json()["outputs"][0]["data"], json!(["3.000000:1:coffee mug", "2.000000:3"]));
    // A load applies new contents of the file.
    std::fs::write(daemon.repository().join("names.txt"), "a\nb\nc\nd\n").unwrap();
    assert_eq!(daemon.post("/v2/repository/models/toy/load", "{}").status, 200);
    let outputs = vec![RequestedOutput { name: "out".into(), binary: Some(false), classes: Some(1), shared: None }];
    let ask =
        || send(&daemon, &InferRequest { outputs: outputs.clone(), ..request() }).json()["outputs"][0]["data"].clone();
    assert_eq!(ask(), json!(["3.000000:1:b"]));
    std::fs::write(daemon.repository().join("toy.toml"), "[labels]\nnone = \"names.txt\"").unwrap();
    let refused = daemon.post("/v2/repository/models/toy/load", "{}");
    assert!(refused.error().contains("labels for the output `none`, which the model does not have"));
    assert_eq!(ask(), json!(["3.000000:1:b"]), "the old one stays");
    // The model can be loaded again once the settings are corrected.
    std::fs::write(daemon.repository().join("toy.toml"), "").unwrap();
    assert_eq!(daemon.post("/v2/repository/models/toy/load", "{}").status, 200);
}

#[test]
fn bodies_may_be_compressed() {
    let daemon = Daemon::start();
    let body = request().encode_json().bytes;
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&body).unwrap();
    let mut deflate = ZlibEncoder::new(Vec::new(), Compression::fast());
    deflate.write_all(&body).unwrap();
    for (encoding, body) in [("gzip", gzip.finish().unwrap()), ("deflate", deflate.finish().unwrap())] {
        let answer = Connection::open(daemon.http).request("POST", INFER, &[("Content-Encoding", encoding)], &body);
        assert_eq!(to_f64(tensor().datatype, &decoded(&answer).outputs[0].tensor.bytes), [0.5, 3.0, -1.0, 2.0]);
    }
    assert_eq!(Connection::open(daemon.http).request("POST", INFER, &[("Content-Encoding", "br")], &body).status, 415);
}

#[test]
fn priority_and_deadline_reach_the_engine() {
    let daemon = Daemon::start();
    let ask = |parameters: serde_json::Value| {
        let parameters: Parameters = serde_json::from_value(parameters).unwrap();
        assert_eq!(send(&daemon, &InferRequest { parameters, ..request() }).status, 200);
        let request = daemon.engine.last_request();
        (request.class, request.deadline)
    };
    assert_eq!(ask(json!({})), (None, None));
    assert_eq!(ask(json!({ "priority": 1, "timeout": 2000 })), (Some(Class::RealTime), Some(Duration::from_millis(2))));
    assert_eq!(
        ask(json!({ "priority": 3, "deadline_us": 7 })),
        (Some(Class::BestEffort), Some(Duration::from_micros(7)))
    );
    let text = daemon.metrics();
    assert!(
        text.contains("atoll_requests_total{class=\"real_time\",outcome=\"success\",device=\"host:0\"} 1\n"),
        "{text}"
    );
    assert!(text.contains("atoll_request_duration_seconds_count{class=\"best_effort\",device=\"host:0\"} 2\n"));
}

#[test]
fn every_failure_of_the_engine_has_a_status() {
    let daemon = Daemon::start();
    let out_of_memory = InvokeError::OutOfMemory { wanted: 3, constants: 1, free: 2, obtainable: 2, total: 10 };
    let over_quota = InvokeError::OverQuota { tenant: Default::default(), wanted: 3, constants: 1, free: 2, quota: 2 };
    for (error, status, text) in [
        (InvokeError::BadInput("input `in` has shape [1, 4]".into()), 400, "`in`"),
        (InvokeError::QueueFull { capacity: 64 }, 503, "64 invocations of this class are already waiting"),
        (out_of_memory, 503, "needs 3 bytes"),
        (over_quota, 503, "tenant `local` has a quota of 2 bytes"),
        (InvokeError::DeadlineExceeded, 504, "deadline"),
        (InvokeError::Unloaded, 404, "unloaded"),
        (InvokeError::UnknownFunction, 404, "no function"),
        (InvokeError::Device("kernel k trapped".into()), 500, "kernel k trapped"),
        (InvokeError::DeviceLost("a kernel trapped".into()), 503, "the device is lost: a kernel trapped"),
        (InvokeError::ShuttingDown, 503, "shutting down"),
        (InvokeError::Cancelled, 503, "cancelled"),
    ] {
        daemon.engine.behave(Behaviour::Fail(error));
        let answer = send(&daemon, &request());
        assert_eq!(answer.status, status, "{}", answer.text());
        assert!(answer.error().contains(text), "{}", answer.error());
        assert_eq!(answer.header("retry-after").is_some(), status == 503);
    }
    let text = daemon.metrics();
    for outcome in ["invalid", "refused", "deadline_exceeded", "cancelled", "failed"] {
        let sample = text.lines().find(|l| {
            l.starts_with(&format!(
                "atoll_requests_total{{class=\"best_effort\",outcome=\"{outcome}\",device=\"host:0\"}}"
            ))
        });
        assert!(sample.is_some_and(|line| !line.ends_with(" 0")), "{outcome}: {sample:?}");
    }
}

#[test]
fn mistakes_of_clients_are_named() {
    let daemon = Daemon::start();
    let input = |text: &str| format!(r#"{{"inputs":[{text}]}}"#);
    let good = r#"{"name":"in","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}"#;
    for (body, expected) in [
        (String::new(), "EOF"),
        ("{".into(), "EOF"),
        ("[]".into(), "JSON"),
        (input(""), "needs input `in: FP32[-1, 4]`"),
        (input(&format!("{good},{good}")), "`in` is given twice"),
        (input(&good.replace("\"in\"", "\"ni\"")), "no input `ni`; it has in: FP32[-1, 4]"),
        (input(&good.replace("FP32", "INT32")), "input `in` is i32 [1, 4]; the model takes f32 [batch, 4]"),
        (
            input(&good.replace("FP32", "BYTES").replace("1,2,3,4", r#""1","2","3","4""#)),
            "input `in` is strings [1, 4]; the model takes f32 [batch, 4]",
        ),
        (input(&good.replace("[1,4]", "[4]")), "input `in` is f32 [4]; the model takes f32 [batch, 4]"),
        (input(&good.replace("FP32", "FLOAT")), "unknown datatype FLOAT"),
        (input(&good.replace("4]", "5]")), "needs 5"),
        (format!(r#"{{"inputs":[{good}],"outputs":[{{"name":"tuo"}}]}}"#), "no output `tuo`; it has out: FP32[-1, 4]"),
        (format!(r#"{{"inputs":[{good}],"outputs":[{{"name":"out"}},{{"name":"out"}}]}}"#), "`out` is given twice"),
        (format!(r#"{{"inputs":[{good}],"parameters":{{"priority":"high"}}}}"#), "`priority`"),
        (format!(r#"{{"inputs":[{good}],"parameters":{{"timeout":-5}}}}"#), "`timeout`"),
    ] {
        let answer = daemon.post(INFER, &body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
        assert!(answer.error().contains(expected), "{body}: {}", answer.error());
    }
    assert_eq!(daemon.post("/v2/models/unknown/infer", &input(good)).status, 404);
    assert_eq!(daemon.post("/v2/models/toy/versions/9/infer", &input(good)).status, 404);
    let answer =
        Connection::open(daemon.http).request("POST", INFER, &[("Inference-Header-Content-Length", "many")], b"{}");
    assert!(answer.error().contains("Inference-Header-Content-Length"));
    assert_eq!(daemon.post(INFER, &input(good)).status, 200, "the next request is served");
}

#[test]
fn bodies_are_bounded() {
    let options = Options { body_bytes_max: Some(1000), ..Options::default() };
    let daemon = Daemon::with(options, |repository| write_bundle(&repository.join("toy.kg")));
    let answer = daemon.post(INFER, &" ".repeat(1001));
    assert_eq!(answer.status, 413);
    assert!(answer.error().contains("1000 bytes") && answer.error().contains("--body-bytes-max"));
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(&[b' '; 100_000]).unwrap();
    let bomb = gzip.finish().unwrap();
    assert_eq!(
        Connection::open(daemon.http).request("POST", INFER, &[("Content-Encoding", "gzip")], &bomb).status,
        413
    );
    assert_eq!(send(&daemon, &request()).status, 200);
}

#[test]
fn a_disconnected_client_cancels_its_invocation() {
    let daemon = Daemon::start();
    daemon.engine.behave(Behaviour::Hold);
    let mut connection = Connection::open(daemon.http);
    connection.send("POST", INFER, &[], &request().encode_json().bytes);
    eventually(|| daemon.engine.held() == 1);
    assert_eq!(daemon.engine.cancelled(), 0);
    drop(connection);
    eventually(|| daemon.engine.cancelled() == 1);
    eventually(|| {
        daemon
            .metrics()
            .contains("atoll_requests_total{class=\"best_effort\",outcome=\"cancelled\",device=\"host:0\"} 1\n")
    });
    daemon.engine.answer_all();
    daemon.engine.behave(Behaviour::Echo);
    assert_eq!(send(&daemon, &request()).status, 200);
    assert_eq!(daemon.engine.cancelled(), 1, "an answered request is not cancelled");
}

#[test]
fn a_client_that_stops_in_the_middle_does_not_affect_others() {
    let daemon = Daemon::start();
    let body = request().encode_json().bytes;
    for sent in [0, 1, body.len() - 1] {
        let mut stream = std::net::TcpStream::connect(daemon.http).unwrap();
        write!(stream, "POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len()).unwrap();
        stream.write_all(&body[..sent]).unwrap();
    }
    assert_eq!(send(&daemon, &request()).status, 200);
}

#[test]
fn arbitrary_bodies_are_answered() {
    let daemon = Daemon::start();
    let connection = RefCell::new(Connection::open(daemon.http));
    let good = request().encode_json().bytes;
    let bodies = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200),
        (0..good.len(), any::<u8>()).prop_map(move |(at, byte)| {
            let mut damaged = good.clone();
            damaged[at] = byte;
            damaged
        }),
    ];
    let mut runner = proptest::test_runner::TestRunner::default();
    let runs = runner.run(&(bodies, prop::option::of(0..300_usize)), |(body, length)| {
        let length = length.map(|n| n.to_string());
        let headers: Vec<_> = length.iter().map(|n| ("Inference-Header-Content-Length", n.as_str())).collect();
        // A panic would close the connection, and the client would fail.
        let answer = connection.borrow_mut().request("POST", INFER, &headers, &body);
        prop_assert!(answer.status == 200 || answer.status == 400, "{}: {}", answer.status, answer.text());
        Ok(())
    });
    runs.unwrap();
}
