//! One thread that starts, hears, watches and reaps all executors of this process.
//!
//! It lives as long as the process, which matters: the system kills an executor when the *thread*
//! that started it ends ([`super::serve`] asks for that). It sleeps in `poll` on process
//! descriptors and sockets, and looks at signs of life [`LOOKS_PER_SECOND`] times a second while
//! there are executors.

use super::channel::{Channel, ChannelError};
use super::wire::{Answer, Order, PROTOCOL_VERSION, RANGES_MAX};
use atoll_core::LaunchId;
use atoll_device::doorbell::FdBell;
use atoll_device::link::Link;
use atoll_device::process::ProcessService;
use atoll_device::report::{Fault, LaunchReport};
use atoll_device::{DeviceFacts, LossCause, Reports};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How often signs of life are looked at.
const LOOKS_PER_SECOND: u32 = 4;

/// Messages that wait to be sent; beyond it the executor does not read.
const OUTGOING_MAX: usize = 4096;

/// Launches whose reports are arriving in pieces at the same time: one for each compute unit.
const DRAFTS_MAX: usize = 512;

/// Printed text of one launch; as much as a device keeps.
const PRINTED_BYTES_MAX: usize = 1 << 20;

/// Rings of the completion bell between two looks that brought no completion. Our own side rings
/// for nothing once in a while, not in a loop.
const IDLE_RINGS_MAX: u64 = 100_000;

/// What an executor may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) hang_after: Duration,
    pub(crate) answer_within: Duration,
    pub(crate) load_within: Duration,
    /// Without any launch ending while there are some.
    pub(crate) launch_within: Duration,
}

/// An executor as daemon threads see it.
#[derive(Debug)]
pub(crate) struct Supervised {
    pub(crate) link: Link,
    pub(crate) activity: Activity,
    channel: Channel,
    /// Reports that it had sent when the socket was last read for them.
    reports_seen: AtomicU64,
    bell: FdBell,
    patience: Patience,
    /// The service that it may be a client of.
    service: Option<Arc<dyn ProcessService>>,
    mail: Mutex<Mail>,
    /// Something in the mail changed.
    news: Condvar,
    /// Why it is to be killed.
    kill_reason: OnceLock<LossCause>,
    /// Why it is gone: it was reaped.
    loss: OnceLock<Loss>,
}

/// An executor that is gone.
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

/// What the engine's thread does with an executor; the supervisor only looks.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    pub(crate) in_flight: AtomicU32,
    pub(crate) completed: AtomicU64,
    /// Times the bell rang and there was nothing.
    pub(crate) idle_rings: AtomicU64,
}

#[derive(Debug, Default)]
struct Mail {
    outgoing: VecDeque<(Order, Vec<OwnedFd>)>,
    ready: Option<Vec<String>>,
    /// Why it cannot run, or not any more, in its own words.
    refusal: Option<String>,
    facts: Option<DeviceFacts>,
    /// Since when each [`Order::Show`] has no answer, oldest first.
    showing: VecDeque<Instant>,
    /// Modules being loaded, and since when.
    loading: BTreeMap<u32, Instant>,
    /// Modules that are loaded, or why they are not.
    loaded: BTreeMap<u32, Option<String>>,
    drafts: Vec<(u64, LaunchReport)>,
    reports: Reports,
}

impl Supervised {
    pub(crate) fn new(
        channel: Channel,
        link: Link,
        bell: FdBell,
        patience: Patience,
        service: Option<Arc<dyn ProcessService>>,
    ) -> Supervised {
        Supervised {
            link,
            activity: Activity::default(),
            channel,
            reports_seen: AtomicU64::new(0),
            bell,
            patience,
            service,
            mail: Mutex::default(),
            news: Condvar::new(),
            kill_reason: OnceLock::new(),
            loss: OnceLock::new(),
        }
    }

