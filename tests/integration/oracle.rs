//! The host device and the interpreter agree on the kernels of other compilers, for all launch
//! shapes of their cases.

use anyhow::{Result, bail};
use atoll_tests::corpus::cases;
use atoll_workbench::{HostBench, HostOptions, InterpBench, Kernel, Verdict, compare};

#[test]
fn the_host_device_agrees_with_the_interpreter() -> Result<()> {
    let mut host = HostBench::start(HostOptions { compute_units: 2, ..HostOptions::default() })?;
    let mut interp = InterpBench::default();
    let mut failures = Vec::new();
    for case in cases()? {
        for ptx in &case.ptx {
            let name = ptx.file_name().unwrap_or_default().to_string_lossy();
            let module = atoll_ptx::parse(&std::fs::read_to_string(ptx)?).map_err(|e| anyhow::anyhow!("{name}:{e}"))?;
            for launch in 0..case.launches.len() {
                let inputs = case.inputs(launch)?;
                let kernel = Kernel { module: &module, entry: &case.name, report: None, block: inputs.block };
                // Results that depend on the order of blocks are compared with NumPy instead.
                let verdict = compare(&mut host, &mut interp, &kernel, &inputs);
                let wrong = match verdict {
                    Verdict::Equal | Verdict::Close(_) | Verdict::Unordered => continue,
                    Verdict::Different(difference) => difference.to_string(),
                    Verdict::Refused(error) | Verdict::Failed(error) => error.to_string(),
                    Verdict::NoReference(error) => format!("the interpreter: {error}"),
                };
                failures.push(format!(
                    "{} ({name}, grid {:?}, block {:?}): {wrong}",
                    case.name, inputs.launch.grid, inputs.block
                ));
            }
        }
    }
    if !failures.is_empty() {
        bail!("{} launches differ:\n{}", failures.len(), failures.join("\n"));
    }
    Ok(())
}
