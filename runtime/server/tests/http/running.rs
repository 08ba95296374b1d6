//! The quota of invocations that a tenant has at one time, over HTTP and gRPC together.

use crate::support::grpc::{request, with_token};
use crate::support::{Answer, Behaviour, Connection, Daemon, Options, eventually, write_bundle};
use atoll_server::{Access, IdentityConfig, KeyFile};
use serde_json::json;
use tempfile::TempDir;
use tonic::Code;

const INFER: &str = "/v2/models/toy/infer";
const BODY: &str = r#"{"inputs":[{"name":"in","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}"#;

/// A daemon whose engine holds its answers, with tokens of the tenants `small`, which may have two
/// invocations at one time, and `other`.
struct Setup {
    daemon: Daemon,
    small: String,
    other: String,
    _folder: TempDir,
}

impl Setup {
    fn start() -> Setup {
        Setup::with("")
    }

    /// `settings` are those of the model.
    fn with(settings: &str) -> Setup {
        let folder = tempfile::tempdir().unwrap();
        let (keys, config) = (folder.path().join("keys.json"), folder.path().join("atoll.toml"));
        let [small, other] = ["small", "other"]
            .map(|tenant| KeyFile::create(&keys, tenant.parse().unwrap(), None, "").unwrap().to_string());
        std::fs::write(&config, "[tenant.small]\ninvocations = 2\n").unwrap();
        let access = Access::read(&config, 0).unwrap();
        let identity = Some(IdentityConfig { keys: Some(keys), access, ..IdentityConfig::own() });
        let options = Options { identity, ..Options::default() };
        let daemon = Daemon::with(options, |repository| {
            write_bundle(&repository.join("toy.kg"));
            std::fs::write(repository.join("toy.toml"), settings).unwrap();
        });
        daemon.engine.behave(Behaviour::Hold);
        Setup { daemon, small, other, _folder: folder }
    }

    /// Sends a request, without waiting for its answer.
    fn send(&self, token: &str) -> Connection {
        let before = self.daemon.engine.held();
        let mut connection = Connection::open(self.daemon.http);
        let headers = [("Authorization", &*format!("Bearer {token}"))];
        connection.send("POST", INFER, &headers, BODY.as_bytes());
        eventually(|| self.daemon.engine.held() == before + 1);
        connection
    }

    fn ask(&self, token: &str) -> Answer {
        self.daemon.ask_as(token, INFER, Some(BODY))
    }
}

#[test]
fn what_is_beyond_the_quota_is_refused_with_the_cause_and_counted() {
    let setup = Setup::start();
    let daemon = &setup.daemon;
    let mut first = setup.send(&setup.small);
    let (mut client, message) = (daemon.client(), with_token(&setup.small, request("")));
    let second = daemon.spawn(async move { client.model_infer(message).await });
    eventually(|| daemon.engine.held() == 2);

    let refused = setup.ask(&setup.small);
    assert_eq!((refused.status, refused.json()["reason"].clone()), (503, json!("invocations")));
    let told = "tenant `small` has 2 invocations waiting or running, and may have 2 at one time";
    assert!(refused.error().contains(told), "{}", refused.error());
    assert_eq!(refused.header("retry-after").as_deref(), Some("1"));
    let mut client = daemon.client();
    let status = daemon.block_on(client.model_infer(with_token(&setup.small, request("")))).unwrap_err();
    let reason = status.metadata().get("reason").map(|value| value.as_bytes());
    assert_eq!((status.code(), reason), (Code::ResourceExhausted, Some(&b"invocations"[..])), "{status:?}");
    assert_eq!(daemon.metric("atoll_denied_requests_total{reason=\"invocations\"}"), 2);
    let charged = daemon.metrics();
    let refused = charged.lines().filter(|line| {
        line.starts_with("atoll_usage_invocations_total{tenant=\"small\"") && line.contains("outcome=\"refused\"")
    });
    assert_eq!(refused.filter(|line| line.ends_with(" 2")).count(), 1, "{charged}");

    // Another tenant has a quota of its own.
    let mut others = setup.send(&setup.other);
    daemon.engine.answer_all();
    assert_eq!((first.receive().status, others.receive().status), (200, 200));
    daemon.block_on(second).unwrap().unwrap();
    daemon.engine.behave(Behaviour::Echo);
    assert_eq!(setup.ask(&setup.small).status, 200);
}

#[test]
fn a_client_that_leaves_makes_room_when_its_invocation_has_ended() {
    let setup = Setup::start();
    let engine = &setup.daemon.engine;
    drop([setup.send(&setup.small), setup.send(&setup.small)]);
    eventually(|| engine.cancelled() == 2);
    // The engine was told to cancel them, and has not done so.
    assert_eq!((engine.held(), setup.ask(&setup.small).status), (2, 503));
    engine.answer_all();
    engine.behave(Behaviour::Echo);
    assert_eq!(setup.ask(&setup.small).status, 200);
}

#[test]
fn a_hedged_call_counts_once_until_both_devices_have_answered() {
    let setup = Setup::with("[hedging]\nextra_percent = 5");
    let engine = &setup.daemon.engine;
    engine.behave(Behaviour::Echo);
    // Enough requests to measure their latency and to collect a budget of hedges.
    (0..40).for_each(|_| assert_eq!(setup.ask(&setup.small).status, 200));
    engine.behave(Behaviour::Hold);
    // The second device answers. The first one has not ended yet.
    assert_eq!(setup.ask(&setup.small).status, 200);
    assert_eq!(engine.held(), 1);
    let _another = setup.send(&setup.small);
    assert_eq!(setup.ask(&setup.small).status, 503);
    engine.answer_all();
    engine.behave(Behaviour::Echo);
    assert_eq!(setup.ask(&setup.small).status, 200);
}
