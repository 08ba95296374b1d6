//! Health, reflection, and requests that are not RPCs of the port.

use crate::support::grpc::health::health_check_response::ServingStatus;
use crate::support::grpc::health::health_client::HealthClient;
use crate::support::grpc::health::{HealthCheckRequest, HealthCheckResponse};
use crate::support::grpc::{refused, request};
use crate::support::{Connection, Daemon};
use std::collections::BTreeSet;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request, Response};
use tonic_reflection::pb::{v1, v1alpha};

fn of(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.into() }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[test]
fn health_is_the_readiness_of_the_server() {
    let daemon = Daemon::start();
    let mut client = HealthClient::new(daemon.channel());
    let mut check = |service: &str| daemon.block_on(client.check(of(service))).map(Response::into_inner);
    assert_eq!(check("").unwrap(), answer(ServingStatus::Serving));
    assert_eq!(check("inference.GRPCInferenceService").unwrap(), answer(ServingStatus::Serving));
    refused(check("nothing"), Code::NotFound, &["`nothing`"]);
    let watch = |service: &str| daemon.block_on(HealthClient::new(daemon.channel()).watch(of(service)));
    let (mut server, mut nothing) = (watch("").unwrap().into_inner(), watch("nothing").unwrap().into_inner());
    assert_eq!(daemon.block_on(server.message()).unwrap(), Some(answer(ServingStatus::Serving)));
    assert_eq!(daemon.block_on(nothing.message()).unwrap(), Some(answer(ServingStatus::ServiceUnknown)));
    (0..2).for_each(|device| daemon.engine.lose(device));
    assert_eq!(daemon.block_on(server.message()).unwrap(), Some(answer(ServingStatus::NotServing)));
    assert_eq!(daemon.block_on(client.check(of(""))).unwrap().into_inner(), answer(ServingStatus::NotServing));
}

#[test]
fn reflection_lists_and_describes_the_services_in_both_versions() {
    let daemon = Daemon::start();
    let all = |names: BTreeSet<String>, version: &str| {
        let reflection = format!("grpc.reflection.{version}.ServerReflection");
        let expected = ["grpc.health.v1.Health", &reflection, "inference.GRPCInferenceService"];
        assert_eq!(names, expected.map(str::to_owned).into());
    };
    {
        use v1::server_reflection_request::MessageRequest;
        use v1::server_reflection_response::MessageResponse;
        let ask = |message_request| {
            let request = v1::ServerReflectionRequest { host: String::new(), message_request: Some(message_request) };
            let mut client = v1::server_reflection_client::ServerReflectionClient::new(daemon.channel());
            let answers = daemon.block_on(client.server_reflection_info(tokio_stream::once(request)));
            daemon.block_on(answers.unwrap().into_inner().message()).unwrap().unwrap().message_response.unwrap()
        };
        let MessageResponse::ListServicesResponse(list) = ask(MessageRequest::ListServices(String::new())) else {
            panic!("no list");
        };
        all(list.service.into_iter().map(|service| service.name).collect(), "v1");
        for symbol in ["inference.GRPCInferenceService", "inference.ModelConfig", "grpc.health.v1.Health"] {
            let file = ask(MessageRequest::FileContainingSymbol(symbol.into()));
            assert!(matches!(file, MessageResponse::FileDescriptorResponse(_)), "{symbol}: {file:?}");
        }
    }
    use v1alpha::server_reflection_request::MessageRequest;
    use v1alpha::server_reflection_response::MessageResponse;
    let message_request = Some(MessageRequest::ListServices(String::new()));
    let request = v1alpha::ServerReflectionRequest { host: String::new(), message_request };
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(daemon.channel());
    let answers = daemon.block_on(client.server_reflection_info(tokio_stream::once(request))).unwrap();
    let answer = daemon.block_on(answers.into_inner().message()).unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else { panic!("{answer:?}") };
    all(list.service.into_iter().map(|service| service.name).collect(), "v1alpha");
}

#[test]
fn unknown_services_and_rpcs_are_named() {
    let daemon = Daemon::start();
    for path in ["/inference.Other/Infer", "/inference.GRPCInferenceService/Other", "/other"] {
        let mut client = tonic::client::Grpc::new(daemon.channel());
        let answer = daemon.block_on(async {
            client.ready().await.unwrap();
            let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
            client.unary(Request::new(of("")), PathAndQuery::from_static(path), codec).await
        });
        refused(answer, Code::Unimplemented, &[]);
    }
    assert_eq!(daemon.answers("UNIMPLEMENTED"), 3);
}

#[test]
fn other_protocols_are_refused_and_the_next_client_is_served() {
    let daemon = Daemon::start();
    let mut http = Connection::open(daemon.grpc);
    http.send_raw(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    http.closed();
    let mut garbage = Connection::open(daemon.grpc);
    garbage.send_raw(&[0xff; 4096]);
    garbage.closed();
    assert!(daemon.block_on(daemon.client().model_infer(request(""))).is_ok());
}
