//! `atoll bench batching`

use super::model_file;
use crate::artifact;
use crate::device_name::DeviceName;
use crate::engine::bench_engine;
use crate::failure::user_error;
use crate::invoker::{invoke, request};
use crate::output::{Align, Table};
use crate::random::Random;
use crate::report::Findings;
use crate::samples::Distribution;
use crate::symbols::ModelArgs;
use crate::tensors::InputSpecs;
use anyhow::{Context, Result, anyhow, ensure};
use atoll_engine::{
    BatchingOptions, Class, EngineHandle, FunctionKey, FunctionOptions, FunctionStatistics, LaneId, OutputTensor,
};
use atoll_kgraph::{BufferKind, Bundle, SizeRange};
use atoll_protocol::Tensor;
use atoll_server::tensor_metadata;
use serde::Serialize;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  atoll bench batching
  atoll bench batching --model resnet18 --clients 8 --duration 10 --json
  atoll bench batching --model model.kg --max-batch-size 64

Built models: mlp (8 layers of 1024 x 1024), and those of `atoll-models`.";

/// Part of the duration before the measurement: the first batches find cold caches and unknown
/// sizes.
const WARM_UP_SHARE: u32 = 4;

/// Largest relative difference of a row of a batch from the row alone, in the Euclidean norm.
const TOLERANCE: f64 = 1e-4;

/// Measure clients that send one row at a time and wait for each answer, with and without batches
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Models (.kg, .onnx, or the name of a built model)
    #[arg(long = "model", value_name = "MODEL", value_delimiter = ',', default_value = "mlp,squeezenet")]
    models: Vec<String>,

    /// Numbers of clients
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "1,8,32")]
    clients: Vec<NonZeroU32>,

    /// Most rows of a batch
    #[arg(long, value_name = "ROWS", default_value_t = NonZeroU32::new(32).expect("not zero"))]
    max_batch_size: NonZeroU32,

    /// Duration of each measurement, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    duration: f64,

    /// Seed of inputs
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// One measurement.
#[derive(Debug, Serialize)]
struct Row {
    model: String,
    clients: u32,
    batching: bool,
    per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    mean_batch: f64,
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    if !(args.duration > 0.0 && args.duration <= 3600.0) {
        return Err(user_error("--duration must be above 0 and at most 3600 seconds"));
    }
    let mut rows = Vec::new();
    for model in &args.models {
        let bundle = open(model, args.max_batch_size)?;
        for clients in &args.clients {
            for batching in [false, true] {
                rows.push(measure(args, model, &bundle, clients.get(), batching)?);
            }
        }
    }
    Findings::new(&rows, text(&rows))
}

/// A bundle, or a model compiled for batches.
fn open(model: &str, rows: NonZeroU32) -> Result<Arc<Bundle>> {
    if model.ends_with(".kg") {
        return artifact::open(model.as_ref(), DeviceName::Host);
    }
    let folder = tempfile::tempdir()?;
    let path = model_file(model, folder.path(), true)?;
    let range = SizeRange { min: 1, max: rows.get().into() };
    artifact::open_with(&path, DeviceName::Host, &ModelArgs::of_range("batch", range))
}