    /// Sends the first message, whose descriptors are not kept.
    pub(crate) fn greet(
        &self,
        hello: &Order,
        descriptors: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<bool, ChannelError> {
        self.channel.send(hello, descriptors, false)
    }

    /// Sends an order, in order; nothing waits for that.
    pub(crate) fn send(&self, order: Order, descriptors: Vec<OwnedFd>) {
        let mut mail = self.mail();
        match order {
            Order::Load { module, .. } => drop(mail.loading.insert(module, Instant::now())),
            Order::Show { .. } => mail.showing.push_back(Instant::now()),
            _ => {}
        }
        mail.queue(order, descriptors);
        let is_too_much = mail.outgoing.len() > OUTGOING_MAX;
        self.flush(&mut mail);
        let is_left = !mail.outgoing.is_empty();
        drop(mail);
        if is_too_much {
            self.end(LossCause::Ended("did not read its messages".to_owned()));
        } else if is_left {
            supervisor_wake();
        }
    }

    /// The answer to a load, once it is there.
    pub(crate) fn take_loaded(&self, module: u32) -> Option<Option<String>> {
        self.receive();
        self.mail().loaded.remove(&module)
    }

    /// Whether all constants are mapped that it was told to map.
    pub(crate) fn has_shown_all(&self) -> bool {
        if self.mail().showing.is_empty() {
            return true;
        }
        self.receive();
        self.mail().showing.is_empty()
    }

    /// Waits for news until `until`; false where there was none.
    pub(crate) fn wait_for_news(&self, until: Instant) -> bool {
        let mail = self.mail();
        let left = until.saturating_duration_since(Instant::now());
        // Looked at once more by the caller, so that news before the wait costs at most the short time-out.
        let (_mail, result) =
            self.news.wait_timeout(mail, left.min(Duration::from_millis(20))).unwrap_or_else(PoisonError::into_inner);
        !result.timed_out() || Instant::now() < until
    }

    /// What its jail lacks, once it runs.
    pub(crate) fn ready(&self) -> Option<Vec<String>> {
        self.mail().ready.clone()
    }

    /// What its device is, once it runs, where only it can say that.
    pub(crate) fn facts(&self) -> Option<DeviceFacts> {
        self.mail().facts.clone()
    }

    /// Why it cannot run, or not any more, in its own words.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.mail().refusal.clone()
    }

    /// A launch that it took with it.
    pub(crate) fn note_lost(&self, launch: LaunchId, fault: &Fault) {
        let mail = self.mail();
        let mut report = mail.reports.take(launch).unwrap_or_default();
        report.fault.get_or_insert_with(|| fault.clone());
        mail.reports.put(launch, report);
    }

    pub(crate) fn take_report(&self, launch: LaunchId) -> Option<LaunchReport> {
        // It was sent before the completion, so it is here or in the socket. Most launches have none, and a
        // look into the socket takes longer than all the rest of a completion.
        let sent = self.link.reports();
        if self.reports_seen.swap(sent, Relaxed) != sent {
            self.receive();
        }
        self.mail().reports.take(launch)
    }

    /// Has it killed. The first cause stays.
    pub(crate) fn end(&self, cause: LossCause) {
        if self.kill_reason.set(cause).is_ok() {
            supervisor_wake();
        }
    }

    /// Why the daemon has it killed, unless it gave up by itself.
    pub(crate) fn kill_reason(&self) -> Option<&LossCause> {
        self.kill_reason.get().filter(|cause| !matches!(cause, LossCause::GaveUp(_)))
    }

    /// Why it is gone, once it is.
    pub(crate) fn loss(&self) -> Option<&Loss> {
        self.loss.get()
    }

    fn mail(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flush(&self, mail: &mut Mail) {
        while let Some((order, descriptors)) = mail.outgoing.front() {
            let descriptors: Vec<_> = descriptors.iter().map(OwnedFd::as_fd).collect();
            match self.channel.send(order, &descriptors, false) {
                Ok(true) => drop(mail.outgoing.pop_front()),
                Ok(false) => return,
                // Its end, and the reason for it, is seen elsewhere.
                Err(_) => return mail.outgoing.clear(),
            }
        }
    }

    /// Takes in what it sent.
    fn receive(&self) {
        let mut mail = self.mail();
        let awaited = mail.awaited();
        loop {
            match self.channel.receive::<Answer>(false) {
                Ok(Some((answer, descriptors))) => {
                    if let Err(what) = mail.take(answer, !descriptors.is_empty()) {
                        drop(mail);
                        return self.end(LossCause::ProtocolViolation(what));
                    }
                }
                // That it is gone is heard from its process descriptor, which knows why.
                Ok(None) | Err(ChannelError::Closed) => break,
                Err(error) => {
                    drop(mail);
                    return self.end(LossCause::ProtocolViolation(error.to_string()));
                }
            }
        }
        if mail.awaited() < awaited {
            self.bell.force();
        }
        let refusal = mail.refusal.clone();
        drop(mail);
        if let Some(reason) = refusal {
            self.end(LossCause::GaveUp(reason));
        }
        self.news.notify_all();
    }

    /// Since when it owes answers, each with the time it has for it.
    fn owes(&self) -> Vec<(Instant, Duration)> {
        let mail = self.mail();
        let Patience { answer_within, load_within, .. } = self.patience;
        let loads = mail.loading.values().min().map(|since| (*since, load_within));
        let maps = mail.showing.front().map(|since| (*since, answer_within));
        loads.into_iter().chain(maps).collect()
    }
}

impl Mail {
    /// Puts an order behind the others.
    fn queue(&mut self, order: Order, descriptors: Vec<OwnedFd>) {
        // One message for many: whole sets of constants go at once.
        if let (Order::Hide { constants }, Some((Order::Hide { constants: waiting }, _))) =
            (&order, self.outgoing.back_mut())
            && waiting.len() + constants.len() <= RANGES_MAX
        {
            waiting.extend(constants);
        } else {
            self.outgoing.push_back((order, descriptors));
        }
    }

