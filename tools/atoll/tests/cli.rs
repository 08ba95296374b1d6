//! The program as a user sees it: output, exit codes, and error messages.

#![expect(clippy::print_stderr, reason = "a test says what it skips")]

use atoll_kgraph::{
    BufferId, BufferKind, BufferSpec, BundleContents, DType, Expr, FORMAT_VERSION, KernelGraph, MemoryPlan, Node,
    NodeId, NodeKind, SymbolId, SymbolSpec, TargetContents, TargetImage, write_bundle,
};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn atoll(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_atoll")).args(arguments).env_remove("ATOLL_LOG").output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The exit code and the error message.
fn refused(arguments: &[&str]) -> (i32, String) {
    let output = atoll(arguments);
    (output.status.code().expect("an exit code"), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A bundle with two consecutive copies and a symbolic batch.
fn bundle(path: &Path) {
    let batch = Expr::from(SymbolId(0));
    let buffer = |name: &str, kind| BufferSpec {
        name: name.into(),
        kind,
        dtype: DType::F32,
        shape: vec![batch.clone(), Expr::Const(4)],
        weights_offset: None,
    };
    let copy = |name: &str, from, to, after: &[u32]| Node {
        name: name.into(),
        kind: NodeKind::copy(BufferId(from), BufferId(to), batch.clone() * 16),
        reads: vec![BufferId(from)],
        writes: vec![BufferId(to)],
        after: after.iter().copied().map(NodeId).collect(),
    };
    let graph = KernelGraph {
        format: FORMAT_VERSION,
        name: "toy".into(),
        symbols: vec![SymbolSpec::new("batch", 1, 64)],
        buffers: vec![
            buffer("x <in>", BufferKind::Input),
            buffer("y", BufferKind::Output),
            buffer("z", BufferKind::Output),
        ],
        nodes: vec![copy("one", 0, 1, &[]), copy("two", 1, 2, &[0])],
        plan: MemoryPlan { restore_points: vec![NodeId(0), NodeId(1)], ..MemoryPlan::default() },
        ..KernelGraph::default()
    };
    let image = TargetImage { name: "test".into(), launches: vec![None, None], ..TargetImage::default() };
    let targets = vec![TargetContents { image, code: vec![0], ptx: None, source: None }];
    write_bundle(path, &BundleContents { producer: "test".into(), graph: &graph, weights: vec![], targets }).unwrap();
}

#[test]
fn exit_codes_distinguish_mistakes_of_the_user() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    std::fs::write(path("damaged.kg"), "no bundle").unwrap();
    for (arguments, expected) in [
        (vec!["frobnicate"], "unrecognized subcommand"),
        (vec!["inspect", "/nowhere/x.kg"], "/nowhere/x.kg"),
        (vec!["inspect", &path("damaged.kg")], "not a usable bundle"),
        (vec!["infer", "--model", &path("missing.kg")], "missing.kg"),
        (
            vec![
                "serve",
                "--model-repository",
                &path("missing"),
                "--http-port",
                "0",
                "--metrics-port",
                "0",
                "--no-control",
            ],
            "--model-repository",
        ),
        (vec!["bench", "latency", "--rt", "a.txt", "--be", "b.txt"], "expected a .kg or .onnx file"),
        (vec!["bench", "latency", "--rt", "a.kg", "--be", "b.kg", "--rate", "0"], "--rate"),
        (vec!["bench", "kernel", "--only", "gemm("], "unclosed group"),
        (vec!["bench", "dkp", "--only", "nothing$"], "--only matches no kernel"),
        (vec!["bench", "cluster", "--policy", "fifo"], "no placement policy `fifo`; the policies are cost, "),
        (vec!["bench", "cluster", "--scheduler", "fifo"], "possible values: reset, "),
        (vec!["bench", "placement", "--device", "host:0@0"], "a policy has no choice with one device"),
        (vec!["bench", "models", "lstn"], "unknown model lstn; use resnet18"),
        (
            vec!["bench", "models", "null", "--against", "onnxruntime", "--python", "/nowhere/python"],
            "choose a Python with --python",
        ),
        (
            vec!["bench", "models", "null", "--against", "onnxruntime", "--python", "false"],
            "cannot import numpy, onnxruntime",
        ),
        (vec!["bench", "models", "null", "--threads", "4000"], "--threads: this process may use"),
        (
            vec!["kernel", "compare", "--device", "interp", "--corpus", "x", "--case", "saxpy,+"],
            "repetition operator missing expression",
        ),
        (vec!["auth", "list", "--auth-keys", "/nowhere/keys.json"], "/nowhere/keys.json"),
        (vec!["instance", "resize", "fast"], "nothing to change; give --quota-request"),
        (vec!["models", "--url", "ftp://x"], "unknown scheme ftp://"),
        (vec!["models", "--url", "https://x", "--tls-ca", "/nowhere/ca.pem"], "/nowhere/ca.pem"),
        (vec!["--log", "a=b=c", "doctor"], "--log"),
    ] {
        let (code, message) = refused(&arguments);
        assert!(code == 2 && message.contains(expected), "{arguments:?}: {code}: {message}");
    }
    // A port without a listener: it was free a moment ago.
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (code, message) = refused(&["models", "--url", &address]);
    assert!(code == 1 && message.contains("is `atoll serve` running there?"), "{code}: {message}");
}

#[test]
fn a_bundle_is_shown_in_every_form() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("toy.kg");
    bundle(&path);
    let path = path.to_str().unwrap();
    let text = stdout(&atoll(&["inspect", path]));
    assert!(text.contains("symbol   batch = 1 (1 to 64)") && text.contains("x <in>: FP32[-1, 4]"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&atoll(&["inspect", path, "--json", "--symbol", "batch=8"]))).unwrap();
    assert_eq!((&json["buffers"][1]["bytes"], &json["nodes"][1]["what"]), (&128.into(), &"copy".into()));
    assert_eq!(json["memory"]["peak_bytes"], json["memory"]["invocation_bytes"], "there are no constants");
    let dot = stdout(&atoll(&["inspect", path, "--dot"]));
    assert!(
        dot.contains("    0 -> 1 [")
            && dot.contains("    1 -> 2 [")
            && dot.contains("label = \"x <in>\" shape=ellipse"),
        "{dot}"
    );
    for (symbol, expected) in
        [("length=3", "no symbol `length`; it has batch"), ("batch=65", "1 to 64"), ("batch", "NAME=VALUE")]
    {
        let (code, message) = refused(&["inspect", path, "--symbol", symbol]);
        assert!(code == 2 && message.contains(expected), "{code}: {message}");
    }
}

#[test]
fn a_graph_is_drawn_by_graphviz_where_it_is_installed() {
    let folder = tempfile::tempdir().unwrap();
    let (path, picture) = (folder.path().join("toy.kg"), folder.path().join("toy.svg"));
    bundle(&path);
    let draw = |search: &OsStr| {
        let arguments = [OsStr::new("inspect"), path.as_ref(), OsStr::new("--svg"), picture.as_ref()];
        Command::new(env!("CARGO_BIN_EXE_atoll")).args(arguments).env("PATH", search).output().unwrap()
    };
    let output = draw(folder.path().as_os_str());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && message.contains("install the package graphviz") && !picture.exists(),
        "{message}"
    );

    // A program that reads nothing and fails, and one that copies its input.
    let program = |text: &str| {
        std::fs::write(folder.path().join("dot"), format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(folder.path().join("dot"), Permissions::from_mode(0o755)).unwrap();
        draw(folder.path().as_os_str())
    };
    let message = program("echo 'no fonts' >&2; exit 3").stderr;
    assert!(String::from_utf8_lossy(&message).contains("`dot` failed: no fonts") && !picture.exists());
    stdout(&program("while read -r line; do echo \"$line\"; done"));
    assert!(
        std::fs::read_to_string(&picture).unwrap().contains("label = \"x <in>\""),
        "the output of dot becomes the picture"
    );

    let search = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&search).any(|folder| folder.join("dot").exists()) {
        eprintln!("SKIPPED: Graphviz is not installed");
        return;
    }
    stdout(&draw(&search));
    let svg = std::fs::read_to_string(picture).unwrap();
    assert!(
        svg.contains("<svg")
            && svg.contains("x &lt;in&gt;")
            && svg.matches("class=\"node\"").count() == 5
            && svg.matches("class=\"edge\"").count() == 4,
        "{svg}"
    );
}

