//! All PTX of all models goes through NVIDIA's assembler, for three generations, without spills.

use anyhow::{Result, ensure};
use atoll_kgraph::KernelFacts;
use atoll_pipeline::{CompileOptions, Silent, Target};
use atoll_target_nvidia::find_ptxas;
use atoll_tests::{built, full, skip, trained};
use std::fmt::Write as _;

/// Turing, Ampere, Hopper.
const ARCHITECTURES: [&str; 3] = ["sm_75", "sm_80", "sm_90"];

#[test]
#[expect(clippy::print_stdout, reason = "the table is part of the test's output")]
fn every_kernel_assembles_without_spills() -> Result<()> {
    let Some(ptxas) = find_ptxas() else {
        skip("ptxas is not installed; `make setup` installs it");
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let names = atoll_models::ARCHITECTURES.iter().map(|a| a.name);
    let mut models: Vec<_> =
        names.filter(|name| full() || *name != "resnet152").map(|name| built(name, folder.path())).collect::<Result<_>>()?;
    for name in ["magika", "common_det", "silero_vad"] {
        models.push(trained(name, &[])?);
    }
    let mut table = format!("{:<14} {:<8} {:>8} {:>10} {:>10}\n", "model", "arch", "kernels", "registers", "shared");
    let mut estimates = Vec::new();
    for model in &models {
        let path = folder.path().join("model.kg");
        atoll_pipeline::compile(&model.path, &path, &CompileOptions { targets: vec![Target::NVIDIA], assemble: false }, &Silent)?;
        let bundle = atoll_kgraph::Bundle::open(&path)?;
        let ptx = std::str::from_utf8(bundle.ptx(Target::NVIDIA.name()).expect("compiled for it"))?;
        for arch in ARCHITECTURES {
            let report = ptxas.assemble(ptx, arch)?.report;
            let spilled: Vec<_> =
                report.kernels.iter().filter(|(_, k)| k.spill_store_bytes + k.spill_load_bytes > 0).map(|(name, _)| name).collect();
            ensure!(spilled.is_empty(), "{} on {arch}: spills in {spilled:?}", model.name);
            let registers = report.kernels.values().map(|k| k.registers).max().unwrap_or(0);
            let facts = &bundle.target(Target::NVIDIA.name()).expect("compiled for it").kernels;
            if arch == ARCHITECTURES[0] {
                let counted = |k: &KernelFacts| Some(f64::from(k.registers?) / f64::from(report.kernels.get(&k.name)?.registers));
                estimates.extend(facts.iter().filter_map(counted));
            }
            let shared = facts.iter().map(|k| k.shared_bytes).max().unwrap_or(0);
            writeln!(table, "{:<14} {arch:<8} {:>8} {registers:>10} {shared:>10}", model.name, report.kernels.len())?;
        }
    }
    println!("most registers per thread and shared bytes per block:\n{table}");
    estimates.sort_by(f64::total_cmp);
    let at = |share: f64| estimates[((estimates.len() - 1) as f64 * share) as usize];
    let quantiles = [0.0, 0.1, 0.5, 0.9, 1.0].map(|q| format!("{:.2}", at(q))).join(", ");
    println!(
        "registers estimated without an assembler over those it counts, {} kernels: min, p10, p50, p90, max {quantiles}",
        estimates.len()
    );
    ensure!((0.7..1.5).contains(&at(0.5)), "the estimate is far off");
    Ok(())
}
