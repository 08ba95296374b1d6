//! The dashboard: access to the page, and the snapshots of each tenant.

use crate::support::{Connection, Daemon, Options, eventually, skip, write_bundle};
use atoll_server::{Access, IdentityConfig, KeyFile, limits};
use serde_json::Value;
use std::process::Command;
use tempfile::TempDir;

const ASK: &str = r#"{"inputs":[{"name":"in","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}"#;

/// Opens a stream of snapshots and reads the first ones.
fn watch(daemon: &Daemon, headers: &[(&str, &str)], events: usize) -> (Connection, Vec<Value>) {
    let mut connection = Connection::open(daemon.http);
    connection.send("GET", "/ui/events", headers, b"");
    let read = connection.receive_until(|text| text.matches("\n\n").count() >= events);
    let events = read.lines().filter_map(|line| line.strip_prefix("data: ")).take(events);
    let events = events.map(|json| serde_json::from_str(json).unwrap()).collect();
    (connection, events)
}

#[test]
fn the_page_is_served_to_browsers_of_this_daemon_only() {
    let daemon = Daemon::start();
    for (path, kind) in [
        ("/ui", "text/html; charset=utf-8"),
        ("/ui/dashboard.css", "text/css; charset=utf-8"),
        ("/ui/dashboard.js", "text/javascript; charset=utf-8"),
    ] {
        let file = daemon.get(path);
        assert_eq!((file.status, file.header("content-type").as_deref()), (200, Some(kind)), "{path}");
        let policy = file.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    }
    let moved = daemon.get("/ui/");
    assert_eq!((moved.status, moved.header("location").as_deref()), (308, Some("../ui")));
    assert!(daemon.get("/ui/passwords").error().contains("no file `passwords`"));
    let wrong = Connection::open(daemon.http).request("POST", "/ui", &[], b"");
    assert!(wrong.status == 405 && wrong.error().contains("POST"));
    for path in ["/ui", "/ui/snapshot", "/ui/events"] {
        let of_others = [("Origin", "http://evil.example")];
        assert_eq!(Connection::open(daemon.http).request("GET", path, &of_others, b"").status, 403, "{path}");
    }
    for (path, status) in [("/ui", 200), ("/ui/snapshot", 403), ("/ui/events", 403)] {
        let of_others = [("Sec-Fetch-Site", "cross-site")];
        assert_eq!(Connection::open(daemon.http).request("GET", path, &of_others, b"").status, status, "{path}");
    }
}

#[test]
fn a_snapshot_shows_devices_functions_usage_and_latencies() {
    let daemon = Daemon::start();
    for _ in 0..3 {
        assert_eq!(daemon.post("/v2/models/toy/infer", ASK).status, 200);
    }
    let snapshot = daemon.get("/ui/snapshot");
    assert_eq!(snapshot.header("cache-control").as_deref(), Some("no-store"));
    let snapshot = snapshot.json();
    assert_eq!(snapshot["viewer"], serde_json::json!({ "tenant": "local", "sees_all_tenants": true }));
    assert_eq!(snapshot["status"]["functions"][0]["function"], "toy");
    assert_eq!(snapshot["usage"]["rows"][0]["tenant"], "local");
    assert_eq!(snapshot["processes"]["devices"].as_array().map(Vec::len), Some(2));
    let latencies = &snapshot["latencies"][0];
    let counts = latencies["counts"].as_array().unwrap();
    assert_eq!(counts.iter().filter_map(|count| count[1].as_u64()).sum::<u64>(), 3, "{latencies}");
    assert_eq!(latencies["class"], "best-effort");
    let bounds = snapshot["latency_bounds_us"].as_array().unwrap();
    assert!(counts.iter().all(|count| count[0].as_u64().unwrap() as usize <= bounds.len()));
}