#[cfg(feature = "compiler")]
#[test]
fn passes_are_listed_run_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let source = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 a)\n{\n.reg .b32 \
        %r<2>;\nmov.u32 %r1, %tid.x;\nret;\n}\n";
    std::fs::write(path("k.ptx"), source).unwrap();
    assert!(stdout(&atoll(&["ptx", "transform", "--list"])).contains("inject_preempt_flag"));

    let both =
        ["ptx", "transform", "--pass", "virtualize_block_index,inject_preempt_flag", "--block", "k=64", &path("k.ptx")];
    let output = atoll(&both);
    assert!(String::from_utf8_lossy(&output.stderr).contains("preemptible; preemption parameters at byte 8"));
    assert!(stdout(&output).contains("k_atoll_block_base"));
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&atoll(&[&both[..], &["--json", "-o", &path("out.ptx")]].concat()))).unwrap();
    assert_eq!(json["kernels"][0]["preempt_params_offset"], 8);
    assert_eq!(json["kernels"][0]["virtualization"]["block"], serde_json::json!([64, 1, 1]));
    assert!(std::fs::read_to_string(path("out.ptx")).unwrap().contains("k_atoll_epoch_word"));

    let text = source.replace("mov.u32 %r1, %tid.x;", "ld.global.u32 %r1, [256];");
    std::fs::write(path("loads.ptx"), &text).unwrap();
    std::fs::write(path("samples.ptx"), text.replace("ld.global.u32 %r1, [256];", "txq.width.b32 %r1, [a];")).unwrap();
    for (file, form, says) in [
        ("loads", "mask", "fenced; parameters at byte 8"),
        ("samples", "trap", "not fenced: line 7: `txq.width.b32` cannot be fenced"),
    ] {
        let output =
            atoll(&["ptx", "transform", "--pass", "fence_memory", "--fence", form, &path(&format!("{file}.ptx"))]);
        assert!(String::from_utf8_lossy(&output.stderr).contains(says), "{output:?}");
    }

    for arguments in [
        vec!["--pass", "inline"],
        vec!["--pass", "outline_kernel_body", "--block", "x=4"],
        vec!["--pass", "outline_kernel_body", "--block", "0"],
    ] {
        let (code, message) = refused(&[&["ptx", "transform"], &arguments[..], &[&path("k.ptx")]].concat());
        assert_eq!(code, 2, "{message}");
    }
}

