//! The host device and the interpreter agree on the kernels of other compilers, in a full run for all
//! launch shapes of their cases; otherwise for those that [`SAMPLE`] draws.

use crate::corpus::{SAMPLE, modules};
use anyhow::{Result, bail};
use atoll_tests::corpus::{cases, launches};
use atoll_tests::{kernel_cache, sample_groups};
use atoll_workbench::{HostBench, HostOptions, InterpBench, Kernel, Verdict, compare};

#[test]
fn the_host_device_agrees_with_the_interpreter() -> Result<()> {
    let mut host =
        HostBench::start(HostOptions { compute_units: 2, ..HostOptions::default() })?.with_cache(kernel_cache());
    let mut interp = InterpBench::default();
    let mut failures = Vec::new();
    let (cases, modules) = (cases()?, modules()?);
    for (case, ptx, launch) in sample_groups(SAMPLE, launches(&cases), 2, |&(case, ..)| &case.name) {
        let inputs = case.inputs(launch)?;
        let kernel = Kernel { module: &modules[ptx], entry: &case.name, report: None, block: inputs.block };
        // Results that depend on the order of blocks are compared with NumPy instead.
        let verdict = compare(&mut host, &mut interp, &kernel, &inputs);
        let wrong = match verdict {
            Verdict::Equal | Verdict::Close(_) | Verdict::Unordered => continue,
            Verdict::Different(difference) => difference.to_string(),
            Verdict::Refused(error) | Verdict::Failed(error) => error.to_string(),
            Verdict::NoReference(error) => format!("the interpreter: {error}"),
        };
        let name = ptx.file_name().unwrap_or_default().to_string_lossy();
        failures
            .push(format!("{} ({name}, grid {:?}, block {:?}): {wrong}", case.name, inputs.launch.grid, inputs.block));
    }
    if !failures.is_empty() {
        bail!("{} launches differ:\n{}", failures.len(), failures.join("\n"));
    }
    Ok(())
}
