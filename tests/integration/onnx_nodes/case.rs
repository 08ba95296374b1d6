//! Reads, compiles, runs and compares one case.

use anyhow::{Context, Result, anyhow};
use atoll_engine::{
    Class, EngineConfig, FunctionKey, FunctionOptions, InputTensor, InvocationRequest, InvocationResult,
};
use atoll_frontend::onnx::ImportError;
use atoll_frontend::onnx::proto::{DataType, ModelProto, OptionalProto, SequenceProto, TensorProto, ValueInfoProto};
use atoll_frontend::onnx::read_tensor_proto;
use atoll_frontend::tensor::{Data, Tensor};
use atoll_kgraph::{BufferKind, Bundle, SizeRange, SizeRanges};
use atoll_pipeline::{CompileError, CompileOptions, Silent, Target};
use prost::Message;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

/// Starts of the names of cases that are known to differ, and why.
const EXCEPTIONS: [(&str, &str); 5] = [
    ("test_bernoulli", OTHER_NUMBERS),
    ("test_training_dropout_default", OTHER_NUMBERS),
    ("test_training_dropout_mask", OTHER_NUMBERS),
    (
        "test_resize_downsample_scales_linear_align_corners",
        "coordinates from an output size of 2.4; ONNX Runtime uses 2, and so does Atoll",
    ),
    (
        "test_resize_downsample_scales_cubic_align_corners",
        "coordinates from an output size of 3.2; ONNX Runtime uses 3, and so does Atoll",
    ),
];

const OTHER_NUMBERS: &str = "the random numbers of another generator";

/// A case on disk.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) model: ModelProto,
    /// The data sets; `None` if an input or output is not of a supported type.
    sets: Vec<Option<Set>>,
    /// The inputs of each set as in the file, for the variant with constants.
    raw: Vec<Vec<TensorProto>>,
}

/// A data set. The tensors of a sequence or optional are inputs and outputs of their own.
struct Set {
    inputs: Vec<Values>,
    expected: Vec<Values>,
    /// The numbers of tensors of the inputs that are lists.
    lengths: SizeRanges,
}

/// A tensor of a case.
enum Values {
    Numbers(Tensor),
    /// A shape, and strings as clients send and receive them.
    Strings(Vec<i64>, Vec<u8>),
}

impl Values {
    fn of(tensor: &TensorProto) -> Option<Values> {
        if tensor.data_type == DataType::String as i32 {
            let string = |text: &prost::bytes::Bytes| [&(text.len() as u32).to_le_bytes()[..], text].concat();
            let strings: Vec<Vec<u8>> = tensor.string_data.iter().map(string).collect();
            return Some(Values::Strings(tensor.dims.clone(), strings.concat()));
        }
        read_tensor_proto(tensor).ok().map(Values::Numbers)
    }

    fn input(&self) -> InputTensor {
        match self {
            Values::Numbers(tensor) => InputTensor {
                dtype: Some(tensor.dtype),
                shape: tensor.shape.iter().map(|d| *d as i64).collect(),
                bytes: tensor.to_bytes().to_vec(),
            },
            Values::Strings(shape, bytes) => InputTensor { dtype: None, shape: shape.clone(), bytes: bytes.clone() },
        }
    }
}

/// Result of a case.
pub(super) enum Outcome {
    /// Correct, with all inputs given at run time.
    Right,
    /// Correct, with all inputs but the first as constants of the model, as in real models.
    RightWithConstants,
    /// Refused by the compiler, with the reason.
    Refused(String),
    /// A wrong result, or an unexpected error.
    Wrong(String),
}

pub(super) fn read(folder: &Path) -> Result<Case> {
    let model = ModelProto::decode(&std::fs::read(folder.join("model.onnx"))?[..])?;
    let mut sets: Vec<PathBuf> = std::fs::read_dir(folder)?.map(|e| Ok(e?.path())).collect::<Result<_>>()?;
    sets.retain(|path| path.is_dir());
    sets.sort();
    let data = |set: &PathBuf| {
        let graph = model.graph.as_ref()?;
        let mut lengths = SizeRanges::new();
        let inputs = tensors(set, "input", &graph.input, &mut lengths)?;
        let expected = tensors(set, "output", &graph.output, &mut SizeRanges::new())?;
        Some(Set { inputs, expected, lengths })
    };
    let sets_read = sets.iter().map(data).collect();
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(Case { name, model, sets: sets_read, raw: sets.iter().map(|set| protos(set, "input")).collect() })
}

fn protos(set: &Path, kind: &str) -> Vec<TensorProto> {
    let files = (0..).map_while(|i| std::fs::read(set.join(format!("{kind}_{i}.pb"))).ok());
    files.map_while(|bytes| TensorProto::decode(&bytes[..]).ok()).collect()
}

