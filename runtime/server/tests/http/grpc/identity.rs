//! Identity over gRPC: tokens, certificates, rights, and the host name that clients use.

use crate::support::grpc::proto::ServerLiveRequest;
use crate::support::grpc::proto::infer_parameter::ParameterChoice;
use crate::support::grpc::proto::{InferParameter, ModelInferRequest, ModelStatisticsRequest};
use crate::support::grpc::proto::{RepositoryModelUnloadRequest, ServerReadyRequest};
use crate::support::grpc::{Client, refused, request, with_token};
use crate::support::{Authority, Daemon, Leaf, Options, write_bundle};
use atoll_server::{Access, IdentityConfig, KeyFile, TlsFiles};
use tempfile::TempDir;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};

const TENANTS: &str = r#"
    [tenant.vision]
    class = "best-effort"
    models = ["toy"]
    [tenant.robot]
    certificates = ["cn:robot"]
"#;

fn identity(folder: &TempDir) -> IdentityConfig {
    let config = folder.path().join("atoll.toml");
    std::fs::write(&config, TENANTS).unwrap();
    IdentityConfig { access: Access::read(&config, 0).unwrap(), ..IdentityConfig::own() }
}

fn daemon(identity: IdentityConfig) -> Daemon {
    Daemon::with(Options { identity: Some(identity), ..Options::default() }, |repository| {
        write_bundle(&repository.join("toy.kg"));
        write_bundle(&repository.join("secret.kg"));
    })
}

fn denied<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, reason: &str) {
    let status = answer.expect_err("a refusal");
    assert_eq!(status.code(), code, "{status:?}");
    assert_eq!(status.metadata().get("reason").map(|value| value.as_bytes()), Some(reason.as_bytes()), "{status:?}");
}

fn with_priority(priority: i64) -> ModelInferRequest {
    let value = InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(priority)) };
    ModelInferRequest { parameters: [("priority".to_owned(), value)].into(), ..request("") }
}

#[test]
fn a_token_in_the_metadata_is_a_tenant_with_its_rights() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.json");
    let token = KeyFile::create(&keys, "vision".parse().unwrap(), None, "").unwrap().to_string();
    let daemon = daemon(IdentityConfig { keys: Some(keys), ..identity(&folder) });
    let mut client = daemon.client();
    denied(daemon.block_on(client.model_infer(request(""))), Code::Unauthenticated, "no_credentials");
    denied(daemon.block_on(client.server_live(ServerLiveRequest {})), Code::Unauthenticated, "no_credentials");
    let wrong = with_token(&format!("{token}x"), request(""));
    denied(daemon.block_on(client.model_infer(wrong)), Code::Unauthenticated, "bad_token");
    let mut infer = |message| daemon.block_on(client.model_infer(with_token(&token, message)));
    assert!(infer(with_priority(2)).is_ok());
    denied(infer(with_priority(1)), Code::PermissionDenied, "class");
    let secret = ModelInferRequest { model_name: "secret".into(), ..request("") };
    refused(infer(secret), Code::NotFound, &["secret"]);
    let all = daemon.block_on(client.model_statistics(with_token(&token, ModelStatisticsRequest::default())));
    let names: Vec<_> = all.unwrap().into_inner().model_stats.into_iter().map(|model| model.name).collect();
    assert_eq!(names, ["toy"]);
    let unload = RepositoryModelUnloadRequest { model_name: "toy".into(), ..Default::default() };
    let unload = with_token(&token, unload);
    denied(daemon.block_on(client.repository_model_unload(unload)), Code::PermissionDenied, "model_control");
    assert_eq!(daemon.metric("atoll_denied_requests_total{reason=\"no_credentials\"}"), 2);
    assert_eq!(daemon.answers("UNAUTHENTICATED"), 3);
}

/// A daemon with TLS that asks for client certificates, and its authority.
fn with_tls() -> (Daemon, Authority, TempDir) {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new("authority"));
    let (certificate, key) = authority.issue(&["localhost", "127.0.0.1"], |_| ()).write(folder.path());
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, &authority.pem).unwrap();
    let tls = Some(TlsFiles { certificate, key, client_ca: Some(ca), metrics: false });
    (daemon(IdentityConfig { tls, ..identity(&folder) }), authority, folder)
}

fn connect(daemon: &Daemon, authority: &Authority, client: Option<&Leaf>) -> Result<Client, tonic::transport::Error> {
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&authority.pem)).domain_name("localhost");
    let tls = match client {
        Some(leaf) => tls.identity(Identity::from_pem(&leaf.certificate, &leaf.key)),
        None => tls,
    };
    let endpoint = Endpoint::from_shared(format!("https://{}", daemon.grpc)).unwrap().tls_config(tls).unwrap();
    daemon.block_on(endpoint.connect()).map(Client::new)
}

#[test]
fn a_certificate_is_a_tenant_and_none_is_refused() {
    let (daemon, authority, _folder) = with_tls();
    let mut robot = connect(&daemon, &authority, Some(&authority.named("robot", |_| ()))).unwrap();
    assert!(daemon.block_on(robot.server_ready(ServerReadyRequest {})).unwrap().into_inner().ready);
    let mut other = connect(&daemon, &authority, Some(&authority.named("other", |_| ()))).unwrap();
    denied(daemon.block_on(other.server_ready(ServerReadyRequest {})), Code::PermissionDenied, "unknown_certificate");
    // With TLS 1.3 the client sees the refusal only when it reads.
    let without = connect(&daemon, &authority, None);
    let asked = without.map(|mut client| daemon.block_on(client.server_ready(ServerReadyRequest {})));
    assert!(!matches!(asked, Ok(Ok(_))));
    let forger = Authority::new("forger").named("robot", |_| ());
    let forged = connect(&daemon, &authority, Some(&forger));
    let asked = forged.map(|mut client| daemon.block_on(client.server_ready(ServerReadyRequest {})));
    assert!(!matches!(asked, Ok(Ok(_))));
    assert!(daemon.block_on(robot.server_ready(ServerReadyRequest {})).is_ok());
}

#[test]
fn on_loopback_the_port_is_called_by_known_names_only() {
    let daemon = daemon(IdentityConfig::own());
    let call = |authority: &str| {
        let endpoint = Endpoint::from_shared(format!("http://{}", daemon.grpc)).unwrap();
        let origin = format!("http://{authority}").parse().unwrap();
        let mut client = Client::new(daemon.block_on(endpoint.origin(origin).connect()).unwrap());
        daemon.block_on(client.server_live(Request::new(ServerLiveRequest {})))
    };
    assert!(call("localhost:8001").is_ok() && call("127.0.0.1").is_ok());
    refused(call("evil.example:8001"), Code::PermissionDenied, &["evil.example", "--allow-host"]);
}
