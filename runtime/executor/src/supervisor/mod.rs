//! The thread that starts, monitors and reaps all executors of this process.
//!
//! It lives as long as the process. That matters because the system kills an executor when the
//! *thread* that started it ends (requested in [`super::serve`]). The thread sleeps in `poll` on
//! process descriptors and sockets, and checks for signs of life [`CHECKS_PER_SECOND`] times a
//! second while there are executors.
//!
//! Only this thread reads from executors. The engine's thread takes what has been received and
//! waits for the bell otherwise, so an executor that floods its channel delays no other one. Such
//! an executor is killed soon, since every message must answer an order or belong to a launch
//! ([`inbox`]).

mod inbox;
mod process;
mod signs;

use super::cgroup::{ControlGroups, Group, GroupSpec};
use super::channel::{Channel, ChannelError};
use super::wire::{Answer, Order, RANGES_MAX};
use atoll_core::LaunchId;
use atoll_device::doorbell::FdBell;
use atoll_device::link::Link;
use atoll_device::process::ProcessService;
use atoll_device::report::{Fault, LaunchReport};
use atoll_device::shm::Region;
use atoll_device::{DeviceFacts, GroupUse, ImportError, LossCause};
use inbox::Inbox;
use process::Process;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How often limits and signs of life are checked. A process can touch some 100 MB of memory
/// between two checks.
const CHECKS_PER_SECOND: u32 = 20;

/// Largest number of messages that may wait to be sent. If more wait, the executor does not read
/// its messages.
const OUTGOING_MAX: usize = 4096;

/// Largest number of messages that are received from one executor before others get their turn.
const MESSAGES_PER_TURN: usize = 64;

/// The time limits of an executor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeLimits {
    pub(crate) hang_after: Duration,
    pub(crate) answer_within: Duration,
    pub(crate) load_within: Duration,
    /// Time without the end of a launch while launches are in flight.
    pub(crate) launch_within: Duration,
}

/// The state of an executor that is shared by threads of the daemon.
#[derive(Debug)]
pub(crate) struct Supervised {
    pub(crate) link: Link,
    pub(crate) activity: Activity,
    started: Instant,
    /// CPU time that the process used, in nanoseconds, as of the last check.
    cpu_ns: AtomicU64,
    channel: Channel,
    /// Number of whole reports received.
    reports_received: AtomicU64,
    bell: FdBell,
    time_limits: TimeLimits,
    /// The service of which the executor may be a client.
    service: Option<Arc<dyn ProcessService>>,
    /// The device memory that it shares with the daemon.
    memory: Option<Arc<Region>>,
    /// Bytes of that memory that it may touch.
    allowed_bytes: AtomicU64,
    /// Its control group, or why it has none; unset if none was requested.
    group: OnceLock<Result<Group, String>>,
    /// Orders that were not sent yet, because the channel is full.
    outgoing: Mutex<VecDeque<(Order, Vec<OwnedFd>)>>,
    inbox: Mutex<Inbox>,
    /// Signalled when `inbox` changes.
    changed: Condvar,
    /// Why the executor is to be killed.
    kill_reason: OnceLock<LossCause>,
    /// Why the executor is gone; set when its process was reaped.
    loss: OnceLock<Loss>,
}

/// A lost executor and the cause.
#[derive(Clone, Debug)]
pub(crate) struct Loss {
    pid: u32,
    pub(crate) cause: LossCause,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "executor {} {}", self.pid, self.cause)
    }
}

/// The engine's counts of an executor's activity; only the supervisor reads them.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// Launches that were ever put into its rings, counted before they can run.
    pub(crate) submitted: AtomicU64,
    pub(crate) in_flight: AtomicU32,
    pub(crate) completed: AtomicU64,
    /// Time of compute units that completions report and tenants are charged for, in nanoseconds.
    pub(crate) billed_ns: AtomicU64,
    /// Number of rings of the bell without a waiting completion.
    pub(crate) idle_rings: AtomicU64,
}

