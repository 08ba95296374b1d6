//! Start and end of a daemon.

use crate::support::{Behaviour, Connection, Daemon, Double, Options, eventually, write_bundle};
use atoll_server::{Server, ServerConfig};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ASK: &[u8] = br#"{"inputs":[{"name":"in","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}"#;

#[test]
fn requests_that_run_are_answered_before_the_end() {
    let mut daemon = Daemon::start();
    daemon.engine.behave(Behaviour::Hold);
    let mut idle = Connection::open(daemon.http);
    assert_eq!(idle.request("GET", "/v2/health/live", &[], b"").status, 200);
    let mut busy = Connection::open(daemon.http);
    busy.send("POST", "/v2/models/toy/infer", &[], ASK);
    eventually(|| daemon.engine.held() == 1);
    daemon.begin_stop();
    eventually(|| std::net::TcpStream::connect(daemon.http).is_err());
    daemon.engine.answer_all();
    assert_eq!(busy.receive().status, 200);
    daemon.stopped();
}

#[test]
fn requests_that_do_not_end_are_cancelled() {
    let options = Options { drain: Some(Duration::from_millis(50)), ..Options::default() };
    let mut daemon = Daemon::with(options, |repository| write_bundle(&repository.join("toy.kg")));
    daemon.engine.behave(Behaviour::Hold);
    let mut busy = Connection::open(daemon.http);
    busy.send("POST", "/v2/models/toy/infer", &[], ASK);
    eventually(|| daemon.engine.held() == 1);
    let start = Instant::now();
    daemon.begin_stop();
    daemon.stopped();
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(daemon.engine.cancelled(), 1);
}

#[test]
fn a_server_that_exits_on_error_names_the_broken_model() {
    let folder = tempfile::tempdir().unwrap();
    let repository = folder.path().join("repository");
    std::fs::create_dir(&repository).unwrap();
    write_bundle(&repository.join("toy.kg"));
    for name in ["one.kg", "two.kg"] {
        std::fs::write(repository.join(name), "no bundle").unwrap();
    }
    let config = ServerConfig {
        http_port: 0,
        grpc_port: Some(0),
        metrics_port: 0,
        exit_on_error: true,
        ..ServerConfig::new(repository, folder.path().join("cache"))
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = runtime.block_on(Server::bind(config, Arc::new(Double::default()), None)).unwrap();
    let ended = runtime.block_on(server.run(std::future::pending())).unwrap_err().to_string();
    assert!(
        ended.contains("2 models")
            && ended.contains("one: ")
            && ended.contains("two: ")
            && ended.contains("--exit-on-error"),
        "{ended}"
    );
}

#[test]
fn mistakes_in_the_configuration_name_the_flag() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let free = ServerConfig {
        http_port: 0,
        grpc_port: Some(0),
        metrics_port: 0,
        ..ServerConfig::new(folder.path().into(), folder.path().join("cache"))
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let refused = |config: ServerConfig| match runtime.block_on(Server::bind(config, Arc::new(Double::default()), None))
    {
        Ok(_) => panic!("it should be refused"),
        Err(error) => error.to_string(),
    };
    let message = refused(ServerConfig { http_port: port, ..free.clone() });
    assert!(message.contains(&port.to_string()) && message.contains("--http-port"), "{message}");
    let message = refused(ServerConfig { grpc_port: Some(port), ..free.clone() });
    assert!(message.contains("--grpc-port"), "{message}");
    let message = refused(ServerConfig { metrics_port: port, ..free.clone() });
    assert!(message.contains("--metrics-port"), "{message}");
    let message = refused(ServerConfig { repository: folder.path().join("nowhere"), ..free });
    assert!(message.contains("nowhere") && message.contains("--model-repository"), "{message}");
}
