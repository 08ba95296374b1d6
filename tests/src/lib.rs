//! Shared by the integration tests: the numeric oracle, models on an engine, and paths.
//!
//! Full runs (`ATOLL_TEST_FULL=1`, `make test-full`) use the published size of every model and
//! three seeds; other runs use small variants, one seed, and samples of many cases ([`sample()`]).

pub mod chaos;
pub mod corpus;
pub mod http;
mod kernels;
mod sample;
pub mod source;
pub mod stand_in;
pub mod stopping;
pub mod walk;

pub use kernels::{kernel_cache, share_kernels};
pub use sample::{sample, sample_groups};

use anyhow::{Context, Result, bail, ensure};
use atoll_device_host::{HostConfig, HostDevice};
use atoll_engine::{
    ChainRequest, Class, Engine, EngineConfig, EngineHandle, FunctionKey, FunctionOptions, InputTensor,
    InvocationRequest, InvocationResult,
};
use atoll_kgraph::{Bundle, DType};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, mpsc};

/// Largest relative difference from ONNX Runtime, ‖a−b‖/‖b‖.
pub const TOLERANCE: f64 = 1e-3;

/// Whether this is a full run.
pub fn full() -> bool {
    std::env::var_os("ATOLL_TEST_FULL").is_some_and(|v| v == "1")
}

/// Seed of random tests: `ATOLL_SEED`, or 1.
pub fn seed() -> u64 {
    std::env::var("ATOLL_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Reports why a test was skipped.
#[expect(clippy::print_stderr, reason = "a skipped test must be seen")]
pub fn skip(reason: &str) {
    eprintln!("SKIPPED: {reason}");
}

/// Prints a figure that a test measured and does not check.
#[expect(clippy::print_stderr, reason = "a figure must be seen")]
pub fn measured(text: &str) {
    eprintln!("MEASURED: {text}");
}

/// Python of the virtual environment that `make setup` creates.
pub fn python() -> PathBuf {
    cache("ATOLL_VENV", "venv").join("bin/python")
}

/// Folder of the downloaded trained models.
pub fn trained_models() -> PathBuf {
    cache("ATOLL_MODELS_DIR", "models")
}

fn cache(variable: &str, folder: &str) -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/atoll").join(folder);
    std::env::var_os(variable).map_or_else(home, PathBuf::from)
}

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests lie in the repository")
}

/// A program or library that cargo built beside this test, by the same call or by `cargo build -p`.
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    test.ancestors().nth(2).expect("target/<profile>/deps/<test>").join(name)
}

/// A model to test.
#[derive(Clone, Debug)]
pub struct Model {
    /// Name in messages.
    pub name: String,
    /// Its ONNX file.
    pub path: PathBuf,
    /// Values of its symbolic dimensions.
    pub symbols: Vec<(String, i64)>,
}

/// A built model in a folder: the published size in a full run, else a small variant.
pub fn built(name: &str, folder: &Path) -> Result<Model> {
    if full() {
        write_built(name, folder, &atoll_models::BuildOptions { seed: 7, ..Default::default() })
    } else {
        built_small(name, folder)
    }
}

/// The small variant of a built model.
pub fn built_small(name: &str, folder: &Path) -> Result<Model> {
    write_built(
        name,
        folder,
        &atoll_models::BuildOptions { seed: 7, width: 0.25, image: Some(small_image(name)), ..Default::default() },
    )
}

/// The small variant of a built model with symbolic batch and sequence, and values for them.
pub fn symbolic_small(name: &str, symbols: &[(&str, i64)], folder: &Path) -> Result<Model> {
    let options = atoll_models::BuildOptions { seed: 7, width: 0.25, image: Some(small_image(name)), symbolic: true };
    Ok(Model { symbols: owned(symbols), ..write_built(name, folder, &options)? })
}

fn write_built(name: &str, folder: &Path, options: &atoll_models::BuildOptions) -> Result<Model> {
    let path = folder.join(format!("{name}.onnx"));
    std::fs::write(&path, atoll_models::build_onnx(name, options)?)?;
    Ok(Model { name: name.into(), path, symbols: vec![] })
}