/// The tensors of all inputs or outputs, in order. Adds the lengths of lists to `lengths`, in the form
/// of the compiler's options.
fn tensors(set: &Path, kind: &str, values: &[ValueInfoProto], lengths: &mut SizeRanges) -> Option<Vec<Values>> {
    let mut all = Vec::new();
    for (index, value) in values.iter().enumerate() {
        let Ok(bytes) = std::fs::read(set.join(format!("{kind}_{index}.pb"))) else { break };
        // Without a type, it is a tensor.
        let ty = value.r#type.as_ref();
        let protos = if ty.is_some_and(|ty| ty.sequence_type.is_some()) {
            SequenceProto::decode(&bytes[..]).ok()?.tensor_values
        } else if ty.is_some_and(|ty| ty.optional_type.is_some()) {
            let OptionalProto { tensor_value, sequence_value } = OptionalProto::decode(&bytes[..]).ok()?;
            let sequence = sequence_value.unwrap_or_default().tensor_values;
            tensor_value.into_iter().chain(sequence).collect()
        } else {
            all.push(Values::of(&TensorProto::decode(&bytes[..]).ok()?)?);
            continue;
        };
        let length = protos.len() as i64;
        lengths.insert(format!("{}.length", value.name), SizeRange { min: length, max: length });
        for proto in &protos {
            all.push(Values::of(proto)?);
        }
    }
    Some(all)
}

/// An engine for all cases.
pub(super) struct Runner {
    engine: atoll_engine::Engine,
    folder: tempfile::TempDir,
}

impl Runner {
    pub(super) fn start(config: EngineConfig) -> Result<Runner> {
        let device = atoll_device_host::HostConfig { compute_units: 2, ..Default::default() };
        let device = atoll_device_host::HostDevice::start(device)?;
        Ok(Runner { engine: atoll_engine::Engine::start(Box::new(device), config)?, folder: tempfile::tempdir()? })
    }

    pub(super) fn stop(self) {
        self.engine.shutdown();
    }

    pub(super) fn run(&self, case: &Case) -> Outcome {
        let why = EXCEPTIONS.iter().find(|(start, _)| case.name.starts_with(start)).map(|(_, why)| *why);
        if let Some(why) = why.or_else(|| (case.name == "test_training_dropout").then_some(OTHER_NUMBERS)) {
            return Outcome::Refused(format!("it expects {why}"));
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.all_sets(case)));
        outcome.unwrap_or_else(|_| Outcome::Wrong("a panic".into()))
    }

    fn all_sets(&self, case: &Case) -> Outcome {
        let mut outcome = Outcome::Right;
        for (index, set) in case.sets.iter().enumerate() {
            let Some(Set { inputs, expected, lengths }) = set else {
                return Outcome::Refused("an input or output is no tensor of a supported type".into());
            };
            outcome = match self.one_set(&case.model, inputs, expected, lengths) {
                // Cases have axes and sizes as inputs; models have them as constants.
                Outcome::Refused(reason) if inputs.len() > 1 && lengths.is_empty() => {
                    match self.one_set(&with_constants(case, index), &inputs[..1], expected, lengths) {
                        Outcome::Right => Outcome::RightWithConstants,
                        Outcome::Refused(_) => Outcome::Refused(reason),
                        other => other,
                    }
                }
                outcome => outcome,
            };
            if !matches!(outcome, Outcome::Right | Outcome::RightWithConstants) {
                break;
            }
        }
        outcome
    }

    fn one_set(&self, model: &ModelProto, inputs: &[Values], expected: &[Values], lengths: &SizeRanges) -> Outcome {
        match self.compile(model, lengths) {
            Ok(bundle) => match self.answer(&bundle, inputs) {
                Ok(result) => compare(&bundle, &result, expected),
                Err(error) => Outcome::Wrong(format!("{error:#}")),
            },
            Err(error) => refused(&error),
        }
    }

    fn compile(&self, model: &ModelProto, lengths: &SizeRanges) -> Result<Arc<Bundle>, CompileError> {
        let (onnx, bundle) = (self.folder.path().join("model.onnx"), self.folder.path().join("model.kg"));
        std::fs::write(&onnx, model.encode_to_vec()).expect("the temporary folder takes a model");
        let options = CompileOptions {
            targets: vec![Target::this_host()],
            common_symbols: lengths.clone(),
            ..Default::default()
        };
        atoll_pipeline::compile(&onnx, &bundle, &options, &Silent)?;
        Ok(Bundle::open(&bundle)?)
    }

    fn answer(&self, bundle: &Arc<Bundle>, inputs: &[Values]) -> Result<InvocationResult> {
        let (handle, key) = (self.engine.handle(), FunctionKey::local("case"));
        let options = FunctionOptions {
            key: key.clone(),
            class: Class::BestEffort,
            queue_capacity: None,
            lane: Default::default(),
            batching: None,
        };
        handle.load(bundle.clone(), options)?;
        let request = InvocationRequest {
            function: key.clone(),
            inputs: inputs.iter().map(Values::input).collect(),
            class: None,
            priority: 0,
            instance: None,
            deadline: None,
        };
        let (answer, answered) = mpsc::channel();
        handle.submit_chain(request.into(), Box::new(move |result| drop(answer.send(result))));
        let result = answered.recv().context("no answer")?;
        handle.unload(&key)?;
        result.map_err(|error| anyhow!("{error}"))
    }
}

