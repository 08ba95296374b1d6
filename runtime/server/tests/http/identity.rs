//! Identity over HTTP: tokens, anonymous requests, and the rights of tenants.

use crate::support::{Answer, Daemon, Options, write_bundle};
use atoll_server::{Access, IdentityConfig, KeyFile, OtlpConfig};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const REAL_TIME: &str = r#"{"parameters":{"priority":1},
    "inputs":[{"name":"in","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}"#;
const BEST_EFFORT: &str = r#"{"parameters":{"priority":2},
    "inputs":[{"name":"in","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}"#;

const TENANTS: &str = r#"
    [tenant.vision]
    class = "best-effort"
    models = ["toy"]
    [tenant.operator]
    model_control = true
    [tenant.speech]
    models = ["speech*"]
    model_control = true
"#;

/// A daemon with keys, and a token of each tenant.
struct Setup {
    daemon: Daemon,
    keys: PathBuf,
    _folder: TempDir,
}

impl Setup {
    fn start(tenants: &str) -> Setup {
        let folder = tempfile::tempdir().unwrap();
        let keys = folder.path().join("keys.json");
        KeyFile::create(&keys, "unknown".parse().unwrap(), None, "").unwrap();
        let identity = IdentityConfig { keys: Some(keys.clone()), ..identity(folder.path(), tenants) };
        let daemon = Daemon::with(Options { identity: Some(identity), ..Options::default() }, |repository| {
            write_bundle(&repository.join("toy.kg"));
            write_bundle(&repository.join("secret.kg"));
        });
        Setup { daemon, keys, _folder: folder }
    }

    /// A new token of a tenant, in force.
    fn token(&self, tenant: &str, expires_s: Option<u64>) -> String {
        let token = KeyFile::create(&self.keys, tenant.parse().unwrap(), expires_s, "").unwrap();
        self.daemon.reload().unwrap();
        token.to_string()
    }
}

fn identity(folder: &Path, tenants: &str) -> IdentityConfig {
    let config = folder.join("atoll.toml");
    std::fs::write(&config, tenants).unwrap();
    let access = Access::read(&config, 0).unwrap();
    IdentityConfig { anonymous: access.anonymous().cloned(), access, ..IdentityConfig::own() }
}

/// A load of an ensemble with one step, which calls this model.
fn calling(model: &str) -> String {
    let tensor = |name: &str| json!([{ "name": name, "data_type": "TYPE_FP32", "dims": [-1, 4] }]);
    let step = json!({ "model_name": model, "input_map": { "in": "X" }, "output_map": { "out": "Y" } });
    let config = json!({
        "input": tensor("X"), "output": tensor("Y"), "ensemble_scheduling": { "step": [step] },
    });
    json!({ "parameters": { "config": config.to_string() } }).to_string()
}

#[test]
fn steps_that_a_tenant_brings_along_call_only_what_it_may_call() {
    let tenants = "[tenant.speech]\nmodels = [\"speech*\", \"toy\"]\nmodel_control = true\n";
    let setup = Setup::start(tenants);
    let ensemble = setup.daemon.repository().join("speech");
    std::fs::create_dir_all(ensemble.join("1")).unwrap();
    std::fs::write(ensemble.join("config.pbtxt"), "platform: 'ensemble'").unwrap();
    let token = setup.token("speech", None);
    let load = |model: &str| setup.daemon.ask_as(&token, "/v2/repository/models/speech/load", Some(&calling(model)));
    let (hidden, missing) = (load("secret"), load("absent"));
    assert_eq!((hidden.status, missing.status), (400, 400));
    assert_eq!(hidden.text(), missing.text().replace("absent", "secret"));
    let answer = load("toy");
    assert_eq!(answer.status, 200, "{}", answer.text());
}

fn reason(answer: &Answer) -> (u16, Value) {
    (answer.status, answer.json()["reason"].clone())
}

fn denied(daemon: &Daemon, reason: &str) -> u64 {
    let line = format!("atoll_denied_requests_total{{reason=\"{reason}\"}} ");
    let metrics = daemon.metrics();
    metrics.lines().find_map(|text| text.strip_prefix(&line)).unwrap().parse().unwrap()
}

#[test]
fn with_keys_every_request_needs_a_token_but_health_and_metrics_on_their_port() {
    let setup = Setup::start(TENANTS);
    let daemon = &setup.daemon;
    for path in ["/v2", "/v2/health/live", "/v2/models/toy", "/v2/models/unknown", "/v2/models/stats", "/elsewhere"] {
        let answer = daemon.get(path);
        assert_eq!(reason(&answer), (401, json!("no_credentials")), "{path}");
        assert_eq!(answer.header("www-authenticate").as_deref(), Some("bearer realm=\"atoll\""));
        assert!(answer.error().contains("Authorization: Bearer"), "{}", answer.error());
    }
    assert_eq!(denied(daemon, "no_credentials"), 6);
    for path in ["/metrics", "/v2/health/live", "/v2/health/ready"] {
        let answer = crate::support::Connection::open(daemon.metrics).request("GET", path, &[], b"");
        assert_eq!(answer.status, 200, "{path}");
    }
    let token = setup.token("vision", None);
    assert_eq!(daemon.ask_as(&token, "/v2/models/toy/infer", Some(BEST_EFFORT)).status, 200);
}

#[test]
fn settings_of_traces_are_for_the_local_tenant() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.json");
    let token = KeyFile::create(&keys, "operator".parse().unwrap(), None, "").unwrap().to_string();
    let identity = IdentityConfig { keys: Some(keys), ..identity(folder.path(), TENANTS) };
    let otlp = OtlpConfig::new("http://127.0.0.1:9", 0.0).unwrap();
    let options = Options { identity: Some(identity), otlp: Some(otlp), ..Options::default() };
    let daemon = Daemon::with(options, |repository| write_bundle(&repository.join("toy.kg")));
    let change = Some(r#"{"trace_level": ["TIMESTAMPS"]}"#);
    assert_eq!(reason(&daemon.ask_as(&token, "/v2/trace/setting", change)), (403, json!("operator")));
    assert_eq!((denied(&daemon, "operator"), denied(&daemon, "model_control")), (1, 0));
}

#[test]
fn tokens_that_are_not_valid_get_one_answer() {
    let setup = Setup::start(TENANTS);
    let daemon = &setup.daemon;
    let good = setup.token("vision", None);
    let revoked = setup.token("vision", None);
    let id = revoked.split('_').nth(1).unwrap();
    KeyFile::revoke(&setup.keys, id).unwrap();
    assert_eq!(daemon.ask_as(&revoked, "/v2", None).status, 200, "until the keys are read again");
    let expired = setup.token("vision", Some(1));
    let unknown = format!("atoll_{}{}", if &good[6..7] == "0" { 1 } else { 0 }, &good[7..]);
    let other_secret = format!("{}_{}", &good[..22], "0".repeat(64));
    let answers: Vec<(u16, String)> = [&revoked, &expired, &unknown, &other_secret, &good[..40], "", "atoll__"]
        .map(|token| daemon.ask_as(token, "/v2", None))
        .map(|answer| (answer.status, answer.text()))
        .into();
    let expected = (401, json!({ "error": "the token is not valid", "reason": "bad_token" }).to_string());
    assert_eq!(answers, vec![expected; 7]);
    assert_eq!(denied(daemon, "bad_token"), 7);
    assert_eq!(daemon.ask_as(&good, "/v2", None).status, 200);
}

#[test]
fn a_broken_keys_file_leaves_the_keys_in_force() {
    let setup = Setup::start(TENANTS);
    let token = setup.token("vision", None);
    std::fs::write(&setup.keys, "[]").unwrap();
    let error = setup.daemon.reload().unwrap_err();
    assert!(error.contains("keys.json is not a valid keys file"), "{error}");
    assert_eq!(setup.daemon.ask_as(&token, "/v2", None).status, 200);
}

#[test]
fn a_tenant_may_what_its_section_says() {
    let setup = Setup::start(TENANTS);
    let daemon = &setup.daemon;
    let [vision, operator, speech] = ["vision", "operator", "speech"].map(|tenant| setup.token(tenant, None));
    // The class.
    assert_eq!(daemon.ask_as(&vision, "/v2/models/toy/infer", Some(BEST_EFFORT)).status, 200);
    let answer = daemon.ask_as(&vision, "/v2/models/toy/infer", Some(REAL_TIME));
    assert_eq!(reason(&answer), (403, json!("class")));
    assert!(answer.error().contains("tenant `vision` may run best-effort work only"), "{}", answer.error());
    assert_eq!(daemon.ask_as(&operator, "/v2/models/toy/infer", Some(REAL_TIME)).status, 200);
    // Models: one that the tenant may not call looks like one that does not exist.
    let hidden = daemon.ask_as(&vision, "/v2/models/secret/infer", Some(BEST_EFFORT));
    let missing = daemon.ask_as(&vision, "/v2/models/absent/infer", Some(BEST_EFFORT));
    assert_eq!((hidden.status, missing.status), (404, 404));
    assert_eq!(hidden.text(), missing.text().replace("absent", "secret"));
    assert_eq!(
        hidden.head.to_ascii_lowercase().split("date").next(),
        missing.head.to_ascii_lowercase().split("date").next()
    );
    for path in ["", "/ready", "/config", "/stats", "/profile", "/trace/setting"] {
        let [hidden, missing] =
            ["secret", "absent"].map(|name| daemon.ask_as(&vision, &format!("/v2/models/{name}{path}"), None).text());
        assert_eq!(hidden, missing.replace("absent", "secret"), "{path}");
    }
    let index = |token: &str| {
        let index = daemon.ask_as(token, "/v2/repository/index", Some("")).json();
        index.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((index(&vision), index(&operator).len(), index(&speech).len()), (vec!["toy".to_owned()], 2, 0));
    let statistics = daemon.ask_as(&vision, "/v2/models/stats", None).json();
    assert_eq!(statistics["model_stats"].as_array().unwrap().len(), 1);
    // Loading and unloading.
    let unload =
        |token: &str, name: &str| daemon.ask_as(token, &format!("/v2/repository/models/{name}/unload"), Some(""));
    assert_eq!(reason(&unload(&vision, "toy")), (403, json!("model_control")));
    for what in ["load", "unload"] {
        let ask = |name: &str| daemon.ask_as(&speech, &format!("/v2/repository/models/{name}/{what}"), Some(""));
        let (hidden, missing) = (ask("toy"), ask("speechless"));
        assert_eq!((hidden.status, hidden.text()), (missing.status, missing.text().replace("speechless", "toy")));
    }
    assert_eq!(daemon.ask_as(&vision, "/v2/models/toy/ready", None).status, 200, "it is still loaded");
    let load = |body: &str| daemon.ask_as(&operator, "/v2/repository/models/toy/load", Some(body));
    let files = json!({ "parameters": { "config": "{}", "file:1/model.onnx": "" } }).to_string();
    assert_eq!(reason(&load(&files)), (403, json!("model_control")), "files are for the tenant `local`");
    assert_eq!(load(r#"{ "parameters": { "config": "{}" } }"#).status, 200);
    assert_eq!(unload(&operator, "toy").status, 200);
    assert_eq!(daemon.ask_as(&vision, "/v2/models/toy/ready", None).status, 503);
}

#[test]
fn refused_requests_are_in_the_account_of_the_tenant() {
    let setup = Setup::start(TENANTS);
    let daemon = &setup.daemon;
    let vision = setup.token("vision", None);
    for _ in 0..3 {
        daemon.ask_as(&vision, "/v2/models/toy/infer", Some(REAL_TIME));
    }
    daemon.ask_as(&vision, "/v2/models/secret/infer", Some(BEST_EFFORT));
    daemon.get("/v2");
    assert_eq!((denied(daemon, "class"), denied(daemon, "model")), (3, 1));
    let metrics = daemon.metrics();
    let refused: Vec<&str> = metrics
        .lines()
        .filter(|line| line.starts_with("atoll_usage_invocations_total{tenant=\"vision\"") && line.contains("refused"))
        .map(|line| line.rsplit_once(' ').unwrap().1)
        .collect();
    assert_eq!(refused.len(), 2, "{metrics}");
    assert!(refused.contains(&"3") && refused.contains(&"1"), "{refused:?}");
}

#[test]
fn anonymous_requests_are_the_tenant_that_the_configuration_names() {
    let tenants = "allow_anonymous = \"guest\"\n[tenant.guest]\nmodels = [\"toy\"]\nclass = \"best-effort\"";
    let setup = Setup::start(tenants);
    let daemon = &setup.daemon;
    assert_eq!(daemon.post("/v2/models/toy/infer", BEST_EFFORT).status, 200);
    assert_eq!(reason(&daemon.post("/v2/models/toy/infer", REAL_TIME)), (403, json!("class")));
    assert_eq!(daemon.get("/v2/models/secret").status, 404);
    assert_eq!(reason(&daemon.post("/v2/repository/models/toy/unload", "")), (403, json!("model_control")));
    assert_eq!(daemon.ask_as("wrong", "/v2", None).status, 401, "a wrong token is not anonymous");
}
