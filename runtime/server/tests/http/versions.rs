//! Several versions of a model.

use crate::support::grpc::request;
use crate::support::{Behaviour, Connection, Daemon, Options, eventually, write_bundle, write_changed_bundle};
use atoll_engine::FunctionKey;
use atoll_server::ModelControl;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const ASK: &str = r#"{"inputs":[{"name":"in","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}"#;

/// Writes a version of the model `m`; odd ones differ from even ones.
fn add(repository: &Path, version: u64) {
    let folder = repository.join("m").join(version.to_string());
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("model.kg");
    if version % 2 == 1 { write_bundle(&path) } else { write_changed_bundle(&path) }
}

fn policy(repository: &Path, text: &str) {
    std::fs::write(repository.join("m/config.pbtxt"), format!("version_policy {{ {text} }}")).unwrap();
}

/// A daemon with the versions 1 and 2.
fn daemon(text: &str) -> Daemon {
    Daemon::with(Options { lax_readiness: true, ..Options::default() }, |repository| {
        add(repository, 1);
        add(repository, 2);
        policy(repository, text);
    })
}

fn load(daemon: &Daemon) -> (u16, String) {
    let answer = daemon.post("/v2/repository/models/m/load", "");
    (answer.status, answer.text())
}

/// The version and the state of each entry of the index.
fn index(daemon: &Daemon) -> Vec<(String, String)> {
    let index = daemon.post("/v2/repository/index", "").json();
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap().to_owned();
    let entries = index.as_array().unwrap().iter().filter(|entry| entry["name"] == "m");
    entries.map(|entry| (text(entry, "version"), text(entry, "state"))).collect()
}

fn ready(versions: &[&str]) -> Vec<(String, String)> {
    versions.iter().map(|version| ((*version).to_owned(), "READY".to_owned())).collect()
}

/// The version that answers a path below `/v2/models/m`, or the status.
fn answering(daemon: &Daemon, below: &str) -> Result<String, u16> {
    let answer = daemon.post(&format!("/v2/models/m{below}/infer"), ASK);
    if answer.status == 200 {
        return Ok(answer.json()["model_version"].as_str().unwrap().to_owned());
    }
    Err(answer.status)
}

/// The graph of the function that the engine has under a name.
fn loaded(daemon: &Daemon, name: &str) -> Option<String> {
    daemon.engine.bundle(name).map(|bundle| bundle.graph().name.clone())
}

#[test]
fn the_newest_version_is_served_if_nothing_is_said() {
    let daemon = daemon("");
    assert_eq!((answering(&daemon, ""), answering(&daemon, "/versions/2")), (Ok("2".into()), Ok("2".into())));
    assert_eq!(answering(&daemon, "/versions/1"), Err(404));
    let error = daemon.get("/v2/models/m/versions/1").error();
    assert!(error.contains("no version `1`, only `2`"), "{error}");
    assert_eq!(daemon.get("/v2/models/m").json()["versions"], json!(["2"]));
    assert_eq!(index(&daemon), ready(&["2"]));
    assert_eq!((loaded(&daemon, "m").as_deref(), loaded(&daemon, "m/1")), (Some("changed"), None));
}

