//! `atoll trace record`

use crate::control::{ControlArgs, Told};
use crate::failure::Blame;
use crate::output::{bytes, print, print_json};
use anyhow::{Context, Result, anyhow};
use atoll_client::{Client, Trace};
use atoll_core::{LaunchEnd, Nanos};
use atoll_trace::perfetto::{self, Clocks};
use atoll_trace::{FunctionName, Raise, Record, Timeline, What};
use indicatif::ProgressBar;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// How often the daemon is asked. It keeps the records of some seconds, but compute units those of
/// a tenth of one where blocks are short.
const POLL: Duration = Duration::from_millis(20);

/// Records that are kept for a file: 256 MiB of them here, and about as much in the file; Perfetto
/// would not open many more.
const RECORDS_MAX: usize = 4 << 20;

const EXAMPLES: &str = "\
Examples:
  atoll trace record                              # until Ctrl-C, into atoll.pftrace
  atoll trace record --seconds 5 -o daemon.pftrace
  atoll trace record --past --seconds 0           # what happened just now
  atoll trace record --seconds 1 --json | jq '.preemptions'

Open the file at https://ui.perfetto.dev, which reads it in the browser and sends it nowhere. It has tracks for the scheduler
(its mode, and each decision), the device queues, the compute units and the requests of each function; arrows lead from a request to its
launches. Where the daemon has several devices, each has its own tracks. Root and the daemon's own user see all tenants unless they name one, others their own work.";

/// Write what a daemon does into a file that opens in Perfetto
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// How long to record [default: until Ctrl-C]
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<f64>,

    /// The file to write
    #[arg(short, long, value_name = "FILE", default_value = "atoll.pftrace")]
    output: PathBuf,

    /// Begin with what the daemon still knows of the time before: up to 65,536 records
    #[arg(long)]
    past: bool,

    /// Print a summary as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is no number of seconds"))?;
    if (0.0..=86_400.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("it must be at least 0 and at most 86400".into())
    }
}

/// What was recorded, in numbers, of all devices together.
#[derive(Debug, Serialize)]
struct Summary {
    file: PathBuf,
    file_bytes: u64,
    seconds: f64,
    /// The first device.
    device: String,
    compute_units: u32,
    records: usize,
    requests: usize,
    launches: usize,
    evicted_launches: usize,
    chunks: usize,
    preemptions: usize,
    /// What was overwritten before it was read: the picture has holes.
    lost_records: u64,
    lost_chunks: u64,
    functions: Vec<String>,
    devices: Vec<DeviceSummary>,
}

/// What was recorded of one device.
#[derive(Debug, Serialize)]
struct DeviceSummary {
    device: String,
    compute_units: u32,
    records: usize,
    requests: usize,
    launches: usize,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut client = args.control.connect()?;
    // Before the time is spent.
    let file =
        File::create(&args.output).with_context(|| format!("cannot write {}", args.output.display())).blame_user()?;
    let mut recording = Recording { began: Instant::now(), devices: Vec::new() };
    let end = recording.run(&mut client, args);
    let seconds = recording.began.elapsed().as_secs_f64();
    recording.write(file).with_context(|| format!("cannot write {}", args.output.display()))?;
    let summary = recording.summary(&args.output, seconds)?;
    if args.json {
        print_json(&summary)?;
    } else {
        print(&text(&summary))?;
    }
    end.map_err(|error| anyhow!("{error}; {} holds what the daemon told until then", args.output.display()))
}

/// What every device did.
struct Recording {
    began: Instant,
    devices: Vec<DeviceRecording>,
}

/// What one device did, and where the daemon is to be asked for more.
#[derive(Default)]
struct DeviceRecording {
    records: Vec<Record>,
    functions: BTreeMap<u64, FunctionName>,
    /// Where records are missing, and how many.
    gaps: Vec<(Nanos, u64)>,
    separate: bool,
    device: String,
    compute_units: u32,
    next: u64,
    more: bool,
    /// Since the daemon started, and before that is recorded.
    chunks_lost: (u64, u64),
}

