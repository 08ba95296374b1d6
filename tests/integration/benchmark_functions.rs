//! The functions of `models/functions` against NumPy.

use anyhow::{Result, bail, ensure};
use atoll_engine::EngineConfig;
use atoll_kgraph::{BufferKind, Bundle, DType};
use atoll_models::functions::{FUNCTIONS, Function};
use atoll_pipeline::{CompileOptions, Silent, Target, pack};
use atoll_tests::{Case, Loaded, Tensor, full, kernel_cache, python, relative_error, root};
use std::path::Path;
use std::process::Command;

#[test]
fn functions_compute_what_numpy_does() -> Result<()> {
    for function in FUNCTIONS {
        let sizes: &[u32] = if full() { &[64, 192, function.size] } else { &[64, 128] };
        for &size in sizes {
            let folder = tempfile::tempdir()?;
            check(function, size, folder.path())?;
        }
    }
    Ok(())
}

fn check(function: &Function, size: u32, folder: &Path) -> Result<()> {
    let manifest = function.write(folder, size, 7)?;
    let bundle = folder.join("function.kg");
    let options = CompileOptions {
        targets: vec![Target::this_host()],
        kernel_cache: kernel_cache(),
        ..CompileOptions::default()
    };
    pack(&manifest, &bundle, &options, &Silent)?;
    let mut reference = Command::new(python());
    reference.arg(root().join("tests/python/functions.py")).arg(function.name).arg(folder).arg(size.to_string());
    let output = reference.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let bundle = Bundle::open(&bundle)?;
    let (_, input) = bundle.graph().buffers_of(BufferKind::Input).next().expect("every function has an input");
    let dtype = input.dtype;
    let shape = input.shape.iter().map(|dimension| dimension.eval(&[])).collect::<Result<_, _>>()?;
    let bytes = std::fs::read(folder.join("input.bin"))?;
    let input = Tensor { name: input.name.clone(), dtype: numpy_name(dtype)?.into(), shape, bytes };
    let loaded = Loaded::start(&bundle, EngineConfig::default())?;
    let result = loaded.run(&Case { seed: 0, inputs: vec![input], outputs: vec![] })?;
    loaded.stop();

    let error = relative_error(
        &numbers(dtype, &result.outputs[0].bytes),
        &numbers(dtype, &std::fs::read(folder.join("output.bin"))?),
    );
    // The matrix of `jacobi` is exact; other functions use double precision in the reference.
    let tolerance = if dtype == DType::F64 { 1e-12 } else { 1e-5 };
    ensure!(error < tolerance, "{} of size {size} differs by {error:.2e}", function.name);
    Ok(())
}

/// NumPy's name of an input type.
fn numpy_name(dtype: DType) -> Result<&'static str> {
    Ok(match dtype {
        DType::F32 => "float32",
        DType::F64 => "float64",
        DType::U32 => "uint32",
        other => bail!("no benchmark function takes {other} yet"),
    })
}

fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        DType::F64 => bytes.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect(),
        _ => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b).into()).collect(),
    }
}
