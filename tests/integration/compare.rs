//! `atoll kernel compare`: random kernels and kernels of other compilers on a GPU, compared with
//! the interpreter. On the stand-in driver, this tests that everything runs and that a difference
//! is found.

use super::serve::atoll;
use anyhow::{Context, Result, ensure};
use atoll_target_nvidia::{AssembleError, find_ptxas, lowest_text};
use atoll_tests::{corpus, full, skip, stand_in};
use atoll_workbench::random_kernel::RandomKernel;
use atoll_workbench::without_others;
use serde_json::Value;
use std::path::Path;

/// Cases with GPU-specific features: warps, barriers, shared memory, atomics, matrix products,
/// halves.
const CASES: &str = "saxpy,bit_tricks,halves,scan_inclusive,votes,histogram_shared,gemm_mma,compact,triton_softmax";

/// Runs a comparison. Returns whether it succeeded, its output, and the saved report.
fn compare(folder: &Path, options: &str, arguments: &[&str]) -> Result<(bool, String, Value)> {
    let saved = folder.join("compared.json");
    let mut command = stand_in::command(&atoll(), folder, options)?;
    let output =
        command.args(["kernel", "compare", "--device", "cuda", "--save"]).arg(&saved).args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&std::fs::read(&saved).with_context(|| said.clone())?)?;
    Ok((output.status.success(), said, report))
}

#[test]
fn a_gpu_agrees_with_the_interpreter() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let corpus = corpus::folder().display().to_string();
    let mut arguments = vec!["--corpus", &corpus];
    if full() {
        arguments.extend(["--random", "1..301"]);
    } else {
        arguments.extend(["--random", "1..13", "--case", CASES]);
    }
    let (works, said, report) = compare(folder.path(), "", &arguments)?;
    ensure!(works, "{said}");
    let count = |group: &str, what: &str| report[group][what].as_u64().unwrap_or(0);
    ensure!(count("random", "equal") == if full() { 300 } else { 12 }, "{said}");
    ensure!(count("corpus", "equal") + count("corpus", "close") >= 30, "{said}");
    // The sample contains nothing that the stand-in refuses.
    ensure!(full() || count("corpus", "refused") == 0, "{said}");
    Ok(())
}

#[test]
fn kernels_refused_by_a_gpu_are_counted_separately() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (works, said, report) = compare(folder.path(), "ptx=7.0", &["--random", "5"])?;
    ensure!(works && report["random"]["refused"] == 1 && said.contains("which needs a driver for CUDA"), "{said}");
    Ok(())
}

/// A kernel that traps if time advances, and one that stores the time; the interpreter's clock
/// counts instructions.
const KERNELS: &str = "\
.version 6.3
.target sm_75
.address_size 64
.visible .entry waits()
{
    .reg .b64 %time;
    .reg .pred %p;
    mov.u64 %time, %globaltimer;
    setp.gt.u64 %p, %time, 1000000;
    @%p trap;
    ret;
}
.visible .entry clock(.param .u64 out)
{
    .reg .b64 %at, %time;
    ld.param.u64 %at, [out];
    mov.u64 %time, %globaltimer;
    st.global.u64 [%at+8], %time;
    ret;
}
";

const KERNEL_CASES: &str = "
[[case]]
name = \"waits\"
file = \"kernels\"
launches = [[[1], [1]]]
args = []
tolerance = \"exact\"

[[case]]
name = \"clock\"
file = \"kernels\"
launches = [[[1], [1]]]
args = [\"out u64 2\"]
tolerance = \"exact\"
";

#[test]
fn failures_and_differences_are_reported_and_the_device_continues() -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::create_dir(folder.path().join("ptx"))?;
    std::fs::write(folder.path().join("ptx/kernels.hand.ptx"), KERNELS)?;
    std::fs::write(folder.path().join("cases.toml"), KERNEL_CASES)?;
    let corpus = folder.path().display().to_string();
    let (works, said, report) = compare(folder.path(), "", &["--corpus", &corpus])?;
    ensure!(!works && report["corpus"]["failed"] == 1 && report["corpus"]["different"] == 1, "{said}");
    ensure!(
        said.contains("waits (kernels.hand.ptx, grid [1, 1, 1], block [1, 1, 1]): failed: kernel 'waits' faulted"),
        "{said}"
    );
    let line = "clock (kernels.hand.ptx, grid [1, 1, 1], block [1, 1, 1]): differs: `argument 0`: 1 of 2 elements \
        differ, the first (u64) at 1: 0x";
    ensure!(said.contains(line) && said.contains(", expected 0x") && said.contains("--case clock"), "{said}");
    Ok(())
}

/// Everything that is compared must assemble, also at its lowest PTX version.
#[test]
fn compared_kernels_assemble() -> Result<()> {
    let Some(ptxas) = find_ptxas() else {
        skip("ptxas is not installed; `make setup` installs it");
        return Ok(());
    };
    let mut texts = Vec::new();
    for seed in if full() { 1..301 } else { 1..41 } {
        let module = atoll_ptx::parse(&RandomKernel::new(seed).ptx())
            .map_err(|e| anyhow::anyhow!("random kernel {seed}: {e}"))?;
        texts.push((format!("random kernel {seed}"), "sm_90", lowest_text(&module)));
    }
    for (number, case) in corpus::cases()?.iter().enumerate() {
        for (_, path) in case
            .ptx
            .iter()
            .enumerate()
            .filter(|(index, _)| full() || number % 10 == 0 && *index == number / 10 % case.ptx.len())
        {
            let name = format!("{} of {}", case.name, path.display());
            let module =
                atoll_ptx::parse(&std::fs::read_to_string(path)?).map_err(|e| anyhow::anyhow!("{name}: {e}"))?;
            texts.push((name, "sm_80", lowest_text(&without_others(&module, &case.name))));
        }
    }
    let refused = texts.iter().filter_map(|(name, architecture, text)| match ptxas.assemble(text, architecture) {
        Ok(_) => None,
        Err(AssembleError::Refused { messages, .. }) => Some(format!("{name}: {messages}")),
        Err(error) => Some(format!("{name}: {error}")),
    });
    let refused: Vec<String> = refused.collect();
    ensure!(refused.is_empty(), "{} of {} are refused:\n{}", refused.len(), texts.len(), refused.join("\n"));
    Ok(())
}
