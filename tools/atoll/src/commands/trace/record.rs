//! `atoll trace record`

use crate::control::{Classify, ControlArgs};
use crate::failure::OrUserError;
use crate::interrupt::stop_on_interrupt;
use crate::output::{bytes, is_in_foreground, print, print_json};
use anyhow::{Context, Result, anyhow};
use atoll_client::{Client, Trace};
use atoll_core::{LaunchEnd, Nanos};
use atoll_trace::perfetto::{self, Clocks};
use atoll_trace::{EventKind, FunctionName, Raise, Record, Timeline};
use indicatif::{ProgressBar, ProgressDrawTarget};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Polling interval. The daemon keeps records of several seconds, but those of compute units only
/// for a tenth of a second if blocks are short.
const POLL: Duration = Duration::from_millis(20);

/// Maximum number of records per file: 256 MiB in memory, and about as much in the file. Perfetto
/// does not open much larger ones.
const RECORDS_MAX: usize = 4 << 20;

const EXAMPLES: &str = "\
Examples:
  atoll trace record                              # until Ctrl-C, into atoll.pftrace
  atoll trace record --seconds 5 -o daemon.pftrace
  atoll trace record --past --seconds 0           # the most recent records
  atoll trace record --seconds 1 --json | jq '.preemptions'

Open the file at https://ui.perfetto.dev, which processes it in the browser without uploading it. There are \
tracks for the scheduler (mode and decisions), the device queues, the compute units, and the requests of each \
function; arrows lead from a request to its launches. Each device has its own tracks. With several devices, \
the group \"pool placement\" has a track per device with the requests that the placement policy gave it: how \
long they waited, why they went there, and how long loading their constants is expected to take; decisions of \
the autoscaler are there, too. Root and the daemon's own user see all tenants, unless they choose one with \
--tenant; others see their own work.";

/// Record the activity of a daemon into a file for Perfetto
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Duration of the recording, in seconds [default: until Ctrl-C]
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<f64>,

    /// File to write
    #[arg(short, long, value_name = "FILE", default_value = "atoll.pftrace")]
    output: PathBuf,

    /// Start with the records that the daemon still has (up to 65,536)
    #[arg(long)]
    past: bool,

    /// Print a summary as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
    if (0.0..=86_400.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("it must be at least 0 and at most 86400".into())
    }
}

/// Totals of a recording over all devices.
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
    /// Records that were overwritten before they were read; the timeline has gaps there.
    lost_records: u64,
    lost_chunks: u64,
    functions: Vec<String>,
    devices: Vec<DeviceSummary>,
}

/// Totals of a recording of one device.
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
    // Creates the file first, so that an invalid path fails before the recording.
    let file = File::create(&args.output)
        .with_context(|| format!("cannot write {}", args.output.display()))
        .or_user_error()?;
    let mut recording = Recording { began: Instant::now(), from: (!args.past).then(monotonic), devices: Vec::new() };
    let end = recording.run(&mut client, args);
    let seconds = recording.began.elapsed().as_secs_f64();
    recording.write(file).with_context(|| format!("cannot write {}", args.output.display()))?;
    let summary = recording.summary(&args.output, seconds)?;
    if args.json {
        print_json(&summary)?;
    } else {
        print(&text(&summary))?;
    }
    end.map_err(|error| anyhow!("{error}; {} contains the recording up to then", args.output.display()))
}

/// The recording of all devices.
struct Recording {
    began: Instant,
    /// The same time on the clock of the records; `None` if earlier records are kept.
    from: Option<Nanos>,
    devices: Vec<DeviceRecording>,
}

/// The recording of one device, and the position of the next batch.
#[derive(Default)]
struct DeviceRecording {
    /// Blocks and launches that ended before this time are left out: compute units keep records of
    /// their blocks until these are read.
    from: Option<Nanos>,
    records: Vec<Record>,
    functions: BTreeMap<u64, FunctionName>,
    /// Times of missing records, and their number.
    gaps: Vec<(Nanos, u64)>,
    separate: bool,
    device: String,
    compute_units: u32,
    next: u64,
    more: bool,
    /// Lost chunks since the daemon started: now, and at the start of the recording.
    chunks_lost: (u64, u64),
}

