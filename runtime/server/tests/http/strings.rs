//! Models with strings: BYTES tensors over every interface.

use crate::support::grpc::proto::model_infer_request::InferInputTensor;
use crate::support::grpc::proto::{InferTensorContents, ModelInferRequest};
use crate::support::{Daemon, Options, write_strings_bundle};
use atoll_protocol::Tensor;
use serde_json::json;

const TEXTS: [&str; 4] = ["red", "", "gr\u{fc}n", "[b]"];

/// Serves `toy`, which answers with the strings that it gets.
fn daemon() -> Daemon {
    Daemon::with(Options::default(), |repository| write_strings_bundle(&repository.join("toy.kg")))
}

fn raw() -> Vec<u8> {
    Tensor::string_bytes(TEXTS.iter().map(|text| text.as_bytes()))
}

#[test]
fn strings_go_in_and_out_over_http() {
    let daemon = daemon();
    let input = &daemon.get("/v2/models/toy").json()["inputs"][0];
    assert_eq!((&input["datatype"], &input["shape"]), (&json!("BYTES"), &json!([-1, 4])));
    assert_eq!(daemon.get("/v2/models/toy/config").json()["input"][0]["data_type"], "TYPE_STRING");
    let ask = |datatype: &str, data: serde_json::Value| {
        let input = json!({ "name": "in", "datatype": datatype, "shape": [1, 4], "data": data });
        daemon.post("/v2/models/toy/infer", &json!({ "inputs": [input] }).to_string())
    };
    let output = &ask("BYTES", json!(TEXTS)).json()["outputs"][0];
    assert_eq!(output, &json!({ "name": "out", "datatype": "BYTES", "shape": [1, 4], "data": TEXTS }));
    assert_eq!(daemon.engine.last_request().inputs[0].bytes, raw());
    assert_eq!(daemon.engine.last_request().inputs[0].dtype, None);
    let refused = ask("FP32", json!([1, 2, 3, 4]));
    assert!(refused.error().contains("is f32 [1, 4]; the model takes strings [batch, 4]"), "{}", refused.error());
}

#[test]
fn strings_go_in_and_out_over_v1() {
    let daemon = daemon();
    let ask = |body: serde_json::Value| daemon.post("/v1/models/toy:predict", &body.to_string()).json();
    let rows = json!([TEXTS, ["1", "2", "3", "4"]]);
    assert_eq!(ask(json!({ "instances": rows })), json!({ "predictions": rows }));
    assert_eq!(ask(json!({ "inputs": rows })), json!({ "outputs": rows }));
}

#[test]
fn strings_go_in_and_out_over_grpc() {
    let daemon = daemon();
    let bytes_contents = TEXTS.iter().map(|text| text.as_bytes().to_vec()).collect();
    let input = InferInputTensor {
        name: "in".into(),
        datatype: "BYTES".into(),
        shape: vec![1, 4],
        contents: Some(InferTensorContents { bytes_contents, ..InferTensorContents::default() }),
        ..InferInputTensor::default()
    };
    let typed = ModelInferRequest { model_name: "toy".into(), inputs: vec![input], ..ModelInferRequest::default() };
    let mut raw_message = typed.clone();
    raw_message.inputs[0].contents = None;
    raw_message.raw_input_contents = vec![raw()];
    for message in [typed, raw_message] {
        let mut client = daemon.client();
        let answer = daemon.block_on(client.model_infer(message)).unwrap().into_inner();
        assert_eq!((&*answer.outputs[0].datatype, &*answer.outputs[0].shape), ("BYTES", &[1, 4][..]));
        assert_eq!(answer.raw_output_contents, [raw()]);
    }
}
