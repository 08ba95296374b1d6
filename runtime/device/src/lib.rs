//! Devices: what executes launches. A small trait below which all vendor code lives (design D4, D11).
//!
//! A device is driven by plain values: ids, offsets and launch records go in, completions come back. The trait does no defensive checking of graphs; the engine has done it.
//! Errors cover what a caller cannot foresee.
//!
//! - [`record`]: what crosses between the engine and a device, and how it is laid out in a ring.
//! - [`report`]: what a launch left behind for people: why it failed, what it printed.
//! - [`ring`], [`shm`]: the command ring, in memory that two processes share.
//! - [`host`]: the device that runs native code on CPU cores. [`cuda`]: an NVIDIA GPU, where the driver is.
//! - [`executor`]: either of them in a process of its own.
//! - [`cpus`]: where threads run.
//!
//! Invariants: every launch that [`Device::submit`] took gets exactly one completion, in submission order within its queue, also when the device is lost. A launch holds its
//! place in the device queue until its completion was taken, so completions never pile up and nothing here grows without bound.

pub mod cpus;
#[cfg(feature = "cuda")]
pub mod cuda;
mod doorbell;
pub mod executor;
mod extent;
pub mod host;
pub mod record;
mod refusal;
pub mod report;
pub mod ring;
pub mod shm;

#[cfg(feature = "cuda")]
pub use cuda::{CudaConfig, CudaDevice};
pub use executor::{DeviceConfig, ExecutorConfig, ExecutorDevice, ExecutorPool};
pub use host::{CheckedBuffer, HostConfig, HostDevice};
pub use record::*;
pub use report::{Fault, FaultKind, LaunchReport};

use atoll_core::{DeviceOffset, Epoch, LaunchId, PreemptLevel, QueueId};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// What a device is and can do.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// `host:0`.
    pub name: String,
    /// Bundle targets it can run, best first: `["host-x86-64-v4", "host-x86-64-v3"]`.
    pub targets: Vec<String>,
    /// Compute units.
    pub compute_units: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Where constants begin: what the engine may write and kernels only read. A store to it fails the launch.
    pub constants_base: DeviceOffset,
    /// Room for constants in bytes.
    pub constants_bytes: u64,
    /// Constants begin at multiples of this and take multiples of it: what can be shown to some and not to others.
    pub constants_granule: u64,
    /// Shared memory per block in bytes.
    pub shared_bytes_max: u32,
    /// What it can do to work it was given.
    pub preempt_level: PreemptLevel,
    /// Whether [`Device::abort`] ends launches. Otherwise what is on the device leaves by the epoch or runs to its end.
    pub can_abort: bool,
    /// Device queues it has; queue 0 has the highest priority.
    pub queues: u32,
    /// Launches a device queue takes before `submit` says [`SubmitError::Full`].
    pub queue_capacity: u32,
    /// How long a launch may run before the device ends it, where it does.
    pub time_limit: Option<Duration>,
    /// Threads of its own that are busy on CPUs of this machine while it runs blocks.
    pub host_threads: u32,
    /// The CPUs that these are pinned to, if they are.
    pub host_cpus: Vec<usize>,
}

/// A range of addresses that begins at a multiple of its size, a power of two, also where kernels see it. Nothing but what its name says is ever in it, so that a fence which bounds addresses to it
/// ([`atoll_kgraph::fence_params`]) keeps a kernel among its own (design D9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    /// Where it begins.
    pub base: DeviceOffset,
    /// Its size.
    pub bytes: u64,
}

impl AddressRange {
    fn around(base: DeviceOffset, bytes: u64) -> AddressRange {
        AddressRange { base, bytes: bytes.next_power_of_two() }
    }

    /// What a fence combines an address with.
    pub fn mask(self) -> u64 {
        self.bytes - 1
    }
}

impl DeviceInfo {
    /// What it is one of: `host` of `host:0`.
    pub fn kind(&self) -> &str {
        self.name.split(':').next().unwrap_or(&self.name)
    }

    /// All memory of a domain, which only its kernels reach; `domain` is what [`Device::domain`] says.
    pub fn memory_range(&self, domain: DeviceOffset) -> AddressRange {
        AddressRange::around(domain, self.memory_bytes)
    }

    /// All constants, of which kernels of a domain can read those that it was shown.
    pub fn constants_range(&self) -> AddressRange {
        AddressRange::around(self.constants_base, self.constants_bytes)
    }
}

/// Index of a loaded module of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleId(pub u32);

/// Code to load.
#[derive(Clone, Copy, Debug)]
pub struct ModuleImage<'a> {
    /// Who trusts the code: it shares memory and fate with that of the same domain only, on devices that keep domains apart.
    pub domain: &'a str,
    /// The target the code is for.
    pub target: &'a str,
    /// An ELF object for host targets; PTX text or machine code for NVIDIA.
    pub code: &'a [u8],
    /// The PTX that the code was made from, where it is at hand: what a newer GPU than the code is for takes.
    pub ptx: Option<&'a [u8]>,
    /// The kernels in it; a launch names one by index.
    pub kernels: &'a [atoll_kgraph::KernelFacts],
}

