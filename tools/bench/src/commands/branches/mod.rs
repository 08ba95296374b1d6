//! `atoll bench branches`

use crate::artifact;
use crate::device_name::DeviceName;
use crate::failure::user_error;
use crate::invoker::{invoke, load, request};
use crate::output::{Align, Table};
use crate::random::Random;
use crate::report::Findings;
use crate::samples::quantile;
use crate::tensors::InputSpecs;
use anyhow::{Result, ensure};
use atoll_device_host::{HostConfig, HostDevice};
use atoll_engine::{Class, Engine, EngineConfig, EngineHandle, OutputTensor};
use atoll_kgraph::{BufferKind, Bundle};
use atoll_pipeline::{CompileOptions, Silent, Target, pack};
use atoll_protocol::Tensor;
use atoll_server::tensor_metadata;
use serde::Serialize;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Default number of kernels per branch.
const KERNELS_DEFAULT: u32 = 4;
/// Loop iterations of the kernel that measures the time of one iteration.
const PROBE_ROUNDS: u32 = 1_000_000;
/// Warm-up invocations, in which the engine measures and decides.
const WARM_UP: u32 = 8;

const EXAMPLES: &str = "\
Examples:
  atoll bench branches
  atoll bench branches --kernel-us 20,100 --kernels 1 --json
  atoll bench branches --model inception.kg";

/// Measure two branches of a graph in parallel on two compute units, and in sequence: kernels of
/// one block and various durations, or a model. Invocations alternate
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Approximate durations of a kernel, in microseconds
    #[arg(long, value_name = "US", value_delimiter = ',', default_value = "2,5,10,20,50,100,200")]
    kernel_us: Vec<f64>,

    /// Number of kernels per branch
    #[arg(long, default_value_t = NonZeroU32::new(KERNELS_DEFAULT).expect("not zero"))]
    kernels: NonZeroU32,

    /// Model to measure instead (.kg or .onnx)
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,

    /// Number of invocations to measure
    #[arg(long, default_value_t = NonZeroU32::new(200).expect("not zero"))]
    count: NonZeroU32,

    /// Number of compute units of the device
    #[arg(long, default_value_t = NonZeroU32::new(2).expect("not zero"))]
    compute_units: NonZeroU32,
}

/// Medians of one graph in microseconds, from the first block to the end of the last.
#[derive(Debug, Serialize)]
struct Row {
    graph: String,
    in_line_us: f64,
    /// Branches in parallel wherever that leaves fewer compute units idle, regardless of the cost.
    beside_us: f64,
    /// As the engine decides.
    decided_us: f64,
    /// Parts per invocation that ran in parallel, as the engine decides.
    parts: f64,
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    if args.compute_units.get() < 2 {
        return Err(user_error("parallel branches need at least two compute units"));
    }
    if args.kernel_us.iter().any(|us| !(0.0..=1e6).contains(us)) {
        return Err(user_error("--kernel-us must be at most 1000000"));
    }
    let mut rows = Vec::new();
    match &args.model {
        Some(model) => {
            let bundle = artifact::open(model, DeviceName::Host)?;
            rows.push(measure(args, bundle.graph().name.clone(), &bundle)?);
        }
        None => {
            let round_us = round_us(args)?;
            for us in &args.kernel_us {
                let rounds = (us / round_us).min(f64::from(u32::MAX)) as u32;
                rows.push(measure(
                    args,
                    format!("2 × {} × {us} µs", args.kernels),
                    &two_branches(args.kernels.get(), rounds)?,
                )?);
            }
        }
    }
    Findings::new(&rows, text(&rows))
}

/// Duration of one loop iteration of the kernel.
fn round_us(args: &Args) -> Result<f64> {
    let one = Args { kernel_us: Vec::new(), model: None, count: NonZeroU32::new(5).expect("not zero"), ..*args };
    let line = Line::start(&one, &two_branches(1, PROBE_ROUNDS)?, None)?;
    let mut times = Vec::new();
    for _ in 0..one.count.get() {
        times.push(line.invoke()?.0);
    }
    line.engine.shutdown();
    Ok(median(times) / 2.0 / f64::from(PROBE_ROUNDS))
}