#[test]
fn shells_get_completions() {
    for shell in ["bash", "fish", "zsh"] {
        assert!(stdout(&atoll(&["completion", shell])).contains("inspect"), "{shell}");
    }
}

/// A `.npy` file of 16 integers of 32 bits, in one row.
#[cfg(feature = "compiler")]
fn integers() -> Vec<u8> {
    let header = format!("{:117}\n", "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 16)}");
    [b"\x93NUMPY\x01\x00\x76\x00", header.as_bytes(), &[1; 64]].concat()
}

#[cfg(feature = "compiler")]
#[test]
fn a_model_is_compiled_inspected_and_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    std::fs::write(
        path("null.onnx"),
        atoll_models::build_onnx("null", &atoll_models::BuildOptions::default()).unwrap(),
    )
    .unwrap();
    let report: serde_json::Value =
        serde_json::from_str(&stdout(&atoll(&["compile", &path("null.onnx"), "--target", "host", "--json"]))).unwrap();
    assert_eq!(report["output"], path("null.kg"));
    assert!(report["stages"].as_array().unwrap().iter().all(|stage| stage["milliseconds"].is_number()), "{report}");
    assert!(
        stdout(&atoll(&["compile", &path("null.onnx"), "--emit", "ptx-final", "--target", "nvidia-sm_75"]))
            .contains(".entry")
    );
    let ask = [
        "infer",
        "--model",
        &path("null.kg"),
        "--input",
        "input=-2.5",
        "--repeat",
        "3",
        "--json",
        "--save",
        &path("out"),
    ];
    let answer: serde_json::Value = serde_json::from_str(&stdout(&atoll(&ask))).unwrap();
    assert_eq!(
        (&answer["outputs"][0]["max"], answer["milliseconds"].as_array().unwrap().len()),
        (&0.0.into(), 3),
        "{answer}"
    );
    assert!(std::fs::read(path("out/output.npy")).unwrap().starts_with(b"\x93NUMPY"));
    let (code, message) = refused(&["infer", "--model", &path("null.kg"), "--shape", "input=2,3"]);
    assert!(code == 2 && message.contains("`input` is f32 [2, 3]; the model takes f32 [1, 16]"), "{code}: {message}");
    std::fs::write(path("integers.npy"), integers()).unwrap();
    let input = format!("input={}", path("integers.npy"));
    for command in [["infer", "--model"].as_slice(), &["profile"]] {
        let (code, message) = refused(&[command, &[&path("null.kg"), "--input", &input]].concat());
        let reason = "`input` is i32 [1, 16]; the model takes f32 [1, 16]";
        assert!(code == 2 && message.contains(reason), "{command:?}: {code}: {message}");
    }
    let load = ["--rt", &path("null.kg"), "--be", &path("null.kg"), "--rate", "50", "--duration", "0.2"];
    let bench = [&["bench", "latency", "--daemon", "--json"][..], &load].concat();
    let found: serde_json::Value = serde_json::from_str(&stdout(&atoll(&bench))).unwrap();
    for (interface, phase) in [("over_http", "rt_alone"), ("over_ring", "rt_beside")] {
        let of = &found["daemon"][interface][phase];
        assert!(of["failed"] == 0 && of["latency"]["count"] == found["rt_alone"]["latency"]["count"], "{found}");
    }
    let (code, message) = refused(&["compile", &path("null.onnx"), "--target", "vax"]);
    assert!(code == 2 && message.contains("no target vax"), "{code}: {message}");
    std::fs::write(path("bad.onnx"), "not a model").unwrap();
    let (code, message) = refused(&["compile", &path("bad.onnx")]);
    assert!(code == 2 && message.contains("bad.onnx"), "{code}: {message}");
}

