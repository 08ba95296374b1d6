//! All PTX of all models is assembled with NVIDIA's assembler for three generations, without
//! spills; outside of a full run that of one model of each family, for one of the three in turn.

use anyhow::{Context, Result, ensure};
use atoll_kgraph::dkp::CandidateFacts;
use atoll_kgraph::{Bundle, KernelFacts};
use atoll_passes::{PassOptions, transform_with};
use atoll_pipeline::{CompileOptions, Silent, Target};
use atoll_proxy_kernels::{Candidate, DeviceModel, candidate_facts, dkp_modules};
use atoll_target_nvidia::{Architecture, Ptxas, find_ptxas};
use atoll_tests::{LARGE, built, family, full, sample_groups, seed, skip, trained};
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
    let names = atoll_models::ARCHITECTURES.iter().map(|a| a.name).filter(|name| full() || !LARGE.contains(name));
    let mut models: Vec<_> = sample_groups("ptxas", names.collect(), 2, |&name| family(name))
        .into_iter()
        .map(|name| built(name, folder.path()))
        .collect::<Result<_>>()?;
    for name in ["magika", "common_det", "silero_vad"] {
        models.push(trained(name, &[])?);
    }
    let mut table = format!("{:<14} {:<8} {:>8} {:>10} {:>10}\n", "model", "arch", "kernels", "registers", "shared");
    let mut estimates = Vec::new();
    let turn = seed() as usize;
    for (number, model) in models.iter().enumerate() {
        let path = folder.path().join("model.kg");
        atoll_pipeline::compile(
            &model.path,
            &path,
            &CompileOptions { targets: vec![Target::NVIDIA], assemble: false, ..CompileOptions::default() },
            &Silent,
        )?;
        let bundle = Bundle::open(&path)?;
        let ptx = std::str::from_utf8(bundle.ptx(Target::NVIDIA.name()).expect("compiled for it"))?;
        // Each model on one architecture in turn; on all in a full run.
        let is_its_turn = |index: usize| full() || (number + turn) % ARCHITECTURES.len() == index;
        for (_, arch) in ARCHITECTURES.into_iter().enumerate().filter(|(index, _)| is_its_turn(*index)) {
            let report = ptxas.assemble(ptx, arch)?.report;
            let spilled: Vec<_> = report
                .kernels
                .iter()
                .filter(|(_, k)| k.spill_store_bytes + k.spill_load_bytes > 0)
                .map(|(name, _)| name)
                .collect();
            ensure!(spilled.is_empty(), "{} on {arch}: spills in {spilled:?}", model.name);
            let registers = report.kernels.values().map(|k| k.registers).max().unwrap_or(0);
            let facts = &bundle.target(Target::NVIDIA.name()).expect("compiled for it").kernels;
            if arch == ARCHITECTURES[0] {
                let counted =
                    |k: &KernelFacts| Some(f64::from(k.registers?) / f64::from(report.kernels.get(&k.name)?.registers));
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
        "registers estimated without an assembler over those it counts, {} kernels: min, p10, p50, p90, max \
        {quantiles}",
        estimates.len()
    );
    ensure!((0.7..1.5).contains(&at(0.5)), "the estimate is far off");
    Ok(())
}

/// Parameter space of a dkp launch on an NVIDIA GPU.
const DKP_PARAMS_BYTES: u32 = 4096 - 64;

/// Devices whose register classes are generated, and their architectures.
const DEVICES: [(&str, &str); 4] = [("t4", "sm_75"), ("a100", "sm_80"), ("h100", "sm_90"), ("b200", "sm_120")];

#[test]
#[expect(clippy::print_stdout, reason = "the table is part of the test's output")]
fn dkp_modules_of_the_models_assemble_without_spills() -> Result<()> {
    let Some(ptxas) = find_ptxas() else {
        skip("ptxas is not installed; `make setup` installs it");
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let names: &[&str] =
        if full() { &["squeezenet", "mobilenet_v2", "resnet50", "distilbert"] } else { &["squeezenet"] };
    let mut table = format!(
        "{:<14} {:<8} {:<14} {:>10} {:>8} {:>10} {:>7}\n",
        "model", "device", "module", "candidates", "threads", "registers", "spills"
    );
    for name in names {
        let model = built(name, folder.path())?;
        // One device in turn; all in a full run.
        let is_its_turn = |number: usize| full() || seed() as usize % DEVICES.len() == number;
        for (_, (device, arch)) in DEVICES.into_iter().enumerate().filter(|(number, _)| is_its_turn(*number)) {
            let path = folder.path().join("model.kg");
            let architecture: Architecture = arch.parse()?;
            let options = CompileOptions { targets: vec![Target::Nvidia(architecture)], ..CompileOptions::default() };
            atoll_pipeline::compile(&model.path, &path, &options, &Silent)?;
            let bundle = Bundle::open(&path)?;
            for row in
                dkp_rows(&bundle, architecture.target_name(), device, arch, &ptxas).with_context(|| name.to_string())?
            {
                writeln!(table, "{name:<14} {device:<8} {row}")?;
            }
        }
    }
    println!("{table}");
    Ok(())
}

/// Generates and assembles the dkp modules of all kernels of a bundle; returns one row per module.
fn dkp_rows(bundle: &Bundle, target: &str, device: &str, arch: &str, ptxas: &Ptxas) -> Result<Vec<String>> {
    let kernels = &bundle.target(target).expect("compiled for it").kernels;
    let text = std::str::from_utf8(bundle.ptx(target).expect("compiled for it"))?;
    let mut module = atoll_ptx::parse(text).map_err(|e| anyhow::anyhow!("{e}"))?;
    let blocks = kernels.iter().map(|k| (k.name.as_str().into(), k.block)).collect();
    let passes = ["virtualize_block_index", "reduce_divisions", "outline_kernel_body"];
    let report =
        transform_with(&mut module, &passes, &PassOptions { blocks, ..PassOptions::default() }, &mut |_, _| {})?;
    // Resources of each kernel as a candidate, with calls and virtual block indices; these are more
    // than for the kernel alone.
    let assembled = ptxas.assemble(&atoll_ptx::print(&module), arch)?.report;
    let prepared: Vec<CandidateFacts> =
        report.kernels.iter().map(candidate_facts).collect::<Result<_, _>>().context(device.to_owned())?;
    let candidates: Vec<Candidate<'_>> = (report.kernels.iter().zip(&prepared))
        .map(|(report, facts)| {
            let kernel = kernels.iter().find(|kernel| kernel.name == report.name).expect("every kernel has a report");
            let registers = assembled.kernels[&kernel.name].registers;
            Candidate {
                module: &module,
                kernel: &kernel.name,
                facts,
                block: kernel.block,
                registers,
                dynamic_shared_bytes: kernel.shared_bytes,
            }
        })
        .collect();
    let made = dkp_modules(&candidates, DeviceModel::find(device).expect("a device of the table"), DKP_PARAMS_BYTES);
    ensure!(made.refused.is_empty(), "{device}: {:?}", made.refused);
    let mut rows = Vec::new();
    for dkp in &made.modules {
        let facts = &dkp.facts;
        let resources = ptxas.assemble(&atoll_ptx::print(&dkp.module), arch)?.report.kernels[&facts.entry];
        let spills = resources.spill_store_bytes + resources.spill_load_bytes;
        let (entry, count, threads, registers) =
            (&facts.entry, facts.candidates.len(), facts.threads[facts.threads.len() - 1], resources.registers);
        rows.push(format!("{entry:<14} {count:>10} {threads:>8} {registers:>10} {spills:>7}"));
        let taken = || {
            let registers =
                |index: usize| format!("{} ({} registers)", candidates[index].kernel, candidates[index].registers);
            facts.candidates.iter().map(|candidate| registers(candidate.index)).collect::<Vec<_>>().join(", ")
        };
        ensure!(spills == 0, "{device}: {entry} spills {spills} bytes with {}", taken());
        ensure!(registers <= dkp.class.registers, "{device}: {entry} takes {registers} registers");
    }
    Ok(rows)
}