fn measure(args: &Args, graph: String, bundle: &Arc<Bundle>) -> Result<Row> {
    let gains = [None, Some(Duration::ZERO), EngineConfig::default().branch_gain_min];
    let mut lines = Vec::new();
    for gain in gains {
        lines.push(Line::start(args, bundle, gain)?);
    }
    for _ in 0..WARM_UP {
        lines.iter().try_for_each(|line| line.invoke().map(drop))?;
    }
    let forks = |line: &Line| line.handle.statistics().forks;
    let before = forks(&lines[2]);
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..args.count.get() {
        let mut answers = Vec::new();
        for (line, times) in lines.iter().zip(&mut times) {
            let (us, outputs) = line.invoke()?;
            times.push(us);
            answers.push(outputs.into_iter().map(|output| output.bytes).collect::<Vec<_>>());
        }
        ensure!(answers.iter().all(|answer| *answer == answers[0]), "parallel branches gave a different result");
    }
    let parts = (forks(&lines[2]) - before) as f64 / f64::from(args.count.get());
    ensure!(forks(&lines[0]) == 0, "branches ran in parallel although they should not");
    lines.into_iter().for_each(|line| line.engine.shutdown());
    let [in_line_us, beside_us, decided_us] = times.map(median);
    Ok(Row { graph, in_line_us, beside_us, decided_us, parts })
}

/// An engine with the graph. It runs branches in parallel if that gains at least `branch_gain_min`.
struct Line {
    engine: Engine,
    handle: EngineHandle,
    inputs: Vec<Tensor>,
}

impl Line {
    fn start(args: &Args, bundle: &Arc<Bundle>, branch_gain_min: Option<Duration>) -> Result<Line> {
        let config = HostConfig { compute_units: args.compute_units.get(), ..HostConfig::default() };
        let engine = Engine::start(
            Box::new(HostDevice::start(config)?),
            EngineConfig { branch_gain_min, ..EngineConfig::default() },
        )?;
        let handle = engine.handle();
        load(&handle, bundle, "branches", Class::RealTime)?;
        let metadata = tensor_metadata(bundle.graph(), BufferKind::Input);
        let inputs = InputSpecs::default().tensors(&metadata, &mut Random::new(0))?;
        Ok(Line { engine, handle, inputs })
    }

    fn invoke(&self) -> Result<(f64, Vec<OutputTensor>)> {
        let result = invoke(&self.handle, request("branches", &self.inputs, None))?;
        Ok((result.timing.compute_ns as f64 / 1000.0, result.outputs))
    }
}

/// `y = spin(x) ^ spin(x)`, each with `kernels` kernels of one block.
fn two_branches(kernels: u32, rounds: u32) -> Result<Arc<Bundle>> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("branches.ptx"), include_str!("branches.ptx"))?;
    let manifest = folder.path().join("branches.toml");
    let buffer = |name: &str, kind: &str| format!("{name} = {{ kind = \"{kind}\", dtype = \"u32\", shape = [32] }}\n");
    let buffers: String =
        [("x", "input"), ("a", "temp"), ("b", "temp"), ("y", "output")].map(|(name, kind)| buffer(name, kind)).concat();
    let step = |kernel: &str, args: &str| {
        format!("[[step]]\nkernel = \"{kernel}\"\ngrid = [1]\nblock = [32]\nargs = [{args}]\n")
    };
    let spin = |data: &str| step("spin", &format!("\"{data}\", {rounds}")).repeat(kernels as usize);
    let steps =
        [step("split", "\"x\", \"a\", \"b\""), spin("a"), spin("b"), step("join", "\"a\", \"b\", \"y\"")].concat();
    std::fs::write(&manifest, format!("name = \"branches\"\nptx = [\"branches.ptx\"]\n[buffers]\n{buffers}{steps}"))?;
    let bundle = folder.path().join("branches.kg");
    let options = CompileOptions { targets: vec![Target::this_host()], ..CompileOptions::default() };
    pack(&manifest, &bundle, &options, &Silent)?;
    Ok(Bundle::open(&bundle)?)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    quantile(&times, 0.5)
}

fn text(rows: &[Row]) -> String {
    use Align::{Left, Right};
    let heads = ["µs, medians", "in line", "beside each other", "as decided", "parts", "decided : in line"];
    let mut table = Table::new(heads.map(|head| (head, if head == heads[0] { Left } else { Right })));
    for row in rows {
        let Row { graph, in_line_us, beside_us, decided_us, parts } = row;
        let us = |us: &f64| format!("{us:.1}");
        table.row([
            graph.clone(),
            us(in_line_us),
            us(beside_us),
            us(decided_us),
            format!("{parts:.1}"),
            format!("{:.2}", decided_us / in_line_us),
        ]);
    }
    format!("{table}\n")
}
