//! A model on an engine inside this process.

use crate::npy::Array;
use crate::output::usage;
use crate::random::Random;
use anyhow::{Context, Result};
use atoll_device::host::{HostConfig, HostDevice};
use atoll_engine::{
    Class, Engine, EngineConfig, EngineHandle, FunctionOptions, InputTensor, InvocationRequest, InvocationResult, InvokeError,
};
use atoll_kgraph::{BufferKind, BufferSpec, Bundle, Expr};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, mpsc};

/// Opens a bundle; an ONNX file is compiled into a temporary one first.
pub(crate) fn open(path: &Path) -> Result<Arc<Bundle>> {
    if path.extension().is_none_or(|e| e != "onnx") {
        return Ok(Bundle::open(path)?);
    }
    #[cfg(feature = "compiler")]
    {
        let folder = tempfile::tempdir()?;
        let bundle = folder.path().join("model.kg");
        let options = atoll_pipeline::CompileOptions { targets: vec![atoll_pipeline::Target::this_host()], assemble: false };
        crate::commands::compile::with_progress(path, &bundle, &options)?;
        Ok(Bundle::open(&bundle)?)
    }
    #[cfg(not(feature = "compiler"))]
    Err(usage("this atoll was built without the compiler; compile the model elsewhere with `atoll compile` and give the .kg file"))
}

/// Starts an engine on the host device.
pub(crate) fn engine(compute_units: Option<u32>, config: EngineConfig) -> Result<Engine> {
    let defaults = HostConfig::default();
    let compute_units = compute_units.unwrap_or(defaults.compute_units);
    let device = HostDevice::start(HostConfig { compute_units, ..defaults })?;
    Ok(Engine::start(Box::new(device), config)?)
}

/// Loads a bundle under a name.
pub(crate) fn load(handle: &EngineHandle, bundle: &Arc<Bundle>, name: &str, class: Class) -> Result<()> {
    handle.load(bundle.clone(), FunctionOptions { name: name.into(), class, queue_capacity: None })?;
    Ok(())
}

/// Calls a function and waits.
pub(crate) fn invoke(handle: &EngineHandle, function: &str, inputs: Vec<InputTensor>) -> Result<InvocationResult, InvokeError> {
    let request = InvocationRequest { function: function.into(), inputs, class: None, deadline: None };
    let (sender, receiver) = mpsc::channel();
    handle.submit(request, Box::new(move |answer| drop(sender.send(answer))));
    receiver.recv().unwrap_or(Err(InvokeError::ShuttingDown))
}

/// Inputs of a bundle in their order: those given, checked for their type, and random ones for the rest. Symbols take their smallest value where nothing given binds them.
pub(crate) fn inputs(bundle: &Bundle, given: &BTreeMap<String, Array>, seed: u64) -> Result<Vec<InputTensor>> {
    let graph = bundle.graph();
    let specs: Vec<&BufferSpec> = graph.buffers_of(BufferKind::Input).map(|(_, spec)| spec).collect();
    if let Some(name) = given.keys().find(|name| !specs.iter().any(|s| s.name == **name)) {
        let names: Vec<_> = specs.iter().map(|s| s.name.as_str()).collect();
        return Err(usage(format!("the model has no input {name}; it has {}", names.join(", "))));
    }
    let mut symbols: Vec<i64> = graph.symbols.iter().map(|s| s.min.max(1)).collect();
    for spec in &specs {
        let Some(array) = given.get(&spec.name) else { continue };
        for (dimension, &value) in spec.shape.iter().zip(&array.shape) {
            if let Expr::Symbol(id) = dimension {
                symbols[id.0 as usize] = value;
            }
        }
    }
    let mut random = Random(seed);
    specs.into_iter().map(|spec| input(spec, given.get(&spec.name), &symbols, &mut random)).collect()
}

fn input(spec: &BufferSpec, given: Option<&Array>, symbols: &[i64], random: &mut Random) -> Result<InputTensor> {
    if let Some(array) = given {
        if array.dtype != spec.dtype {
            return Err(usage(format!("input {} is {:?}, the model wants {:?}", spec.name, array.dtype, spec.dtype)));
        }
        return Ok(InputTensor { shape: array.shape.clone(), bytes: array.bytes.clone() });
    }
    let shape: Vec<i64> = spec.shape.iter().map(|d| d.eval(symbols)).collect::<Result<_, _>>()?;
    let count = shape.iter().try_fold(1_usize, |n, &d| n.checked_mul(usize::try_from(d).ok()?)).context("an input's size overflows")?;
    Ok(InputTensor { bytes: random.tensor(spec.dtype, count), shape })
}
