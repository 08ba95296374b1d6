//! A device for tests that computes real answers on a thread of its own, block by block.
//!
//! Its kernels are those of the toy model as functions in Rust, found by name. Blocks of launches
//! in different device queues interleave at random, and a block looks at the epoch word at its
//! entry like a transformed kernel. The kernels work in place, so that a block that runs twice, or
//! out of order, gives a wrong answer.

pub(crate) mod mortal;
mod shown;

use crate::toy::{BAD, PER_BLOCK, TRAP};
use atoll_core::rng::Rng;
use atoll_core::{DeviceOffset, Epoch, LaunchId, PreemptLevel, QueueId};
use atoll_device::*;
use rustix::event::{EventfdFlags, eventfd};
use shown::Shown;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(crate) const TARGET: &str = "fake";
pub(crate) const MEMORY_BYTES: u64 = 1 << 20;
pub(crate) const QUEUES: u32 = 3;

/// What a test does to the device while the engine owns it.
#[derive(Clone)]
pub(crate) struct Controls(Arc<Shared>);

impl Controls {
    /// Lets no block start from now on.
    pub(crate) fn pause(&self) {
        self.0.paused.store(true, Ordering::SeqCst);
    }

    pub(crate) fn resume(&self) {
        self.0.paused.store(false, Ordering::SeqCst);
        self.0.work.notify_all();
    }

    /// Answers everything with "lost" from now on.
    pub(crate) fn lose(&self) {
        self.0.lost.store(true, Ordering::SeqCst);
    }

    /// Loses all memory and all launches in flight, where it is one that can.
    pub(crate) fn die(&self) {
        self.0.dies.store(true, Ordering::SeqCst);
        rustix::io::write(&self.0.completed, &1_u64.to_ne_bytes()).expect("an eventfd takes ones");
    }

    /// The same when the next bytes are read from it.
    pub(crate) fn die_at_read(&self) {
        self.0.dies_at_read.store(true, Ordering::SeqCst);
    }

    /// Refuses something from now on, after so many times more.
    pub(crate) fn refuse(&self, what: Refusal, after: u32) {
        *self.0.refusal.lock().expect("no panic") = Some((what, after));
    }

    /// Refuses nothing any more.
    pub(crate) fn accept(&self) {
        *self.0.refusal.lock().expect("no panic") = None;
    }

    /// Ignores from now on that launches are to be aborted.
    pub(crate) fn be_deaf(&self) {
        self.0.deaf.store(true, Ordering::SeqCst);
    }

    /// Says from now on of launches that left early that nobody told to, as a kernel can that
    /// writes into its control words.
    pub(crate) fn leave_unasked(&self) {
        self.0.leaves.store(true, Ordering::SeqCst);
    }

    /// Breaks the promise not to panic.
    pub(crate) fn panic_on_submit(&self) {
        self.0.panics.store(true, Ordering::SeqCst);
    }

    /// Bytes that came from the device and that went to it, so far.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        (self.0.read_bytes.load(Ordering::SeqCst), self.0.written_bytes.load(Ordering::SeqCst))
    }

    /// Takes so long, at most, from now on until kernels can read what they are shown.
    pub(crate) fn be_slow_to_show(&self, delay: Duration) {
        self.0.sight_ns.store(delay.as_nanos() as u64, Ordering::SeqCst);
    }

    /// Takes so long from now on to write a piece of a constant.
    pub(crate) fn be_slow_to_load(&self, delay: Duration) {
        self.0.load_ns.store(delay.as_nanos() as u64, Ordering::SeqCst);
    }

    /// How many constants have memory, and how many are shown, to however many tenants.
    pub(crate) fn constants(&self) -> (usize, usize) {
        self.0.state.lock().expect("no panic").shown.counts()
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

/// What a device refuses on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// To begin to load code.
    Module,
    /// To end loading it.
    LoadedModule,
    /// The process that would run the code is gone.
    Domain,
    /// Memory for a constant.
    Place,
    /// Bytes of a constant.
    Write,
    /// Everything, for ever: at the first byte of a constant it is lost.
    Device,
}

