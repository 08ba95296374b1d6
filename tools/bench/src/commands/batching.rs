//! `atoll bench batching`

use super::model_file;
use crate::artifact;
use crate::device_name::DeviceName;
use crate::engine::bench_engine;
use crate::failure::user_error;
use crate::invoker::{self, invoke, request};
use crate::output::{Align, Table};
use crate::random::Random;
use crate::report::Findings;
use crate::samples::Distribution;
use crate::symbols::ModelArgs;
use crate::tensors::InputSpecs;
use anyhow::{Context, Result, anyhow, ensure};
use atoll_engine::{
    BatchingOptions, Class, EngineHandle, FunctionKey, FunctionOptions, FunctionStatistics, InvocationRequest, LaneId,
    OutputTensor,
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
  atoll bench batching --model mlp --clients 32 --real-time squeezenet --rate 20

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

    /// Also measure real-time requests to this model, alone and beside the clients (.kg, .onnx, or
    /// the name of a built model)
    #[arg(long, value_name = "MODEL")]
    real_time: Option<String>,

    /// Real-time requests per second, at random times
    #[arg(long, value_name = "RATE", default_value_t = 20.0, requires = "real_time")]
    rate: f64,

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
    /// Latencies of real-time requests: the 99th percentile alone, and beside the clients.
    rt_alone_p99_ms: Option<f64>,
    rt_p50_ms: Option<f64>,
    rt_p99_ms: Option<f64>,
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    if !(args.duration > 0.0 && args.duration <= 3600.0) {
        return Err(user_error("--duration must be above 0 and at most 3600 seconds"));
    }
    if !(args.rate > 0.0 && args.rate <= 10_000.0) {
        return Err(user_error("--rate must be above 0 and at most 10000 requests per second"));
    }
    let real_time = args.real_time.as_deref().map(super::shares::open).transpose()?;
    let mut rows = Vec::new();
    for model in &args.models {
        let bundle = open(model, args.max_batch_size)?;
        for clients in &args.clients {
            for batching in [false, true] {
                rows.push(measure(args, (model, &bundle), real_time.as_ref(), clients.get(), batching)?);
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

fn measure(
    args: &Args,
    (model, bundle): (&str, &Arc<Bundle>),
    real_time: Option<&Arc<Bundle>>,
    clients: u32,
    batching: bool,
) -> Result<Row> {
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
    let urgent = real_time.map(|bundle| Urgent::load(args, &handle, bundle)).transpose()?;
    let urgent_alone = urgent.as_ref().map(|urgent| urgent.ask_for(&handle, duration / WARM_UP_SHARE)).transpose()?;
    load(&handle, &inputs, &alone, duration / WARM_UP_SHARE)?;
    let before = statistics(&handle, &key);
    let (loaded, urgent_beside) = std::thread::scope(|scope| {
        let urgent = urgent.as_ref().map(|urgent| scope.spawn(|| urgent.ask_for(&handle, duration)));
        let loaded = load(&handle, &inputs, &alone, duration);
        (loaded, urgent.map(|thread| thread.join().map_err(|_| anyhow!("the real-time client panicked"))))
    });
    let (latencies, seconds) = loaded?;
    let urgent_beside = urgent_beside.transpose()?.transpose()?;
    let after = statistics(&handle, &key);
    engine.shutdown();
    let [urgent_alone, urgent_beside] =
        [urgent_alone, urgent_beside].map(|latencies| latencies.map(|latencies| Distribution::of(&latencies)));
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
        rt_alone_p99_ms: urgent_alone.map(|alone| alone.p99_ms),
        rt_p50_ms: urgent_beside.as_ref().map(|beside| beside.p50_ms),
        rt_p99_ms: urgent_beside.as_ref().map(|beside| beside.p99_ms),
    })
}

/// A model whose requests are real-time.
struct Urgent {
    request: InvocationRequest,
    rate: f64,
    seed: u64,
}

impl Urgent {
    /// Loads the model, and makes a first request.
    fn load(args: &Args, handle: &EngineHandle, bundle: &Arc<Bundle>) -> Result<Urgent> {
        invoker::load(handle, bundle, "urgent", Class::RealTime)?;
        let metadata = tensor_metadata(bundle.graph(), BufferKind::Input);
        let inputs = InputSpecs::default().tensors(&metadata, &mut Random::new(args.seed))?;
        let request = request("urgent", &inputs, Some(Class::RealTime));
        invoke(handle, request.clone())?;
        Ok(Urgent { request, rate: args.rate, seed: args.seed })
    }

    /// Makes requests one after the other for a while, with random pauses, and returns their
    /// latencies: at least one.
    fn ask_for(&self, handle: &EngineHandle, duration: Duration) -> Result<Vec<Duration>> {
        let (begin, mut random, mut latencies) = (Instant::now(), Random::new(self.seed), Vec::new());
        while latencies.is_empty() || begin.elapsed() < duration {
            let sent = Instant::now();
            invoke(handle, self.request.clone())?;
            latencies.push(sent.elapsed());
            let pause = Duration::from_secs_f64(random.exponential() / self.rate);
            std::thread::sleep(pause.min((begin + duration).saturating_duration_since(Instant::now())));
        }
        Ok(latencies)
    }
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
        ("RT alone p99", Right),
        ("RT p50", Right),
        ("RT p99", Right),
    ];
    let mut table = Table::new(columns);
    let milliseconds = |ms: Option<f64>| ms.map_or_else(|| "-".into(), |ms| format!("{ms:.3}"));
    for row in rows {
        table.row([
            row.model.clone(),
            row.clients.to_string(),
            if row.batching { "yes" } else { "no" }.into(),
            format!("{:.1}", row.per_s),
            format!("{:.3}", row.p50_ms),
            format!("{:.3}", row.p99_ms),
            format!("{:.1}", row.mean_batch),
            milliseconds(row.rt_alone_p99_ms),
            milliseconds(row.rt_p50_ms),
            milliseconds(row.rt_p99_ms),
        ]);
    }
    // The last columns are for real-time requests, if there are any.
    if rows.iter().all(|row| row.rt_p99_ms.is_none()) {
        (0..3).for_each(|_| table.hide(7));
    }
    format!("{table}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn measured(flags: &[&str]) -> Findings {
        let short = ["bench", "--model", "null", "--clients", "2", "--duration", "0.2"];
        run(&Cli::parse_from([&short[..], flags].concat()).args).unwrap()
    }

    #[test]
    fn rows_have_the_fields_that_users_rely_on() {
        let findings = measured(&[]);
        let rows: serde_json::Value = serde_json::from_str(&findings.json).unwrap();
        let rows = rows.as_array().unwrap();
        assert_eq!(rows.len(), 2, "without and with batching");
        for row in rows {
            for field in ["clients", "per_s", "p50_ms", "p99_ms", "mean_batch"] {
                assert!(row[field].as_f64().unwrap() > 0.0, "{field}: {row}");
            }
            assert!(row["rt_p99_ms"].is_null(), "{row}");
        }
        assert!(!findings.text.contains("RT"), "{}", findings.text);
    }

    #[test]
    fn real_time_requests_are_measured_alone_and_beside() {
        let findings = measured(&["--real-time", "null", "--rate", "200"]);
        let rows: serde_json::Value = serde_json::from_str(&findings.json).unwrap();
        for row in rows.as_array().unwrap() {
            for field in ["rt_alone_p99_ms", "rt_p50_ms", "rt_p99_ms"] {
                assert!(row[field].as_f64().unwrap() > 0.0, "{field}: {row}");
            }
        }
        assert!(findings.text.contains("RT alone p99"), "{}", findings.text);
    }
}
