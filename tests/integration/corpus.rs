//! Kernels of other compilers: parsed, printed, run, and compared with NumPy.
//!
//! In a run that is not full, every second kernel is run once, in a file and a shape that `ATOLL_SEED`
//! draws.

mod prints;

use crate::random_kernels::AMD;
use anyhow::{Context, Result, bail, ensure};
use atoll_kgraph::DType;
use atoll_ptx::Module;
use atoll_target_nvidia::{AssembleError, find_ptxas};
use atoll_tests::corpus::{Argument, Case, Tolerance, cases, folder, launches, ptx_files};
use atoll_tests::{full, kernel_cache, python, sample, sample_groups, seed, skip};
use atoll_workbench::{
    AmdBench, Buffer, HostBench, HostOptions, Inputs, InterpBench, Kernel, KernelDevice, Outcome, Verdict, compare,
};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The sample of launches on the host device. Tests with the same sample share its native code.
pub(crate) const SAMPLE: &str = "corpus";

/// Modules by path, so that each is parsed once.
pub(crate) fn modules() -> Result<BTreeMap<PathBuf, Module>> {
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path)?;
        let module = atoll_ptx::parse(&text).map_err(|e| anyhow::anyhow!("{}:{e}", path.display()))?;
        Ok((path, module))
    };
    ptx_files()?.into_iter().map(read).collect()
}

#[test]
fn every_file_is_valid_and_prints_unchanged() -> Result<()> {
    for (path, module) in modules()? {
        atoll_ptx::verify(&module).map_err(|e| anyhow::anyhow!("{}: {e}", path.display()))?;
        ensure!(
            atoll_ptx::print(&module) == std::fs::read_to_string(&path)?,
            "{} is printed otherwise",
            path.display()
        );
    }
    Ok(())
}

/// Assembly must not depend on layout: a committed text and its canonical form give the same
/// machine code.
#[test]
fn every_file_and_its_canonical_form_assemble_to_the_same_code() -> Result<()> {
    let Some(ptxas) = find_ptxas() else {
        skip("ptxas is not installed; `make setup` installs it");
        return Ok(());
    };
    let modules = modules()?.into_iter().collect();
    for (path, mut module) in sample_groups("assembly", modules, 2, |(path, _)| path.clone()) {
        let mut texts = vec![std::fs::read_to_string(&path)?];
        module.strip_origins();
        texts.push(atoll_ptx::print(&module));
        ensure!(texts[0] != texts[1], "{}: the canonical form is another text", path.display());
        if let Err(AssembleError::Refused { messages, .. }) = ptxas.assemble(&texts[0], "sm_80")
            && let Some(newest) = newest_version(&messages)
        {
            texts = texts.iter().map(|text| at_version(text, newest)).collect();
        }
        let code = |text: &String| {
            machine_code(&ptxas.assemble(text, "sm_80").with_context(|| path.display().to_string())?.cubin)
        };
        ensure!(code(&texts[0])? == code(&texts[1])?, "{}: its canonical form means something else", path.display());
    }
    Ok(())
}

/// Instructions and constants by section. Debug information is left out, since it contains line
/// numbers.
fn machine_code(cubin: &[u8]) -> Result<BTreeMap<String, Vec<u8>>> {
    let file = ElfFile64::<object::Endianness>::parse(cubin)?;
    let mut code = BTreeMap::new();
    for section in file.sections() {
        let name = section.name()?;
        if name.starts_with(".text.") || name.starts_with(".nv.constant") {
            code.insert(name.to_owned(), section.data()?.to_vec());
        }
    }
    ensure!(!code.is_empty(), "the assembler wrote no code");
    Ok(code)
}

/// The newest PTX version of an assembler that refused a newer one.
fn newest_version(messages: &str) -> Option<&str> {
    messages.split_once("Unsupported .version")?.1.split('\'').nth(1)
}

/// The text with another PTX version: compilers write their own version, whether or not they need
/// it.
fn at_version(text: &str, version: &str) -> String {
    let line =
        |line: &str| if line.starts_with(".version") { format!(".version {version}\n") } else { line.to_owned() };
    text.split_inclusive('\n').map(line).collect()
}

/// Launches of all cases, with every PTX of them, and memory before and after.
#[derive(Default)]
struct Recording {
    runs: Vec<Value>,
    memory: Vec<u8>,
}

