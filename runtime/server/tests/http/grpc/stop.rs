//! Stops a daemon with gRPC clients.

use crate::support::grpc::health::HealthCheckRequest;
use crate::support::grpc::health::health_client::HealthClient;
use crate::support::grpc::{refused, request};
use crate::support::{Behaviour, Daemon, Options, eventually, write_bundle};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

#[test]
fn requests_that_run_are_answered_and_streams_end() {
    let mut daemon = Daemon::start();
    daemon.engine.behave(Behaviour::Hold);
    let (mut client, mut streams) = (daemon.client(), daemon.client());
    let call = daemon.spawn(async move { client.model_infer(request("call")).await });
    let (requests, messages) = mpsc::channel(1);
    requests.try_send(request("stream")).unwrap();
    let stream = daemon.block_on(streams.model_stream_infer(ReceiverStream::new(messages)));
    let mut stream = stream.unwrap().into_inner();
    let mut health = HealthClient::new(daemon.channel());
    let watch = daemon.block_on(health.watch(HealthCheckRequest::default()));
    let mut watch = watch.unwrap().into_inner();
    assert!(daemon.block_on(watch.message()).unwrap().is_some());
    eventually(|| daemon.engine.held() == 2);
    daemon.begin_stop();
    eventually(|| std::net::TcpStream::connect(daemon.grpc).is_err());
    daemon.engine.answer_all();
    assert_eq!(daemon.block_on(call).unwrap().unwrap().into_inner().id, "call");
    let answer = daemon.block_on(stream.message()).unwrap().unwrap();
    assert_eq!(answer.infer_response.unwrap().id, "stream");
    refused(daemon.block_on(stream.message()), Code::Unavailable, &["stopping"]);
    refused(
        daemon.block_on(async {
            while watch.message().await?.is_some() {}
            Ok(())
        }),
        Code::Unavailable,
        &[],
    );
    daemon.stopped();
}

#[test]
fn requests_that_do_not_end_are_cancelled() {
    let options = Options { drain: Some(Duration::from_millis(50)), ..Options::default() };
    let mut daemon = Daemon::with(options, |repository| write_bundle(&repository.join("toy.kg")));
    daemon.engine.behave(Behaviour::Hold);
    let mut client = daemon.client();
    let call = daemon.spawn(async move { client.model_infer(request("")).await });
    eventually(|| daemon.engine.held() == 1);
    daemon.begin_stop();
    daemon.stopped();
    assert!(daemon.block_on(call).unwrap().is_err());
    eventually(|| daemon.engine.cancelled() == 1);
}
