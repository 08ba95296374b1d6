//! Tests that need no GPU: the command line, the message without a driver, and that every kernel
//! assembles.

#![expect(clippy::print_stderr, reason = "a skipped check must be seen")]

use std::path::Path;
use std::process::{Command, Output};

/// Architectures for which the kernels must assemble, starting with the oldest that current drivers
/// support.
const ARCHITECTURES: [&str; 4] = ["sm_75", "sm_80", "sm_90", "sm_120"];

fn gpu_probe(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpu-probe")).args(arguments).output().expect("the program was built")
}

#[test]
fn help_shows_examples_and_exit_status() {
    let output = gpu_probe(&["--help"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    assert!(text.contains("gpu-probe --json probe.json") && text.contains("Exit status"), "{text}");
    assert!(!text.contains("--child"), "an internal option is shown:\n{text}");
}

#[test]
fn list_names_every_probe_without_a_driver() {
    let output = gpu_probe(&["--list"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    for name in [
        "evicted-kernel",
        "flag-routes",
        "read-cost",
        "entry-check",
        "dispatch",
        "barrier-exit",
        "indirect-entry",
        "sticky-error",
    ] {
        assert!(text.contains(name), "{name} is missing in\n{text}");
    }
}

#[test]
fn without_a_device_it_says_so_and_ends_with_status_2() {
    // On a machine with a GPU, a device that does not exist stands for a missing one.
    let output = gpu_probe(&["--device", "4096"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(text.contains("NVIDIA driver"), "{text}");
    assert!(output.stdout.is_empty());
}

#[test]
fn an_unknown_probe_is_refused_by_name() {
    let output = gpu_probe(&["--only", "read-costs"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(text.contains("read-costs") && text.contains("read-cost,"), "{text}");
}

#[test]
fn every_kernel_assembles() {
    let Some(ptxas) = atoll_target_nvidia::find_ptxas() else {
        eprintln!("SKIPPED: no ptxas found; set ATOLL_PTXAS to assemble the kernels");
        return;
    };
    // The probe's own kernels, and those that it shares with the runtime.
    let folders =
        ["kernels", "../../runtime/cuda/kernels"].map(|folder| Path::new(env!("CARGO_MANIFEST_DIR")).join(folder));
    let files = folders
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).expect("kernels").flatten())
        .map(|entry| entry.path());
    let files: Vec<_> = files.collect();
    assert_eq!(files.len(), 8, "{files:?}");
    for file in files {
        let ptx = std::fs::read_to_string(&file).expect("text");
        for architecture in ARCHITECTURES {
            let report =
                ptxas.assemble(&ptx, architecture).unwrap_or_else(|error| panic!("{}: {error}", file.display())).report;
            let spilling: Vec<_> = report.kernels.iter().filter(|(_, kernel)| kernel.spill_store_bytes > 0).collect();
            assert!(spilling.is_empty(), "{}: {spilling:?}", file.display());
        }
    }
}
