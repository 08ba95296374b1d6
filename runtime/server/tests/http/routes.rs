//! Every route of the HTTP interface.

use crate::support::{Connection, Daemon, Options, write_bundle};
use serde_json::{Value, json};
use std::collections::HashSet;

#[test]
fn health_has_bodies() {
    let daemon = Daemon::start();
    assert_eq!(daemon.get("/v2/health/live").json(), json!({ "live": true }));
    assert_eq!(daemon.get("/v2/health/ready").json(), json!({ "ready": true }));
    assert_eq!(daemon.get("/v2/models/toy/ready").json(), json!({ "name": "toy", "ready": true }));
    assert_eq!(daemon.get("/v2/models/toy/versions/1/ready").status, 200);
    assert_eq!(daemon.get("/v2/models/unknown/ready").status, 404);
}

#[test]
fn metadata_tells_what_models_take() {
    let daemon = Daemon::start();
    let server = daemon.get("/v2").json();
    assert_eq!(server["name"], "atoll");
    assert!(server["extensions"].as_array().unwrap().contains(&json!("statistics")));
    let tensor = |name: &str| json!({ "name": name, "datatype": "FP32", "shape": [-1, 4], "symbols": ["batch", ""] });
    let expected = json!({
        "name": "toy",
        "versions": ["1"],
        "platform": "atoll_kgraph",
        "inputs": [tensor("in")],
        "outputs": [tensor("out")],
    });
    assert_eq!(daemon.get("/v2/models/toy").json(), expected);
    assert_eq!(daemon.get("/v2/models/toy/versions/1").json(), expected);
    let error = daemon.get("/v2/models/toy/versions/2").error();
    assert!(error.contains("no version `2`, only `1`"), "{error}");
    let config = daemon.get("/v2/models/toy/config").json();
    assert_eq!(config["input"], json!([{ "name": "in", "data_type": "TYPE_FP32", "dims": [-1, 4] }]));
    assert_eq!(config["max_batch_size"], 0);
}

#[test]
fn statistics_are_told_for_one_and_for_all() {
    let daemon = Daemon::start();
    let of = |path: &str| daemon.get(path).json()["model_stats"][0].clone();
    assert_eq!(of("/v2/models/stats"), of("/v2/models/toy/stats"));
    let statistics = of("/v2/models/toy/versions/1/stats");
    assert_eq!((&statistics["name"], &statistics["version"]), (&json!("toy"), &json!("1")));
    assert_eq!(statistics["inference_stats"]["success"], json!({ "count": 0, "ns": 2000 }));
    assert_eq!(daemon.get("/v2/models/unknown/stats").status, 404);
}