fn small_image(name: &str) -> u32 {
    match name {
        "inception_v3" => 107,
        "distilbert" | "gpt2" | "lstm" | "rnnt" | "gnmt" => 19,
        "unet3d" => 32,
        _ => 64,
    }
}

/// Models that have a smaller sibling of the same form, and take ten times as long to compile.
pub const LARGE: [&str; 2] = ["densenet201", "resnet152"];

/// The family of a model, for samples: models of a family have the same kinds of kernels.
pub fn family(name: &str) -> &str {
    match name {
        "resnet18" | "resnet50" | "resnet152" | "resnext50" | "densenet121" | "densenet201" => "residual",
        "vgg19" | "inception_v3" | "squeezenet" => "convolutional",
        "mobilenet_v2" | "convnext_tiny" => "depthwise",
        "distilbert" | "gpt2" | "vit_b_16" => "transformer",
        "lstm" | "rnnt" | "gnmt" => "recurrent",
        other => other,
    }
}

/// A downloaded trained model.
pub fn trained(name: &str, symbols: &[(&str, i64)]) -> Result<Model> {
    let path = trained_models().join(format!("{name}.onnx"));
    ensure!(path.exists(), "{} is missing; run `make setup`", path.display());
    Ok(Model { name: name.into(), path, symbols: owned(symbols) })
}

fn owned(symbols: &[(&str, i64)]) -> Vec<(String, i64)> {
    symbols.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

/// A tensor of the oracle.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its name in the model.
    pub name: String,
    /// NumPy's name of its type.
    pub dtype: String,
    /// Dimensions.
    pub shape: Vec<i64>,
    /// Elements, little-endian.
    pub bytes: Vec<u8>,
}

/// Inputs, and the outputs of ONNX Runtime.
#[derive(Clone, Debug)]
pub struct Case {
    /// The seed of the inputs.
    pub seed: u64,
    /// Inputs in the model's order.
    pub inputs: Vec<Tensor>,
    /// Outputs in the model's order.
    pub outputs: Vec<Tensor>,
}

#[derive(Deserialize)]
struct CaseFile {
    inputs: Vec<TensorFile>,
    outputs: Vec<TensorFile>,
}

#[derive(Deserialize)]
struct TensorFile {
    name: String,
    dtype: String,
    shape: Vec<i64>,
    file: String,
}

/// Runs ONNX Runtime for each seed.
pub fn oracle(model: &Model, seeds: &[u64], folder: &Path) -> Result<Vec<Case>> {
    let out = folder.join(format!("{}-cases", model.name));
    let list: Vec<String> = seeds.iter().map(u64::to_string).collect();
    let mut command = Command::new(python());
    command.arg(root().join("tests/python/oracle.py")).arg(&model.path).arg(&out).args(["--seeds", &list.join(",")]);
    for (name, value) in &model.symbols {
        command.args(["--symbol", &format!("{name}={value}")]);
    }
    let output = command.output().context("the oracle needs the Python environment of `make setup`")?;
    ensure!(output.status.success(), "the oracle failed: {}", String::from_utf8_lossy(&output.stderr));
    seeds.iter().map(|&seed| read_case(seed, &out.join(seed.to_string()))).collect()
}

/// Generates random graphs for the seeds from `first` on, each in its own folder with ONNX
/// Runtime's results.
pub fn random_graphs(out: &Path, first: u64, count: u64) -> Result<()> {
    random_graphs_helper(&["make".as_ref(), out.as_os_str(), first.to_string().as_ref(), count.to_string().as_ref()])
}

/// Generates smaller variants of a random graph, in the same layout.
pub fn cut_graph(graph: &Path, out: &Path) -> Result<()> {
    random_graphs_helper(&["cut".as_ref(), graph.as_os_str(), out.as_os_str()])
}