impl Supervised {
    pub(crate) fn new(
        channel: Channel,
        link: Link,
        bell: FdBell,
        time_limits: TimeLimits,
        service: Option<Arc<dyn ProcessService>>,
        memory: Option<Arc<Region>>,
    ) -> Supervised {
        Supervised {
            link,
            activity: Activity::default(),
            started: Instant::now(),
            cpu_ns: AtomicU64::new(0),
            channel,
            reports_received: AtomicU64::new(0),
            bell,
            time_limits,
            service,
            memory,
            allowed_bytes: AtomicU64::new(u64::MAX),
            group: OnceLock::new(),
            outgoing: Mutex::default(),
            inbox: Mutex::default(),
            changed: Condvar::new(),
            kill_reason: OnceLock::new(),
            loss: OnceLock::new(),
        }
    }

    /// Sends the first message; its descriptors are not kept.
    pub(crate) fn send_hello(
        &self,
        hello: &Order,
        descriptors: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<bool, ChannelError> {
        self.channel.send(hello, descriptors, false)
    }

    /// Sends an order after all earlier ones. Does not wait.
    pub(crate) fn send(&self, order: Order, descriptors: Vec<OwnedFd>) {
        match order {
            Order::Load { module, .. } => drop(self.inbox().loading.insert(module, Instant::now())),
            Order::Show { .. } => self.inbox().showing.push_back(Instant::now()),
            Order::Import { order, .. } => self.inbox().importing = Some((order, Instant::now())),
            _ => {}
        }
        let mut outgoing = self.outgoing();
        queue(&mut outgoing, order, descriptors);
        let is_too_much = outgoing.len() > OUTGOING_MAX;
        self.flush(&mut outgoing);
        let is_left = !outgoing.is_empty();
        drop(outgoing);
        if is_too_much {
            self.end(LossCause::Hung("did not read its messages".to_owned()));
        } else if is_left {
            supervisor_wake();
        }
    }

    /// The answer to a load, once it was received.
    pub(crate) fn take_loaded(&self, module: u32) -> Option<Option<String>> {
        self.inbox().loaded.remove(&module)
    }

    /// The answer to an order for memory of another process, once it was received.
    pub(crate) fn take_imported(&self, order: u64) -> Option<Result<u64, ImportError>> {
        self.inbox().imported.take_if(|(answered, _)| *answered == order).map(|(_, answer)| answer)
    }

    /// Whether the executor has mapped all constants that it was told to map.
    pub(crate) fn has_shown_all(&self) -> bool {
        self.inbox().showing.is_empty()
    }

    /// Waits a short time for a change; false once `until` has passed without one. The caller
    /// checks after each wait.
    pub(crate) fn wait_for_change(&self, until: Instant) -> bool {
        let inbox = self.inbox();
        let left = until.saturating_duration_since(Instant::now());
        // The caller checks once more, so a change that came before the wait costs at most the
        // short timeout.
        let (_inbox, result) = self
            .changed
            .wait_timeout(inbox, left.min(Duration::from_millis(20)))
            .unwrap_or_else(PoisonError::into_inner);
        !result.timed_out() || Instant::now() < until
    }

    /// What the executor's jail lacks; `None` before the executor runs.
    pub(crate) fn ready(&self) -> Option<Vec<String>> {
        let mut lacks = self.inbox().ready.clone()?;
        let without =
            self.group.get().and_then(|group| group.as_ref().map_or_else(|why| Some(why.clone()), Group::lost));
        lacks.extend(without.map(|why| format!("control group: {why}")));
        Some(lacks)
    }

    /// The facts of the device, if only the executor knows them; `None` before it reported them.
    pub(crate) fn facts(&self) -> Option<DeviceFacts> {
        self.inbox().facts.clone()
    }

    /// A handle of its memory for a second executor, if it reported one.
    pub(crate) fn memory(&self) -> Option<Vec<u8>> {
        self.inbox().memory.clone()
    }

    /// Why the executor cannot run or cannot continue, in its own words.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.inbox().refusal.clone()
    }

    /// Records the fault of a launch that was lost with the executor.
    pub(crate) fn note_lost(&self, launch: LaunchId, fault: &Fault) {
        let inbox = self.inbox();
        let mut report = inbox.reports.take(launch).unwrap_or_default();
        report.fault.get_or_insert_with(|| fault.clone());
        inbox.reports.put(launch, report);
    }

    /// Number of whole reports received. A report is sent and counted ([`Link::reports`]) before
    /// the completion of its launch; once as many are received, the report of the launch is here
    /// if there is one.
    pub(crate) fn reports_received(&self) -> u64 {
        self.reports_received.load(Acquire)
    }