#[test]
fn settings_are_told_and_not_changed() {
    let daemon = Daemon::start();
    for path in ["/v2/logging", "/v2/trace/setting", "/v2/models/toy/trace/setting"] {
        let settings = daemon.get(path);
        assert_eq!(settings.status, 200, "{path}");
        assert_eq!(
            daemon.post(path, &settings.text()).json(),
            settings.json(),
            "asking for the current settings succeeds"
        );
        let error = daemon.post(path, r#"{"log_verbose_level": 7, "trace_level": ["TIMESTAMPS"]}"#).error();
        assert!(error.contains("cannot be changed") || error.contains("no setting"), "{error}");
    }
    assert_eq!(daemon.post("/v2/trace/setting", r#"{"trace_level": null}"#).status, 200);
}

#[test]
fn cuda_shared_memory_is_told_to_be_missing() {
    let daemon = Daemon::start();
    assert_eq!(daemon.get("/v2/cudasharedmemory/status").json(), json!([]));
    let one = daemon.get("/v2/cudasharedmemory/region/r/status");
    assert_eq!((one.status, one.error().contains("unable to find")), (400, true));
    let body = r#"{"raw_handle": {"b64": "AA=="}, "device_id": 0, "byte_size": 4}"#;
    let register = daemon.post("/v2/cudasharedmemory/region/r/register", body);
    assert_eq!(register.status, 400);
    assert!(register.error().contains("failed to register CUDA shared memory region `r`"));
    for path in ["/unregister", "/region/r/unregister"] {
        assert_eq!(daemon.post(&format!("/v2/cudasharedmemory{path}"), "").status, 200);
    }
}

#[test]
fn unknown_routes_and_methods_have_json_answers() {
    let daemon = Daemon::start();
    assert!(daemon.get("/v3/models").error().contains("/v3/models"));
    let answer = Connection::open(daemon.http).request("DELETE", "/v2", &[], b"");
    assert_eq!(answer.status, 405);
    assert!(answer.error().contains("DELETE"));
}

#[test]
fn an_answer_is_one_write_and_the_connection_stays() {
    let daemon = Daemon::start();
    let mut connection = Connection::open(daemon.http);
    for _ in 0..20 {
        let answer = connection.request("GET", "/v2/models/toy", &[], b"");
        assert_eq!(answer.first_read_bytes, answer.head.len() + 4 + answer.body.len());
    }
}

#[test]
fn every_metric_has_samples_before_anything_happened() {
    let daemon = Daemon::start();
    let text = daemon.metrics();
    let declared: HashSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let histograms: HashSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" histogram")).collect();
    assert!(declared.len() > 20);
    // These metrics have samples only if a client has a share, a model has instances, is hedged or
    // autoscaled, or a device or CPU time has a price.
    let later = [
        "atoll_share_",
        "atoll_instance_",
        "atoll_hedged_",
        "atoll_scaling_",
        "atoll_usage_price_",
        "atoll_stage_price_",
    ];
    for name in declared.iter().filter(|name| !later.iter().any(|begin| name.starts_with(begin))) {
        let sample = if histograms.contains(name) { format!("{name}_bucket") } else { (*name).to_string() };
        let begins = |line: &&str| line.strip_prefix(sample.as_str()).is_some_and(|rest| rest.starts_with([' ', '{']));
        assert!(text.lines().any(|line| begins(&line)), "{name} is declared and has no sample:\n{text}");
    }
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (_, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
    assert!(text.contains("nv_inference_request_success{model=\"toy\",version=\"1\",device=\"host:0\"} 0\n"), "{text}");
    assert!(text.contains("atoll_requests_total{class=\"real_time\",outcome=\"success\",device=\"host:0\"} 0\n"));
    assert!(text.contains("atoll_models{state=\"ready\"} 1\n"));
    let labels = "tenant=\"local\",function=\"toy\",class=\"best_effort\"";
    let device = "device=\"host:0\"";
    for sample in [
        format!("device_seconds_total{{{labels},{device}}} 0"),
        format!("memory_bytes{{{labels},kind=\"constants\",{device}}} 0"),
    ] {
        assert!(text.contains(&format!("atoll_usage_{sample}\n")), "{sample}:\n{text}");
    }
}

/// Metrics of the daemon as a whole.
const WITHOUT_DEVICE: [&str; 58] = [
    "atoll_access_log_dropped_total",
    "atoll_cuda_flushes_total",
    "atoll_cuda_launches_total",
    "atoll_cuda_session_memory_bytes",
    "atoll_cuda_session_moves_total",
    "atoll_cuda_session_resumes_total",
    "atoll_cuda_sessions",
    "atoll_cuda_sessions_detached",
    "atoll_cuda_sessions_expired_total",
    "atoll_cuda_sessions_total",
    "atoll_cuda_stored_bytes",
    "atoll_cuda_stored_calls_total",
    "atoll_cuda_stored_differences_total",
    "atoll_cuda_stored_functions",
    "atoll_cuda_warm_bytes",
    "atoll_cuda_warm_hits_total",
    "atoll_stage_cpu_seconds_total",
    "atoll_stage_process_losses_total",
    "atoll_stage_process_starts_total",
    "atoll_graph_admissions_total",
    "atoll_graph_late_total",
    "atoll_graph_intermediate_bytes_total",
    "atoll_graph_rejections_total",
    "atoll_graph_running",
    "atoll_models",
    "atoll_otlp_spans_dropped_total",
    "atoll_otlp_spans_exported_total",
    "atoll_pool_placements_total",
    "atoll_pool_rejections_total",
    "atoll_pool_waiting",
    "atoll_bundle_copies_bytes",
    "atoll_http_responses_total",
    "atoll_grpc_responses_total",
    "atoll_response_cache_bytes",
    "atoll_ring_cpu_seconds_total",
    "atoll_ring_memory_bytes",
    "atoll_ring_pauses_total",
    "atoll_ring_requests_total",
    "atoll_ring_sleeps_total",
    "atoll_rings",
    "atoll_rings_closed_total",
    "atoll_response_cache_bytes_max",
    "atoll_cuda_shared_memory_bytes",
    "atoll_cuda_shared_memory_read_bytes_total",
    "atoll_cuda_shared_memory_regions",
    "atoll_cuda_shared_memory_written_bytes_total",
    "atoll_shared_memory_bytes",
    "atoll_shared_memory_read_bytes_total",
    "atoll_shared_memory_regions",
    "atoll_shared_memory_written_bytes_total",
    "nv_cache_num_hits_per_model",
    "nv_cache_num_misses_per_model",
    "nv_cache_hit_duration_per_model",
    "nv_cache_miss_duration_per_model",
    "atoll_connections",
    "atoll_connections_closed_total",
    "atoll_denied_requests_total",
    "atoll_build_info",
];

#[test]
fn every_sample_says_its_device_and_models_are_on_the_one_they_name() {
    let daemon = Daemon::with(Options::default(), |repository| {
        for name in ["toy", "other", "nowhere"] {
            write_bundle(&repository.join(name).with_extension("kg"));
        }
        std::fs::write(repository.join("other.toml"), "device = \"host:1\"").unwrap();
        std::fs::write(repository.join("nowhere.toml"), "device = \"host:7\"").unwrap();
    });
    let text = daemon.metrics();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        assert_ne!(WITHOUT_DEVICE.contains(&name), line.contains("device=\"host:"), "{line}");
    }
    for (model, device) in [("toy", "host:0"), ("other", "host:1")] {
        let samples: Vec<&str> =
            text.lines().filter(|line| line.starts_with(&format!("nv_inference_count{{model=\"{model}\""))).collect();
        assert_eq!(samples, [format!("nv_inference_count{{model=\"{model}\",version=\"1\",device=\"{device}\"}} 0")]);
    }
    let index = daemon.post("/v2/repository/index", "").json();
    let nowhere = index.as_array().unwrap().iter().find(|entry| entry["name"] == "nowhere").unwrap();
    let reason = nowhere["reason"].as_str().unwrap();
    assert!(reason.contains("no device `host:7`; choose one of: host:0, host:1"), "{nowhere}");
}

#[test]
fn a_lost_device_takes_its_own_models_with_it_and_no_others() {
    let daemon = Daemon::with(Options::default(), |repository| {
        write_bundle(&repository.join("toy.kg"));
        write_bundle(&repository.join("other.kg"));
        std::fs::write(repository.join("other.toml"), "device = \"host:1\"").unwrap();
    });
    let ready = |path: &str| daemon.get(path).status == 200;
    let states = || ["/v2/health/ready", "/v2/models/toy/ready", "/v2/models/other/ready"].map(ready);
    assert_eq!(states(), [true; 3]);
    daemon.engine.lose(1);
    assert_eq!(states(), [true, true, false]);
    daemon.engine.lose(0);
    assert_eq!(states(), [false; 3]);
}

#[test]
fn index_bodies_may_be_empty() {
    let daemon = Daemon::start();
    let ready = json!([{ "name": "toy", "version": "1", "state": "READY", "reason": "" }]);
    for body in ["", "{}", r#"{"ready": true}"#] {
        assert_eq!(daemon.post("/v2/repository/index", body).json(), ready);
    }
    assert_eq!(daemon.post("/v2/repository/index", "[").status, 400);
    let _: Value = daemon.post("/v2/repository/index", "").json();
}
