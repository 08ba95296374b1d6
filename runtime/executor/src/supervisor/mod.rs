//! The thread that starts, monitors and reaps all executors of this process.
//!
//! It lives as long as the process. That matters because the system kills an executor when the
//! *thread* that started it ends (requested in [`super::serve`]). The thread sleeps in `poll` on
//! process descriptors and sockets, and checks for signs of life [`CHECKS_PER_SECOND`] times a
//! second while there are executors.

mod process;

use super::channel::{Channel, ChannelError};
use super::wire::{Answer, Order, PROTOCOL_VERSION, RANGES_MAX};
use atoll_core::LaunchId;
use atoll_device::doorbell::FdBell;
use atoll_device::link::Link;
use atoll_device::process::ProcessService;
use atoll_device::report::{Fault, LaunchReport};
use atoll_device::{DeviceFacts, LossCause, Reports};
use process::Process;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How often signs of life are checked.
const CHECKS_PER_SECOND: u32 = 4;

/// Most messages that may wait to be sent. If more wait, the executor does not read its messages.
const OUTGOING_MAX: usize = 4096;

/// Most launches whose reports are partly received: one per compute unit.
const PARTIAL_REPORTS_MAX: usize = 512;

/// Printed text of one launch in bytes; the limit of devices.
const PRINTED_BYTES_MAX: usize = 1 << 20;

/// How often the completion bell may ring between two checks while no completion is waiting. A
/// correct executor causes a few such rings, but not in a loop.
const IDLE_RINGS_MAX: u64 = 100_000;

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
    channel: Channel,
    /// The executor's count of sent reports when the socket was last read for them.
    reports_seen: AtomicU64,
    bell: FdBell,
    time_limits: TimeLimits,
    /// The service of which the executor may be a client.
    service: Option<Arc<dyn ProcessService>>,
    messages: Mutex<Messages>,
    /// Signalled when `messages` changes.
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

/// What the engine's thread observes of an executor; only the supervisor reads it.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    pub(crate) in_flight: AtomicU32,
    pub(crate) completed: AtomicU64,
    /// How often the bell rang although no completion was waiting.
    pub(crate) idle_rings: AtomicU64,
}

#[derive(Debug, Default)]
struct Messages {
    outgoing: VecDeque<(Order, Vec<OwnedFd>)>,
    ready: Option<Vec<String>>,
    /// Why the executor cannot run or cannot continue, in its own words.
    refusal: Option<String>,
    facts: Option<DeviceFacts>,
    /// When each unanswered [`Order::Show`] was sent, oldest first.
    showing: VecDeque<Instant>,
    /// Modules being loaded, with the time of the request.
    loading: BTreeMap<u32, Instant>,
    /// Modules that were loaded (`None`) or refused, with the reason.
    loaded: BTreeMap<u32, Option<String>>,
    partial_reports: Vec<(u64, LaunchReport)>,
    reports: Reports,
}

impl Supervised {
    pub(crate) fn new(
        channel: Channel,
        link: Link,
        bell: FdBell,
        time_limits: TimeLimits,
        service: Option<Arc<dyn ProcessService>>,
    ) -> Supervised {
        Supervised {
            link,
            activity: Activity::default(),
            channel,
            reports_seen: AtomicU64::new(0),
            bell,
            time_limits,
            service,
            messages: Mutex::default(),
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
        let mut messages = self.messages();
        match order {
            Order::Load { module, .. } => drop(messages.loading.insert(module, Instant::now())),
            Order::Show { .. } => messages.showing.push_back(Instant::now()),
            _ => {}
        }
        messages.queue(order, descriptors);
        let is_too_much = messages.outgoing.len() > OUTGOING_MAX;
        self.flush(&mut messages);
        let is_left = !messages.outgoing.is_empty();
        drop(messages);
        if is_too_much {
            self.end(LossCause::Ended("did not read its messages".to_owned()));
        } else if is_left {
            supervisor_wake();
        }
    }

    /// The answer to a load, once it was received.
    pub(crate) fn take_loaded(&self, module: u32) -> Option<Option<String>> {
        self.receive();
        self.messages().loaded.remove(&module)
    }

    /// Whether the executor has mapped all constants that it was told to map.
    pub(crate) fn has_shown_all(&self) -> bool {
        if self.messages().showing.is_empty() {
            return true;
        }
        self.receive();
        self.messages().showing.is_empty()
    }

    /// Waits a short time for a change; false once `until` has passed without one. The caller
    /// checks after each wait.
    pub(crate) fn wait_for_change(&self, until: Instant) -> bool {
        let messages = self.messages();
        let left = until.saturating_duration_since(Instant::now());
        // The caller checks once more, so a change that came before the wait costs at most the
        // short timeout.
        let (_messages, result) = self
            .changed
            .wait_timeout(messages, left.min(Duration::from_millis(20)))
            .unwrap_or_else(PoisonError::into_inner);
        !result.timed_out() || Instant::now() < until
    }

    /// What the executor's jail lacks; `None` before the executor runs.
    pub(crate) fn ready(&self) -> Option<Vec<String>> {
        self.messages().ready.clone()
    }

    /// The facts of the device, if only the executor knows them; `None` before it reported them.
    pub(crate) fn facts(&self) -> Option<DeviceFacts> {
        self.messages().facts.clone()
    }

    /// Why the executor cannot run or cannot continue, in its own words.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.messages().refusal.clone()
    }

