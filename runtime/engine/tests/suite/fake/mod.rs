//! A device for tests that computes real results on its own thread, block by block.
//!
//! Its kernels are those of the toy model, implemented in Rust and found by name. Blocks of
//! launches in different device queues interleave at random, and a block checks the epoch word at
//! its start like a transformed kernel. The kernels work in place, so that a block that runs twice,
//! or out of order, gives a wrong result.

pub(crate) mod fallible;
mod kernels;
mod lanes;
mod log;
mod mapped;
mod parts;
mod refusal;

use atoll_core::rng::Rng;
use atoll_core::{DeviceOffset, Epoch, LaunchId, PreemptLevel, QueueId};
use atoll_device::*;
use kernels::u64_at;
use lanes::OneLane;
use log::Log;
pub(crate) use log::Op;
use mapped::MappedConstants;
pub(crate) use refusal::Refusal;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(crate) const TARGET: &str = "fake";
pub(crate) const MEMORY_BYTES: u64 = 1 << 20;
pub(crate) const QUEUES: u32 = 3;
pub(crate) const LAUNCH_NS: u64 = 50_000;

/// Lets a test control the device while the engine owns it.
#[derive(Clone)]
pub(crate) struct Controls(Arc<Shared>);

impl Controls {
    /// Stops the device before its next block.
    pub(crate) fn pause(&self) {
        self.0.paused.store(true, Ordering::SeqCst);
    }

    pub(crate) fn resume(&self) {
        self.0.paused.store(false, Ordering::SeqCst);
        self.0.work.notify_all();
    }

    /// Loses the device: every call returns [`DeviceError::Lost`] from now on.
    pub(crate) fn lose(&self) {
        self.0.lost.store(true, Ordering::SeqCst);
    }

    /// Loses all memory and all launches in flight, on a [`fallible::FallibleDevice`].
    pub(crate) fn lose_memory(&self) {
        self.0.loses_memory.store(true, Ordering::SeqCst);
        rustix::io::write(&self.0.completed, &1_u64.to_ne_bytes()).expect("an eventfd takes ones");
    }

    /// Like [`Controls::lose_memory`], when bytes are read next.
    pub(crate) fn lose_memory_at_read(&self) {
        self.0.loses_memory_at_read.store(true, Ordering::SeqCst);
    }

    /// Refuses an operation, after accepting it `after` more times.
    pub(crate) fn refuse(&self, what: Refusal, after: u32) {
        *self.0.refusal.lock().expect("no panic") = Some((what, after));
    }

    /// Accepts all operations again.
    pub(crate) fn accept(&self) {
        *self.0.refusal.lock().expect("no panic") = None;
    }

    /// Ignores aborts from now on.
    pub(crate) fn ignore_aborts(&self) {
        self.0.ignores_aborts.store(true, Ordering::SeqCst);
    }

    /// Reports all launches as evicted from now on, as happens if a kernel overwrites its control
    /// words.
    pub(crate) fn report_evictions(&self) {
        self.0.reports_evictions.store(true, Ordering::SeqCst);
    }

    /// Panics at the next submit, which the contract forbids.
    pub(crate) fn panic_on_submit(&self) {
        self.0.panics.store(true, Ordering::SeqCst);
    }

