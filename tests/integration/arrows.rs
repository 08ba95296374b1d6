//! Checks the dependencies between crates against the map in `ARCHITECTURE.md`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// The crates of ours that each crate may use. What is absent matters: the frontend does not know
/// PTX, passes do not know tensors, the runtime does not know the compiler, and the core knows no
/// other crate.
const ARROWS: &[(&str, &[&str])] = &[
    ("atoll-ptx", &[]),
    ("atoll-kgraph", &[]),
    ("atoll-frontend", &["atoll-kgraph"]),
    ("atoll-codegen", &["atoll-ptx", "atoll-kgraph", "atoll-frontend"]),
    ("atoll-passes", &["atoll-ptx", "atoll-kgraph"]),
    ("atoll-interp", &["atoll-ptx"]),
    ("atoll-lower", &["atoll-ptx"]),
    ("atoll-emit", &["atoll-ptx", "atoll-lower"]),
    ("atoll-target-host", &["atoll-ptx", "atoll-kgraph", "atoll-lower", "atoll-emit"]),
    ("atoll-target-amd", &["atoll-ptx", "atoll-kgraph", "atoll-lower", "atoll-emit"]),
    ("atoll-target-nvidia", &["atoll-ptx", "atoll-kgraph"]),
    (
        "atoll-pipeline",
        &[
            "atoll-ptx",
            "atoll-kgraph",
            "atoll-frontend",
            "atoll-codegen",
            "atoll-passes",
            "atoll-target-amd",
            "atoll-target-host",
            "atoll-target-nvidia",
            "atoll-proxy-kernels",
        ],
    ),
    ("atoll-proxy-kernels", &["atoll-ptx", "atoll-kgraph", "atoll-passes"]),
    ("atoll-core", &[]),
    ("atoll-cublas", &["atoll-cuda-api", "atoll-cuda-library"]),
    ("atoll-cuda", &["atoll-cuda-api"]),
    ("atoll-cuda-api", &[]),
    ("atoll-cuda-library", &["atoll-cuda-api"]),
    ("atoll-cudart", &["atoll-cuda-api", "atoll-cuda-library", "atoll-fatbin"]),
    ("atoll-cudnn", &["atoll-cuda-api", "atoll-cuda-library"]),
    ("atoll-fatbin", &[]),
    ("atoll-hip", &["atoll-hip-api"]),
    ("atoll-hip-api", &[]),
    ("atoll-session", &["atoll-cuda-api", "atoll-fatbin"]),
    ("atoll-session-server", &["atoll-cuda", "atoll-session"]),
    ("atoll-interpose", &["atoll-cuda-api", "atoll-fatbin", "atoll-session"]),
    ("atoll-device", &["atoll-core", "atoll-kgraph"]),
    ("atoll-device-host", &["atoll-core", "atoll-device", "atoll-kgraph"]),
    ("atoll-device-cuda", &["atoll-core", "atoll-cuda", "atoll-device", "atoll-kgraph"]),
    ("atoll-device-streams", &["atoll-core", "atoll-device", "atoll-kgraph"]),
    ("atoll-device-hip", &["atoll-core", "atoll-device", "atoll-device-streams", "atoll-hip", "atoll-kgraph"]),
    ("atoll-executor", &["atoll-core", "atoll-device", "atoll-kgraph"]),
    ("atoll-trace", &["atoll-core"]),
    ("atoll-engine", &["atoll-core", "atoll-device", "atoll-kgraph", "atoll-trace"]),
    ("atoll-fleet", &["atoll-core", "atoll-device", "atoll-engine", "atoll-kgraph", "atoll-trace"]),
    ("atoll-sim", &["atoll-core", "atoll-kgraph"]),
    ("atoll-protocol", &[]),
    ("atoll-remote", &["atoll-core"]),
    ("atoll-sealed", &[]),
    ("atoll-stages", &["atoll-device", "atoll-protocol"]),
    ("atoll-lease", &["atoll-core"]),
    ("atoll-store", &["atoll-core", "atoll-protocol", "atoll-sealed"]),
    ("atoll-control", &["atoll-core", "atoll-protocol", "atoll-sealed"]),
    ("atoll-ring", &["atoll-control", "atoll-device", "atoll-protocol"]),
    ("atoll-client", &["atoll-control", "atoll-core", "atoll-protocol", "atoll-ring", "atoll-sealed", "atoll-trace"]),
    ("atoll-ring-c", &["atoll-client"]),
    ("atoll-python", &["atoll-client"]),
    (
        "atoll-server",
        &[
            "atoll-control",
            "atoll-core",
            "atoll-engine",
            "atoll-fleet",
            "atoll-kgraph",
            "atoll-lease",
            "atoll-protocol",
            "atoll-ring",
            "atoll-sealed",
            "atoll-session",
            "atoll-session-server",
            "atoll-stages",
            "atoll-store",
            "atoll-trace",
        ],
    ),
    ("atoll-kubernetes", &["atoll-client"]),
    ("atoll-controller", &["atoll-client", "atoll-core", "atoll-kubernetes"]),
    ("atoll-device-plugin", &["atoll-client", "atoll-kubernetes"]),
    ("atoll-dra-driver", &["atoll-client", "atoll-kubernetes"]),
    ("atoll-models", &["atoll-frontend"]),
    ("gpu-probe", &["atoll-cuda"]),
    ("atoll-amd-interp", &[]),
    ("atoll-hostile-client", &[]),
    ("atoll-hostile-executor", &["atoll-core", "atoll-device", "atoll-device-host"]),
    ("atoll-stand-in-hip", &["atoll-amd-interp", "atoll-hip-api"]),
    (
        "atoll-stand-in-cuda",
        &[
            "atoll-core",
            "atoll-cuda-api",
            "atoll-device",
            "atoll-device-host",
            "atoll-fatbin",
            "atoll-kgraph",
            "atoll-ptx",
            "atoll-target-host",
        ],
    ),
];