impl Recording {
    /// Records until the time is over, the user interrupts, or the limit is reached. What was
    /// recorded is kept if the daemon exits.
    fn run(&mut self, client: &mut Client, args: &Args) -> Result<()> {
        let stop = stop_on_interrupt()?;
        let bar = ProgressBar::new_spinner();
        self.begin(client, args.past.then_some(0))?;
        loop {
            let is_over = args.seconds.is_some_and(|seconds| self.began.elapsed().as_secs_f64() >= seconds);
            // Reads once more after the end, up to the newest record.
            let is_last = is_over || stop.load(Relaxed) || self.is_full();
            self.look(client)?;
            // A shell may move the process to the background or to the foreground.
            if is_in_foreground() {
                let seconds = self.began.elapsed().as_secs_f64();
                bar.set_message(format!("{seconds:.0} s, {} records; stop with Ctrl-C", self.records()));
                bar.tick();
            }
            if is_last {
                if !is_in_foreground() {
                    bar.set_draw_target(ProgressDrawTarget::hidden());
                }
                bar.finish_and_clear();
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
    }

    /// Reads the first batch, which also names the devices.
    fn begin(&mut self, client: &mut Client, from: Option<u64>) -> Result<()> {
        let mut devices = 1;
        while self.devices.len() < devices {
            let piece = client.trace(self.devices.len() as u16, from).classify()?;
            devices = piece.devices.len();
            let before = piece.chunks_lost;
            let mut recording =
                DeviceRecording { from: self.from, chunks_lost: (before, before), ..DeviceRecording::default() };
            recording.take(piece);
            // Records lost before the recording began do not count.
            recording.gaps.clear();
            self.devices.push(recording);
        }
        Ok(())
    }

    /// Reads the available records of every device, up to the limit.
    fn look(&mut self, client: &mut Client) -> Result<()> {
        for at in 0..self.devices.len() {
            loop {
                let piece = client.trace(at as u16, Some(self.devices[at].next)).classify()?;
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
        let timelines = self.devices.iter().map(|device| (device.device.clone(), device.timeline()));
        let mut timeline = Timeline::together(timelines.collect());
        timeline.name_devices(&self.devices.iter().map(|device| device.device.clone()).collect::<Vec<_>>());
        let mut out = BufWriter::new(file);
        perfetto::write(&timeline, clocks(), &mut out)?;
        Ok(out.flush()?)
    }

    fn summary(&self, file: &Path, seconds: f64) -> Result<Summary> {
        let count = |is: fn(&EventKind) -> bool| self.devices.iter().map(|device| device.count(is)).sum();
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
            evicted_launches: count(|kind| matches!(kind, EventKind::Ended { end: LaunchEnd::Evicted, .. })),
            chunks: count(|kind| matches!(kind, EventKind::Chunk { .. })),
            preemptions: count(|kind| matches!(kind, EventKind::Raised { why: Raise::Preempted, .. })),
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
        // For an end without a timestamp of the device, the time when the engine learned of it
        // counts.
        let is_earlier = |record: &Record| match (record.kind, self.from) {
            (EventKind::Chunk { ended, .. } | EventKind::Ended { ended, .. }, Some(from)) => {
                ended.0 > 0 && ended <= from
            }
            _ => false,
        };
        self.records.extend(piece.records.into_iter().filter(|record| !is_earlier(record)));
        self.functions.extend(piece.functions);
        (self.separate, self.device, self.compute_units) = (piece.separate, piece.device, piece.compute_units);
        (self.next, self.more, self.chunks_lost.0) = (piece.next, piece.more, piece.chunks_lost);
    }

    fn timeline(&self) -> Timeline {
        let mut timeline = Timeline::of(&self.records, &self.functions, self.separate, self.from);
        timeline.add_gaps(&self.gaps);
        timeline
    }

    fn count(&self, is: fn(&EventKind) -> bool) -> usize {
        self.records.iter().filter(|record| is(&record.kind)).count()
    }

    /// Names of the functions that the records refer to.
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

fn is_request(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Finished { .. })
}

fn is_launch(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Ended { .. })
}

fn text(summary: &Summary) -> String {
    let Summary { requests, launches, evicted_launches, chunks, preemptions, lost_records, lost_chunks, .. } = summary;
    let lost = match (lost_records, lost_chunks) {
        (0, 0) => String::new(),
        _ => format!(
            "\nmissing: {lost_records} records and {lost_chunks} chunks were overwritten before they could be read"
        ),
    };
    let (file, size) = (summary.file.display(), bytes(summary.file_bytes));
    let devices: Vec<&str> =
        summary.devices.iter().filter(|device| device.compute_units > 0).map(|device| device.device.as_str()).collect();
    format!(
        "{:.1} s of {}: {requests} requests, {launches} launches ({evicted_launches} evicted), {chunks} chunks of \
        blocks, {preemptions} preemptions{lost}\n\
         {file}, {size}: open it at https://ui.perfetto.dev\n",
        summary.seconds,
        devices.join(" and ")
    )
}

fn clocks() -> Clocks {
    Clocks {
        monotonic_ns: read_ns(ClockId::Monotonic),
        boot_ns: read_ns(ClockId::Boottime),
        real_ns: read_ns(ClockId::Realtime),
    }
}

/// The current time on the clock of the records.
fn monotonic() -> Nanos {
    Nanos(read_ns(ClockId::Monotonic))
}

fn read_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