    /// Bytes read from the device and written to it so far.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        (self.0.read_bytes.load(Ordering::SeqCst), self.0.written_bytes.load(Ordering::SeqCst))
    }

    /// Maps constants with a random delay of at most `delay` from now on.
    pub(crate) fn delay_mapping(&self, delay: Duration) {
        self.0.mapping_ns.store(delay.as_nanos() as u64, Ordering::SeqCst);
    }

    /// Takes `delay` for each chunk of a constant from now on.
    pub(crate) fn delay_loading(&self, delay: Duration) {
        self.0.loading_ns.store(delay.as_nanos() as u64, Ordering::SeqCst);
    }

    pub(crate) fn modules(&self) -> usize {
        self.0.state.lock().expect("no panic").modules.iter().flatten().count()
    }

    /// Waits until launches are in flight.
    pub(crate) fn wait_for_launches(&self) {
        let begin = Instant::now();
        while self.0.state.lock().expect("no panic").queues.iter().all(VecDeque::is_empty) {
            assert!(begin.elapsed() < Duration::from_secs(10), "no launch comes");
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

struct Shared {
    state: Mutex<State>,
    /// The refused operation, and how many more times it is accepted.
    refusal: Mutex<Option<(Refusal, u32)>>,
    log: Log,
    work: Condvar,
    completed: OwnedFd,
    paused: AtomicBool,
    lost: AtomicBool,
    loses_memory: AtomicBool,
    loses_memory_at_read: AtomicBool,
    panics: AtomicBool,
    ignores_aborts: AtomicBool,
    reports_evictions: AtomicBool,
    stopped: AtomicBool,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    mapping_ns: AtomicU64,
    loading_ns: AtomicU64,
}

struct State {
    mapped: MappedConstants,
    rng: Rng,
    memory: Vec<u8>,
    /// The owner of the data in each byte: 0 for none, [`HOST`] for data that the engine wrote,
    /// otherwise 1 plus the index in `domains`.
    owners: Vec<u16>,
    domains: Vec<String>,
    /// Bytes of the parts of memory that tenants have, by offset.
    parts: BTreeMap<u64, u64>,
    modules: Vec<Option<Module>>,
    queues: Vec<VecDeque<Launch>>,
    /// Launches to abort.
    aborted: Vec<LaunchId>,
    /// Total time that blocks ran.
    busy_ns: u64,
    completions: VecDeque<Completion>,
}

#[derive(Clone)]
struct Module {
    kernels: Vec<Kernel>,
    owner: u16,
}

/// The owner of data that the engine wrote, for any tenant.
const HOST: u16 = u16::MAX;

#[derive(Clone)]
struct Kernel {
    name: String,
    preempt_offset: Option<u32>,
    exits_unreported: bool,
}

struct Launch {
    record: LaunchRecord,
    params: Vec<u8>,
    kernel: Kernel,
    next_block: u32,
    started_ns: u64,
    busy_ns: u64,
    failed: bool,
}

pub(crate) struct FakeDevice {
    info: DeviceInfo,
    shared: Arc<Shared>,
    lane: OneLane,
    thread: Option<JoinHandle<()>>,
}

impl FakeDevice {
    pub(crate) fn new(seed: u64) -> (Box<FakeDevice>, Controls) {
        let state = State {
            mapped: MappedConstants::default(),
            rng: Rng::new(seed ^ 1),
            memory: vec![0xA5; MEMORY_BYTES as usize],
            owners: vec![0; MEMORY_BYTES as usize],
            domains: Vec::new(),
            parts: BTreeMap::new(),
            modules: Vec::new(),
            queues: (0..QUEUES).map(|_| VecDeque::new()).collect(),
            aborted: Vec::new(),
            busy_ns: 0,
            completions: VecDeque::new(),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            refusal: Mutex::new(None),
            log: Log::default(),
            work: Condvar::new(),
            completed: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("an eventfd"),
            paused: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            loses_memory: AtomicBool::new(false),
            loses_memory_at_read: AtomicBool::new(false),
            panics: AtomicBool::new(false),
            ignores_aborts: AtomicBool::new(false),
            reports_evictions: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            mapping_ns: AtomicU64::new(0),
            loading_ns: AtomicU64::new(0),
        });
        let info = DeviceInfo {
            name: "fake:0".into(),
            targets: vec!["none".into(), TARGET.into()],
            compute_units: 1,
            memory_bytes: MEMORY_BYTES,
            constants_base: DeviceOffset(1 << 46),
            constants_bytes: 0,
            constants_granule: 256,
            shared_bytes_max: 1024,
            preempt_level: PreemptLevel::Deactivate,
            can_abort: true,
            queues: QUEUES,
            paired_queues: false,
            lane_units: LaneUnits::None,
            queue_capacity: 4,
            launch_ns: LAUNCH_NS,
            time_limit: None,
            host_threads: 1,
            host_cpus: vec![],
        };
        let runner = Arc::clone(&shared);
        let thread = std::thread::spawn(move || runner.run(Rng::new(seed)));
        (
            Box::new(FakeDevice { info, shared: Arc::clone(&shared), lane: OneLane::default(), thread: Some(thread) }),
            Controls(shared),
        )
    }

    fn check(&self) -> Result<(), DeviceError> {
        if self.shared.lost.load(Ordering::SeqCst) { Err(DeviceError::Lost("the test lost it".into())) } else { Ok(()) }
    }
}

impl Drop for FakeDevice {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.shared.work.notify_all();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the device's thread does not panic");
        }
    }
}