#[test]
fn all_versions_answer_over_both_protocols() {
    let daemon = daemon("all { }");
    assert_eq!(answering(&daemon, ""), Ok("2".into()));
    assert_eq!(answering(&daemon, "/versions/1"), Ok("1".into()));
    assert_eq!(daemon.engine.last_request().function, FunctionKey::local("m/1"));
    assert_eq!(answering(&daemon, "/versions/3"), Err(404));
    for text in ["01", "x", "-1", "%2B1"] {
        assert_eq!(answering(&daemon, &format!("/versions/{text}")), Err(404), "{text}");
    }
    assert_eq!(daemon.get("/v2/models/m").json()["versions"], json!(["1", "2"]));
    assert_eq!(daemon.get("/v2/models/m/versions/1").json()["versions"], json!(["1"]));
    assert_eq!(daemon.get("/v2/models/m/config").json()["version_policy"], json!({ "all": {} }));
    assert_eq!(index(&daemon), ready(&["1", "2"]));
    for version in ["1", "2"] {
        assert_eq!(daemon.get(&format!("/v2/models/m/versions/{version}/ready")).status, 200);
        let stats = daemon.get(&format!("/v2/models/m/versions/{version}/stats")).json();
        assert_eq!(stats["model_stats"].as_array().unwrap().len(), 1);
        assert_eq!(
            (&stats["model_stats"][0]["name"], &stats["model_stats"][0]["version"]),
            (&json!("m"), &json!(version))
        );
        let sample = format!("nv_inference_count{{model=\"m\",version=\"{version}\",device=\"host:0\"}} ");
        assert_eq!(daemon.metrics().matches(&sample).count(), 1, "{sample}");
    }
    let versions = |path: &str| -> Vec<Value> {
        let stats = daemon.get(path).json();
        stats["model_stats"].as_array().unwrap().iter().map(|model| model["version"].clone()).collect()
    };
    assert_eq!(versions("/v2/models/m/stats"), ["1", "2"]);
    assert_eq!(versions("/v2/models/stats"), ["1", "2"]);
    assert_eq!(daemon.post("/v1/models/m:predict", r#"{"instances":[[1,2,3,4]]}"#).status, 200);
    assert_eq!(daemon.get("/v1/models").json(), json!({ "models": ["m"] }));
    let mut client = daemon.client();
    for (version, expected) in [("1", "1"), ("2", "2"), ("", "2")] {
        let mut message = request("");
        (message.model_name, message.model_version) = ("m".into(), version.into());
        let answer = daemon.block_on(client.model_infer(message)).unwrap().into_inner();
        assert_eq!((&*answer.model_name, &*answer.model_version), ("m", expected));
    }
}

#[test]
fn versions_come_and_go_with_their_folders() {
    let daemon = daemon("all {}");
    add(&daemon.repository(), 3);
    assert_eq!(load(&daemon).0, 200);
    assert_eq!(index(&daemon), ready(&["1", "2", "3"]));
    // The newest version has the key of the model, and the one before it has its own now.
    let functions = ["m", "m/1", "m/2", "m/3"].map(|name| loaded(&daemon, name));
    let [toy, changed] = ["toy", "changed"].map(|name| Some(name.to_owned()));
    assert_eq!(functions, [toy.clone(), toy.clone(), changed.clone(), None]);
    assert_eq!((answering(&daemon, ""), answering(&daemon, "/versions/2")), (Ok("3".into()), Ok("2".into())));
    for version in [1, 3] {
        std::fs::remove_dir_all(daemon.repository().join("m").join(version.to_string())).unwrap();
    }
    assert_eq!(load(&daemon).0, 200);
    assert_eq!(index(&daemon), ready(&["2"]));
    assert_eq!(["m", "m/1", "m/2"].map(|name| loaded(&daemon, name)), [changed, None, None]);
    assert_eq!(answering(&daemon, "/versions/3"), Err(404));
    assert_eq!(daemon.post("/v2/repository/models/m/unload", "").status, 200);
    assert_eq!(index(&daemon), [(String::new(), "UNAVAILABLE".to_owned())]);
    assert_eq!((answering(&daemon, ""), loaded(&daemon, "m")), (Err(503), None));
}

#[test]
fn a_request_whose_body_arrives_late_runs_the_version_that_it_names() {
    let daemon = daemon("all {}");
    for (path, added, function, version) in [("/versions/2", 3, "m/2", "2"), ("", 4, "m", "4")] {
        let mut connection = Connection::open(daemon.http);
        let (path, length) = (format!("/v2/models/m{path}/infer"), ASK.len());
        let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n");
        connection.send_raw(format!("{head}Content-Length: {length}\r\n\r\n").as_bytes());
        // The daemon has found the model, and reads the body.
        connection.receive_until(|text| text.ends_with("100 Continue\r\n\r\n"));
        add(&daemon.repository(), added);
        assert_eq!(load(&daemon).0, 200);
        connection.send_raw(ASK.as_bytes());
        let answer = connection.receive();
        assert_eq!((answer.status, &answer.json()["model_version"]), (200, &json!(version)), "{}", answer.text());
        assert_eq!(daemon.engine.last_request().function, FunctionKey::local(function));
    }
}

#[test]
fn an_unload_takes_all_versions_and_a_load_brings_them_back() {
    let daemon = daemon("all {}");
    assert_eq!(daemon.post("/v2/repository/models/m/unload", "").status, 200);
    assert_eq!(["m", "m/1"].map(|name| loaded(&daemon, name)), [None, None]);
    assert_eq!(load(&daemon).0, 200);
    assert_eq!(index(&daemon), ready(&["1", "2"]));
    policy(&daemon.repository(), "specific { versions: [1] }");
    assert_eq!(load(&daemon).0, 200);
    assert_eq!(index(&daemon), ready(&["1"]));
    assert_eq!(["m", "m/1"].map(|name| loaded(&daemon, name)), [Some("toy".to_owned()), None]);
}

#[test]
fn policies_that_contradict_the_folder_or_themselves_are_refused() {
    let daemon = daemon("");
    policy(&daemon.repository(), "specific { versions: [1, 3, 4] }");
    let (status, text) = load(&daemon);
    assert!(
        status == 400 && text.contains("no version is available") && text.contains("version 3, 4 is missing"),
        "{text}"
    );
    assert!(text.contains("which has 1, 2"), "{text}");
    policy(&daemon.repository(), "all {} specific { versions: [1] }");
    let (status, text) = load(&daemon);
    assert!(status == 400 && text.contains("contradict"), "{text}");
    assert_eq!((index(&daemon), answering(&daemon, "")), (ready(&["2"]), Ok("2".into())), "the old one stays");
}

#[test]
fn a_broken_version_stops_a_load_and_nothing_that_is_served() {
    let daemon = Daemon::with(Options { lax_readiness: true, ..Options::default() }, |repository| {
        add(repository, 1);
        add(repository, 2);
        std::fs::write(repository.join("m/2/model.kg"), "no bundle").unwrap();
        policy(repository, "all {}");
    });
    assert_eq!(index(&daemon), [("2".to_owned(), "UNAVAILABLE".to_owned())], "as Triton, nothing is served");
    assert_eq!((loaded(&daemon, "m"), loaded(&daemon, "m/1")), (None, None));
    add(&daemon.repository(), 2);
    assert_eq!(load(&daemon).0, 200);
    add(&daemon.repository(), 3);
    std::fs::write(daemon.repository().join("m/3/model.kg"), "no bundle").unwrap();
    let (status, text) = load(&daemon);
    assert!(status == 400 && text.contains("m/3/model.kg"), "{text}");
    let broken = [("3".to_owned(), "UNAVAILABLE".to_owned())];
    assert_eq!(index(&daemon), [ready(&["1", "2"]), broken.into()].concat());
    assert_eq!((answering(&daemon, ""), answering(&daemon, "/versions/3")), (Ok("2".into()), Err(503)));
}

#[test]
fn a_version_that_no_device_takes_stops_the_load() {
    let daemon = Daemon::with(Options { lax_readiness: true, ..Options::default() }, |repository| {
        add(repository, 1);
        add(repository, 2);
        std::fs::write(repository.join("m/atoll.toml"), "version_policy = \"all\"\ndevice = \"host:7\"").unwrap();
    });
    assert_eq!(index(&daemon), [("2".to_owned(), "UNAVAILABLE".to_owned())]);
    std::fs::write(daemon.repository().join("m/atoll.toml"), "version_policy = \"all\"\ndevice = \"host:1\"").unwrap();
    assert_eq!(load(&daemon).0, 200);
    assert_eq!(index(&daemon), ready(&["1", "2"]));
}

#[test]
fn polling_follows_versions() {
    let model_control = Some(ModelControl::Poll { every: Duration::from_millis(20) });
    let options = Options { model_control, ..Options::default() };
    let daemon = Daemon::with(options, |repository| add(repository, 1));
    assert_eq!(answering(&daemon, ""), Ok("1".into()));
    // The file stays the same, and its version changes.
    std::fs::rename(daemon.repository().join("m/1"), daemon.repository().join("m/5")).unwrap();
    eventually(|| answering(&daemon, "") == Ok("5".into()));
    add(&daemon.repository(), 6);
    eventually(|| answering(&daemon, "") == Ok("6".into()));
    std::fs::remove_dir_all(daemon.repository().join("m/6")).unwrap();
    eventually(|| answering(&daemon, "") == Ok("5".into()));
}

/// Settings of a model whose only sample has this input.
fn sample(repository: &Path, input: &str) {
    let inputs = format!("inputs {{ key: '{input}' value {{ data_type: TYPE_FP32 dims: [ 1, 4 ] zero_data: true }} }}");
    let config = format!("version_policy {{ all {{}} }} model_warmup {{ batch_size: 1 {inputs} }}");
    std::fs::write(repository.join("m/config.pbtxt"), config).unwrap();
}

#[test]
fn a_refused_load_leaves_what_is_served_as_it_was() {
    let daemon = daemon("all {}");
    let functions = || ["m", "m/1", "m/2", "m/2/1"].map(|name| loaded(&daemon, name));
    let (before, bundle) = (functions(), daemon.engine.bundle("m").unwrap());
    let unchanged = |why: &str| {
        assert_eq!((answering(&daemon, ""), answering(&daemon, "/versions/1")), (Ok("2".into()), Ok("1".into())));
        assert_eq!((index(&daemon), functions()), (ready(&["1", "2"]), before.clone()), "{why}");
        assert!(Arc::ptr_eq(&bundle, &daemon.engine.bundle("m").unwrap()), "{why}: it was not loaded again");
        assert_eq!(daemon.get("/v2/health/ready").status, 200, "{why}");
    };
    sample(&daemon.repository(), "nothing");
    let (status, text) = load(&daemon);
    assert!(status == 400 && text.contains("model_warmup"), "{text}");
    unchanged("a sample that does not fit");
    let other = "version_policy { all {} } parameters { key: 'device' value { string_value: 'host:7' } }";
    std::fs::write(daemon.repository().join("m/config.pbtxt"), other).unwrap();
    let (status, text) = load(&daemon);
    assert!(status == 400 && text.contains("host:7"), "{text}");
    unchanged("a device that is not there");
}

#[test]
fn the_served_version_answers_until_the_next_one_does() {
    let daemon = daemon("");
    add(&daemon.repository(), 3);
    sample(&daemon.repository(), "in");
    let config = daemon.repository().join("m/config.pbtxt");
    let text = std::fs::read_to_string(&config).unwrap().replace("all {}", "latest {}");
    std::fs::write(&config, text).unwrap();
    daemon.engine.behave(Behaviour::Hold);
    let mut connection = Connection::open(daemon.http);
    connection.send("POST", "/v2/repository/models/m/load", &[], b"");
    eventually(|| daemon.engine.held() == 1);
    let entry = index(&daemon);
    daemon.engine.behave(Behaviour::Echo);
    assert_eq!((answering(&daemon, ""), &entry[0]), (Ok("2".into()), &ready(&["2"])[0]), "version 3 is warmed up");
    assert_eq!(daemon.engine.last_request().function, FunctionKey::local("m"));
    // A request of version 2 that lasts while version 3 takes its place.
    daemon.engine.behave(Behaviour::Hold);
    let mut slow = Connection::open(daemon.http);
    slow.send("POST", "/v2/models/m/infer", &[], ASK.as_bytes());
    eventually(|| daemon.engine.held() == 2);
    daemon.engine.behave(Behaviour::Echo);
    let (held, of_sample) = (daemon.engine.held(), daemon.engine.answer_of("m/3/1"));
    assert_eq!((held, of_sample), (2, 1));
    eventually(|| answering(&daemon, "") == Ok("3".into()));
    assert!(daemon.engine.bundle("m").is_some_and(|bundle| bundle.graph().name == "changed"), "its request lasts");
    daemon.engine.answer_all();
    let answer = slow.receive();
    assert_eq!((answer.status, &answer.json()["model_version"]), (200, &json!("2")), "{}", answer.text());
    assert_eq!(connection.receive().status, 200);
    assert_eq!((answering(&daemon, ""), index(&daemon)), (Ok("3".into()), ready(&["3"])));
    assert_eq!(["m", "m/3/1"].map(|name| loaded(&daemon, name)), [Some("toy".to_owned()), None]);
}
