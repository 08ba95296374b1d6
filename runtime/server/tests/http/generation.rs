//! Models that generate tokens: several answers to a request.

use crate::support::grpc::proto::infer_parameter::ParameterChoice;
use crate::support::grpc::proto::model_infer_request::InferInputTensor;
use crate::support::grpc::proto::{InferParameter, ModelInferRequest, ModelInferResponse};
use crate::support::grpc::refused;
use crate::support::{Answer, Behaviour, Connection, Daemon, Options, eventually, write_bundle, write_decoder_bundle};
use atoll_engine::{Class, InvokeError};
use serde_json::{Value, json};
use tokio_stream::StreamExt;
use tonic::Code;

const SETTINGS: &str = "[generation]\nmax_tokens = 5\nend_token = 0";

/// A daemon with a decoder, in whose answers each token is the successor of the one before.
fn daemon(settings: &str) -> Daemon {
    Daemon::with(Options { lax_readiness: true, ..Options::default() }, |repository| {
        write_decoder_bundle(&repository.join("decoder.kg"));
        std::fs::write(repository.join("decoder.toml"), settings).unwrap();
    })
}

fn ask(daemon: &Daemon, route: &str, body: &Value) -> Answer {
    daemon.post(&format!("/v2/models/decoder/{route}"), &body.to_string())
}

/// The events of a stream, whose answer is sent in chunks.
fn events(daemon: &Daemon, body: &Value) -> Vec<Value> {
    let mut connection = Connection::open(daemon.http);
    connection.send("POST", "/v2/models/decoder/generate_stream", &[], body.to_string().as_bytes());
    let answer = connection.receive_until(|text| text.ends_with("\r\n0\r\n\r\n"));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let lines = answer.lines().filter_map(|line| line.strip_prefix("data: "));
    lines.map(|json| serde_json::from_str(json).unwrap()).collect()
}

fn tokens(events: &[Value]) -> Vec<i64> {
    events.iter().map(|event| event["output_ids"].as_i64().unwrap()).collect()
}