impl Device for FakeDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        self.shared.completed.as_fd()
    }
}

impl Launching for FakeDevice {
    fn store_epoch(&self, word: DeviceOffset, epoch: Epoch) {
        self.shared.log.note(Op::StoreEpoch);
        let at = word.0 as usize;
        self.shared.state.lock().expect("no panic").memory[at..at + 4].copy_from_slice(&epoch.0.to_le_bytes());
    }

    fn submit(&mut self, queue: QueueId, record: &LaunchRecord, params: &[u8]) -> Result<(), SubmitError> {
        assert!(!self.shared.panics.load(Ordering::SeqCst), "the device panics, as the test requested");
        self.check().map_err(|_| SubmitError::Lost)?;
        self.shared.log.note(Op::Submit(record.launch));
        let mut state = self.shared.state.lock().expect("no panic");
        let word = |at: DeviceOffset| {
            u32::from_le_bytes(state.memory[at.0 as usize..at.0 as usize + 4].try_into().expect("four bytes"))
        };
        assert_eq!(word(record.evicted_word), 0, "the evicted word of a submitted launch is 0");
        assert!(record.grid.iter().all(|&d| d > 0));
        let Module { kernels, owner } = state.modules[record.module.0 as usize].clone().expect("a loaded module");
        let kernel = kernels[record.kernel as usize].clone();
        if kernel.name == "step" {
            let domain = &state.domains[owner as usize - 1];
            state.mapped.check_read(domain, u64_at(params, 8));
        }
        state.take_over(&kernel, params, owner);
        assert_eq!(kernel.preempt_offset.is_some() && !kernel.exits_unreported, record.preemptible == 1);
        assert_eq!(
            matches!(kernel.name.as_str(), "move" | "judge" | "size"),
            record.may_run_again == 1,
            "a kernel that works in place must not run again"
        );
        if state.queues[queue.0 as usize].len() >= self.info.queue_capacity as usize {
            return Err(SubmitError::Full);
        }
        let launch = Launch {
            record: *record,
            params: params.to_vec(),
            kernel,
            next_block: 0,
            started_ns: 0,
            busy_ns: 0,
            failed: false,
        };
        state.queues[queue.0 as usize].push_back(launch);
        self.shared.work.notify_all();
        Ok(())
    }

    fn interrupt(&mut self, _queue: QueueId, launch: LaunchId, blocks: u64) {
        self.shared.log.note(Op::Interrupt { launch, blocks });
    }

    fn abort(&mut self, queue: QueueId, launch: LaunchId) {
        if self.shared.ignores_aborts.load(Ordering::SeqCst) {
            return;
        }
        let mut state = self.shared.state.lock().expect("no panic");
        let is_oldest = state.queues[queue.0 as usize].front().is_none_or(|oldest| oldest.record.launch >= launch);
        assert!(is_oldest, "a launch is aborted that is not the oldest of its queue");
        state.aborted.push(launch);
        self.shared.work.notify_all();
    }

    fn next_completion(&mut self) -> Option<Completion> {
        let completion = self.shared.state.lock().expect("no panic").completions.pop_front();
        if completion.is_none() {
            let _ = rustix::io::read(&self.shared.completed, &mut [0_u8; 8]);
            // Another completion may have come between the pop and the read.
            return self.shared.state.lock().expect("no panic").completions.pop_front();
        }
        completion
    }
}

impl Memory for FakeDevice {
    fn write(&mut self, at: DeviceOffset, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check()?;
        self.shared.log.note(Op::Write { bytes: bytes.len() });
        self.shared.written_bytes.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        let range = at.0 as usize..at.0 as usize + bytes.len();
        let mut state = self.shared.state.lock().expect("no panic");
        if state.mapped.is_reserved(at.0) {
            drop(state);
            if self.refuses(Refusal::Write) {
                return Err(DeviceError::Driver("it refuses the bytes".into()));
            }
            if self.refuses(Refusal::Device) {
                self.shared.lost.store(true, Ordering::SeqCst);
                return self.check();
            }
            std::thread::sleep(Duration::from_nanos(self.shared.loading_ns.load(Ordering::SeqCst)));
            state = self.shared.state.lock().expect("no panic");
        } else if self.refuses(Refusal::Input) {
            return Err(DeviceError::Driver("it refuses the bytes".into()));
        } else if self.refuses(Refusal::InputOfLostDevice) {
            self.shared.lost.store(true, Ordering::SeqCst);
            return self.check();
        }
        state.owners[range.clone()].fill(HOST);
        state.memory[range].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, at: DeviceOffset, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.check()?;
        self.shared.read_bytes.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        let at = at.0 as usize;
        bytes.copy_from_slice(&self.shared.state.lock().expect("no panic").memory[at..at + bytes.len()]);
        Ok(())
    }