/// Doubles each element of `in` into `out`, one element per thread.
const DOUBLE: &str = ".version 7.0\n.target sm_75\n.address_size 64\n\
    .visible .entry double(.param .u64 in, .param .u64 out)\n{\n\
    .reg .b32 %r<3>;\n.reg .b64 %d<6>;\n\
    mov.u32 %r1, %tid.x;\nmul.wide.u32 %d1, %r1, 4;\nld.param.u64 %d2, [in];\nld.param.u64 %d3, [out];\n\
    add.s64 %d4, %d2, %d1;\nadd.s64 %d5, %d3, %d1;\n\
    ld.global.u32 %r2, [%d4];\nadd.s32 %r2, %r2, %r2;\nst.global.u32 [%d5], %r2;\nret;\n}\n";

#[test]
fn kernels_are_checked_printed_and_run_on_every_device() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("double.ptx");
    std::fs::write(&path, DOUBLE).unwrap();
    let file = path.to_str().unwrap();
    assert!(stdout(&atoll(&["ptx", "check", file])).contains("1 file is valid"));
    assert_eq!(stdout(&atoll(&["ptx", "print", file])), DOUBLE);
    let stats: Value = serde_json::from_str(&stdout(&atoll(&["ptx", "stats", file, "--json"]))).unwrap();
    assert_eq!(stats[0]["functions"][0]["instructions"], 10);
    let run = |device: &str, size: &str, more: &[&str]| {
        let input = format!("in:u32:{size}:arange");
        let args = [
            "kernel",
            "run",
            file,
            "--grid",
            "1",
            "--block",
            "4",
            "--device",
            device,
            "--arg",
            &input,
            "--arg",
            "out:u32:4",
            "--json",
        ];
        atoll(&[&args, more].concat())
    };
    for (device, more) in [
        ("host", &[][..]),
        ("interp", &[]),
        ("host", &["--pass", "inject_preempt_flag,virtualize_block_index"]),
        ("host", &["--check"]),
    ] {
        let answer: Value = serde_json::from_str(&stdout(&run(device, "4", more))).unwrap();
        assert_eq!(answer["outputs"][0]["first"], serde_json::json!([0.0, 2.0, 4.0, 6.0]), "{device} {more:?}");
    }
    for (device, more) in [("host", &["--check"][..]), ("interp", &[])] {
        let outside = run(device, "3", more);
        let message = String::from_utf8_lossy(&outside.stderr).into_owned();
        assert!(
            outside.status.code() == Some(2) && message.contains("double") && message.contains("line 14"),
            "{message}"
        );
    }
    let broken = folder.path().join("broken.ptx");
    std::fs::write(&broken, DOUBLE.replace("%r2, %r2, %r2", "%r7, %r2, %r2")).unwrap();
    let checked = atoll(&["ptx", "check", broken.to_str().unwrap()]);
    assert!(
        checked.status.code() == Some(2) && String::from_utf8_lossy(&checked.stdout).contains(":15:1: in `double`")
    );
}