#[test]
fn crates_depend_only_on_what_the_map_allows() {
    let packages = packages();
    let graph: BTreeMap<&str, Vec<&str>> =
        packages.iter().map(|p| (p["name"].as_str().unwrap(), normal_dependencies(p))).collect();
    for (name, allowed) in ARROWS {
        let real = graph.get(name).unwrap_or_else(|| panic!("the map names {name}, which does not exist"));
        for dependency in real {
            assert!(allowed.contains(dependency), "{name} uses {dependency}: an arrow that the map does not have");
        }
    }
    for name in graph.keys() {
        let on_top = ["atoll", "atoll-bench", "atoll-workbench", "atoll-tests", "atoll-fuzz"].contains(name);
        assert!(
            on_top || ARROWS.iter().any(|(known, _)| known == name),
            "{name} is not on the map: add it to ARCHITECTURE.md and here"
        );
    }
}

#[test]
fn a_crate_of_the_map_uses_only_crates_in_rows_above_its_own() {
    let map = std::fs::read_to_string(atoll_tests::root().join("ARCHITECTURE.md")).unwrap();
    let rows: Vec<&str> = map.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let packages = packages();
    let row_of = |package: &serde_json::Value| {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let folder = manifest.parent().unwrap().strip_prefix(atoll_tests::root()).unwrap();
        let row = rows.iter().position(|row| Path::new(row) == folder);
        row.unwrap_or_else(|| panic!("ARCHITECTURE.md has no row for {}", folder.display()))
    };
    let order: BTreeMap<&str, usize> = packages.iter().map(|p| (p["name"].as_str().unwrap(), row_of(p))).collect();
    for package in &packages {
        let name = package["name"].as_str().unwrap();
        for used in normal_dependencies(package) {
            assert!(order[used] < order[name], "{name} uses {used}: its row in ARCHITECTURE.md has to be below");
        }
    }
}

/// The crates of the workspace, as cargo describes them.
fn packages() -> Vec<serde_json::Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(atoll_tests::root())
        .output()
        .unwrap();
    let mut metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    serde_json::from_value(metadata["packages"].take()).unwrap()
}

/// Our own crates among a package's normal dependencies.
fn normal_dependencies(package: &serde_json::Value) -> Vec<&str> {
    let dependencies = package["dependencies"].as_array().unwrap();
    dependencies
        .iter()
        .filter(|d| d["kind"].is_null() && d["path"].is_string())
        .map(|d| d["name"].as_str().unwrap())
        .collect()
}
