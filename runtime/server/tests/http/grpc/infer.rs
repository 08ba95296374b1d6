//! Inference requests over gRPC.

use crate::support::grpc::proto::infer_parameter::ParameterChoice;
use crate::support::grpc::proto::model_infer_request::InferRequestedOutputTensor;
use crate::support::grpc::proto::{InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse};
use crate::support::grpc::{VALUES, refused, request, typed};
use crate::support::{Behaviour, Daemon, eventually};
use atoll_engine::{Class, InvokeError};
use std::time::Duration;
use tonic::{Code, Request, Status};

fn ask(daemon: &Daemon, message: ModelInferRequest) -> Result<ModelInferResponse, Status> {
    let mut client = daemon.client();
    daemon.block_on(client.model_infer(message)).map(tonic::Response::into_inner)
}

fn parameter(choice: ParameterChoice) -> InferParameter {
    InferParameter { parameter_choice: Some(choice) }
}

fn with(name: &str, choice: ParameterChoice) -> ModelInferRequest {
    ModelInferRequest { parameters: [(name.to_owned(), parameter(choice))].into(), ..request("") }
}

fn raw() -> Vec<u8> {
    VALUES.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn raw_and_typed_elements_are_the_same_request() {
    let daemon = Daemon::start();
    let in_message = ModelInferRequest { inputs: vec![typed(&VALUES)], raw_input_contents: vec![], ..request("r1") };
    for message in [request("r1"), in_message] {
        let answer = ask(&daemon, message).unwrap();
        assert_eq!((&*answer.model_name, &*answer.model_version, &*answer.id), ("toy", "1", "r1"));
        let output = &answer.outputs[0];
        assert_eq!((&*output.name, &*output.datatype, &*output.shape), ("out", "FP32", &[1, 4][..]));
        assert_eq!(answer.raw_output_contents, [raw()]);
        assert_eq!(daemon.engine.last_request().inputs[0].bytes, raw());
    }
}

#[test]
fn classes_take_the_place_of_scores() {
    let daemon = Daemon::start();
    let output = InferRequestedOutputTensor {
        name: "out".into(),
        parameters: [("classification".to_owned(), parameter(ParameterChoice::Int64Param(2)))].into(),
    };
    let answer = ask(&daemon, ModelInferRequest { outputs: vec![output], ..request("") }).unwrap();
    assert_eq!((&*answer.outputs[0].datatype, &*answer.outputs[0].shape), ("BYTES", &[1, 2][..]));
    assert_eq!(answer.raw_output_contents[0].as_ref(), b"\x0a\0\0\x003.000000:1\x0a\0\0\x002.000000:3");
}

#[test]
fn a_priority_is_a_class_in_every_form_of_a_number() {
    let daemon = Daemon::start();
    for (choice, class) in [
        (ParameterChoice::Int64Param(1), Some(Class::RealTime)),
        (ParameterChoice::Uint64Param(1), Some(Class::RealTime)),
        (ParameterChoice::DoubleParam(1.0), Some(Class::RealTime)),
        (ParameterChoice::Uint64Param(2), Some(Class::BestEffort)),
        (ParameterChoice::Int64Param(0), None),
    ] {
        ask(&daemon, with("priority", choice.clone())).unwrap();
        assert_eq!(daemon.engine.last_request().class, class, "{choice:?}");
    }
    refused(ask(&daemon, with("priority", ParameterChoice::Int64Param(-1))), Code::InvalidArgument, &["`priority`"]);
    refused(
        ask(&daemon, with("priority", ParameterChoice::StringParam("1".into()))),
        Code::InvalidArgument,
        &["`priority`", "\"1\""],
    );
}

#[test]
fn the_timeout_of_the_call_is_a_deadline_and_the_earliest_holds() {
    let daemon = Daemon::start();
    let deadline = |timeout: Option<Duration>, message| {
        let mut request = Request::new(message);
        if let Some(timeout) = timeout {
            request.set_timeout(timeout);
        }
        let mut client = daemon.client();
        daemon.block_on(client.model_infer(request)).unwrap();
        daemon.engine.last_request().deadline
    };
    assert_eq!(deadline(None, request("")), None);
    let timeout = deadline(Some(Duration::from_secs(60)), request("")).unwrap();
    assert!(timeout > Duration::from_secs(30) && timeout <= Duration::from_secs(60), "{timeout:?}");
    let parameter = with("timeout", ParameterChoice::Int64Param(9_000_000));
    assert_eq!(deadline(Some(Duration::from_secs(60)), parameter.clone()), Some(Duration::from_secs(9)));
    assert_eq!(deadline(None, parameter), Some(Duration::from_secs(9)));
    let mut broken = Request::new(request(""));
    broken.metadata_mut().insert("grpc-timeout", "soon".parse().unwrap());
    let mut client = daemon.client();
    refused(daemon.block_on(client.model_infer(broken)), Code::InvalidArgument, &["grpc-timeout", "soon"]);
}

#[test]
fn mistakes_have_the_code_and_the_text_of_their_kind() {
    let daemon = Daemon::start();
    let unknown = ModelInferRequest { model_name: "nothing".into(), ..request("") };
    refused(ask(&daemon, unknown), Code::NotFound, &["nothing"]);
    let version = ModelInferRequest { model_version: "7".into(), ..request("") };
    refused(ask(&daemon, version), Code::NotFound, &["7"]);
    let mut type_ = request("");
    type_.inputs[0].datatype = "FLOAT".into();
    refused(ask(&daemon, type_), Code::InvalidArgument, &["unknown datatype FLOAT"]);
    let mut name = request("");
    name.inputs[0].name = "other".into();
    refused(ask(&daemon, name), Code::InvalidArgument, &["no input `other`", "in: FP32"]);
    let short = ModelInferRequest { raw_input_contents: vec![vec![0; 3]], ..request("") };
    refused(ask(&daemon, short), Code::InvalidArgument, &["has 3 bytes"]);
    let mut twice = request("");
    twice.inputs.push(typed(&VALUES));
    refused(ask(&daemon, twice), Code::InvalidArgument, &["raw_input_contents", "1 for 2 inputs"]);
    let empty = ModelInferRequest { model_name: "toy".into(), ..ModelInferRequest::default() };
    refused(ask(&daemon, empty), Code::InvalidArgument, &["needs input `in"]);
    let mut nothing = request("");
    nothing.raw_input_contents.clear();
    refused(ask(&daemon, nothing), Code::InvalidArgument, &["neither contents nor"]);
    let mut half = request("");
    half.raw_input_contents.clear();
    let contents = InferTensorContents { int_contents: vec![1; 4], ..InferTensorContents::default() };
    half.inputs[0].contents = Some(contents);
    refused(ask(&daemon, half), Code::InvalidArgument, &["has 0 bytes"]);
    let region = ModelInferRequest { raw_input_contents: vec![], ..request("") };
    let mut shared = region;
    let name = parameter(ParameterChoice::StringParam("region".into()));
    shared.inputs[0].parameters.insert("shared_memory_region".into(), name);
    refused(ask(&daemon, shared), Code::InvalidArgument, &["no shared_memory_byte_size"]);
    assert_eq!((daemon.answers("NOT_FOUND"), daemon.answers("INVALID_ARGUMENT")), (2, 8));
}

#[test]
fn failures_of_the_engine_have_codes_that_say_who_has_to_act() {
    let daemon = Daemon::start();
    for (error, code) in [
        (InvokeError::BadInput("no".into()), Code::InvalidArgument),
        (InvokeError::QueueFull { capacity: 3 }, Code::Unavailable),
        (InvokeError::TooManySessions { limit: 3 }, Code::ResourceExhausted),
        (InvokeError::DeadlineExceeded, Code::DeadlineExceeded),
        (InvokeError::Unloaded, Code::NotFound),
        (InvokeError::Unavailable("later".into()), Code::Unavailable),
        (InvokeError::ShuttingDown, Code::Unavailable),
        (InvokeError::Device("broken".into()), Code::Internal),
        (InvokeError::DeviceLost("broken".into()), Code::Unavailable),
    ] {
        daemon.engine.behave(Behaviour::Fail(error.clone()));
        refused(ask(&daemon, request("")), code, &[&error.to_string()]);
    }
    daemon.engine.behave(Behaviour::Echo);
    assert!(ask(&daemon, request("")).is_ok());
}

#[test]
fn a_cancelled_call_cancels_its_invocation_and_no_other() {
    let daemon = Daemon::start();
    daemon.engine.behave(Behaviour::Hold);
    let (mut client, mut other) = (daemon.client(), daemon.client());
    let kept = daemon.spawn(async move { other.model_infer(request("kept")).await });
    eventually(|| daemon.engine.held() == 1);
    let call = daemon.spawn(async move { client.model_infer(request("")).await });
    eventually(|| daemon.engine.held() == 2);
    call.abort();
    eventually(|| daemon.engine.cancelled() == 1);
    daemon.engine.answer_all();
    assert_eq!(daemon.block_on(kept).unwrap().unwrap().into_inner().id, "kept");
    eventually(|| daemon.answers("CANCELLED") == 1);
    assert_eq!(daemon.answers("OK"), 1);
}