/// Profiles of the two models of DISB's workload A, in REEF's format: a few kernels with a few
/// waves of blocks.
fn profiles(folder: &Path) {
    for (name, kernels, blocks) in [("vgg", 5, 70), ("resnet", 20, 600)] {
        let kernel = |index: usize| {
            let name = format!("k{}", index % 2);
            serde_json::json!({ "name": name, "launch_params": [blocks, 1, 1, 64, 1, 1], "args": [] })
        };
        let graph =
            serde_json::json!({ "storage": [], "kernels": (0..kernels).map(kernel).collect::<Vec<_>>(), "args": [] });
        let times = serde_json::json!({ "total_latency": 120, "latency": [100, 120] });
        let profile = serde_json::json!({ "model_latency": 100_000, "kernel_latency": { "k0": times, "k1": times } });
        std::fs::write(folder.join(format!("{name}.graph.json")), graph.to_string()).unwrap();
        std::fs::write(folder.join(format!("{name}.profile.json")), profile.to_string()).unwrap();
    }
}

#[test]
fn models_are_measured_in_both_variants() {
    let arguments = ["bench", "models", "null", "--threads", "1", "--pairs", "3", "--size", "batch=5", "--json"];
    let report: Value = serde_json::from_str(&stdout(&atoll(&arguments))).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let found: Vec<_> = rows.iter().map(|row| (&row["variant"], &row["shape"], &row["pairs"], &row["ratio"])).collect();
    let expected = ["static", "symbolic"]
        .map(|variant| (Value::from(variant), Value::from("input=5x16"), Value::from(3), Value::Null));
    assert_eq!(found, expected.each_ref().map(|(variant, shape, pairs, ratio)| (variant, shape, pairs, ratio)));
    assert!(
        rows.iter().all(|row| row["atoll_min_ms"].as_f64() > Some(0.0) && row["atoll_cpu_ms"].as_f64() > Some(0.0)),
        "{report}"
    );
}

#[test]
fn policies_are_compared_on_a_simulated_device() {
    let folder = tempfile::tempdir().unwrap();
    profiles(folder.path());
    let profiles = folder.path().to_str().unwrap();
    let common = ["bench", "disb", "--workload", "A", "--duration", "0.5", "--profiles", profiles];
    let table = stdout(&atoll(&common));
    let lines: Vec<&str> = table.lines().map(str::trim).collect();
    assert_eq!(lines.len(), 1 + atoll_core::POLICIES.len());
    assert!(lines[0].starts_with("workload") && lines[1].starts_with("DISB v1.0 A"), "{table}");
    let reports: Value =
        serde_json::from_str(&stdout(&atoll(&[&common[..], &["--policy", "reef,reset", "--json"]].concat()))).unwrap();
    assert_eq!((&reports[0]["policy"], &reports[0]["clients"][0]["class"]), (&"reef".into(), &"real-time".into()));
    assert!(reports[0]["padded_launches"].as_u64() > Some(0) && reports[1]["padded_launches"] == 0, "{reports}");
    assert!(reports[0]["preemption"]["total_us"]["p50"].as_f64() > Some(0.0));
    let faulty =
        stdout(&atoll(&[&common[..], &["--policy", "reset", "--fault", "dead-clients=0.5,failing-resets=1"]].concat()));
    assert!(faulty.contains("failing-resets") && faulty.lines().count() == 4, "{faulty}");
    for (more, expected) in [
        (vec!["--device", "sim:mi5"], "unknown device sim:mi5; the devices are host, cuda:N, sim:mi50"),
        (vec!["--policy", "fastest"], "unknown policy fastest; the policies are reset"),
        (vec!["--cost", "luck=2"], "unknown cost luck; the costs are launch"),
        (vec!["--fault", "luck=1"], "unknown fault luck; the faults are late-completions"),
        (vec!["--fault", "stuck-kernels=2"], "--fault stuck-kernels=2: the probability must be between 0 and 1"),
        (vec!["--workload", "F"], "unknown workload F; use A, B, C, D, E, or a file"),
        (vec!["--workload", "C"], "model densenet201-imagenet"),
        (vec!["--map", "vgg"], "--map vgg is not MODEL=NAME"),
    ] {
        let arguments = match more[0] {
            "--workload" => [&["bench", "disb", "--profiles", profiles], &more[..]].concat(),
            _ => [&common[..], &more[..]].concat(),
        };
        let (code, message) = refused(&arguments);
        assert!(code == 2 && message.contains(expected), "{more:?}: {code}: {message}");
    }
}