impl Recording {
    /// Records until the time is over, somebody interrupts, or there is no room. What was recorded
    /// stays also if the daemon goes away.
    fn run(&mut self, client: &mut Client, args: &Args) -> Result<()> {
        let stop = stop_on_interrupt()?;
        let bar = ProgressBar::new_spinner();
        self.begin(client, args.past.then_some(0))?;
        loop {
            let is_over = args.seconds.is_some_and(|seconds| self.began.elapsed().as_secs_f64() >= seconds);
            // The last look comes when the time is over, and goes on to the end of what there is.
            let is_last = is_over || stop.load(Relaxed) || self.is_full();
            self.look(client)?;
            bar.set_message(format!(
                "{:.0} s, {} records; Ctrl-C ends",
                self.began.elapsed().as_secs_f64(),
                self.records()
            ));
            bar.tick();
            if is_last {
                bar.finish_and_clear();
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
    }

    /// The first look, which also tells how many devices there are.
    fn begin(&mut self, client: &mut Client, from: Option<u64>) -> Result<()> {
        let mut devices = 1;
        while self.devices.len() < devices {
            let piece = client.trace(self.devices.len() as u16, from).told()?;
            devices = piece.devices.len();
            let before = piece.chunks_lost;
            let mut recording = DeviceRecording { chunks_lost: (before, before), ..DeviceRecording::default() };
            recording.take(piece);
            // What was lost before we came is nobody's loss.
            recording.gaps.clear();
            self.devices.push(recording);
        }
        Ok(())
    }

    /// Takes what there is of every device, until there is no more or no room.
    fn look(&mut self, client: &mut Client) -> Result<()> {
        for at in 0..self.devices.len() {
            loop {
                let piece = client.trace(at as u16, Some(self.devices[at].next)).told()?;
                self.devices[at].take(piece);
                if !self.devices[at].more || self.is_full() {
                    break;
                }
            }
        }
        Ok(())
    }

    fn records(&self) -> usize {
        self.devices.iter().map(|device| device.records.len()).sum()
    }

    fn is_full(&self) -> bool {
        self.records() >= RECORDS_MAX
    }

    fn write(&self, file: File) -> Result<()> {
        let timeline =
            Timeline::together(self.devices.iter().map(|device| (device.device.clone(), device.timeline())).collect());
        let mut out = BufWriter::new(file);
        perfetto::write(&timeline, clocks(), &mut out)?;
        Ok(out.flush()?)
    }

    fn summary(&self, file: &Path, seconds: f64) -> Result<Summary> {
        let count = |is: fn(&What) -> bool| self.devices.iter().map(|device| device.count(is)).sum();
        let first = self.devices.first();
        Ok(Summary {
            file: file.to_owned(),
            file_bytes: file.metadata()?.len(),
            seconds,
            device: first.map_or_else(String::new, |first| first.device.clone()),
            compute_units: first.map_or(0, |first| first.compute_units),
            records: self.records(),
            requests: count(is_request),
            launches: count(is_launch),
            evicted_launches: count(|what| matches!(what, What::Ended { end: LaunchEnd::Evicted, .. })),
            chunks: count(|what| matches!(what, What::Chunk { .. })),
            preemptions: count(|what| matches!(what, What::Raised { why: Raise::Preempted, .. })),
            lost_records: self.devices.iter().flat_map(|device| &device.gaps).map(|gap| gap.1).sum(),
            lost_chunks: self
                .devices
                .iter()
                .map(|device| device.chunks_lost.0.saturating_sub(device.chunks_lost.1))
                .sum(),
            functions: self.devices.iter().flat_map(DeviceRecording::names).collect(),
            devices: self.devices.iter().map(DeviceRecording::summary).collect(),
        })
    }
}

impl DeviceRecording {
    fn take(&mut self, piece: Trace) {
        if piece.lost > 0 {
            let at = piece.records.first().or(self.records.last()).map(|record| record.at).unwrap_or_default();
            self.gaps.push((at, piece.lost));
        }
        self.records.extend(piece.records);
        self.functions.extend(piece.functions);
        (self.separate, self.device, self.compute_units) = (piece.separate, piece.device, piece.compute_units);
        (self.next, self.more, self.chunks_lost.0) = (piece.next, piece.more, piece.chunks_lost);
    }

    fn timeline(&self) -> Timeline {
        let mut timeline = Timeline::of(&self.records, &self.functions, self.separate);
        timeline.add_gaps(&self.gaps);
        timeline
    }

    fn count(&self, is: fn(&What) -> bool) -> usize {
        self.records.iter().filter(|record| is(&record.what)).count()
    }

    /// The functions that the records name.
    fn names(&self) -> Vec<String> {
        let functions: BTreeSet<u64> = self.records.iter().map(|record| record.function).collect();
        let name = |function: &u64| {
            self.functions.get(function).map(|function| format!("{}/{}", function.tenant, function.name))
        };
        functions.iter().filter_map(name).collect()
    }

    fn summary(&self) -> DeviceSummary {
        DeviceSummary {
            device: self.device.clone(),
            compute_units: self.compute_units,
            records: self.records.len(),
            requests: self.count(is_request),
            launches: self.count(is_launch),
        }
    }
}

fn is_request(what: &What) -> bool {
    matches!(what, What::Finished { .. })
}

fn is_launch(what: &What) -> bool {
    matches!(what, What::Ended { .. })
}

fn text(summary: &Summary) -> String {
    let Summary { requests, launches, evicted_launches, chunks, preemptions, lost_records, lost_chunks, .. } = summary;
    let lost = match (lost_records, lost_chunks) {
        (0, 0) => String::new(),
        _ => format!(
            "\nmissing: {lost_records} records and {lost_chunks} chunks that were overwritten before they could be read"
        ),
    };
    let (file, size) = (summary.file.display(), bytes(summary.file_bytes));
    let devices: Vec<&str> = summary.devices.iter().map(|device| device.device.as_str()).collect();
    format!(
        "{:.1} s of {}: {requests} requests, {launches} launches ({evicted_launches} evicted), {chunks} chunks of blocks, {preemptions} preemptions{lost}\n\
         {file}, {size}: open it at https://ui.perfetto.dev\n",
        summary.seconds,
        devices.join(" and ")
    )
}

/// Becomes true once somebody interrupts; until then nothing else happens when somebody does.
fn stop_on_interrupt() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let guard = runtime.enter();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    drop(guard);
    let ours = stop.clone();
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        ours.store(true, Relaxed);
    });
    Ok(stop)
}

fn clocks() -> Clocks {
    let read = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    Clocks {
        monotonic_ns: read(ClockId::Monotonic),
        boot_ns: read(ClockId::Boottime),
        real_ns: read(ClockId::Realtime),
    }
}
