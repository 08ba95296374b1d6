//! What the probes share: the device, and timing of launches that wait in a full queue.

use crate::driver::{Arg, Attribute, CudaError, Driver, Event, HostWords, Kernel, Module, OpenError, Stream};
use crate::report::DeviceFacts;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// Kernels that wait; see the file.
pub(crate) const SPIN_PTX: &str = include_str!("../kernels/spin.ptx");

/// Longest time a waiting kernel waits. A display driver may reset a device whose kernel runs for longer than two seconds.
pub(crate) const HOLD_TIME_MAX_NS: u64 = 1_000_000_000;

/// Most launches that wait behind a held stream. Beyond about a thousand `cuLaunchKernel` itself waits, for the very launch that holds the stream.
pub(crate) const QUEUED_LAUNCHES_MAX: u32 = 512;

/// A device to probe.
pub(crate) struct Bench {
    /// The driver with a context.
    pub(crate) driver: Rc<Driver>,
    /// Compute units of the device.
    pub(crate) compute_units: u32,
    /// Number of the highest stream priority.
    pub(crate) highest_priority: i32,
}

impl Bench {
    /// Opens a device.
    pub(crate) fn open(device_index: u32) -> Result<Bench, OpenError> {
        let driver = Driver::open(device_index)?;
        let compute_units = positive(driver.attribute(Attribute::ComputeUnits)?);
        let highest_priority = driver.highest_priority()?;
        Ok(Bench { driver, compute_units, highest_priority })
    }

    /// What the driver says about the device.
    pub(crate) fn facts(&self) -> Result<DeviceFacts, CudaError> {
        let version = self.driver.version()?;
        let (major, minor) = (self.driver.attribute(Attribute::ComputeMajor)?, self.driver.attribute(Attribute::ComputeMinor)?);
        Ok(DeviceFacts {
            name: self.driver.device_name()?,
            architecture: format!("sm_{major}{minor}"),
            compute_units: self.compute_units,
            // The newest drivers do not say any more; that is no reason to stop.
            clock_mhz: self.driver.attribute(Attribute::ClockKilohertz).map_or(0, |khz| positive(khz) / 1000),
            driver: format!("{}.{}", version / 1000, version % 1000 / 10),
        })
    }

    /// A stream of lowest or highest priority.
    pub(crate) fn stream(&self, highest: bool) -> Result<Stream, CudaError> {
        Stream::new(&self.driver, if highest { self.highest_priority } else { 0 })
    }
}

fn positive(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// Times launches behind a kernel that holds the stream until all of them are queued, so that the host's launch cost is not counted.
pub(crate) struct QueueTimer {
    module: Module,
    gate: HostWords,
    stream: Stream,
    before: Event,
    behind: Event,
}

impl QueueTimer {
    /// A timer with a stream of its own.
    pub(crate) fn new(bench: &Bench) -> Result<QueueTimer, CudaError> {
        let driver = &bench.driver;
        Ok(QueueTimer {
            module: Module::load(driver, SPIN_PTX)?,
            gate: HostWords::new(driver, 1)?,
            stream: bench.stream(false)?,
            before: Event::new(driver)?,
            behind: Event::new(driver)?,
        })
    }

    /// Queues `count` launches by `launch(stream, index)`, lets them run, and says how many microseconds one took on average.
    pub(crate) fn micros_per_launch(
        &self,
        count: u32,
        mut launch: impl FnMut(&Stream, u32) -> Result<(), CudaError>,
    ) -> Result<f64, CudaError> {
        let count = count.clamp(1, QUEUED_LAUNCHES_MAX);
        let hold: Kernel<'_> = self.module.kernel("hold")?;
        self.gate.word(0).store(0, Ordering::Release);
        hold.launch(&self.stream, 1, 1, &[Arg::U64(self.gate.address()), Arg::U32(1), Arg::U64(HOLD_TIME_MAX_NS)])?;
        self.before.record(&self.stream)?;
        let queued = (0..count).try_for_each(|index| launch(&self.stream, index));
        let marked = self.behind.record(&self.stream);
        self.gate.word(0).store(1, Ordering::Release);
        // Also after an error: what was queued still uses the caller's memory.
        let finished = self.stream.synchronize();
        queued.and(marked).and(finished)?;
        Ok(self.behind.micros_since(&self.before)? / f64::from(count))
    }
}
