//! A tenant exceeds its memory in a virtual machine where the daemon has 1 GiB: the tenant loses
//! its executor, and the daemon still answers other tenants. The machine boots Debian's kernel
//! under QEMU. The daemon runs as root with control groups, as a plain user with a delegated group,
//! and without groups. `service.rs` installs the package in a machine with systemd. `tests/vm` has
//! the files of the machines. Full runs only: a machine takes a minute or two without KVM.

mod service;

use crate::functions::manifest;
use crate::serve::atoll;
use crate::stages::{DOUBLE, MODULE};
use anyhow::{Context, Result, bail, ensure};
use atoll_pipeline::{CompileOptions, Silent, pack};
use atoll_tests::{full, root, skip};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Memory of the machine. Its files take 300 MiB of it.
const MEMORY_MIB: u32 = 1400;

/// How long a machine may run.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// The intruder's limit in messages; `tests/vm/atoll.toml` sets it.
const LIMIT: &str = "was killed: memory limit 160 MiB (32 MiB of device memory, and 128 MiB for the process itself)";

/// What a machine printed, by section.
struct Report(String);

impl Report {
    fn section(&self, name: &str) -> Result<&str> {
        let title = format!("== {name}\n");
        let at = self.0.find(&title).with_context(|| format!("no {name} in {}", self.0))?;
        // Keeps the end of the title's line, because a section may be empty.
        let after = &self.0[at + title.len() - 1..];
        Ok(after.split_once("\n== ").map_or(after, |(section, _)| section).trim())
    }
}

/// The kernel that `make test-full` downloads, if this is a full run and the machine can start.
fn kernel() -> Option<PathBuf> {
    if !full() {
        skip("virtual machines that run out of memory: make test-full");
        return None;
    }
    let cache = std::env::var_os("ATOLL_CACHE").map_or_else(|| PathBuf::from("/nowhere"), PathBuf::from);
    let kernel = cache.join("vm/vmlinuz");
    for (what, is_here) in [
        ("qemu-system-x86_64", Command::new("qemu-system-x86_64").arg("--version").output().is_ok()),
        ("busybox", Command::new("busybox").output().is_ok()),
        ("cpio", Command::new("cpio").arg("--version").output().is_ok()),
        ("a kernel, $ATOLL_CACHE/vm/vmlinuz", kernel.exists()),
    ] {
        if !is_here {
            skip(&format!("virtual machines that run out of memory: {what} is missing, which tools/setup.sh installs"));
            return None;
        }
    }
    Some(kernel)
}

/// Boots a machine and returns its output; `None` if this computer cannot run one.
fn boot(mode: &str) -> Result<Option<Report>> {
    let Some(kernel) = kernel() else { return Ok(None) };
    let folder = tempfile::tempdir()?;
    let bundle = |function: &str| -> Result<PathBuf> {
        let bundle = folder.path().join(function).with_extension("kg");
        // QEMU's own CPU has no AVX-512.
        let options = CompileOptions { targets: vec!["host-x86-64-v3".parse()?], ..CompileOptions::default() };
        pack(&manifest(function), &bundle, &options, &Silent)?;
        Ok(bundle)
    };
    let (graph, module) = (folder.path().join("graph.toml"), folder.path().join("module.wasm"));
    std::fs::write(&graph, MODULE)?;
    std::fs::write(&module, wat::parse_str(DOUBLE)?)?;
    let files = folder.path().join("files");
    let made = Command::new(root().join("tests/vm/rootfs.sh"))
        .args([&files, &atoll(), &bundle("affine")?, &bundle("hoard")?, &graph, &module])
        .output()?;
    ensure!(made.status.success(), "rootfs.sh: {}", String::from_utf8_lossy(&made.stderr));
    run(&kernel, &files, MEMORY_MIB, mode, folder.path()).map(Some)
}

