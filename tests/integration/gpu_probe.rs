//! `gpu-probe` on the stand-in driver: every probe runs to its end. What it measures there means nothing; that kernels do what the probes ask of them does.

use anyhow::{Context, Result, ensure};
use atoll_tests::{program, stand_in};
use serde_json::Value;

/// The probe that needs what no host has: a jump to the address of a kernel.
const REFUSED: &str = "indirect-entry";

#[test]
fn every_probe_runs_to_its_end_on_the_stand_in() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let json = folder.path().join("probe.json");
    let output = stand_in::command(&program("gpu-probe"), folder.path(), "")?.arg("--json").arg(&json).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&std::fs::read(&json).with_context(|| text.clone())?)?;
    ensure!(report["device"]["name"].as_str().is_some_and(|name| name.contains("stand-in")), "{text}");
    let rows = report["rows"].as_array().context("no rows")?;
    let of = |probe: &str| rows.iter().filter(|row| row["probe"] == probe).collect::<Vec<_>>();
    for probe in ["evicted-kernel", "flag-routes", "read-cost", "entry-check", "dispatch", "barrier-exit", "sticky-error"] {
        let rows = of(probe);
        ensure!(!rows.is_empty(), "{probe} found nothing:\n{text}");
        ensure!(rows.iter().all(|row| row["value"]["error"].is_null()), "{probe} failed:\n{text}");
    }
    ensure!(of(REFUSED).iter().any(|row| row.to_string().contains("NOT_SUPPORTED")), "{text}");
    Ok(())
}
