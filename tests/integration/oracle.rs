//! The host device and the interpreter compute the same: the kernels of other compilers, at every launch shape of their cases.

use anyhow::{Result, bail};
use atoll_tests::corpus::{Argument, Case, Inputs, Tolerance, cases};
use atoll_workbench::{Buffer, HostBench, HostOptions, InterpBench, Kernel, KernelDevice};

#[test]
fn the_host_device_agrees_with_the_interpreter() -> Result<()> {
    let mut host = HostBench::start(HostOptions { compute_units: 2, ..HostOptions::default() })?;
    let mut interp = InterpBench::default();
    let mut failures = Vec::new();
    for case in cases()? {
        for ptx in case.ptx_files()? {
            let name = ptx.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let module = atoll_ptx::parse(&std::fs::read_to_string(&ptx)?).map_err(|e| anyhow::anyhow!("{name}:{e}"))?;
            for launch in 0..case.launches.len() {
                let inputs = case.inputs(launch)?;
                let kernel = Kernel { module: &module, entry: &case.name, report: None, block: inputs.block };
                let outcome = run(&mut host, &kernel, &inputs).and_then(|native| Ok((native, run(&mut interp, &kernel, &inputs)?)));
                let difference = match outcome {
                    Ok((native, plain)) if native.0 != plain.0 => Some(format!("printed {:?} and {:?}", native.0, plain.0)),
                    Ok((native, plain)) => difference(&case, &native.1, &plain.1)?,
                    Err(error) => Some(error.to_string()),
                };
                failures.extend(
                    difference.map(|d| format!("{} ({name}, grid {:?}, block {:?}): {d}", case.name, inputs.launch.grid, inputs.block)),
                );
            }
        }
    }
    if !failures.is_empty() {
        bail!("{} launches differ:\n{}", failures.len(), failures.join("\n"));
    }
    Ok(())
}

/// What a launch printed, and its memory.
fn run<D: KernelDevice>(device: &mut D, kernel: &Kernel<'_>, inputs: &Inputs) -> Result<(String, Vec<Buffer>)> {
    let loaded = device.load(kernel)?;
    let mut buffers = inputs.buffers.clone();
    let outcome = device.launch(&loaded, &inputs.launch, &mut buffers, 1);
    device.unload(loaded);
    Ok((outcome?.printed, buffers))
}

/// Where memory differs by more than the case allows. What depends on the order of blocks is left to the comparison with the reference.
fn difference(case: &Case, native: &[Buffer], plain: &[Buffer]) -> Result<Option<String>> {
    if case.compare.is_some() {
        return Ok(None);
    }
    let types = case.arguments()?.into_iter().filter_map(|argument| match argument {
        Argument::Memory { ty, .. } => Some(ty),
        Argument::Literal { .. } => None,
    });
    for ((native, plain), ty) in native.iter().zip(plain).zip(types) {
        let (a, b) = (&native.bytes, &plain.bytes);
        let differs = match (&case.tolerance, ty.as_str()) {
            (Tolerance::Within(bound), "f32") => first(a, b, |x: [u8; 4]| f64::from(f32::from_le_bytes(x)), *bound),
            (Tolerance::Within(bound), "f16") => first(a, b, |x: [u8; 2]| half::f16::from_le_bytes(x).to_f64(), *bound),
            (Tolerance::Within(bound), "f64") => first(a, b, |x: [u8; 8]| f64::from_le_bytes(x), *bound),
            _ => (a != b).then(|| {
                let at = a.iter().zip(b).position(|(x, y)| x != y).unwrap_or(0);
                format!("byte {at} is {} and {}", a[at], b[at])
            }),
        };
        if let Some(differs) = differs {
            return Ok(Some(format!("{} ({ty}): {differs}", native.name)));
        }
    }
    Ok(None)
}

/// The first element of two that differs by more than a bound, relative beyond 1.
fn first<const N: usize>(a: &[u8], b: &[u8], value: impl Fn([u8; N]) -> f64, bound: f64) -> Option<String> {
    let values = |bytes: &[u8]| bytes.as_chunks::<N>().0.iter().map(|chunk| value(*chunk)).collect::<Vec<_>>();
    let (a, b) = (values(a), values(b));
    let differs = |(x, y): (&f64, &f64)| (x - y).abs() > bound * y.abs().max(1.0) || x.is_nan() != y.is_nan();
    let at = a.iter().zip(&b).position(differs)?;
    Some(format!("element {at} is {} and {}", a[at], b[at]))
}