    fn copy(&mut self, from: DeviceOffset, to: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.check()?;
        let (from, to) = (from.0 as usize, to.0 as usize);
        self.shared.state.lock().expect("no panic").memory.copy_within(from..from + bytes as usize, to);
        Ok(())
    }

    fn fill(&mut self, at: DeviceOffset, value: u8, bytes: u64) -> Result<(), DeviceError> {
        self.check()?;
        if self.refuses(Refusal::Fill) {
            return Err(DeviceError::Unavailable("memory cannot be filled".into()));
        }
        let range = at.0 as usize..(at.0 + bytes) as usize;
        let mut state = self.shared.state.lock().expect("no panic");
        state.owners[range.clone()].fill(0);
        state.memory[range].fill(value);
        Ok(())
    }
}

impl Constants for FakeDevice {
    fn reserve_constant(&mut self, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.check()?;
        if self.refuses(Refusal::Place) {
            return Err(DeviceError::Driver("it has no memory".into()));
        }
        self.shared.state.lock().expect("no panic").mapped.reserve(at.0, bytes);
        Ok(())
    }

    fn release_constant(&mut self, at: DeviceOffset) {
        self.shared.state.lock().expect("no panic").mapped.release(at.0);
    }

    fn show_constants(&mut self, domain: &str, constants: &[DeviceOffset]) {
        let mut state = self.shared.state.lock().expect("no panic");
        let delay = Duration::from_nanos(state.rng.below(self.shared.mapping_ns.load(Ordering::SeqCst).max(1)));
        let at: Vec<u64> = constants.iter().map(|at| at.0).collect();
        state.mapped.show(domain, &at, delay);
    }

    fn hide_constants(&mut self, domain: &str, constants: &[DeviceOffset]) {
        let at: Vec<u64> = constants.iter().map(|at| at.0).collect();
        self.shared.state.lock().expect("no panic").mapped.hide(domain, &at);
    }

    fn sees_constants(&self, domain: &str) -> bool {
        self.shared.state.lock().expect("no panic").mapped.sees(domain)
    }
}

impl Modules for FakeDevice {
    fn load_module(&mut self, image: ModuleImage<'_>) -> Result<ModuleId, DeviceError> {
        self.check()?;
        if self.refuses(Refusal::Domain) {
            return Err(DeviceError::DomainLost("its executor is gone".into()));
        }
        if image.code != b"fake" || self.refuses(Refusal::Module) {
            return Err(DeviceError::BadModule("the code is not for a fake device".into()));
        }
        let kernel = |facts: &atoll_kgraph::KernelFacts| Kernel {
            name: facts.name.clone(),
            preempt_offset: facts.preempt_offset,
            exits_unreported: facts.exits_unreported,
        };
        let kernels = image.kernels.iter().map(kernel).collect();
        let mut state = self.shared.state.lock().expect("no panic");
        let known = state.domains.iter().position(|domain| domain == image.domain);
        let place = known.unwrap_or(state.domains.len());
        if known.is_none() {
            state.domains.push(image.domain.into());
        }
        state.modules.push(Some(Module { kernels, owner: place as u16 + 1 }));
        Ok(ModuleId(state.modules.len() as u32 - 1))
    }

    /// Unloads a module whose load it refuses, as devices do.
    fn poll_load(&mut self, module: ModuleId) -> Option<Result<(), DeviceError>> {
        if !self.refuses(Refusal::LoadedModule) {
            return Some(Ok(()));
        }
        self.unload_module(module);
        Some(Err(DeviceError::BadModule("the code is not for a fake device".into())))
    }

    fn unload_module(&mut self, module: ModuleId) {
        let old = self.shared.state.lock().expect("no panic").modules[module.0 as usize].take();
        assert!(old.is_some(), "a module is unloaded twice");
    }
}

impl Telemetry for FakeDevice {
    fn busy_ns(&self) -> Option<u64> {
        Some(self.shared.state.lock().expect("no panic").busy_ns)
    }
}
