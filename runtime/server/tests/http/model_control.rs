//! Model control modes: explicit, none and poll.

use crate::support::{Daemon, Options, eventually, write_bundle, write_changed_bundle};
use atoll_server::ModelControl;
use std::path::Path;
use std::time::Duration;

const ASK: &str = r#"{"inputs":[{"name":"in","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}"#;

fn daemon(model_control: ModelControl, fill: impl FnOnce(&Path)) -> Daemon {
    Daemon::with(Options { model_control: Some(model_control), lax_readiness: true, ..Options::default() }, fill)
}

fn is_ready(daemon: &Daemon, name: &str) -> bool {
    daemon.get(&format!("/v2/models/{name}/ready")).status == 200
}

fn change(daemon: &Daemon, name: &str, what: &str) -> (u16, String) {
    let answer = daemon.post(&format!("/v2/repository/models/{name}/{what}"), "");
    (answer.status, answer.text())
}

fn two(repository: &Path) {
    write_bundle(&repository.join("toy.kg"));
    write_bundle(&repository.join("other.kg"));
}

#[test]
fn explicit_loads_what_is_named_and_what_is_asked_for() {
    let named = ["toy", "nothing"].map(String::from).into();
    let daemon = daemon(ModelControl::Explicit { load: Some(named) }, two);
    assert_eq!((is_ready(&daemon, "toy"), is_ready(&daemon, "other")), (true, false));
    let index = daemon.post("/v2/repository/index", "").text();
    assert!(index.contains("there is no model `nothing` in the repository"), "{index}");
    assert_eq!(change(&daemon, "other", "load").0, 200);
    assert_eq!(change(&daemon, "toy", "unload").0, 200);
    assert_eq!((is_ready(&daemon, "toy"), is_ready(&daemon, "other")), (false, true));
}

#[test]
fn none_loads_all_and_refuses_changes() {
    let daemon = daemon(ModelControl::None, two);
    for (name, what) in [("toy", "load"), ("other", "unload"), ("nothing", "load")] {
        let (status, text) = change(&daemon, name, what);
        assert!(status == 403 && text.contains("model_control_mode") && text.contains("none"), "{status} {text}");
    }
    assert_eq!((is_ready(&daemon, "toy"), is_ready(&daemon, "other")), (true, true));
    assert!(daemon.metrics().contains("atoll_denied_requests_total{reason=\"model_control_mode\"} 3\n"));
}

#[test]
fn poll_follows_the_files() {
    let daemon = daemon(ModelControl::Poll { every: Duration::from_millis(20) }, two);
    assert!(is_ready(&daemon, "toy") && is_ready(&daemon, "other"));
    let (status, text) = change(&daemon, "toy", "unload");
    assert!(status == 403 && text.contains("--model-control-mode poll"), "{status} {text}");
    // One model is added, one is removed, and one is changed.
    let first = daemon.engine.bundle("toy").unwrap().digest().to_owned();
    let at = |name: &str| daemon.repository().join(name);
    write_bundle(&at("new.kg"));
    std::fs::remove_file(at("other.kg")).unwrap();
    write_changed_bundle(&at("toy.kg"));
    eventually(|| is_ready(&daemon, "new"));
    eventually(|| daemon.engine.bundle("other").is_none());
    eventually(|| daemon.engine.bundle("toy").is_some_and(|bundle| bundle.digest() != first));
    // A broken file does not replace the served model; a repaired one does.
    let second = daemon.engine.bundle("toy").unwrap().digest().to_owned();
    std::fs::write(at("toy.kg"), "not a bundle").unwrap();
    std::fs::write(at("broken.kg"), "not a bundle").unwrap();
    eventually(|| daemon.post("/v2/repository/index", "").text().contains("broken"));
    assert_eq!(daemon.post("/v2/models/toy/infer", ASK).status, 200);
    assert_eq!(daemon.engine.bundle("toy").unwrap().digest(), second);
    write_bundle(&at("toy.kg"));
    eventually(|| daemon.engine.bundle("toy").is_some_and(|bundle| bundle.digest() == first));
    // A change of the settings reloads the model, too.
    std::fs::write(at("toy.toml"), "class = \"real-time\"").unwrap();
    eventually(|| daemon.engine.options("toy").is_some_and(|options| options.class == atoll_engine::Class::RealTime));
    // Nothing changes while the folder cannot be read.
    let away = daemon.folder.path().join("away");
    std::fs::rename(daemon.repository(), &away).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert!(is_ready(&daemon, "toy") && is_ready(&daemon, "new"));
    std::fs::rename(&away, daemon.repository()).unwrap();
}

#[test]
fn poll_notices_changed_labels_and_does_not_open_pipes() {
    let daemon = daemon(ModelControl::Poll { every: Duration::from_millis(20) }, |repository| {
        std::fs::create_dir_all(repository.join("m/1")).unwrap();
        write_bundle(&repository.join("m/1/model.kg"));
        let config = "output { name: 'out' label_filename: 'labels.txt' }";
        std::fs::write(repository.join("m/config.pbtxt"), config).unwrap();
        std::fs::write(repository.join("m/labels.txt"), "a\nb\nc\nd").unwrap();
    });
    let labels = daemon.repository().join("m/labels.txt");
    let largest = || {
        let outputs = r#","outputs":[{"name":"out","parameters":{"classification":1}}]}"#;
        daemon.post("/v2/models/m/infer", &format!("{}{outputs}", ASK.strip_suffix('}').unwrap())).text()
    };
    assert!(largest().contains(":3:d"), "{}", largest());
    std::fs::write(&labels, "e\nf\ng\nother").unwrap();
    eventually(|| largest().contains(":3:other"));
    // No process writes to the pipe.
    std::fs::remove_file(&labels).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &labels, rustix::fs::Mode::RUSR).unwrap();
    write_bundle(&daemon.repository().join("new.kg"));
    eventually(|| is_ready(&daemon, "new"));
    assert!(largest().contains(":3:other"), "the model stays as it was");
}