#[test]
fn an_answer_has_all_tokens_and_a_stream_has_an_event_for_each() {
    let daemon = daemon(SETTINGS);
    let body = json!({ "input_ids": [1, 2], "id": "seven", "max_tokens": 3, "priority": 1 });
    let expected = json!({ "model_name": "decoder", "model_version": "1", "id": "seven", "output_ids": [3, 4, 5] });
    assert_eq!(ask(&daemon, "generate", &body).json(), expected);
    // The first step has the prompt, the others a token. The mask is as long as the session.
    let request = daemon.engine.last_request();
    let shapes: Vec<_> = request.inputs.iter().map(|input| input.shape.clone()).collect();
    assert_eq!((shapes, request.class), (vec![vec![1, 4], vec![1, 1]], Some(Class::RealTime)));
    assert_eq!(daemon.engine.asked(), 3);

    let found = events(&daemon, &body);
    let event = json!({ "model_name": "decoder", "model_version": "1", "id": "seven", "output_ids": 3 });
    assert_eq!((&found[0], tokens(&found)), (&event, vec![3, 4, 5]));
    // The token that ends answers is the last one, and a request may name another one.
    assert_eq!(tokens(&events(&daemon, &json!({ "input_ids": [5], "max_tokens": 5 }))), [6, 7, 0]);
    assert_eq!(tokens(&events(&daemon, &json!({ "input_ids": [1], "end_token": 3 }))), [2, 3]);
    assert_eq!(tokens(&events(&daemon, &json!({ "input_ids": 1 }))), [2, 3, 4, 5, 6], "the most of the model");
    // One answer needs no chunks.
    let one = ask(&daemon, "generate_stream", &json!({ "input_ids": [1], "max_tokens": 1 }));
    assert!(one.header("content-length").is_some() && one.text().contains(r#""output_ids":2"#), "{}", one.text());
    assert_eq!(daemon.engine.sessions(), 0, "the session of a request ends with it");
}

#[test]
fn clients_see_the_prompt_and_the_tokens_and_statistics_count_requests() {
    let daemon = daemon(SETTINGS);
    let metadata = daemon.get("/v2/models/decoder").json();
    let names = |of: &str| metadata[of].as_array().unwrap().iter().map(|it| it["name"].clone()).collect::<Vec<_>>();
    assert_eq!((names("inputs"), names("outputs")), (vec![json!("input_ids")], vec![json!("output_ids")]));
    let config = daemon.get("/v2/models/decoder/config").json();
    assert_eq!(config["model_transaction_policy"], json!({ "decoupled": true }));
    assert!(config["sequence_batching"].is_null(), "{config}");
    assert_eq!(ask(&daemon, "generate", &json!({ "input_ids": [1], "max_tokens": 3 })).status, 200);
    let statistics = daemon.get("/v2/models/decoder/stats").json()["model_stats"][0].clone();
    assert_eq!((&statistics["inference_count"], &statistics["execution_count"]), (&json!(1), &json!(3)));
    assert_eq!(statistics["inference_stats"]["success"]["count"], json!(1));
}

#[test]
fn requests_that_cannot_be_answered_are_refused() {
    let daemon = daemon(SETTINGS);
    for (body, expected) in [
        (json!({}), "needs input `input_ids"),
        (json!({ "input_ids": [1], "max_tokens": 6 }), "6 is not in the range of this model, 1 to 5"),
        (json!({ "input_ids": [[1], [2]] }), "a prompt is one row of at least one token"),
        (json!({ "input_ids": [1], "attention_mask": [1] }), "the model has no such input; it has `input_ids`"),
        (json!({ "input_ids": [1], "sequence_id": 3 }), "generates tokens, so a request has no sequence_id"),
        (json!({ "input_ids": [1], "max_tokens": 0 }), "0 is not in the range"),
    ] {
        for route in ["generate", "generate_stream"] {
            let answer = ask(&daemon, route, &body);
            assert!(answer.status == 400 && answer.error().contains(expected), "{body}: {}", answer.text());
        }
    }
    let input = json!({ "name": "input_ids", "datatype": "INT64", "shape": [1, 1], "data": [1] });
    let error = ask(&daemon, "infer", &json!({ "inputs": [input] })).error();
    assert!(error.contains("use generate_stream"), "{error}");
    assert_eq!((daemon.engine.asked(), daemon.engine.sessions()), (0, 0));
}

#[test]
fn a_failure_before_the_first_token_has_a_status_and_a_later_one_is_an_event() {
    let daemon = daemon(SETTINGS);
    let body = json!({ "input_ids": [1] });
    daemon.engine.behave(Behaviour::Fail(InvokeError::DeadlineExceeded));
    assert_eq!(ask(&daemon, "generate_stream", &body).status, 504);
    assert_eq!(daemon.engine.sessions(), 0);

    daemon.engine.behave(Behaviour::Hold);
    let mut connection = Connection::open(daemon.http);
    connection.send("POST", "/v2/models/decoder/generate_stream", &[], body.to_string().as_bytes());
    eventually(|| daemon.engine.held() == 1);
    daemon.engine.answer_all();
    connection.receive_until(|text| text.contains("\"output_ids\":2"));
    eventually(|| daemon.engine.held() == 1);
    daemon.engine.fail_all(&InvokeError::BadInput("the session is full".into()));
    let rest = connection.receive_until(|text| text.ends_with("\r\n0\r\n\r\n"));
    assert!(rest.contains("data: {\"error\":\"the session is full\"}\n\n"), "{rest}");
    eventually(|| daemon.engine.sessions() == 0);
}

#[test]
fn a_deadline_is_that_of_all_tokens_together() {
    let daemon = daemon(SETTINGS);
    let answer = ask(&daemon, "generate", &json!({ "input_ids": [1], "max_tokens": 2, "timeout": 60_000_000 }));
    assert_eq!(answer.status, 200);
    let deadline = daemon.engine.last_request().deadline.unwrap();
    assert!(deadline < std::time::Duration::from_secs(60), "{deadline:?}: what is left of it");
    assert_eq!(ask(&daemon, "generate", &json!({ "input_ids": [1], "timeout": 1 })).status, 504);
}

#[test]
fn a_client_that_disconnects_ends_the_generation() {
    let daemon = daemon(SETTINGS);
    daemon.engine.behave(Behaviour::Hold);
    let mut connection = Connection::open(daemon.http);
    let body = json!({ "input_ids": [1] }).to_string();
    connection.send("POST", "/v2/models/decoder/generate_stream", &[], body.as_bytes());
    eventually(|| daemon.engine.held() == 1);
    daemon.engine.answer_all();
    connection.receive_until(|text| text.contains("\"output_ids\":2"));
    eventually(|| daemon.engine.held() == 1);
    drop(connection);
    eventually(|| daemon.engine.cancelled() == 1 && daemon.engine.sessions() == 0);
}

/// A request over gRPC, with parameters.
fn message(id: &str, prompt: &[i64], parameters: &[(&str, ParameterChoice)]) -> ModelInferRequest {
    let input = InferInputTensor {
        name: "input_ids".into(),
        datatype: "INT64".into(),
        shape: vec![1, prompt.len() as i64],
        ..InferInputTensor::default()
    };
    let choice = |choice: &ParameterChoice| InferParameter { parameter_choice: Some(choice.clone()) };
    ModelInferRequest {
        model_name: "decoder".into(),
        id: id.into(),
        parameters: parameters.iter().map(|(name, value)| ((*name).to_owned(), choice(value))).collect(),
        inputs: vec![input],
        raw_input_contents: vec![prompt.iter().flat_map(|token| token.to_le_bytes()).collect()],
        ..ModelInferRequest::default()
    }
}

/// The token of an answer, if it has one, and whether it is the last answer to its request.
fn outcome(answer: &ModelInferResponse) -> (Option<i64>, bool) {
    let is_last = answer.parameters["triton_final_response"].parameter_choice == Some(ParameterChoice::BoolParam(true));
    let token = answer.raw_output_contents.first();
    (token.map(|bytes| i64::from_le_bytes(bytes[..].try_into().unwrap())), is_last)
}

#[test]
fn a_grpc_stream_has_an_answer_for_each_token() {
    let daemon = daemon(SETTINGS);
    let three = ("max_tokens", ParameterChoice::Int64Param(3));
    let empty_final = ("triton_enable_empty_final_response", ParameterChoice::BoolParam(true));
    let requests = [message("a", &[1], std::slice::from_ref(&three)), message("b", &[3, 4], &[three, empty_final])];
    let mut client = daemon.client();
    let stream = daemon.block_on(client.model_stream_infer(tokio_stream::iter(requests))).unwrap().into_inner();
    let answers: Vec<_> = daemon.block_on(stream.collect());
    let answers: Vec<_> = answers.into_iter().map(|answer| answer.unwrap().infer_response.unwrap()).collect();
    let of = |id: &str| answers.iter().filter(|answer| answer.id == id).map(outcome).collect::<Vec<_>>();
    assert_eq!(of("a"), [(Some(2), false), (Some(3), false), (Some(4), true)]);
    assert_eq!(of("b"), [(Some(5), false), (Some(6), false), (Some(7), false), (None, true)]);
    let unary = daemon.block_on(daemon.client().model_infer(message("c", &[1], &[])));
    refused(unary, Code::Unimplemented, &["decoupled transaction policy"]);
    assert_eq!(daemon.engine.sessions(), 0);
}

#[test]
fn the_parameters_of_a_triton_configuration_make_a_model_generate() {
    let with = |parameters: &str| {
        Daemon::with(Options { lax_readiness: true, ..Options::default() }, |repository| {
            std::fs::create_dir_all(repository.join("decoder/1")).unwrap();
            write_decoder_bundle(&repository.join("decoder/1/model.kg"));
            std::fs::write(repository.join("decoder/config.pbtxt"), parameters).unwrap();
        })
    };
    let parameter =
        |key: &str, value: &str| format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }} ");
    let generate = parameter("generate", "true");
    let daemon = with(&(generate.clone() + &parameter("max_tokens", "4") + &parameter("end_token", "7")));
    assert_eq!(tokens(&events(&daemon, &json!({ "input_ids": [4] }))), [5, 6, 7]);
    assert_eq!(tokens(&events(&daemon, &json!({ "input_ids": [0] }))), [1, 2, 3, 4]);
    for (name, value) in [("max_tokens", "0"), ("max_tokens", "many"), ("end_token", "-1")] {
        let daemon = with(&(generate.clone() + &parameter(name, value)));
        let reason = daemon.post("/v2/repository/index", "").json()[0]["reason"].to_string();
        assert!(reason.contains(&format!("parameters.{name}")), "{reason}");
    }
}

#[test]
fn a_model_that_cannot_generate_is_refused_at_the_load() {
    let daemon = Daemon::with(Options { lax_readiness: true, ..Options::default() }, |repository| {
        write_bundle(&repository.join("toy.kg"));
        std::fs::write(repository.join("toy.toml"), SETTINGS).unwrap();
    });
    let reason = daemon.post("/v2/repository/index", "").json()[0]["reason"].to_string();
    assert!(reason.contains("generation needs a model that keeps its past keys and values as state"), "{reason}");
}
