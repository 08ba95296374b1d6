//! Loading, unloading and replacing models, and failed loads.

use crate::support::{Behaviour, Compiler, Daemon, Options, eventually, write_bundle, write_changed_bundle};
use atoll_engine::Class;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const ASK: &str = r#"{"inputs":[{"name":"in","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}"#;

fn entry(daemon: &Daemon, name: &str) -> Value {
    let index = daemon.post("/v2/repository/index", "").json();
    index.as_array().unwrap().iter().find(|entry| entry["name"] == name).cloned().unwrap_or_default()
}

fn load(daemon: &Daemon, name: &str) -> crate::support::Answer {
    daemon.post(&format!("/v2/repository/models/{name}/load"), "{}")
}

#[test]
fn a_model_is_unloaded_and_loaded_again() {
    let daemon = Daemon::start();
    assert_eq!(
        daemon.post("/v2/repository/models/toy/unload", r#"{"parameters":{"unload_dependents":false}}"#).status,
        200
    );
    assert!(daemon.engine.options("toy").is_none(), "its memory is free when the answer arrives");
    assert_eq!(daemon.get("/v2/models/toy/ready").json(), json!({ "name": "toy", "ready": false }));
    let refused = daemon.post("/v2/models/toy/infer", ASK);
    assert_eq!(refused.status, 503);
    assert!(refused.error().contains("`toy` is not ready: not loaded"));
    assert_eq!(
        entry(&daemon, "toy"),
        json!({ "name": "toy", "version": "", "state": "UNAVAILABLE", "reason": "not loaded" })
    );
    assert_eq!(daemon.post("/v2/repository/models/toy/unload", "").status, 200, "unloading twice succeeds");
    assert_eq!(load(&daemon, "toy").status, 200);
    assert_eq!(daemon.post("/v2/models/toy/infer", ASK).status, 200);
}

#[test]
fn loads_that_fail_name_the_reason() {
    let daemon = Daemon::start();
    for name in ["unknown", "..%2F..%2Fetc%2Fpasswd", "toy.kg"] {
        let answer = load(&daemon, name);
        assert_eq!(answer.status, 400);
        assert!(answer.error().contains("no model"), "{}", answer.error());
    }
    let answer = daemon.post("/v2/repository/models/toy/load", r#"{"parameters":{"config":"{}"}}"#);
    assert!(answer.error().contains("not supported"), "{}", answer.error());
    assert_eq!(daemon.post("/v2/repository/models/unknown/unload", "").status, 400);
}

#[test]
fn only_regular_files_are_read() {
    let daemon = Daemon::start();
    let pipe =
        std::ffi::CString::new(daemon.repository().join("pipe.kg").into_os_string().into_encoded_bytes()).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
    std::os::unix::fs::symlink("/dev/zero", daemon.repository().join("endless.kg")).unwrap();
    for name in ["pipe", "endless"] {
        let error = daemon.post(&format!("/v2/repository/models/{name}/load"), "").error();
        assert!(error.contains("not a regular file") || error.contains("there is no model"), "{name}: {error}");
    }
}

#[test]
fn a_model_that_appears_is_listed_and_can_be_loaded() {
    let daemon = Daemon::start();
    let folder = daemon.repository().join("late").join("3");
    std::fs::create_dir_all(&folder).unwrap();
    write_bundle(&folder.join("model.kg"));
    std::fs::write(folder.with_file_name("config.pbtxt"), "dynamic_batching { default_priority_level: 1 }").unwrap();
    assert_eq!(entry(&daemon, "late")["state"], "UNAVAILABLE");
    assert_eq!(load(&daemon, "late").status, 200);
    assert_eq!((&entry(&daemon, "late")["state"], &entry(&daemon, "late")["version"]), (&json!("READY"), &json!("3")));
    assert_eq!(daemon.engine.options("late").unwrap().class, Class::RealTime);
    assert_eq!(daemon.post("/v2/models/late/versions/3/infer", ASK).json()["model_version"], "3");
}

#[test]
fn settings_are_served() {
    let daemon = Daemon::with(Options::default(), |repository| {
        write_bundle(&repository.join("toy.kg"));
        std::fs::write(repository.join("toy.toml"), "class = \"real-time\"\nqueue_capacity = 3").unwrap();
        write_bundle(&repository.join("odd.kg"));
        std::fs::write(repository.join("odd.toml"), "class = 5").unwrap();
    });
    let options = daemon.engine.options("toy").unwrap();
    assert_eq!((options.class, options.queue_capacity), (Class::RealTime, Some(3)));
    let reason = entry(&daemon, "odd")["reason"].to_string();
    assert!(reason.contains("odd.toml"), "{reason}");
    daemon.post("/v2/models/toy/infer", ASK);
    assert!(
        daemon
            .metrics()
            .contains("atoll_requests_total{class=\"real_time\",outcome=\"success\",device=\"host:0\"} 1\n"),
        "the model's class counts"
    );
}

#[test]
fn a_changed_file_is_loaded_and_an_equal_one_is_not() {
    let daemon = Daemon::start();
    daemon.engine.behave(Behaviour::Hold);
    assert_eq!(load(&daemon, "toy").status, 200);
    write_changed_bundle(&daemon.repository().join("toy.kg"));
    assert_eq!(load(&daemon, "toy").status, 200);
    std::fs::write(daemon.repository().join("toy.kg"), "damaged").unwrap();
    let answer = load(&daemon, "toy");
    assert_eq!(answer.status, 400);
    assert!(answer.error().contains("toy.kg is not a usable bundle"), "{}", answer.error());
    assert_eq!(entry(&daemon, "toy")["state"], "READY", "the old model stays");
}

#[test]
fn a_served_model_does_not_change_with_its_file() {
    let daemon = Daemon::with(Options::default(), |repository| {
        write_bundle(&repository.join("toy.kg"));
        write_bundle(&repository.join("equal.kg"));
    });
    let path = daemon.repository().join("toy.kg");
    let served = daemon.engine.bundle("toy").unwrap();
    let (code, bytes) = (served.code("test").unwrap().to_vec(), served.file_bytes());
    assert!(Arc::ptr_eq(&served, &daemon.engine.bundle("equal").unwrap()), "equal models share one copy");
    let metric = |bytes: u64| daemon.metrics().contains(&format!("atoll_bundle_copies_bytes {bytes}\n"));
    assert!(metric(bytes), "{}", daemon.metrics());
    // Overwrites in place, as `cp` does. The second time the file shrinks, which would crash a
    // process that maps it.
    for with in [vec![0xAA; bytes as usize], vec![1]] {
        std::fs::write(&path, with).unwrap();
        assert_eq!(served.code("test").unwrap(), code);
    }
    let cache = daemon.folder.path().join("cache");
    assert_eq!(std::fs::read_dir(&cache).unwrap().count(), 0, "copies have no names, so a killed daemon leaves none");
    write_changed_bundle(&path);
    assert_eq!(load(&daemon, "toy").status, 200);
    assert_eq!(daemon.engine.bundle("toy").unwrap().graph().name, "changed");
    drop(served);
    for name in ["toy", "equal"] {
        daemon.post(&format!("/v2/repository/models/{name}/unload"), "");
    }
    assert!(metric(0), "{}", daemon.metrics());
}

#[test]
fn a_copy_that_cannot_be_made_is_named() {
    let daemon = Daemon::start();
    let cache = daemon.folder.path().join("cache");
    std::fs::remove_dir_all(&cache).unwrap();
    std::fs::write(&cache, "a file where the folder was").unwrap();
    write_changed_bundle(&daemon.repository().join("toy.kg"));
    let answer = load(&daemon, "toy");
    assert!(
        answer.status == 400 && answer.error().contains("cannot be copied into") && answer.error().contains("--cache"),
        "{}",
        answer.error()
    );
    assert_eq!(entry(&daemon, "toy")["state"], "READY", "the old one is served");
}

#[test]
fn readiness_is_strict_unless_it_is_not_to_be() {
    let fill = |repository: &Path| {
        write_bundle(&repository.join("toy.kg"));
        std::fs::write(repository.join("one.kg"), "no bundle").unwrap();
        std::fs::write(repository.join("two.kg"), "no bundle").unwrap();
    };
    let ready = |daemon: &Daemon| {
        let answer = daemon.get("/v2/health/ready");
        (answer.status, answer.json())
    };
    let daemon = Daemon::with(Options { lax_readiness: true, ..Options::default() }, fill);
    assert_eq!(ready(&daemon), (200, json!({ "ready": true })));
    let daemon = Daemon::with(Options::default(), fill);
    assert_eq!(ready(&daemon), (503, json!({ "ready": false })), "two models failed");
    assert_eq!(daemon.post("/v2/models/toy/infer", ASK).status, 200, "the third is still served");
    assert_eq!(daemon.post("/v2/repository/models/one/unload", "").status, 200);
    assert_eq!(ready(&daemon).0, 503, "one failure is cleared, the other is not");
    write_bundle(&daemon.repository().join("two.kg"));
    assert_eq!(load(&daemon, "two").status, 200);
    assert_eq!(ready(&daemon).0, 200);
    std::fs::write(daemon.repository().join("two.kg"), "no bundle").unwrap();
    assert_eq!(load(&daemon, "two").status, 400);
    assert_eq!(ready(&daemon).0, 200, "a served model stays and counts");
    assert_eq!(daemon.post("/v2/repository/models/toy/unload", "").status, 200);
    assert_eq!(ready(&daemon).0, 200, "an unloaded model does not count");
}

#[test]
fn onnx_is_compiled_once() {
    let compiler = Arc::new(Compiler::default());
    let options = || Options { compiler: Some(compiler.clone()), ..Options::default() };
    let daemon = Daemon::with(options(), |repository| std::fs::write(repository.join("m.onnx"), "good").unwrap());
    assert_eq!(daemon.post("/v2/models/m/infer", ASK).status, 200);
    let runs = || compiler.runs.load(Ordering::Relaxed);
    assert_eq!(runs(), 1);
    let daemon = Daemon::over(daemon.stop(), options());
    assert_eq!(
        (runs(), daemon.post("/v2/models/m/infer", ASK).status),
        (1, 200),
        "the second start finds it in the cache"
    );

    let cached = || {
        std::fs::read_dir(daemon.folder.path().join("cache")).unwrap().map(|e| e.unwrap().path()).collect::<Vec<_>>()
    };
    let damaged = cached();
    assert_eq!(damaged.len(), 1);
    daemon.post("/v2/repository/models/m/unload", "");
    std::fs::remove_file(&damaged[0]).unwrap();
    std::fs::write(&damaged[0], "damaged").unwrap();
    assert_eq!(load(&daemon, "m").status, 200);
    assert_eq!(runs(), 2, "a damaged file of the cache is compiled again");

    std::fs::write(daemon.repository().join("m.onnx"), "another").unwrap();
    assert_eq!(load(&daemon, "m").status, 200);
    assert_eq!((runs(), cached().len()), (3, 2));
}

#[test]
fn compilations_that_fail_have_a_reason() {
    let options = Options { compiler: Some(Arc::new(Compiler::default())), ..Options::default() };
    let daemon = Daemon::with(options, |repository| {
        write(repository, "bad");
        write(repository, "panic");
        write(repository, "good");
    });
    let state = |name: &str| {
        (entry(&daemon, name)["state"].as_str().unwrap().to_string(), entry(&daemon, name)["reason"].to_string())
    };
    assert_eq!(state("good").0, "READY");
    for (name, expected) in [("bad", "operator Foo of node bar"), ("panic", "internal error")] {
        let (state, reason) = state(name);
        assert!(state == "UNAVAILABLE" && reason.contains(expected), "{name}: {state} {reason}");
    }
    let answer = load(&daemon, "bad");
    assert!(answer.status == 400 && answer.error().contains("operator Foo"));
    std::fs::write(daemon.repository().join("bad.onnx"), "good now").unwrap();
    assert_eq!(load(&daemon, "bad").status, 200);
    eventually(|| daemon.metrics().contains("atoll_models{state=\"ready\"} 2\n"));
}

fn write(repository: &Path, name: &str) {
    std::fs::write(repository.join(name).with_extension("onnx"), name).unwrap();
}

#[test]
fn without_a_compiler_bundles_are_still_served() {
    let daemon = Daemon::with(Options::default(), |repository| {
        write_bundle(&repository.join("toy.kg"));
        write(repository, "m");
    });
    assert_eq!(daemon.post("/v2/models/toy/infer", ASK).status, 200);
    let reason = entry(&daemon, "m")["reason"].to_string();
    assert!(reason.contains("no compiler") && reason.contains("atoll compile"), "{reason}");
}