    /// The report of a launch, if it was received.
    pub(crate) fn take_report(&self, launch: LaunchId) -> Option<LaunchReport> {
        self.inbox().reports.take(launch)
    }

    /// Has the executor killed. Only the first cause is kept.
    pub(crate) fn end(&self, cause: LossCause) {
        if self.kill_reason.set(cause).is_ok() {
            supervisor_wake();
        }
    }

    /// Sets how many bytes of the shared memory the executor may touch.
    pub(crate) fn allow_memory(&self, bytes: u64) {
        self.allowed_bytes.store(bytes, Release);
        if let Some(group) = self.group() {
            group.allow_device_bytes(bytes);
        }
    }

    /// Makes room for the scratch memory of a kernel that is loaded next, in bytes for each compute
    /// unit.
    pub(crate) fn allow_scratch(&self, bytes: u64) {
        if let Some(group) = self.group() {
            group.allow_scratch_bytes(bytes);
        }
    }

    /// The kernel's counts for its control group, as of the last check.
    pub(crate) fn group_use(&self) -> Option<GroupUse> {
        self.group().map(Group::usage)
    }

    fn group(&self) -> Option<&Group> {
        self.group.get()?.as_ref().ok()
    }

    /// Bytes of the shared memory that are in use, and bytes that may be in use. The use is read
    /// first, since the allowance only shrinks after memory was given back.
    fn memory_use(&self) -> (u64, u64) {
        let used = self.memory.as_ref().map_or(0, |memory| memory.resident_bytes().unwrap_or_default());
        (used, self.allowed_bytes.load(Acquire))
    }

    /// CPU time of the process in nanoseconds, as the operating system accounts for it. The value
    /// is at most a second divided by [`CHECKS_PER_SECOND`] old.
    pub(crate) fn cpu_ns(&self) -> u64 {
        self.cpu_ns.load(Relaxed)
    }

    /// The time since the executor was created. No compute unit can have been busy for longer.
    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Time that its compute units ran blocks, as the executor reports it, in nanoseconds.
    fn claimed_ns(&self) -> u64 {
        self.link.busy_ns()
    }

    /// Why the daemon kills the executor; `None` if it does not, or if the executor gave up by
    /// itself.
    pub(crate) fn kill_reason(&self) -> Option<&LossCause> {
        self.kill_reason.get().filter(|cause| !matches!(cause, LossCause::GaveUp(_)))
    }

    /// Why the executor is gone; `None` while it lives.
    pub(crate) fn loss(&self) -> Option<&Loss> {
        self.loss.get()
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outgoing(&self) -> MutexGuard<'_, VecDeque<(Order, Vec<OwnedFd>)>> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flush(&self, outgoing: &mut VecDeque<(Order, Vec<OwnedFd>)>) {
        while let Some((order, descriptors)) = outgoing.front() {
            let descriptors: Vec<_> = descriptors.iter().map(OwnedFd::as_fd).collect();
            match self.channel.send(order, &descriptors, false) {
                Ok(true) => drop(outgoing.pop_front()),
                Ok(false) => return,
                // The executor's end and the cause are detected elsewhere.
                Err(_) => return outgoing.clear(),
            }
        }
    }

    /// Receives up to `max` messages that the executor has sent. Called by the supervisor only.
    /// Messages are read and parsed outside the lock that the engine's thread takes.
    fn receive(&self, max: usize) {
        let mut has_news = false;
        for _ in 0..max {
            match self.receive_one() {
                Ok(Some(is_news)) => has_news |= is_news,
                Ok(None) => break,
                Err(what) => {
                    self.end(LossCause::ProtocolViolation(what));
                    break;
                }
            }
        }
        if has_news {
            self.bell.force();
        }
        if let Some(reason) = self.refusal() {
            self.end(LossCause::GaveUp(reason));
        }
        self.changed.notify_all();
    }