fn measure(args: &Args, model: &str, bundle: &Arc<Bundle>, clients: u32, batching: bool) -> Result<Row> {
    let engine = bench_engine(DeviceName::Host, 0, atoll_core::POLICY_DEFAULT, 4)?;
    let handle = engine.handle();
    let key = FunctionKey::local("model");
    let options = FunctionOptions {
        key: key.clone(),
        class: Class::BestEffort,
        queue_capacity: Some(2 * clients as usize),
        lane: LaneId::DEFAULT,
        batching: batching.then(|| BatchingOptions::up_to(args.max_batch_size)),
    };
    handle.load(Arc::clone(bundle), options).with_context(|| format!("cannot load {model}"))?;
    let metadata = tensor_metadata(bundle.graph(), BufferKind::Input);
    let specs = InputSpecs::parse(&[], &[], &metadata)?;
    let inputs: Vec<Vec<Tensor>> = (0..clients)
        .map(|client| specs.tensors(&metadata, &mut Random::new(args.seed + u64::from(client))))
        .collect::<Result<_>>()?;
    let alone: Vec<Vec<OutputTensor>> = inputs.iter().map(|inputs| ask(&handle, inputs)).collect::<Result<_>>()?;
    let duration = Duration::from_secs_f64(args.duration);
    load(&handle, &inputs, &alone, duration / WARM_UP_SHARE)?;
    let before = statistics(&handle, &key);
    let (latencies, seconds) = load(&handle, &inputs, &alone, duration)?;
    let after = statistics(&handle, &key);
    engine.shutdown();
    let Distribution { count, p50_ms, p99_ms, .. } = Distribution::of(&latencies);
    let runs = (after.executions() - before.executions()).max(1);
    Ok(Row {
        model: model.into(),
        clients,
        batching,
        per_s: count as f64 / seconds,
        p50_ms,
        p99_ms,
        mean_batch: (after.rows() - before.rows()) as f64 / runs as f64,
    })
}

fn statistics(handle: &EngineHandle, key: &FunctionKey) -> FunctionStatistics {
    handle.statistics().functions.into_iter().find(|function| function.key == *key).unwrap_or_default()
}

fn ask(handle: &EngineHandle, inputs: &[Tensor]) -> Result<Vec<OutputTensor>> {
    Ok(invoke(handle, request("model", inputs, None))?.outputs)
}

/// Each client sends its row repeatedly. Returns all latencies and the total time.
fn load(
    handle: &EngineHandle,
    inputs: &[Vec<Tensor>],
    alone: &[Vec<OutputTensor>],
    duration: Duration,
) -> Result<(Vec<Duration>, f64)> {
    let begin = Instant::now();
    let client = |inputs: &[Tensor], alone: &[OutputTensor]| -> Result<Vec<Duration>> {
        let mut latencies = Vec::new();
        while begin.elapsed() < duration {
            let sent = Instant::now();
            let outputs = ask(handle, inputs)?;
            latencies.push(sent.elapsed());
            ensure!(are_equal(&outputs, alone), "a row of a batch differs from the row alone");
        }
        Ok(latencies)
    };
    let all: Result<Vec<Vec<Duration>>> = std::thread::scope(|scope| {
        let clients: Vec<_> =
            inputs.iter().zip(alone).map(|(inputs, alone)| scope.spawn(|| client(inputs, alone))).collect();
        clients.into_iter().map(|client| client.join().map_err(|_| anyhow!("a client panicked"))?).collect()
    });
    Ok((all?.concat(), begin.elapsed().as_secs_f64()))
}

/// Whether FP32 outputs are equal within the tolerance, and other outputs are identical.
fn are_equal(outputs: &[OutputTensor], alone: &[OutputTensor]) -> bool {
    outputs.iter().zip(alone).all(|(output, alone)| {
        let numbers = |tensor: &OutputTensor| -> Vec<f64> {
            tensor.bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes).into()).collect()
        };
        let (found, expected) = (numbers(output), numbers(alone));
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
        let difference = norm(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
        let is_near = difference <= TOLERANCE * norm(&mut expected.iter().copied());
        output.shape == alone.shape && (output.bytes == alone.bytes || is_near)
    })
}

fn text(rows: &[Row]) -> String {
    use Align::{Left, Right};
    let columns = [
        ("model", Left),
        ("clients", Right),
        ("batching", Left),
        ("per s", Right),
        ("p50 ms", Right),
        ("p99 ms", Right),
        ("mean batch", Right),
    ];
    let mut table = Table::new(columns);
    for Row { model, clients, batching, per_s, p50_ms, p99_ms, mean_batch } in rows {
        table.row([
            model.clone(),
            clients.to_string(),
            if *batching { "yes" } else { "no" }.into(),
            format!("{per_s:.1}"),
            format!("{p50_ms:.3}"),
            format!("{p99_ms:.3}"),
            format!("{mean_batch:.1}"),
        ]);
    }
    format!("{table}\n")
}
