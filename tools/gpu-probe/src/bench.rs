//! Shared by the probes: the device, and timing of launches in a full queue.

use crate::device::{self, ProbeError};
use crate::report::DeviceFacts;
use atoll_cuda::{Arg, Attribute, Context, CudaError, Event, HostWords, Kernel, Module, OpenError, Stream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Kernels that wait; see the file.
pub(crate) const SPIN_PTX: &str = include_str!("../kernels/spin.ptx");

/// Longest wait of a kernel. A display driver may reset a device whose kernel runs longer than two
/// seconds.
pub(crate) const HOLD_TIME_MAX_NS: u64 = 1_000_000_000;

/// Maximum number of launches behind a held stream. Beyond about a thousand, `cuLaunchKernel`
/// blocks until earlier launches finish, which the held stream prevents.
pub(crate) const QUEUED_LAUNCHES_MAX: u32 = 512;

/// Repeats that a measurement always makes, regardless of their time.
const REPEATS_MIN: usize = 3;

/// Time limit for further repeats of a measurement.
const REPEATS_TIME_MAX: Duration = Duration::from_secs(1);

/// The repeats of a measurement: `count`, or as many as there is time for.
pub(crate) fn repeats(count: usize) -> impl Iterator<Item = usize> {
    let began = Instant::now();
    (0..count).take_while(move |index| *index < REPEATS_MIN || began.elapsed() < REPEATS_TIME_MAX)
}

/// The device under test.
pub(crate) struct Bench {
    /// Its context.
    pub(crate) context: Arc<Context>,
    /// Number of compute units.
    pub(crate) compute_units: u32,
    /// The highest stream priority.
    pub(crate) highest_priority: i32,
}

impl Bench {
    /// Opens a device.
    pub(crate) fn open(device_index: u32) -> Result<Bench, OpenError> {
        let context = device::open(device_index)?;
        let compute_units = context.gpu().attribute(Attribute::ComputeUnits)?;
        let highest_priority = context.highest_priority()?;
        Ok(Bench { context, compute_units, highest_priority })
    }

    /// Properties of the device.
    pub(crate) fn facts(&self) -> Result<DeviceFacts, ProbeError> {
        let gpu = self.context.gpu();
        let version = gpu.driver().version()?;
        Ok(DeviceFacts {
            name: gpu.name()?,
            architecture: format!("sm_{}", gpu.capability()?),
            compute_units: self.compute_units,
            // Newest drivers do not report the clock.
            clock_mhz: gpu.attribute(Attribute::ClockKilohertz).map_or(0, |khz| khz / 1000),
            driver: format!("{}.{}", version / 1000, version % 1000 / 10),
        })
    }

    /// A stream of the highest or the default priority.
    pub(crate) fn stream(&self, highest: bool) -> Result<Stream, ProbeError> {
        Ok(Stream::new(&self.context, if highest { self.highest_priority } else { 0 })?)
    }
}

/// Times launches behind a kernel that holds the stream until all are queued, so that the host's
/// launch cost does not count.
pub(crate) struct QueueTimer {
    module: Module,
    gate: HostWords,
    stream: Stream,
    before: Event,
    behind: Event,
}

impl QueueTimer {
    /// A timer with its own stream.
    pub(crate) fn new(bench: &Bench) -> Result<QueueTimer, ProbeError> {
        let context = &bench.context;
        Ok(QueueTimer {
            module: Module::load(context, SPIN_PTX.as_bytes())?,
            gate: HostWords::new(context, 1)?,
            stream: bench.stream(false)?,
            before: Event::new(context)?,
            behind: Event::new(context)?,
        })
    }

    /// Queues `count` launches with `launch(stream, index)`, lets them run, and returns the average
    /// time of one in microseconds.
    pub(crate) fn micros_per_launch(
        &self,
        count: u32,
        mut launch: impl FnMut(&Stream, u32) -> Result<(), CudaError>,
    ) -> Result<f64, ProbeError> {
        let count = count.clamp(1, QUEUED_LAUNCHES_MAX);
        let hold: Kernel = self.module.kernel("hold")?;
        self.gate.word(0).store(0, Ordering::Release);
        hold.launch(&self.stream, 1, 1, &[Arg::U64(self.gate.address()), Arg::U32(1), Arg::U64(HOLD_TIME_MAX_NS)])?;
        self.before.record(&self.stream)?;
        let queued = (0..count).try_for_each(|index| launch(&self.stream, index));
        let marked = self.behind.record(&self.stream);
        self.gate.word(0).store(1, Ordering::Release);
        // Also after an error: queued launches still use the caller's memory.
        let finished = self.stream.synchronize();
        queued.and(marked).and(finished)?;
        Ok(self.behind.nanos_since(&self.before)? as f64 / 1e3 / f64::from(count))
    }
}