/// `atoll bench residency zipf` with more arguments, in a folder.
fn bench_in(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_atoll"));
    command.args(["bench", "residency"]).args(arguments).arg("zipf").current_dir(folder).output().unwrap()
}

#[test]
fn results_are_saved_by_day_and_commit() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let outside = bench_in(root, &["--save"]);
    let message = String::from_utf8_lossy(&outside.stderr).into_owned();
    assert!(outside.status.code() == Some(2) && message.contains("name a folder with --save=DIR"), "{message}");

    let git = |arguments: &[&str]| {
        let who = ["-c", "user.name=a", "-c", "user.email=a@example.com"];
        stdout(&Command::new("git").args(who).args(arguments).current_dir(root).output().unwrap())
    };
    git(&["init", "--quiet"]);
    git(&["commit", "--quiet", "--allow-empty", "--message", "first"]);
    let commit = git(&["rev-parse", "--short=7", "HEAD"]).trim().to_owned();
    std::fs::create_dir_all(root.join("docs/benchmarks")).unwrap();
    std::fs::create_dir(root.join("src")).unwrap();
    let table = stdout(&bench_in(&root.join("src"), &["--save"]));
    std::fs::write(root.join("src/new.rs"), "").unwrap();
    let json = stdout(&bench_in(root, &["--json", "--save", "--json-file", "zipf.json"]));
    assert_eq!(std::fs::read_to_string(root.join("zipf.json")).unwrap(), json);

    let pages: Vec<_> = std::fs::read_dir(root.join("docs/benchmarks")).unwrap().map(|e| e.unwrap().path()).collect();
    // Two pages if midnight passed between the two commands.
    let page: String = pages.iter().map(|page| std::fs::read_to_string(page).unwrap()).collect();
    for path in &pages {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        assert!(name.starts_with("20") && name.ends_with(&format!("-{commit}.md")), "{name}");
    }
    let sections: Vec<&str> = page.split("\n## ").skip(1).collect();
    let [first, second] = sections[..] else { panic!("{page}") };
    assert!(first.contains("```sh\natoll bench residency --save zipf\n```"), "{first}");
    assert!(first.contains(&format!("- commit checked out: {commit}, no changes in the working tree\n")), "{first}");
    assert!(second.contains(&format!("- commit checked out: {commit}, and changes in the working tree\n")), "{second}");
    for section in sections {
        assert!(section.contains(&format!("```text\n{}\n```", table.trim_end())), "{section}");
        assert!(section.contains(&format!("```json\n{}\n```", json.trim_end())), "{section}");
    }

    let elsewhere = root.join("a/b");
    stdout(&bench_in(Path::new("/"), &[&format!("--save={}", elsewhere.display())]));
    let page = std::fs::read_dir(elsewhere).unwrap().next().unwrap().unwrap().path();
    assert!(std::fs::read_to_string(page).unwrap().contains("- commit checked out: not known"));
}