/// Boots a machine with an initramfs. `mode` is for its scenario.
fn run(kernel: &Path, files: &Path, memory_mib: u32, mode: &str, folder: &Path) -> Result<Report> {
    let console = folder.join("console");
    let accelerator = std::env::var("ATOLL_VM_ACCEL").unwrap_or_else(|_| "tcg,thread=multi".into());
    let mut machine = Command::new("qemu-system-x86_64")
        .args(["-accel", &accelerator, "-cpu", "max", "-M", "q35", "-smp", "2", "-m", &memory_mib.to_string()])
        .args(["-display", "none", "-nodefaults", "-no-reboot", "-serial"])
        .arg(format!("file:{}", console.display()))
        .args(["-append", &format!("console=ttyS0 quiet panic=-1 atoll.mode={mode}")])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(files)
        .stdin(Stdio::null())
        .spawn()?;
    let start = Instant::now();
    while machine.try_wait()?.is_none() {
        if start.elapsed() > TIMEOUT {
            machine.kill()?;
            machine.wait()?;
            bail!("the machine does not end: {}", std::fs::read_to_string(&console)?);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let printed = String::from_utf8_lossy(&std::fs::read(&console)?).replace('\r', "");
    ensure!(printed.contains("== end"), "the machine did not reach its end: {printed}");
    Ok(Report(printed))
}

/// Checks that one daemon answered every request of the victim, during and after the attack.
fn check_victim(report: &Report) -> Result<()> {
    ensure!(report.section("victim")?.contains("[4.0,7.0]"), "{}", report.0);
    let answers = report.section("answers")?;
    let count: u64 = answers.split_whitespace().next().context("a count")?.parse()?;
    ensure!(count >= 4 && !answers.contains("failures"), "{}", report.0);
    let stop = report.section("stop")?;
    ensure!(stop.is_empty(), "{}", report.0);
    let log = report.section("log")?;
    ensure!(log.contains("SIGTERM: stopping") && log.matches("listening http").count() == 1, "{log}");
    Ok(())
}

/// Checks that the process of CPU stages ran its call, and is one of those that the system kills
/// before the daemon.
fn stages(report: &Report) -> Result<&str> {
    let stages = report.section("stages")?;
    ensure!(stages.contains("max 42.0") && stages.contains("score 900"), "{stages}");
    Ok(stages)
}

/// Checks that the intruder met its limit, and that `atoll usage` has the kernel's counts.
fn check_groups(report: &Report) -> Result<()> {
    let log = report.section("log")?;
    ensure!(log.contains("the kernel limits each executor's memory") && log.contains(LIMIT), "{}", report.0);
    // The tenant gets the reason, too.
    let told = report.section("deploy")?.contains(LIMIT) || report.section("intruder")?.contains(LIMIT);
    ensure!(told, "{}", report.0);
    let usage: serde_json::Value = serde_json::from_str(report.section("usage")?)?;
    let executors = usage["executors"].as_array().context("executors")?;
    let intruder = executors.iter().find(|entry| entry["tenant"] == "intruder").context("the intruder's usage")?;
    let memory = |field: &str| intruder["memory"][field].as_u64().with_context(|| format!("{field}: {intruder}"));
    ensure!(memory("limit_bytes")? == 160 << 20 && memory("kills")? >= 1, "{intruder}");
    // The hard limit is above the one at which the executor is killed.
    ensure!((100 << 20..=(192 << 20) + (4 << 20)).contains(&memory("peak_bytes")?), "{intruder}");
    ensure!(intruder["cpu_s"].as_f64().is_some_and(|seconds| seconds > 0.0), "{intruder}");
    // The process of CPU stages has a group, too, and the kernel's counts for it.
    let limits = stages(report)?;
    for limit in ["memory.high 1107296256", "memory.max 1140850688", "pids.max 32", "cpu.weight 33"] {
        ensure!(limits.contains(limit), "{limit}: {limits}");
    }
    let used = executors.iter().find(|entry| entry["device"] == "cpu" && entry["tenant"] == "victim");
    let memory = &used.context("the use of CPU stages")?["memory"];
    ensure!(memory["limit_bytes"] == 1056 << 20 && memory["kills"] == 0, "{memory}");
    ensure!(memory["peak_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{memory}");
    // The machine as a whole was never short of memory.
    ensure!(!report.section("kernel")?.contains("constraint=CONSTRAINT_NONE"), "{}", report.0);
    // The groups of executors are removed with them.
    let groups = report.section("groups")?;
    ensure!(!groups.contains("executor-"), "{groups}");
    check_victim(report)
}

#[test]
fn a_daemon_that_is_root_limits_a_tenant_by_a_control_group() -> Result<()> {
    let Some(report) = boot("root")? else { return Ok(()) };
    check_groups(&report)?;
    ensure!(report.section("scores")?.contains("daemon -500"), "{}", report.0);
    // The group of an executor is removed: the executor keeps running, and `atoll ps` names the
    // missing control group.
    let vanished = report.section("vanished")?;
    let says = ["removed", "[4.0,7.0]", "control group: "];
    ensure!(says.iter().all(|part| vanished.contains(part)), "{}", report.0);
    // A tenant without a group is still served, and the log names the failure.
    let refused = report.section("refused")?;
    ensure!(refused.contains("4.000000") && refused.contains("its jail lacks control group: "), "{}", report.0);
    ensure!(report.section("log")?.matches("an executor runs without a control group").count() == 1, "{}", report.0);
    Ok(())
}

#[test]
fn a_plain_user_limits_a_tenant_by_a_group_that_it_was_given() -> Result<()> {
    let Some(report) = boot("delegated")? else { return Ok(()) };
    check_groups(&report)
}

#[test]
fn without_groups_the_system_kills_the_executor_and_not_the_daemon() -> Result<()> {
    let Some(report) = boot("none")? else { return Ok(()) };
    let log = report.section("log")?;
    ensure!(log.contains("no control groups for executors"), "{log}");
    ensure!(log.contains("was killed by SIGKILL, when the machine was short of memory"), "{log}");
    let killed: Vec<&str> = report.section("kernel")?.lines().filter(|line| line.contains("Killed process")).collect();
    ensure!(!killed.is_empty() && killed.iter().all(|line| line.contains("oom_score_adj:900")), "{killed:?}");
    ensure!(report.section("scores")?.contains("executor 900"), "{}", report.0);
    ensure!(!stages(&report)?.contains("memory.max"), "{}", report.0);
    check_victim(&report)
}
