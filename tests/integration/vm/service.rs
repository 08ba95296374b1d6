//! The installed service in a Debian 12 with systemd: reached through its sockets, restarted under
//! load, hung and killed, reloaded with other keys, stopped during a request, and purged.

use super::{Report, kernel, run};
use crate::functions::{grind_sources, manifest};
use crate::packaging::package;
use anyhow::{Context, Result, ensure};
use atoll_pipeline::{CompileOptions, Silent, pack};
use atoll_tests::{root, skip};
use std::process::Command;

/// Memory of the machine. Debian, LLVM and the package take 2 GiB of it.
const MEMORY_MIB: u32 = 5120;

const REQUEST: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[1,2]},
    {"name":"b","datatype":"FP32","shape":[2],"data":[1,1]}]}"#;

const ANSWER: &str = "[4.0,7.0]";

/// Why this machine cannot make the system of the test; `None` if it can.
fn missing() -> Option<&'static str> {
    // The package's dependencies are those of the system that it is built on.
    let version = std::fs::read_to_string("/etc/debian_version").unwrap_or_default();
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let needed = [
        (version.starts_with("12"), "the package is for Debian 12, and this is another system"),
        (rustix::process::geteuid().is_root(), "debootstrap needs root"),
        (has("debootstrap"), "debootstrap is missing, which tools/setup.sh installs"),
        (has("dpkg-shlibdeps"), "dpkg-shlibdeps (dpkg-dev) is missing"),
    ];
    needed.into_iter().find(|(is_there, _)| !is_there).map(|(_, reason)| reason)
}

/// Installs the package that `packaging/deb/build.sh` makes of the programs under test.
fn boot() -> Result<Option<Report>> {
    let Some(kernel) = kernel() else { return Ok(None) };
    if let Some(missing) = missing() {
        skip(&format!("the installed service in a virtual machine: {missing}"));
        return Ok(None);
    }
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    // QEMU's own CPU has no AVX-512.
    let options = CompileOptions { targets: vec!["host-x86-64-v3".parse()?], ..CompileOptions::default() };
    pack(&manifest("affine"), &path("affine.kg"), &options, &Silent)?;
    pack(&grind_sources(folder.path(), 1)?, &path("grind.kg"), &options, &Silent)?;
    std::fs::write(path("request.json"), REQUEST)?;
    let package = package(folder.path())?;
    let files = path("files");
    let mut making = Command::new(root().join("tests/vm/service.sh"));
    let guests = [path("affine.kg"), path("grind.kg"), path("request.json")];
    let output = making.arg(&files).arg(package).args(guests).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // systemd's own lines would stand between those of the scenario.
    run(&kernel, &files, MEMORY_MIB, "service systemd.show_status=false", folder.path()).map(Some)
}

#[test]
fn the_installed_service_is_restarted_under_load_and_purged() -> Result<()> {
    let Some(report) = boot()? else { return Ok(()) };
    let holds = |section: &str, parts: &[&str]| -> Result<()> {
        let text = report.section(section)?;
        let lacking = parts.iter().find(|part| !text.contains(**part));
        ensure!(lacking.is_none(), "{section} lacks {lacking:?}: {}", report.0);
        Ok(())
    };
    // The service and four sockets are active and enabled.
    let units = report.section("units")?;
    ensure!(units.lines().filter(|line| *line == "active").count() == 5, "{units}");
    ensure!(units.lines().filter(|line| *line == "enabled").count() == 5, "{units}");
    let properties = ["Type=notify", "StatusText=serving 2 models (affine, grind)", "Delegate=yes", "User=atoll"];
    holds("units", &properties)?;
    holds("request", &[ANSWER, "affine", "true"])?;
    // Each request was answered, over three restarts.
    let load = report.section("load")?;
    let count: u64 = load.strip_prefix("answers: ").context("a count")?.trim().parse().context(load.to_owned())?;
    ensure!(count >= 20, "{load}");
    holds("started by a connection", &["inactive", ANSWER, "\nactive"])?;
    holds("own ports", &["inactive", ANSWER])?;
    holds("log", &["SIGTERM: stopping", "the kernel limits each executor's memory"])?;
    let log = report.section("log")?;
    ensure!(!log.contains("Failed with result") && !log.contains("Watchdog timeout"), "{log}");
    // systemd sees the signs of life, and starts a daemon again that hangs or was killed.
    let watchdog = ["there are signs of life", "NRestarts=0", "WatchdogUSec=10s", "started again", "Watchdog timeout"];
    holds("watchdog", &[&watchdog[..], &[ANSWER]].concat())?;
    holds("killed", &["started again", ANSWER])?;
    // The daemon tells that it stops, and the running request is answered.
    holds("drained", &["StatusText=stopping; running requests finish", "SubState=dead", r#""name":"y""#])?;
    // Keys change by a reload of the same process.
    let keys = ["before the reload: 200 401", "after the reload: 200 200", "after the revocation: 401 200"];
    holds("keys", &[&keys[..], &["the same process"]].concat())?;
    let left = report.section("left")?;
    let left: Vec<&str> = left.lines().filter(|line| !line.starts_with("curl: ")).collect();
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}