/// Whether the modules of a domain can be launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DomainState {
    /// They can.
    Ready,
    /// Not now, but soon: what runs them is being started or replaced.
    Restarting,
    /// Not for a while: what runs them dies again and again, the last time for this reason.
    Unavailable(String),
}

/// Processes that run launches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorStatistics {
    /// Those that run now.
    pub alive: u64,
    /// Those that were ever started.
    pub started: u64,
    /// Those that died.
    pub died: u64,
    /// Those that showed no sign of life or did not answer, and were killed.
    pub hung: u64,
    /// Those that broke the rules of shared memory or of the channel, or made a system call that they may not.
    pub offended: u64,
    /// For each domain that has one, or is to have one again.
    pub processes: Vec<ExecutorProcess>,
}

/// The process of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorProcess {
    /// Whose launches it runs.
    pub domain: String,
    /// Its number; `None` while there is none.
    pub pid: Option<u32>,
    /// How often the domain lost one.
    pub losses: u64,
    /// Why there is none.
    pub cause: Option<String>,
    /// What its jail lacks on this machine, once it runs.
    pub jail_lacks: Vec<String>,
}

impl ExecutorStatistics {
    /// Counts one that was lost, by what is said about it.
    fn count_loss(&mut self, cause: &str) {
        let counter = match cause {
            _ if cause.contains("broke the rules") || cause.contains("SIGSYS") => &mut self.offended,
            _ if cause.ends_with("and was killed") => &mut self.hung,
            _ => &mut self.died,
        };
        *counter += 1;
    }
}

/// What went wrong on a device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The module cannot be loaded; the text says why.
    #[error("cannot load the module: {0}")]
    BadModule(String),
    /// There is no such device, or it cannot be used; the text says why and what helps.
    #[error("{0}")]
    Unavailable(String),
    /// The device's driver refused a call that should have worked; its own words.
    #[error("the device's driver refuses: {0}")]
    Driver(String),
    /// The device is gone: a sticky error, a dead executor.
    #[error("the device is lost: {0}")]
    Lost(String),
    /// The part of the device that had this memory or was to run this is gone; the rest goes on.
    #[error("{0}")]
    DomainLost(String),
    /// An access outside the device's memory: the caller's mistake.
    #[error("{bytes} bytes at {at} lie outside the device's {memory_bytes} bytes of memory")]
    OutOfRange {
        /// Offset of the access.
        at: u64,
        /// Its size.
        bytes: u64,
        /// Size of the memory.
        memory_bytes: u64,
    },
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
}

impl From<shm::OutOfRange> for DeviceError {
    fn from(error: shm::OutOfRange) -> DeviceError {
        DeviceError::OutOfRange { at: error.at, bytes: error.bytes, memory_bytes: error.region_bytes }
    }
}

/// Why a command was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The device queue holds as many launches as it may.
    #[error("the device queue is full")]
    Full,
    /// The device is lost.
    #[error("the device is lost")]
    Lost,
}

/// A device.
pub trait Device: Send {
    /// What it is.
    fn info(&self) -> &DeviceInfo;