impl Recording {
    fn note(&mut self, case: &Case, ptx: &Path, inputs: &Inputs, after: &[Buffer]) -> Result<()> {
        let mut buffers = inputs.buffers.iter().zip(after);
        let mut args = Vec::new();
        for argument in case.arguments()? {
            args.push(match argument {
                Argument::Literal { ty: DType::F16 | DType::Bf16 | DType::F32 | DType::F64, value } => {
                    json!({ "value": value })
                }
                Argument::Literal { value, .. } => json!({ "value": value as i64 }),
                Argument::Memory { usage, ty, shape, .. } => {
                    let (before, after) = buffers.next().context("a buffer for each argument")?;
                    let mut put = |bytes: &[u8]| {
                        self.memory.resize(self.memory.len().next_multiple_of(16), 0);
                        self.memory.extend_from_slice(bytes);
                        self.memory.len() - bytes.len()
                    };
                    json!({
                        "use": usage, "type": ty, "shape": shape,
                        "before": put(&before.bytes), "after": put(&after.bytes),
                    })
                }
            });
        }
        let tolerance = match &case.tolerance {
            Tolerance::Within(bound) => json!(bound),
            Tolerance::Exact(word) => json!(word),
        };
        self.runs.push(json!({
            "case": case.name, "ptx": ptx.file_name().map(|n| n.to_string_lossy()),
            "grid": inputs.launch.grid, "block": inputs.block,
            "args": args, "tolerance": tolerance, "compare": case.compare,
        }));
        Ok(())
    }

    /// Compares with NumPy.
    fn compare(&self) -> Result<()> {
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join("manifest.json"), serde_json::to_vec(&self.runs)?)?;
        std::fs::write(dir.path().join("memory.bin"), &self.memory)?;
        let output = Command::new(python()).arg("-B").arg(folder().join("check.py")).arg(dir.path()).output()?;
        let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "{said}{failed}");
        Ok(())
    }
}

fn run(host: &mut HostBench, module: &Module, case: &Case, inputs: &Inputs) -> Result<(Outcome, Vec<Buffer>)> {
    let kernel = host.load(&Kernel { module, entry: &case.name, report: None, block: inputs.block })?;
    let mut buffers = inputs.buffers.clone();
    let outcome = host.launch(&kernel, &inputs.launch, &mut buffers, 1);
    host.unload(kernel);
    Ok((outcome?, buffers))
}

#[test]
fn the_host_device_agrees_with_numpy() -> Result<()> {
    let modules = modules()?;
    let mut host = HostBench::start(HostOptions {
        compute_units: 2,
        time_limit: Duration::from_secs(2),
        ..HostOptions::default()
    })?
    .with_cache(kernel_cache());
    let mut recording = Recording::default();
    let mut failures = Vec::new();
    let cases = cases()?;
    for (case, ptx, launch) in sample_groups(SAMPLE, launches(&cases), 2, |&(case, ..)| &case.name) {
        let inputs = case.inputs(launch)?;
        let name = ptx.file_name().unwrap_or_default().to_string_lossy();
        let outcome = run(&mut host, &modules[ptx], case, &inputs);
        match outcome {
            Ok((outcome, _)) if outcome.printed != case.printed => {
                failures.push(format!("{} ({name}) printed {:?}", case.name, outcome.printed))
            }
            Ok((_, after)) => recording.note(case, ptx, &inputs, &after)?,
            Err(error) => failures.push(format!("{} ({name}, block {:?}): {error}", case.name, inputs.block)),
        }
    }
    if !python().exists() {
        skip("no Python environment, so nothing was compared with NumPy");
    } else if let Err(error) = recording.compare() {
        failures.push(error.to_string());
    }
    if !failures.is_empty() {
        bail!("{} kernels fail:\n{}", failures.len(), failures.join("\n"));
    }
    Ok(())
}

/// In a run that is not full, one kernel of each file, for an architecture that `ATOLL_SEED`
/// selects.
#[test]
fn amd_code_agrees_with_the_interpreter() -> Result<()> {
    let modules = modules()?;
    let cases = cases()?;
    let drawn = sample("corpus on AMD GPUs", launches(&cases), 1, |&(_, ptx, _)| ptx);
    let architectures = if full() { AMD.to_vec() } else { vec![AMD[(seed() % AMD.len() as u64) as usize]] };
    let (mut failures, mut compared) = (Vec::new(), 0);
    for architecture in architectures {
        for &(case, ptx, launch) in &drawn {
            let inputs = case.inputs(launch)?;
            let kernel = Kernel { module: &modules[ptx], entry: &case.name, report: None, block: inputs.block };
            let verdict = compare(&mut AmdBench::new(architecture), &mut InterpBench::default(), &kernel, &inputs);
            match verdict {
                Verdict::Equal | Verdict::Close(_) => compared += 1,
                Verdict::Unordered => {}
                // The golden list of the AMD target has them.
                Verdict::Refused(error) if error.is_unsupported() => {}
                other => failures.push(format!("{} ({}, {architecture}): {other:?}", case.name, ptx.display())),
            }
        }
    }
    ensure!(failures.is_empty(), "{} kernels fail:\n{}", failures.len(), failures.join("\n"));
    ensure!(compared * 10 >= drawn.len() * 8, "only {compared} of {} kernels were compared", drawn.len());
    Ok(())
}