    /// Answers that are to come.
    fn awaited(&self) -> usize {
        self.loading.len() + self.showing.len() + usize::from(self.ready.is_none())
    }

    /// An error is what is wrong with it.
    fn take(&mut self, answer: Answer, has_descriptors: bool) -> Result<(), String> {
        if has_descriptors {
            return Err("it sent descriptors".to_owned());
        }
        match answer {
            Answer::Ready { version: PROTOCOL_VERSION, missing } if self.ready.is_none() => self.ready = Some(missing),
            Answer::Ready { version, .. } => {
                return Err(format!("it speaks version {version} of the protocol, not {PROTOCOL_VERSION}"));
            }
            Answer::Device { facts } => self.facts = Some(facts),
            Answer::Refused { reason } => self.refusal = Some(reason),
            Answer::Loaded { module, refusal } => {
                self.loading.remove(&module).ok_or("it loaded what nobody sent")?;
                self.loaded.insert(module, refusal);
            }
            Answer::Shown => {
                self.showing.pop_front().ok_or("it showed what nobody sent")?;
            }
            Answer::Report { launch, fault, printed, printed_lost_bytes, is_last } => {
                let at = self.drafts.iter().position(|(id, _)| *id == launch).unwrap_or(self.drafts.len());
                if at >= DRAFTS_MAX {
                    return Err("it began too many reports".to_owned());
                }
                if at == self.drafts.len() {
                    self.drafts.push((launch, LaunchReport::default()));
                }
                let draft = &mut self.drafts[at].1;
                draft.printed.push_str(&printed);
                draft.printed_lost_bytes = printed_lost_bytes;
                draft.fault = draft.fault.take().or(fault);
                if draft.printed.len() > PRINTED_BYTES_MAX {
                    return Err("it prints too much".to_owned());
                }
                if is_last {
                    let (launch, report) = self.drafts.swap_remove(at);
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
    /// Its end of the channel.
    pub(crate) socket: OwnedFd,
    pub(crate) executor: Arc<Supervised>,
}

type Request = (Start, Sender<std::io::Result<u32>>);

/// The way to the thread.
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

/// Starts an executor's process; the answer is its number.
pub(crate) fn start(start: Start) -> std::io::Result<u32> {
    let (answer, answered) = channel();
    let gone = || std::io::Error::other("the supervisor's thread has ended");
    supervisor()?.requests.lock().unwrap_or_else(PoisonError::into_inner).send((start, answer)).map_err(|_| gone())?;
    supervisor_wake();
    answered.recv().map_err(|_| gone())?
}

/// An executor's process.
#[derive(Debug)]
struct Process {
    executor: Arc<Supervised>,
    child: Child,
    pidfd: OwnedFd,
    started: Instant,
    is_killed: bool,
    /// Signs of life: what was seen last, and when it changed.
    beat: (u32, Instant),
    completed: (u64, Instant),
    idle_rings: u64,
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
        processes.retain_mut(|process| !process.look());
    }
}

/// Waits until something happens or it is time to look.
fn wait(processes: &[Process], bell: &OwnedFd) {
    let mut fds = vec![PollFd::new(bell, PollFlags::IN)];
    for process in processes {
        fds.push(PollFd::new(&process.pidfd, PollFlags::IN));
        let is_full = !process.executor.mail().outgoing.is_empty();
        let flags = if is_full { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        // A channel that was closed stays readable; what is left of it is taken when the process is reaped.
        if !process.is_killed {
            fds.push(PollFd::new(&process.executor.channel, flags));
        }
    }
    let pause = Timespec { tv_sec: 0, tv_nsec: i64::from(1_000_000_000 / LOOKS_PER_SECOND) };
    let _ = poll(&mut fds, (!processes.is_empty()).then_some(&pause));
    let _ = rustix::io::read(bell, &mut [0u8; 8]);
}

impl Process {
    fn start(start: Start) -> std::io::Result<Process> {
        let Start { program, arguments, environment, socket, executor } = start;
        let mut command = Command::new(program);
        // Lists of processes should say what it is, not `exe`.
        command.arg0("atoll");
        // A group of its own: what a terminal sends to the daemon's is for the daemon alone.
        command.args(arguments).env_clear().envs(environment).stdin(socket).stdout(Stdio::null()).process_group(0);
        if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
            command.env("LD_LIBRARY_PATH", path);
        }
        let mut child = command.spawn()?;
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).inspect_err(|_| {
            let _ = child.kill();
            let _ = child.wait();
        })?;
        let now = Instant::now();
        Ok(Process {
            executor,
            child,
            pidfd,
            started: now,
            is_killed: false,
            beat: (0, now),
            completed: (0, now),
            idle_rings: 0,
        })
    }

    /// Does what there is to do; true once it is reaped.
    fn look(&mut self) -> bool {
        if !self.is_killed {
            self.executor.receive();
            self.executor.flush(&mut self.executor.mail());
            self.judge(Instant::now());
        }
        match self.child.try_wait() {
            Ok(None) => false,
            Ok(Some(status)) => {
                self.reap(ended(status));
                true
            }
            Err(error) => {
                self.reap(LossCause::Died(format!("was lost sight of: {error}")));
                true
            }
        }
    }

    /// Kills it where it has to end.
    fn judge(&mut self, now: Instant) {
        if let Some(cause) = self.violation(now) {
            self.executor.end(cause);
        }
        if self.executor.kill_reason.get().is_some() {
            self.is_killed = true;
            self.kill();
        }
    }

    /// A client of a service is detached from it first, which is nothing to wait for here.
    fn kill(&self) {
        let detaching = self.executor.service.clone().zip(self.pidfd.try_clone().ok()).map(|(service, pidfd)| {
            let pid = self.child.id();
            let detach = move || {
                if let Err(error) = service.detach(pid) {
                    tracing::warn!(pid, %error, "a process is killed without being detached from the service it is a client of; others on the device may fail with it");
                }
                let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            };
            std::thread::Builder::new().name("atoll-detach".to_owned()).spawn(detach)
        });
        if !matches!(detaching, Some(Ok(_))) {
            let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        }
    }

    /// What it did that it may not, or did not do in time.
    fn violation(&mut self, now: Instant) -> Option<LossCause> {
        let (executor, patience) = (&self.executor, self.executor.patience);
        let activity = &executor.activity;
        let seen = executor.link.beat_word().load(Relaxed);
        let completed = activity.completed.load(Relaxed);
        let idle_rings = activity.idle_rings.load(Relaxed);
        let is_busy = activity.in_flight.load(Relaxed) > 0;
        if seen != self.beat.0 {
            self.beat = (seen, now);
        }
        if completed != self.completed.0 || !is_busy {
            self.completed = (completed, now);
        }
        let rings = std::mem::replace(&mut self.idle_rings, idle_rings).abs_diff(idle_rings);
        let is_ready = executor.ready().is_some();
        let owes = if is_ready { executor.owes() } else { vec![(self.started, patience.answer_within)] };
        let over = |since: Instant, limit: Duration| now.saturating_duration_since(since) > limit;
        if let Some((_, limit)) = owes.iter().find(|(since, limit)| over(*since, *limit)) {
            return Some(LossCause::Hung(format!("did not answer within {limit:?}")));
        }
        // Before it runs it has no beat.
        if is_ready && (is_busy || !owes.is_empty()) && over(self.beat.1, patience.hang_after) {
            return Some(LossCause::Hung(format!("showed no sign of life for {:?}", patience.hang_after)));
        }
        if over(self.completed.1, patience.launch_within) {
            return Some(LossCause::Hung(format!("ended no launch within {:?}", patience.launch_within)));
        }
        (rings > IDLE_RINGS_MAX).then(|| LossCause::ProtocolViolation("it rings for nothing".to_owned()))
    }

    fn reap(&self, how: LossCause) {
        let executor = &self.executor;
        // What it said before it died counts.
        executor.receive();
        let cause = executor.kill_reason.get().cloned().unwrap_or(how);
        let _ = executor.loss.set(Loss { pid: self.child.id(), cause });
        executor.news.notify_all();
        executor.bell.force();
    }
}

/// How a process ended.
fn ended(status: ExitStatus) -> LossCause {
    const NAMES: [(i32, &str); 9] = [
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGXFSZ, "SIGXFSZ"),
    ];
    LossCause::Died(match (status.signal(), status.code()) {
        (Some(libc::SIGSYS), _) => return LossCause::ForbiddenCall,
        (Some(signal), _) => match NAMES.iter().find(|(number, _)| *number == signal) {
            Some((_, name)) => format!("was killed by {name}"),
            None => format!("was killed by signal {signal}"),
        },
        (None, code) => format!("ended by itself, with status {}", code.unwrap_or(-1)),
    })
}