    /// Records the fault of a launch that was lost with the executor.
    pub(crate) fn note_lost(&self, launch: LaunchId, fault: &Fault) {
        let messages = self.messages();
        let mut report = messages.reports.take(launch).unwrap_or_default();
        report.fault.get_or_insert_with(|| fault.clone());
        messages.reports.put(launch, report);
    }

    pub(crate) fn take_report(&self, launch: LaunchId) -> Option<LaunchReport> {
        // A report is sent before its completion, so it was received or is in the socket. Most
        // launches have none, and reading the socket would cost more than everything else about a
        // completion.
        let sent = self.link.reports();
        if self.reports_seen.swap(sent, Relaxed) != sent {
            self.receive();
        }
        self.messages().reports.take(launch)
    }

    /// Has the executor killed. Only the first cause is kept.
    pub(crate) fn end(&self, cause: LossCause) {
        if self.kill_reason.set(cause).is_ok() {
            supervisor_wake();
        }
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

    fn messages(&self) -> MutexGuard<'_, Messages> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flush(&self, messages: &mut Messages) {
        while let Some((order, descriptors)) = messages.outgoing.front() {
            let descriptors: Vec<_> = descriptors.iter().map(OwnedFd::as_fd).collect();
            match self.channel.send(order, &descriptors, false) {
                Ok(true) => drop(messages.outgoing.pop_front()),
                Ok(false) => return,
                // The executor's end and the cause are detected elsewhere.
                Err(_) => return messages.outgoing.clear(),
            }
        }
    }

    /// Receives the messages that the executor has sent.
    fn receive(&self) {
        let mut messages = self.messages();
        let awaited = messages.answers_due();
        loop {
            match self.channel.receive::<Answer>(false) {
                Ok(Some((answer, descriptors))) => {
                    if let Err(what) = messages.take(answer, !descriptors.is_empty()) {
                        drop(messages);
                        return self.end(LossCause::ProtocolViolation(what));
                    }
                }
                // The executor's end is detected by its process descriptor, with the cause.
                Ok(None) | Err(ChannelError::Closed) => break,
                Err(error) => {
                    drop(messages);
                    return self.end(LossCause::ProtocolViolation(error.to_string()));
                }
            }
        }
        if messages.answers_due() < awaited {
            self.bell.force();
        }
        let refusal = messages.refusal.clone();
        drop(messages);
        if let Some(reason) = refusal {
            self.end(LossCause::GaveUp(reason));
        }
        self.changed.notify_all();
    }

    /// The oldest due answer of each kind (loads, mappings): when it was requested, and its time
    /// limit.
    fn pending_answers(&self) -> Vec<(Instant, Duration)> {
        let messages = self.messages();
        let TimeLimits { answer_within, load_within, .. } = self.time_limits;
        let loads = messages.loading.values().min().map(|since| (*since, load_within));
        let maps = messages.showing.front().map(|since| (*since, answer_within));
        loads.into_iter().chain(maps).collect()
    }
}

impl Messages {
    /// Appends an order.
    fn queue(&mut self, order: Order, descriptors: Vec<OwnedFd>) {
        // Merges ranges into one message, since whole sets of constants are hidden at once.
        if let (Order::Hide { constants }, Some((Order::Hide { constants: waiting }, _))) =
            (&order, self.outgoing.back_mut())
            && waiting.len() + constants.len() <= RANGES_MAX
        {
            waiting.extend(constants);
        } else {
            self.outgoing.push_back((order, descriptors));
        }
    }

    /// The number of answers that are due.
    fn answers_due(&self) -> usize {
        self.loading.len() + self.showing.len() + usize::from(self.ready.is_none())
    }

    /// Handles an answer. The error names a violation of the protocol.
    fn take(&mut self, answer: Answer, has_descriptors: bool) -> Result<(), String> {
        if has_descriptors {
            return Err("it sent descriptors".to_owned());
        }
        match answer {
            Answer::Ready { version: PROTOCOL_VERSION, missing } if self.ready.is_none() => self.ready = Some(missing),
            Answer::Ready { version, .. } => {
                return Err(format!("it uses version {version} of the protocol, not {PROTOCOL_VERSION}"));
            }
            Answer::Device { facts } => self.facts = Some(facts),
            Answer::Refused { reason } => self.refusal = Some(reason),
            Answer::Loaded { module, refusal } => {
                self.loading.remove(&module).ok_or("it answered a load that was not requested")?;
                self.loaded.insert(module, refusal);
            }
            Answer::Shown => {
                self.showing.pop_front().ok_or("it answered a mapping that was not requested")?;
            }
            Answer::Report { launch, fault, printed, printed_lost_bytes, is_last } => {
                let at =
                    self.partial_reports.iter().position(|(id, _)| *id == launch).unwrap_or(self.partial_reports.len());
                if at >= PARTIAL_REPORTS_MAX {
                    return Err("it sent too many partial reports".to_owned());
                }
                if at == self.partial_reports.len() {
                    self.partial_reports.push((launch, LaunchReport::default()));
                }
                let partial = &mut self.partial_reports[at].1;
                partial.printed.push_str(&printed);
                partial.printed_lost_bytes = printed_lost_bytes;
                partial.fault = partial.fault.take().or(fault);
                if partial.printed.len() > PRINTED_BYTES_MAX {
                    return Err("it printed more than the limit".to_owned());
                }
                if is_last {
                    let (launch, report) = self.partial_reports.swap_remove(at);
                    self.reports.put(LaunchId(launch), report);
                }
            }
        }
        Ok(())
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
        let is_full = !process.executor.messages().outgoing.is_empty();
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