    /// Receives one message. Returns `None` if there is none; otherwise whether the engine may be
    /// waiting for it, which it may if the message is an answer or completes a report.
    fn receive_one(&self) -> Result<Option<bool>, String> {
        let (answer, descriptors) = match self.channel.receive::<Answer>(false) {
            Ok(Some(received)) => received,
            // The executor's end is detected by its process descriptor, with the cause.
            Ok(None) | Err(ChannelError::Closed) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let launches = self.activity.submitted.load(Acquire);
        let mut inbox = self.inbox();
        let due = inbox.answers_due();
        let is_report = inbox.take(answer, !descriptors.is_empty(), launches)?;
        let is_answer = inbox.answers_due() < due;
        drop(inbox);
        if is_report {
            self.reports_received.fetch_add(1, Release);
        }
        Ok(Some(is_report || is_answer))
    }

    /// The oldest due answer of each kind (loads, mappings, imports): when it was requested, and its
    /// time limit.
    fn pending_answers(&self) -> Vec<(Instant, Duration)> {
        self.inbox().pending(self.time_limits.answer_within, self.time_limits.load_within)
    }
}

/// Appends an order.
fn queue(outgoing: &mut VecDeque<(Order, Vec<OwnedFd>)>, order: Order, descriptors: Vec<OwnedFd>) {
    // Merges ranges into one message, since whole sets of constants are hidden at once.
    if let (Order::Hide { constants }, Some((Order::Hide { constants: waiting }, _))) = (&order, outgoing.back_mut())
        && waiting.len() + constants.len() <= RANGES_MAX
    {
        waiting.extend(constants);
    } else {
        outgoing.push_back((order, descriptors));
    }
}

/// How to start an executor.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// The executor's end of the channel.
    pub(crate) socket: OwnedFd,
    pub(crate) executor: Arc<Supervised>,
    /// The control group to create for it.
    pub(crate) group: Option<(Arc<ControlGroups>, GroupSpec)>,
}

type Request = (Start, Sender<std::io::Result<u32>>);

/// The connection to the supervisor's thread.
#[derive(Debug)]
struct Supervisor {
    requests: Mutex<Sender<Request>>,
    bell: Arc<OwnedFd>,
}

fn supervisor() -> std::io::Result<&'static Supervisor> {
    static SUPERVISOR: OnceLock<std::io::Result<Supervisor>> = OnceLock::new();
    let supervisor = SUPERVISOR.get_or_init(|| {
        let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let (requests, inbox) = channel();
        let rung = bell.clone();
        std::thread::Builder::new().name("atoll-supervisor".to_owned()).spawn(move || supervise(&inbox, &rung))?;
        Ok(Supervisor { requests: Mutex::new(requests), bell })
    });
    supervisor.as_ref().map_err(|error| std::io::Error::new(error.kind(), error.to_string()))
}

fn supervisor_wake() {
    if let Ok(supervisor) = supervisor() {
        let _ = rustix::io::write(&supervisor.bell, &1u64.to_ne_bytes());
    }
}

/// Starts an executor's process; returns its process id.
pub(crate) fn start(start: Start) -> std::io::Result<u32> {
    let (answer, answered) = channel();
    let gone = || std::io::Error::other("the supervisor's thread has ended");
    supervisor()?.requests.lock().unwrap_or_else(PoisonError::into_inner).send((start, answer)).map_err(|_| gone())?;
    supervisor_wake();
    answered.recv().map_err(|_| gone())?
}

fn supervise(requests: &Receiver<Request>, bell: &OwnedFd) {
    let mut processes: Vec<Process> = Vec::new();
    loop {
        wait(&processes, bell);
        while let Ok((start, answer)) = requests.try_recv() {
            let started = Process::start(start).map(|process| {
                let pid = process.child.id();
                processes.push(process);
                pid
            });
            let _ = answer.send(started);
        }
        processes.retain_mut(|process| !process.poll());
    }
}

/// Waits for an event, or until the next check is due.
fn wait(processes: &[Process], bell: &OwnedFd) {
    let mut fds = vec![PollFd::new(bell, PollFlags::IN)];
    for process in processes {
        fds.push(PollFd::new(&process.pidfd, PollFlags::IN));
        let is_full = !process.executor.outgoing().is_empty();
        let flags = if is_full { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        // A closed channel stays readable; its remaining messages are received when the process is
        // reaped.
        if !process.is_killed {
            fds.push(PollFd::new(&process.executor.channel, flags));
        }
    }
    let pause = Timespec { tv_sec: 0, tv_nsec: i64::from(1_000_000_000 / CHECKS_PER_SECOND) };
    let _ = poll(&mut fds, (!processes.is_empty()).then_some(&pause));
    let _ = rustix::io::read(bell, &mut [0u8; 8]);
}
