//! `ModelStreamInfer`: many requests on one stream.

use crate::support::grpc::proto::infer_parameter::ParameterChoice;
use crate::support::grpc::proto::{InferParameter, ModelInferRequest, ModelStreamInferResponse};
use crate::support::grpc::{refused, request};
use crate::support::{Behaviour, Daemon, Options, eventually, write_bundle};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Streaming};

/// The two sides of a stream.
struct Both {
    requests: mpsc::Sender<ModelInferRequest>,
    answers: Streaming<ModelStreamInferResponse>,
}

fn open(daemon: &Daemon, change: impl FnOnce(&mut Request<ReceiverStream<ModelInferRequest>>)) -> Both {
    let (requests, messages) = mpsc::channel(1000);
    let mut request = Request::new(ReceiverStream::new(messages));
    change(&mut request);
    let mut client = daemon.client();
    let answers = daemon.block_on(client.model_stream_infer(request)).unwrap().into_inner();
    Both { requests, answers }
}

fn unknown(id: &str) -> ModelInferRequest {
    ModelInferRequest { model_name: "nothing".into(), ..request(id) }
}

#[test]
fn requests_run_together_and_are_answered_in_their_order() {
    let daemon = Daemon::start();
    daemon.engine.behave(Behaviour::Hold);
    let stream = open(&daemon, |_| ());
    for number in 0..5 {
        stream.requests.try_send(request(&number.to_string())).unwrap();
    }
    eventually(|| daemon.engine.held() == 5);
    daemon.engine.answer_all();
    drop(stream.requests);
    let answers: Vec<_> = daemon.block_on(stream.answers.collect());
    let ids = answers.into_iter().map(|answer| answer.unwrap().infer_response.unwrap().id);
    assert_eq!(ids.collect::<Vec<_>>(), ["0", "1", "2", "3", "4"]);
}

#[test]
fn an_error_is_an_answer_and_the_stream_goes_on() {
    let daemon = Daemon::start();
    let mut stream = open(&daemon, |_| ());
    for message in [unknown("a"), request("b")] {
        stream.requests.try_send(message).unwrap();
    }
    let error = daemon.block_on(stream.answers.message()).unwrap().unwrap();
    assert!(error.error_message.contains("nothing"), "{error:?}");
    assert_eq!(error.infer_response.unwrap().id, "a");
    let answer = daemon.block_on(stream.answers.message()).unwrap().unwrap();
    let response = answer.infer_response.unwrap();
    assert_eq!((&*answer.error_message, &*response.id, response.raw_output_contents.len()), ("", "b", 1));
    let last = response.parameters["triton_final_response"].parameter_choice.clone();
    assert_eq!(last, Some(ParameterChoice::BoolParam(true)));
    drop(stream.requests);
    assert_eq!(daemon.block_on(stream.answers.message()).unwrap(), None);
}

#[test]
fn with_triton_grpc_error_an_error_ends_the_stream() {
    let daemon = Daemon::start();
    let mut stream = open(&daemon, |request| {
        request.metadata_mut().insert("triton_grpc_error", "true".parse().unwrap());
    });
    for message in [request("a"), unknown("b"), request("c")] {
        stream.requests.try_send(message).unwrap();
    }
    assert_eq!(daemon.block_on(stream.answers.message()).unwrap().unwrap().infer_response.unwrap().id, "a");
    refused(daemon.block_on(stream.answers.message()), Code::NotFound, &["nothing"]);
}

#[test]
fn a_stream_runs_a_limited_number_of_requests_at_a_time() {
    let daemon = Daemon::start();
    daemon.engine.behave(Behaviour::Hold);
    let stream = open(&daemon, |_| ());
    let most = atoll_server::limits::REQUESTS_PER_STREAM_MAX;
    for number in 0..2 * most {
        stream.requests.try_send(request(&number.to_string())).unwrap();
    }
    eventually(|| daemon.engine.held() == most);
    // Another connection was answered, so the stream had time to read more requests.
    assert!(daemon.get("/v2/health/live").status == 200 && daemon.engine.held() == most);
    daemon.engine.behave(Behaviour::Echo);
    daemon.engine.answer_all();
    drop(stream.requests);
    assert_eq!(daemon.block_on(stream.answers.collect::<Vec<_>>()).len(), 2 * most);
}

#[test]
fn a_client_that_goes_away_cancels_all_requests_of_its_stream() {
    let daemon = Daemon::start();
    daemon.engine.behave(Behaviour::Hold);
    let stream = open(&daemon, |_| ());
    for _ in 0..3 {
        stream.requests.try_send(request("")).unwrap();
    }
    eventually(|| daemon.engine.held() == 3);
    drop(stream);
    eventually(|| daemon.engine.cancelled() == 3);
}

#[test]
fn decoupled_models_answer_on_streams_only() {
    let daemon = Daemon::with(Options::default(), |repository| {
        std::fs::create_dir_all(repository.join("toy/1")).unwrap();
        write_bundle(&repository.join("toy/1/model.kg"));
        std::fs::write(repository.join("toy/config.pbtxt"), "model_transaction_policy { decoupled: true }").unwrap();
    });
    let policy = &daemon.get("/v2/models/toy/config").json()["model_transaction_policy"];
    assert_eq!(*policy, serde_json::json!({ "decoupled": true }));
    let unary = daemon.block_on(daemon.client().model_infer(request("a")));
    refused(unary, Code::Unimplemented, &["ModelInfer RPC doesn't support models with decoupled transaction policy"]);
    let body = r#"{"inputs":[{"name":"in","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}"#;
    let error = daemon.post("/v2/models/toy/infer", body).error();
    assert!(error.contains("HTTP end point doesn't support models with decoupled transaction policy"), "{error}");
    // A stream has one answer to a request, and a second one without outputs if the client asks for it.
    let mut stream = open(&daemon, |_| ());
    let empty_final = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
    let parameters = [("triton_enable_empty_final_response".to_owned(), empty_final)].into();
    for message in [request("a"), ModelInferRequest { parameters, ..request("b") }] {
        stream.requests.try_send(message).unwrap();
    }
    for (id, outputs, is_final) in [("a", 1, true), ("b", 1, false), ("b", 0, true)] {
        let answer = daemon.block_on(stream.answers.message()).unwrap().unwrap().infer_response.unwrap();
        let mark = answer.parameters["triton_final_response"].parameter_choice.clone();
        assert_eq!(
            (&*answer.id, answer.outputs.len(), mark),
            (id, outputs, Some(ParameterChoice::BoolParam(is_final)))
        );
    }
    drop(stream.requests);
    assert_eq!(daemon.block_on(stream.answers.message()).unwrap(), None);
}
