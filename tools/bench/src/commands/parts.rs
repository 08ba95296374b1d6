//! `atoll bench parts`

use super::load::Workload;
use crate::artifact;
use crate::device_name::{DeviceName, GpuName};
use crate::engine::part_engine;
use crate::failure::user_error;
use crate::output::{Align, Table};
use crate::report::Findings;
use crate::samples::Distribution;
use anyhow::Result;
use atoll_device_cuda::GpuPart;
use atoll_engine::{Class, Engine};
use atoll_kgraph::Bundle;
use serde::Serialize;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Memory besides constants; the largest models here need less.
const ROOM_BYTES: u64 = 256 << 20;

/// Outstanding background requests: one runs, another waits.
const CONCURRENCY: usize = 2;

const EXAMPLES: &str = "\
Examples:
  atoll bench parts --model densenet201.kg --beside resnet152.kg --device cuda:0
  atoll bench parts --model squeezenet.kg --beside vgg19.kg --compute-units 16 --duration 10 --json

A partition is a green context: its kernels run on its compute units only. Memory, caches and the driver are \
shared. One client sends requests to the model and waits for each answer; the other model always has two \
outstanding requests. The policy treats all requests alike.";

/// Measure how well GPU partitions isolate work: a model alone on a partition, beside another model
/// on the rest, and both on the whole GPU
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Model to measure (.kg or .onnx)
    #[arg(long, value_name = "MODEL")]
    model: PathBuf,

    /// Model that runs beside it (.kg or .onnx)
    #[arg(long, value_name = "MODEL")]
    beside: PathBuf,

    /// GPU: cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceName::Cuda(GpuName::FIRST))]
    device: DeviceName,

    /// Compute units of the model's partition, possibly rounded up by the driver; the other model
    /// gets the rest [default: half of the GPU]
    #[arg(long, value_name = "COUNT")]
    compute_units: Option<NonZeroU32>,

    /// Duration of each measurement, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    duration: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    device: String,
    /// Of the whole GPU, of the model's partition, and of the rest.
    compute_units: [u32; 3],
    part_alone: Row,
    part_beside: Row,
    whole_alone: Row,
    whole_beside: Row,
}

#[derive(Debug, Serialize)]
struct Row {
    latency: Distribution,
    /// Throughput of the other model.
    beside_per_second: Option<f64>,
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    let DeviceName::Cuda(gpu) = args.device else {
        return Err(user_error("only GPUs can be partitioned; use --device cuda or cuda:N"));
    };
    if !(args.duration > 0.0 && args.duration <= 3_600.0) {
        return Err(user_error("--duration must be above 0 and at most 3600 seconds"));
    }
    let (model, other) = (artifact::open(&args.model, args.device)?, artifact::open(&args.beside, args.device)?);
    let report = measure(args, gpu, &model, &other)?;
    Findings::new(&report, text(&report))
}

/// A model on its own engine.
struct Asked {
    engine: Engine,
    workload: Workload,
}

impl Asked {
    fn start(gpu: GpuName, part: Option<GpuPart>, bundle: &Arc<Bundle>) -> Result<Asked> {
        let engine = part_engine(gpu, part, bundle.weights().len() as u64 + ROOM_BYTES)?;
        let workload = Workload::load(&engine.handle(), "model", bundle, Class::BestEffort, 0)?;
        workload.ask()?;
        Ok(Asked { engine, workload })
    }

    fn compute_units(&self) -> u32 {
        self.engine.handle().device_info().compute_units
    }

    /// Measures for the duration of a row, while the other model is busy.
    fn row(&self, args: &Args, beside: Option<&Asked>) -> Row {
        let background = beside.map(|beside| beside.workload.closed_loop(CONCURRENCY));
        let asking = self.workload.closed_loop(1);
        std::thread::sleep(Duration::from_secs_f64(args.duration));
        let (latencies, _) = asking.stop();
        Row {
            latency: Distribution::of(&latencies),
            beside_per_second: background.map(|background| background.stop().1),
        }
    }
}

fn measure(args: &Args, gpu: GpuName, model: &Arc<Bundle>, other: &Arc<Bundle>) -> Result<Report> {
    let whole = Asked::start(gpu, None, model)?;
    let (device, all) = (whole.engine.handle().device_info().name.clone(), whole.compute_units());
    let whole_alone = whole.row(args, None);
    let beside = Asked::start(gpu, None, other)?;
    let whole_beside = whole.row(args, Some(&beside));
    [whole, beside].into_iter().for_each(|asked| asked.engine.shutdown());

    let wanted = args.compute_units.map_or(all / 2, NonZeroU32::get);
    let part = Asked::start(gpu, Some(GpuPart::Of(wanted)), model)?;
    let part_alone = part.row(args, None);
    let rest = Asked::start(gpu, Some(GpuPart::Beside(wanted)), other)?;
    let part_beside = part.row(args, Some(&rest));
    let compute_units = [all, part.compute_units(), rest.compute_units()];
    [part, rest].into_iter().for_each(|asked| asked.engine.shutdown());
    Ok(Report { device, compute_units, part_alone, part_beside, whole_alone, whole_beside })
}

fn text(report: &Report) -> String {
    use Align::{Left, Right};
    let Report { device, compute_units: [all, part, rest], .. } = report;
    let mut table = Table::new([
        ("ms", Left),
        ("count", Right),
        ("p50", Right),
        ("p90", Right),
        ("p99", Right),
        ("max", Right),
        ("p50 against alone", Right),
        ("the other one per second", Right),
    ]);
    let mut add = |name: String, row: &Row, alone: &Row| {
        let [count, p50, p90, p99, max] = row.latency.cells();
        let ratio = format!("{:.3}", row.latency.p50_ms / alone.latency.p50_ms);
        let beside = row.beside_per_second.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"));
        table.row([name, count, p50, p90, p99, max, ratio, beside]);
    };
    add(format!("{part} of {all} compute units, alone"), &report.part_alone, &report.part_alone);
    add(format!("{part}, the other one on {rest} others"), &report.part_beside, &report.part_alone);
    add(format!("all {all}, alone"), &report.whole_alone, &report.whole_alone);
    add(format!("all {all}, with the other one"), &report.whole_beside, &report.whole_alone);
    format!("{device}\n{table}")
}