    /// Loads code. Slow; never called between a request and its answer.
    fn load_module(&mut self, image: ModuleImage<'_>) -> Result<ModuleId, DeviceError>;

    /// Begins to load code, without waiting for it: [`Device::poll_load`] says when it is there.
    fn begin_load(&mut self, image: ModuleImage<'_>) -> Result<ModuleId, DeviceError> {
        self.load_module(image)
    }

    /// What became of [`Device::begin_load`], once; `None` while it goes on. The completion descriptor becomes readable when it ends.
    fn poll_load(&mut self, _module: ModuleId) -> Option<Result<(), DeviceError>> {
        Some(Ok(()))
    }

    /// Unloads code that no launch in flight uses.
    fn unload_module(&mut self, module: ModuleId);

    /// Blocks of a kernel that a compute unit holds at once, on devices that can say it. Elsewhere a compute unit runs one at a time.
    fn occupancy(&self, _module: ModuleId, _kernel: u32) -> Option<u32> {
        None
    }

    /// What to add to an offset in memory to name that of a domain; offsets of constants are the same for all. It changes when the domain loses its memory: what carries the old number is
    /// refused then.
    fn domain(&mut self, _name: &str) -> Result<DeviceOffset, DeviceError> {
        Ok(DeviceOffset(0))
    }

    /// Whether a domain's modules can be launched now. The completion descriptor becomes readable when that changes.
    fn domain_state(&self, _name: &str) -> DomainState {
        DomainState::Ready
    }

    /// What the processes of the device have been through.
    fn executors(&self) -> ExecutorStatistics {
        ExecutorStatistics::default()
    }

    /// Writes memory that no launch in flight touches.
    fn write(&mut self, at: DeviceOffset, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Reads memory that no launch in flight writes.
    fn read(&mut self, at: DeviceOffset, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies within the device's memory, where no launch in flight writes the source or touches the destination. The two do not overlap. Nothing of it passes through the host
    /// on a device whose memory is its own.
    fn copy(&mut self, from: DeviceOffset, to: DeviceOffset, bytes: u64) -> Result<(), DeviceError>;

    /// Sets `bytes` bytes to `value` in memory that no launch in flight touches.
    fn fill(&mut self, at: DeviceOffset, value: u8, bytes: u64) -> Result<(), DeviceError>;

    /// Gives pages back to the system, in memory that no launch in flight touches; all of the range reads as zero afterwards.
    fn give_back(&mut self, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.fill(at, 0, bytes)
    }

    /// Takes memory for a constant, all zero. The engine may write it from now on; kernels of a domain may read it once it was shown to them.
    fn reserve_constant(&mut self, _at: DeviceOffset, _bytes: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Gives the memory of a constant back, which no launch in flight reads. Nobody sees it any more, and nobody else will find in it what was there.
    fn release_constant(&mut self, _at: DeviceOffset) {}

    /// Whether all constants were lost since this was asked last, on a device where they lie in memory that an executor takes along. Until it was asked, no domain gets memory anew; afterwards
    /// they are to be written again. The completion descriptor becomes readable when that happens.
    fn take_constants_lost(&mut self) -> bool {
        false
    }

    /// Whether all of the device is being replaced, so that nothing can be written to it now. The completion descriptor becomes readable when that changes.
    fn is_away(&self) -> bool {
        false
    }

    /// Lets kernels of a domain read constants, as far as they could not before; [`Device::sees_constants`] says when they can. On devices that keep domains apart.
    fn show_constants(&mut self, _domain: &str, _constants: &[DeviceOffset]) {}

    /// Keeps constants from kernels of a domain that were shown to it, and that no launch in flight reads.
    fn hide_constants(&mut self, _domain: &str, _constants: &[DeviceOffset]) {}

    /// Whether kernels of a domain can read all that was shown to it. The completion descriptor becomes readable when that changes.
    fn sees_constants(&self, _domain: &str) -> bool {
        true
    }

    /// Launches will carry this epoch word, or share their kernels with some that do: where they look for it is settled now, and the same for all. Not needed for a task whose kernels run alone.
    fn watch_epoch(&mut self, _word: DeviceOffset) {}

    /// Sets an epoch word; queued launches of older epochs then leave. Never waits.
    fn store_epoch(&self, word: DeviceOffset, epoch: Epoch);

    /// Puts a launch into a device queue. `params` is the parameter block; see [`LaunchRecord::address_slots`].
    fn submit(&mut self, queue: QueueId, record: &LaunchRecord, params: &[u8]) -> Result<(), SubmitError>;

    /// Ends a launch that is in flight and the oldest of its queue: blocks that run stop wherever they are, the others do not start, and it completes as
    /// [`LaunchStatus::Aborted`], unless it was over before that. Only asked of devices that can; never waits.
    fn abort(&mut self, _queue: QueueId, _launch: LaunchId) {}

    /// Takes what runs a launch for hung and ends it, with all that it runs; false where that is the whole device.
    fn kill(&mut self, _launch: LaunchId, _why: &str) -> bool {
        false
    }

    /// How long compute units have run blocks since the device started, summed over the compute units, by their own count; what no bill can exceed. `None` where
    /// the device does not count.
    fn busy_ns(&self) -> Option<u64> {
        None
    }

    /// What each compute unit did since the device started, by its own count; nothing where the device does not count.
    fn compute_units(&self) -> Vec<ComputeUnitUse> {
        Vec::new()
    }

    /// Takes what compute units ran since this was called last, at most `max` chunks of each, oldest first for each, with the domain whose compute unit it was on devices that keep domains
    /// apart. Such a domain may say what it likes about itself. The answer is how many chunks were overwritten before they were taken. Nothing on devices that cannot tell.
    fn take_chunks(&mut self, _max: u64, _take: &mut dyn FnMut(Option<&str>, ChunkRecord)) -> u64 {
        0
    }

    /// The next completion, in no particular order across queues, in submission order within one.
    fn next_completion(&mut self) -> Option<Completion>;

    /// Takes what there is to tell about a launch whose completion was taken: why it failed, what it printed. `None` where that is nothing, or was too long ago.
    fn report(&mut self, _launch: LaunchId) -> Option<LaunchReport> {
        None
    }

    /// Why the device is gone, once it is. Its memory can still be read then.
    fn lost(&self) -> Option<String> {
        None
    }

    /// Readable while completions wait, a load has ended or the device is gone (an eventfd; reading it is the device's business).
    fn completion_fd(&self) -> BorrowedFd<'_>;
}