struct Shared {
    state: Mutex<State>,
    /// What is refused, after so many times more.
    refusal: Mutex<Option<(Refusal, u32)>>,
    work: Condvar,
    completed: OwnedFd,
    paused: AtomicBool,
    lost: AtomicBool,
    dies: AtomicBool,
    dies_at_read: AtomicBool,
    panics: AtomicBool,
    deaf: AtomicBool,
    leaves: AtomicBool,
    stopped: AtomicBool,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    sight_ns: AtomicU64,
    load_ns: AtomicU64,
}

struct State {
    shown: Shown,
    rng: Rng,
    memory: Vec<u8>,
    /// Whose bytes lie there: 0 is nobody's, [`HOST`] what the engine wrote, others are 1 and the
    /// place in `domains`.
    owners: Vec<u16>,
    domains: Vec<String>,
    modules: Vec<Option<Module>>,
    queues: Vec<VecDeque<Launch>>,
    /// Launches that are to be ended.
    aborted: Vec<LaunchId>,
    /// How long blocks ran.
    busy_ns: u64,
    completions: VecDeque<Completion>,
}

#[derive(Clone)]
struct Module {
    kernels: Vec<Kernel>,
    owner: u16,
}

/// The owner of what the engine wrote, on whosever behalf.
const HOST: u16 = u16::MAX;

#[derive(Clone)]
struct Kernel {
    name: String,
    preempt_offset: Option<u32>,
    leaves_silently: bool,
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
    thread: Option<JoinHandle<()>>,
}

impl FakeDevice {
    pub(crate) fn new(seed: u64) -> (Box<FakeDevice>, Controls) {
        let state = State {
            shown: Shown::default(),
            rng: Rng::new(seed ^ 1),
            memory: vec![0xA5; MEMORY_BYTES as usize],
            owners: vec![0; MEMORY_BYTES as usize],
            domains: Vec::new(),
            modules: Vec::new(),
            queues: (0..QUEUES).map(|_| VecDeque::new()).collect(),
            aborted: Vec::new(),
            busy_ns: 0,
            completions: VecDeque::new(),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            refusal: Mutex::new(None),
            work: Condvar::new(),
            completed: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("an eventfd"),
            paused: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            dies: AtomicBool::new(false),
            dies_at_read: AtomicBool::new(false),
            panics: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            leaves: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            sight_ns: AtomicU64::new(0),
            load_ns: AtomicU64::new(0),
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
            time_limit: None,
            host_threads: 1,
            host_cpus: vec![],
        };
        let runner = Arc::clone(&shared);
        let thread = std::thread::spawn(move || runner.run(Rng::new(seed)));
        (Box::new(FakeDevice { info, shared: Arc::clone(&shared), thread: Some(thread) }), Controls(shared))
    }

    fn refuses(&self, what: Refusal) -> bool {
        match &mut *self.shared.refusal.lock().expect("no panic") {
            Some((refused, after)) if *refused == what => {
                let refuses = *after == 0;
                *after = after.saturating_sub(1);
                refuses
            }
            _ => false,
        }
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
        let at = word.0 as usize;
        self.shared.state.lock().expect("no panic").memory[at..at + 4].copy_from_slice(&epoch.0.to_le_bytes());
    }

