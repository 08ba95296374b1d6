//! `gpu-probe` on the stand-in driver: probes run to the end and their kernels work. Its
//! measurements mean nothing there.

use anyhow::{Context, Result, ensure};
use atoll_tests::{full, program, stand_in};
use serde_json::Value;

/// Probes with few launches, and those that fill queues. The probe of flag routes is left out: on a
/// busy machine its kernel times out.
const QUICK: [&str; 3] = ["dispatch", "barrier-exit", "sticky-error"];
const SLOW: [&str; 3] = ["evicted-kernel", "read-cost", "entry-check"];

/// A probe that is not supported on a host: it jumps to the address of a kernel.
const REFUSED: &str = "indirect-entry";

#[test]
fn probes_run_to_their_end_on_the_stand_in() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let json = folder.path().join("probe.json");
    let probes: Vec<&str> = QUICK.into_iter().chain(if full() { &SLOW[..] } else { &[] }.iter().copied()).collect();
    let mut command = stand_in::command(&program("gpu-probe"), folder.path(), "")?;
    let output = command.arg("--json").arg(&json).args(["--only", &probes.join(","), "--only", REFUSED]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&std::fs::read(&json).with_context(|| text.clone())?)?;
    ensure!(report["device"]["name"].as_str().is_some_and(|name| name.contains("stand-in")), "{text}");
    let rows = report["rows"].as_array().context("no rows")?;
    let of = |probe: &str| rows.iter().filter(|row| row["probe"] == probe).collect::<Vec<_>>();
    for probe in probes {
        let rows = of(probe);
        ensure!(!rows.is_empty(), "{probe} found nothing:\n{text}");
        ensure!(rows.iter().all(|row| row["value"]["error"].is_null()), "{probe} failed:\n{text}");
    }
    ensure!(of(REFUSED).iter().any(|row| row.to_string().contains("NOT_SUPPORTED")), "{text}");
    Ok(())
}