fn random_graphs_helper(arguments: &[&std::ffi::OsStr]) -> Result<()> {
    let script = root().join("tests/python/random_graphs.py");
    let output = Command::new(python())
        .arg(script)
        .args(arguments)
        .output()
        .context("random graphs need the Python environment of `make setup`")?;
    ensure!(output.status.success(), "random_graphs.py failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Reads inputs and outputs that the oracle wrote into a folder.
pub fn read_case(seed: u64, folder: &Path) -> Result<Case> {
    let file: CaseFile = serde_json::from_slice(&std::fs::read(folder.join("case.json"))?)?;
    let read = |tensors: Vec<TensorFile>| -> Result<Vec<Tensor>> {
        let one = |t: TensorFile| {
            Ok(Tensor { bytes: std::fs::read(folder.join(&t.file))?, name: t.name, dtype: t.dtype, shape: t.shape })
        };
        tensors.into_iter().map(one).collect()
    };
    Ok(Case { seed, inputs: read(file.inputs)?, outputs: read(file.outputs)? })
}

/// Compiles for this machine's CPU.
pub fn compile(model: &Model, folder: &Path) -> Result<Arc<Bundle>> {
    compile_for(model, folder, atoll_pipeline::Target::this_host())
}

/// Compiles for a target.
pub fn compile_for(model: &Model, folder: &Path, target: atoll_pipeline::Target) -> Result<Arc<Bundle>> {
    let path = folder.join(format!("{}.kg", model.name));
    let options =
        atoll_pipeline::CompileOptions { targets: vec![target], kernel_cache: kernel_cache(), ..Default::default() };
    atoll_pipeline::compile(&model.path, &path, &options, &atoll_pipeline::Silent)
        .with_context(|| format!("compiling {}", model.name))?;
    Ok(Bundle::open(&path)?)
}

/// A model loaded into its own engine.
pub struct Loaded {
    /// `None` if the engine belongs to another instance.
    engine: Option<Engine>,
    /// Handle for statistics and further functions.
    pub handle: EngineHandle,
    key: FunctionKey,
    bundle: Arc<Bundle>,
}

impl Loaded {
    /// Starts an engine with two compute units and loads the bundle as `model`.
    pub fn start(bundle: &Arc<Bundle>, config: EngineConfig) -> Result<Loaded> {
        let device = HostDevice::start(HostConfig { compute_units: 2, ..HostConfig::default() })?;
        Loaded::start_in(Engine::start(Box::new(device), config)?, bundle)
    }

    /// Like [`Loaded::start`], in a running engine.
    pub fn start_in(engine: Engine, bundle: &Arc<Bundle>) -> Result<Loaded> {
        let (handle, key) = (engine.handle(), FunctionKey::local("model"));
        handle.load(
            bundle.clone(),
            FunctionOptions {
                key: key.clone(),
                class: Class::BestEffort,
                queue_capacity: None,
                lane: Default::default(),
                batching: None,
            },
        )?;
        Ok(Loaded { engine: Some(engine), handle, key, bundle: bundle.clone() })
    }

    /// Loads another model into the same engine.
    pub fn beside(&self, bundle: &Arc<Bundle>, options: FunctionOptions) -> Result<Loaded> {
        let key = options.key.clone();
        self.handle.load(bundle.clone(), options)?;
        Ok(Loaded { engine: None, handle: self.handle.clone(), key, bundle: bundle.clone() })
    }

    /// Runs one case, with timed launches.
    pub fn run(&self, case: &Case) -> Result<InvocationResult> {
        let order = self.bundle.graph().buffers_of(atoll_kgraph::BufferKind::Input);
        let inputs = order
            .map(|(_, spec)| {
                let tensor = case
                    .inputs
                    .iter()
                    .find(|t| t.name == spec.name)
                    .with_context(|| format!("no input {}", spec.name))?;
                Ok(InputTensor {
                    dtype: Some(dtype(&tensor.dtype)?),
                    shape: tensor.shape.clone(),
                    bytes: tensor.bytes.clone(),
                })
            })
            .collect::<Result<_>>()?;
        let request = InvocationRequest {
            function: self.key.clone(),
            inputs,
            class: None,
            priority: 0,
            instance: None,
            deadline: None,
        };
        let request = ChainRequest { times_launches: true, ..request.into() };
        let (answer, answered) = mpsc::channel();
        self.handle.submit_chain(request, Box::new(move |result| drop(answer.send(result))));
        Ok(answered.recv()??)
    }

    /// Runs one case and compares every output with the oracle's.
    pub fn check(&self, model: &Model, case: &Case) -> Result<InvocationResult> {
        self.compare(model, case, |found, expected| {
            let error = relative_error(found, expected);
            (error >= TOLERANCE).then(|| format!("differs by {error:.2e}"))
        })
    }

    /// Like [`Loaded::check`], by element: none may differ by more than `tolerance` of the largest
    /// element of its output. NaN equals NaN, and an infinity equals itself.
    pub fn check_elements(&self, model: &Model, case: &Case, tolerance: f64) -> Result<InvocationResult> {
        self.compare(model, case, |found, expected| first_difference(found, expected, tolerance))
    }

    fn compare(
        &self,
        model: &Model,
        case: &Case,
        difference: impl Fn(&[f64], &[f64]) -> Option<String>,
    ) -> Result<InvocationResult> {
        let result = self.run(case)?;
        let specs: Vec<_> =
            self.bundle.graph().buffers_of(atoll_kgraph::BufferKind::Output).map(|(_, spec)| spec).collect();
        ensure!(
            specs.len() == case.outputs.len(),
            "{}: {} outputs, expected {}",
            model.name,
            specs.len(),
            case.outputs.len()
        );
        for (spec, got) in specs.iter().zip(&result.outputs) {
            let expected = case
                .outputs
                .iter()
                .find(|t| t.name == spec.name)
                .with_context(|| format!("no output {}", spec.name))?;
            ensure!(
                dtype(&expected.dtype)? == spec.dtype,
                "{} {}: {}, expected {}",
                model.name,
                spec.name,
                spec.dtype,
                expected.dtype
            );
            ensure!(
                got.shape == expected.shape,
                "{} {}: shape {:?}, expected {:?}",
                model.name,
                spec.name,
                got.shape,
                expected.shape
            );
            let difference = difference(&numbers(spec.dtype, &got.bytes)?, &numbers(spec.dtype, &expected.bytes)?);
            ensure!(
                difference.is_none(),
                "{} seed {}: output {} {}",
                model.name,
                case.seed,
                spec.name,
                difference.unwrap_or_default()
            );
        }
        Ok(result)
    }

    /// Shuts down the engine.
    pub fn stop(self) {
        if let Some(engine) = self.engine {
            engine.shutdown();
        }
    }
}

/// The type with NumPy's name.
fn dtype(name: &str) -> Result<DType> {
    Ok(match name {
        "bool" => DType::Bool,
        "uint8" => DType::U8,
        "int8" => DType::I8,
        "uint32" => DType::U32,
        "int32" => DType::I32,
        "int64" => DType::I64,
        "float16" => DType::F16,
        "float32" => DType::F32,
        "float64" => DType::F64,
        other => bail!("inputs of {other} are not given yet"),
    })
}

fn numbers(dtype: DType, bytes: &[u8]) -> Result<Vec<f64>> {
    let count = bytes.len() / dtype.bytes().max(1) as usize;
    let tensor = atoll_frontend::tensor::Tensor::from_bytes(dtype, &[count], bytes);
    Ok(tensor.with_context(|| format!("{} bytes of {dtype}", bytes.len()))?.to_f64())
}

/// The first element that differs by more than `tolerance` of the largest expected one.
fn first_difference(found: &[f64], expected: &[f64], tolerance: f64) -> Option<String> {
    if found.len() != expected.len() {
        return Some(format!("has {} elements instead of {}", found.len(), expected.len()));
    }
    let largest =
        expected.iter().filter(|value| value.is_finite()).fold(1e-3, |largest: f64, value| largest.max(value.abs()));
    let is_same = |(a, b): (&f64, &f64)| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * largest;
    let at = found.iter().zip(expected).position(|pair| !is_same(pair))?;
    Some(format!("has {} instead of {} as element {at}; the largest is {largest}", found[at], expected[at]))
}

/// ‖a−b‖/‖b‖; a NaN counts as wrong.
pub fn relative_error(a: &[f64], b: &[f64]) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let error = norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied()).max(f64::MIN_POSITIVE);
    if error.is_nan() { f64::INFINITY } else { error }
}