#[test]
fn a_stream_goes_on_and_tells_preemptions() {
    let daemon = Daemon::start();
    daemon.engine.preempt();
    let (_connection, events) = watch(&daemon, &[], 3);
    assert!(events.windows(2).all(|pair| pair[0]["at_s"].as_f64() < pair[1]["at_s"].as_f64()));
    let preemption = &events[2]["events"][0];
    assert_eq!((&preemption["kind"], &preemption["function"]), (&"preempted".into(), &"toy".into()), "{preemption}");
    assert_eq!(preemption["by_function"], "urgent");
}

#[test]
fn single_snapshots_in_a_row_tell_preemptions_between_them() {
    let daemon = Daemon::start();
    daemon.engine.preempt();
    eventually(|| !daemon.get("/ui/snapshot").json()["events"].as_array().unwrap().is_empty());
}

#[test]
fn viewers_are_bounded_and_free_their_places() {
    let daemon = Daemon::start();
    let mut viewers: Vec<_> = (0..limits::DASHBOARD_VIEWERS_PER_TENANT_MAX).map(|_| watch(&daemon, &[], 1)).collect();
    let refused = daemon.get("/ui/snapshot");
    assert_eq!((refused.status, refused.header("retry-after").as_deref()), (503, Some("1")));
    assert!(refused.error().contains("too many viewers"));
    viewers.pop();
    eventually(|| daemon.get("/ui/snapshot").status == 200);
}

#[test]
fn a_stream_ends_when_the_daemon_stops() {
    let mut daemon = Daemon::start();
    let (mut connection, _) = watch(&daemon, &[], 1);
    daemon.begin_stop();
    connection.closed();
    daemon.stopped();
}

/// A daemon with keys, and the tokens of these tenants.
fn with_keys(configuration: &str, tenants: &[&str]) -> (Daemon, Vec<String>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let (keys, file) = (folder.path().join("keys.json"), folder.path().join("atoll.toml"));
    std::fs::write(&file, configuration).unwrap();
    let access = Access::read(&file, 0).unwrap();
    let token = |tenant: &&str| KeyFile::create(&keys, tenant.parse().unwrap(), None, "").unwrap().to_string();
    let tokens = tenants.iter().map(token).collect();
    let identity = IdentityConfig { keys: Some(keys), access, ..IdentityConfig::own() };
    let options = Options { identity: Some(identity), ..Options::default() };
    (Daemon::with(options, |repository| write_bundle(&repository.join("toy.kg"))), tokens, folder)
}

#[test]
fn the_page_needs_no_token_and_the_snapshots_show_what_the_tenant_may_see() {
    let (daemon, tokens, _folder) = with_keys("[tenant.watcher]\nobserver = true", &["local", "watcher", "guest"]);
    assert_eq!(daemon.get("/ui").status, 200);
    for path in ["/ui/snapshot", "/ui/events"] {
        assert_eq!(daemon.get(path).status, 401, "{path}");
    }
    let functions = |token: &str| {
        let seen = daemon.ask_as(token, "/ui/snapshot", None).json();
        seen["status"]["functions"].as_array().unwrap().len()
    };
    assert_eq!(tokens.iter().map(|token| functions(token)).collect::<Vec<_>>(), [1, 1, 0]);
    let guest = daemon.ask_as(&tokens[2], "/ui/snapshot", None).text();
    assert!(!guest.contains("toy"), "{guest}");
}

/// Shows the page in headless Chromium: no errors, tables that fill, and a keyboard that reaches
/// everything.
#[test]
fn a_browser_shows_the_page() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/python/dashboard.py");
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok_and(|run| run.status.success());
    let Some(browser) = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| has(name)) else {
        return skip("the dashboard is not looked at: there is no Chromium; `apt-get install chromium`");
    };
    if !has("python3") {
        return skip("the dashboard is not looked at: there is no python3");
    }
    let daemon = Daemon::start();
    daemon.engine.preempt();
    for _ in 0..3 {
        assert_eq!(daemon.post("/v2/models/toy/infer", ASK).status, 200);
    }
    let page = format!("http://{}/ui", daemon.http);
    let run = Command::new("python3").args([script, browser, &page]).output().unwrap();
    let (out, error) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{out}\n{error}");
}