/// The model with all inputs but the first as initializers.
fn with_constants(case: &Case, set: usize) -> ModelProto {
    let mut model = case.model.clone();
    if let Some(graph) = &mut model.graph {
        for (input, tensor) in graph.input.iter().zip(&case.raw[set]).skip(1) {
            graph.initializer.push(TensorProto { name: input.name.clone(), ..tensor.clone() });
        }
    }
    model
}

/// A refusal has its cause in the model; any other error is a bug of the compiler.
fn refused(error: &CompileError) -> Outcome {
    match error {
        CompileError::Import(ImportError::UnsupportedOperator { operator, domain, .. }) => {
            Outcome::Refused(format!("no operator {operator} of {domain}"))
        }
        CompileError::Import(ImportError::Unsupported { operator, reason, .. }) => {
            Outcome::Refused(format!("{operator}: {reason}"))
        }
        CompileError::Import(ImportError::DType { dtype, .. }) => Outcome::Refused(format!("the type {dtype}")),
        CompileError::Import(ImportError::Opset { version, .. }) => Outcome::Refused(format!("opset {version}")),
        CompileError::Codegen(error) => Outcome::Refused(error.to_string()),
        other => Outcome::Wrong(other.to_string()),
    }
}

fn compare(bundle: &Bundle, result: &InvocationResult, expected: &[Values]) -> Outcome {
    let specs: Vec<_> = bundle.graph().buffers_of(BufferKind::Output).map(|(_, spec)| spec).collect();
    if specs.len() != expected.len() {
        return Outcome::Wrong(format!("{} outputs instead of {}", specs.len(), expected.len()));
    }
    for ((spec, found), expected) in specs.iter().zip(&result.outputs).zip(expected) {
        let expected = match expected {
            Values::Numbers(expected) => expected,
            Values::Strings(shape, strings) => {
                if (&found.shape, &found.bytes) != (shape, strings) {
                    let [found_text, text] = [&found.bytes, strings].map(|bytes| String::from_utf8_lossy(bytes));
                    return Outcome::Wrong(format!(
                        "output {}: {:?} {found_text:?} instead of {shape:?} {text:?}",
                        spec.name, found.shape
                    ));
                }
                continue;
            }
        };
        let shape: Vec<usize> = found.shape.iter().map(|d| *d as usize).collect();
        let Some(found) = Tensor::from_bytes(spec.dtype, &shape, &found.bytes) else {
            return Outcome::Wrong(format!("output {} has not the bytes of its shape", spec.name));
        };
        if let Some(difference) = difference(&found, expected) {
            return Outcome::Wrong(format!("output {}: {difference}", spec.name));
        }
    }
    Outcome::Right
}

/// The first difference of two tensors, with the tolerance of ONNX's own runner plus about one unit
/// in the last place for small floats.
fn difference(found: &Tensor, expected: &Tensor) -> Option<String> {
    if found.shape != expected.shape || found.dtype != expected.dtype {
        return Some(format!("{} {:?} instead of {} {:?}", found.dtype, found.shape, expected.dtype, expected.shape));
    }
    match (&found.data, &expected.data) {
        (Data::Int(a), Data::Int(b)) => {
            a.iter().zip(b).position(|(a, b)| a != b).map(|i| format!("element {i}: {} instead of {}", a[i], b[i]))
        }
        _ => {
            let relative = match found.dtype {
                atoll_kgraph::DType::Bf16 => 1e-2,
                atoll_kgraph::DType::F16 => 2e-3,
                _ => 1e-3,
            };
            let (a, b) = (found.to_f64(), expected.to_f64());
            let differs = |(a, b): (&f64, &f64)| {
                !(a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-5 + relative * b.abs())
            };
            a.iter().zip(&b).position(differs).map(|i| format!("element {i}: {} instead of {}", a[i], b[i]))
        }
    }
}