    fn submit(&mut self, queue: QueueId, record: &LaunchRecord, params: &[u8]) -> Result<(), SubmitError> {
        assert!(!self.shared.panics.load(Ordering::SeqCst), "the device panics, as the test wants");
        self.check().map_err(|_| SubmitError::Lost)?;
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
            state.shown.check_read(domain, u64_at(params, 8));
        }
        state.take_over(&kernel, params, owner);
        assert_eq!(kernel.preempt_offset.is_some() && !kernel.leaves_silently, record.preemptible == 1);
        assert_eq!(
            matches!(kernel.name.as_str(), "move" | "judge" | "size"),
            record.may_run_again == 1,
            "what works in place may not be run again"
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

    fn abort(&mut self, queue: QueueId, launch: LaunchId) {
        if self.shared.deaf.load(Ordering::SeqCst) {
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
            // Between the look and the read another may have come.
            return self.shared.state.lock().expect("no panic").completions.pop_front();
        }
        completion
    }
}

impl Memory for FakeDevice {
    fn write(&mut self, at: DeviceOffset, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check()?;
        self.shared.written_bytes.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        let range = at.0 as usize..at.0 as usize + bytes.len();
        let mut state = self.shared.state.lock().expect("no panic");
        if state.shown.is_reserved(at.0) {
            drop(state);
            if self.refuses(Refusal::Write) {
                return Err(DeviceError::Driver("it takes no bytes".into()));
            }
            if self.refuses(Refusal::Device) {
                self.shared.lost.store(true, Ordering::SeqCst);
                return self.check();
            }
            std::thread::sleep(Duration::from_nanos(self.shared.load_ns.load(Ordering::SeqCst)));
            state = self.shared.state.lock().expect("no panic");
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
        self.shared.state.lock().expect("no panic").shown.reserve(at.0, bytes);
        Ok(())
    }

    fn release_constant(&mut self, at: DeviceOffset) {
        self.shared.state.lock().expect("no panic").shown.release(at.0);
    }

    fn show_constants(&mut self, domain: &str, constants: &[DeviceOffset]) {
        let mut state = self.shared.state.lock().expect("no panic");
        let delay = Duration::from_nanos(state.rng.below(self.shared.sight_ns.load(Ordering::SeqCst).max(1)));
        let at: Vec<u64> = constants.iter().map(|at| at.0).collect();
        state.shown.show(domain, &at, delay);
    }

    fn hide_constants(&mut self, domain: &str, constants: &[DeviceOffset]) {
        let at: Vec<u64> = constants.iter().map(|at| at.0).collect();
        self.shared.state.lock().expect("no panic").shown.hide(domain, &at);
    }

    fn sees_constants(&self, domain: &str) -> bool {
        self.shared.state.lock().expect("no panic").shown.sees(domain)
    }
}

impl Modules for FakeDevice {
    fn load_module(&mut self, image: ModuleImage<'_>) -> Result<ModuleId, DeviceError> {
        self.check()?;
        if self.refuses(Refusal::Domain) {
            return Err(DeviceError::DomainLost("its executor is gone".into()));
        }
        if image.code != b"fake" || self.refuses(Refusal::Module) {
            return Err(DeviceError::BadModule("this is no code for a fake device".into()));
        }
        let kernel = |facts: &atoll_kgraph::KernelFacts| Kernel {
            name: facts.name.clone(),
            preempt_offset: facts.preempt_offset,
            leaves_silently: facts.leaves_silently,
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

    /// What it refuses it has unloaded, as the devices do.
    fn poll_load(&mut self, module: ModuleId) -> Option<Result<(), DeviceError>> {
        if !self.refuses(Refusal::LoadedModule) {
            return Some(Ok(()));
        }
        self.unload_module(module);
        Some(Err(DeviceError::BadModule("this is no code for a fake device".into())))
    }

    fn unload_module(&mut self, module: ModuleId) {
        let old = self.shared.state.lock().expect("no panic").modules[module.0 as usize].take();
        assert!(old.is_some(), "a module is unloaded twice");
    }
}

impl Domains for FakeDevice {}

impl Lanes for FakeDevice {}

impl Telemetry for FakeDevice {
    fn busy_ns(&self) -> Option<u64> {
        Some(self.shared.state.lock().expect("no panic").busy_ns)
    }
}

fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Shared {
    fn run(&self, mut rng: Rng) {
        let mut state = self.state.lock().expect("no panic");
        while !self.stopped.load(Ordering::SeqCst) {
            if state.shown.advance() {
                rustix::io::write(&self.completed, &1_u64.to_ne_bytes()).expect("an eventfd takes ones");
            }
            for completion in state.take_aborted() {
                state.completions.push_back(completion);
                rustix::io::write(&self.completed, &1_u64.to_ne_bytes()).expect("an eventfd takes ones");
            }
            let busy: Vec<usize> = (0..state.queues.len()).filter(|&queue| !state.queues[queue].is_empty()).collect();
            if busy.is_empty() || self.paused.load(Ordering::SeqCst) {
                state = self.work.wait_timeout(state, Duration::from_millis(1)).expect("no panic").0;
                continue;
            }
            let queue = busy[rng.below(busy.len() as u64) as usize];
            let evicted = state.run_block(queue);
            if let Some(mut completion) = state.take_ended(queue) {
                if self.leaves.load(Ordering::SeqCst) {
                    completion.status = LaunchStatus::Evicted;
                }
                state.completions.push_back(completion);
                rustix::io::write(&self.completed, &1_u64.to_ne_bytes()).expect("an eventfd takes ones");
            }
            drop(state);
            // A block takes its time, a block that leaves does not.
            if !evicted {
                std::thread::sleep(Duration::from_micros(5));
            }
            state = self.state.lock().expect("no panic");
        }
    }
}

impl State {
    /// A launch is about to use its buffers, whose bytes are its tenant's from now on. What it has
    /// not written yet must not hold anything of others.
    fn take_over(&mut self, kernel: &Kernel, params: &[u8], owner: u16) {
        let bytes = u64::from(u32::from_le_bytes(params[16..20].try_into().expect("four bytes"))) * 4;
        let range = |at: u64| at as usize..(at + bytes) as usize;
        self.owners[range(u64_at(params, 0))].fill(owner);
        if kernel.name == "move" {
            let output = &mut self.owners[range(u64_at(params, 8))];
            let others = output.iter().find(|&&other| other != 0 && other != owner);
            assert_eq!(others, None, "an output lies where bytes of others are still to be read");
            output.fill(owner);
        }
    }

    fn u32_at(&mut self, at: u64) -> &mut [u8; 4] {
        (&mut self.memory[at as usize..at as usize + 4]).try_into().expect("four bytes")
    }

    /// Runs the next block of the launch at the head of a queue. Returns whether it left.
    fn run_block(&mut self, queue: usize) -> bool {
        let mut launch = self.queues[queue].pop_front().expect("a launch");
        if launch.next_block == 0 {
            launch.started_ns = now_ns();
        }
        let block = launch.next_block;
        launch.next_block += 1;
        let started_ns = now_ns();
        let left = self.enter_block(&mut launch, block);
        let busy_ns = now_ns() - started_ns;
        launch.busy_ns += busy_ns;
        self.busy_ns += busy_ns;
        self.queues[queue].push_front(launch);
        left
    }

    fn enter_block(&mut self, launch: &mut Launch, block: u32) -> bool {
        let Some(base) = launch.kernel.preempt_offset else {
            run_kernel(launch, block, &mut self.memory);
            return false;
        };
        let [epoch_word, evicted_word, progress] = [0, 8, 16].map(|at| u64_at(&launch.params, base as usize + at));
        assert_eq!((epoch_word, evicted_word), (launch.record.epoch_word.0, launch.record.evicted_word.0));
        let issued = Epoch(u32::from_le_bytes(
            launch.params[base as usize + 24..base as usize + 28].try_into().expect("four bytes"),
        ));
        assert_eq!(issued, launch.record.epoch);
        if launch.kernel.leaves_silently {
            let leaves = issued.is_raised_by(Epoch(u32::from_le_bytes(*self.u32_at(epoch_word))));
            if !leaves {
                run_kernel(launch, block, &mut self.memory);
            }
            return leaves;
        }
        if self.memory[(progress + u64::from(block)) as usize] == 1 {
            return true;
        }
        if issued.is_raised_by(Epoch(u32::from_le_bytes(*self.u32_at(epoch_word)))) {
            *self.u32_at(evicted_word) = 1_u32.to_le_bytes();
            return true;
        }
        run_kernel(launch, block, &mut self.memory);
        self.memory[(progress + u64::from(block)) as usize] = 1;
        false
    }

    fn take_ended(&mut self, queue: usize) -> Option<Completion> {
        let launch = self.queues[queue].front()?;
        let blocks: u32 = launch.record.grid.iter().product();
        if launch.next_block < blocks {
            return None;
        }
        let launch = self.queues[queue].pop_front()?;
        let evicted = u32::from_le_bytes(*self.u32_at(launch.record.evicted_word.0)) != 0;
        let status = match (launch.failed, evicted) {
            (true, _) => LaunchStatus::Failed,
            (_, true) => LaunchStatus::Evicted,
            _ => LaunchStatus::Complete,
        };
        Some(Completion {
            launch: launch.record.launch,
            status,
            started_ns: launch.started_ns,
            ended_ns: now_ns(),
            busy_ns: launch.busy_ns,
            reexecuted_blocks: 0,
            discarded_ns: 0,
        })
    }

    /// Ends the launches that are to be ended and stand at the head of their queues.
    fn take_aborted(&mut self) -> Vec<Completion> {
        let State { aborted, queues, .. } = self;
        let is_aborted =
            |queue: &VecDeque<Launch>| queue.front().is_some_and(|oldest| aborted.contains(&oldest.record.launch));
        let heads = queues.iter_mut().filter_map(|queue| is_aborted(queue).then(|| queue.pop_front())?);
        let status = LaunchStatus::Aborted;
        heads
            .map(|l| Completion {
                started_ns: l.started_ns,
                ended_ns: now_ns(),
                busy_ns: l.busy_ns,
                ..Completion::unrun(l.record.launch, status)
            })
            .collect()
    }
}

fn u64_at(params: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(params[at..at + 8].try_into().expect("eight bytes"))
}

/// One block of a launch: `step(x, w, n, k)`, `move(from, to, n)`, `judge(x, word, n)`, or `size(x,
/// size, 1)`.
fn run_kernel(launch: &mut Launch, block: u32, memory: &mut [u8]) {
    let word = |memory: &[u8], at: u64| {
        u32::from_le_bytes(memory[at as usize..at as usize + 4].try_into().expect("four bytes"))
    };
    let int = |params: &[u8], at: usize| u32::from_le_bytes(params[at..at + 4].try_into().expect("four bytes"));
    let (first, second, n) = (u64_at(&launch.params, 0), u64_at(&launch.params, 8), int(&launch.params, 16));
    assert_eq!(launch.record.address_slots.before(3), [0, 1].into_iter().collect(), "two addresses, then numbers");
    for i in (block * PER_BLOCK..(block + 1) * PER_BLOCK).take_while(|&i| i < n) {
        let offset = u64::from(i) * 4;
        let x = word(memory, first + offset);
        let (to, value) = match launch.kernel.name.as_str() {
            "step" => {
                let k = int(&launch.params, 20);
                (
                    first + offset,
                    x.wrapping_mul(3).wrapping_add(k).wrapping_add(word(memory, second + u64::from(i % 8) * 4)),
                )
            }
            "move" => (second + offset, x),
            "size" => (second, x),
            "judge" => {
                if x == BAD {
                    memory[second as usize..second as usize + 4].copy_from_slice(&1_u32.to_le_bytes());
                }
                continue;
            }
            "hop" => {
                let k = int(&launch.params, 20);
                (second + offset, x.wrapping_mul(3).wrapping_add(k).wrapping_add((i % 8) * (i % 8) + 1))
            }
            other => panic!("there is no kernel {other}"),
        };
        launch.failed |= x == TRAP && launch.kernel.name == "step";
        memory[to as usize..to as usize + 4].copy_from_slice(&value.to_le_bytes());
    }
}
