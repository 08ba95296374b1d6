//! The thread that detects the ends of launches.

use crate::driver::{Driver, DriverError};
use crate::slot::Slot;
use atoll_core::{DeviceOffset, LaunchId, QueueId};
use atoll_device::clock::Clock;
use atoll_device::doorbell::FdBell;
use atoll_device::{Completion, Fault, FaultKind, LaunchReport, LaunchStatus, Reports, now_ns};
use atoll_kgraph::KernelFacts;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Upper limit for the driver call that submits a launch when the device is lost; far above its
/// usual time.
const SUBMISSION_TIME_MAX: Duration = Duration::from_millis(100);

/// How long the thread polls without a pause: even short kernels take a few microseconds.
const BUSY_POLL_NS: u64 = 20_000;

/// A pause is this fraction of the time waited so far.
const PAUSE_DIVISOR: u64 = 16;

/// Longest pause in nanoseconds.
const PAUSE_NS_MAX: u64 = 200_000;

/// One submission.
#[derive(Debug)]
pub(crate) enum Flight<D: Driver> {
    /// In its stream.
    Run(Box<Run<D>>),
    /// Not submitted to the driver; it completes after the launches before it.
    Refused(LaunchId, Fault),
}

/// A launch in a stream.
#[derive(Debug)]
pub(crate) struct Run<D: Driver> {
    pub(crate) launch: LaunchId,
    pub(crate) facts: KernelFacts,
    pub(crate) slot: Slot<D>,
    pub(crate) submitted_ns: u64,
    /// Compute units that its blocks can occupy.
    pub(crate) units: u64,
    /// Where the engine reads the evicted word, for launches that have one.
    pub(crate) evicted_word: Option<DeviceOffset>,
    /// The offset of the epoch word, which identifies the task.
    pub(crate) task: DeviceOffset,
}

/// A launch that ended, with the resources it used.
#[derive(Debug)]
pub(crate) struct Ended<D: Driver> {
    pub(crate) queue: QueueId,
    pub(crate) completion: Completion,
    /// The offset where the engine reads the evicted word, if any.
    pub(crate) evicted_word: Option<DeviceOffset>,
    pub(crate) slot: Option<Slot<D>>,
}

/// The thread's view of a queue.
#[derive(Debug)]
struct QueueState<D: Driver> {
    flights: VecDeque<Flight<D>>,
    clock: Clock<D::Event>,
}

/// State that both threads of a device share.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    pub(crate) bell_rang: Arc<AtomicU32>,
    pub(crate) reports: Arc<Reports>,
    pub(crate) lost: Arc<OnceLock<String>>,
    /// Launches that were sent to the completion thread or are about to be.
    pub(crate) begun: Arc<AtomicU64>,
}

/// The state of the thread.
#[derive(Debug)]
pub(crate) struct Poller<D: Driver> {
    states: Vec<QueueState<D>>,
    inbox: Receiver<(QueueId, Flight<D>)>,
    outbox: Sender<Ended<D>>,
    bell: FdBell,
    common: Common,
    /// Whether other processes may have ended the context.
    is_shared: bool,
    /// Launches that it has received.
    taken: u64,
}

impl<D: Driver> Poller<D> {
    pub(crate) fn new(
        context: &Arc<D::Context>,
        queues: u32,
        inbox: Receiver<(QueueId, Flight<D>)>,
        outbox: Sender<Ended<D>>,
        bell: FdBell,
        common: Common,
        is_shared: bool,
    ) -> Result<Poller<D>, D::Error> {
        let state = |_| Ok(QueueState { flights: VecDeque::new(), clock: start_clock::<D>(context)? });
        let states = (0..queues).map(state).collect::<Result<_, D::Error>>()?;
        Ok(Poller { states, inbox, outbox, bell, common, is_shared, taken: 0 })
    }

    /// Runs until the device is dropped and all submitted work has ended.
    pub(crate) fn run(mut self) {
        let mut waited_since_ns = now_ns();
        while self.receive() {
            let told = (0..self.states.len()).filter(|queue| self.poll(*queue)).count();
            if told > 0 {
                waited_since_ns = now_ns();
                self.bell.ring(&self.common.bell_rang);
            } else {
                pause(now_ns().saturating_sub(waited_since_ns));
            }
        }
    }

    /// Receives submissions, and sleeps while none is pending. Returns `false` at the end.
    fn receive(&mut self) -> bool {
        let mut is_idle = self.states.iter().all(|state| state.flights.is_empty());
        loop {
            let next = match is_idle {
                true => self.inbox.recv().map_err(|_| TryRecvError::Disconnected),
                false => self.inbox.try_recv(),
            };
            match next {
                Ok((queue, flight)) => self.take(queue, flight),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return !is_idle,
            }
            is_idle = false;
        }
    }

    /// Checks whether the oldest submission of a queue has ended. If so, reports its completion and
    /// returns true. If the device is lost, completes all submissions as failed.
    fn poll(&mut self, queue: usize) -> bool {
        let Some(front) = self.states[queue].flights.front() else { return false };
        let is_over = match front {
            Flight::Refused(..) => Ok(true),
            Flight::Run(_) if self.common.lost.get().is_some() => Ok(true),
            Flight::Run(run) => D::is_passed(&run.slot.ended),
        };
        match is_over {
            Ok(false) => return false,
            Ok(true) => {}
            Err(error) => self.mark_lost(&error),
        }
        if self.common.lost.get().is_some() {
            // The state of the device is unknown: all launches end, the oldest of each queue first.
            let is_of_one = self.receive_all() && !self.is_shared && self.is_of_one_task();
            (0..self.states.len()).for_each(|queue| self.abandon(queue, is_of_one));
            return true;
        }
        match self.states[queue].flights.pop_front() {
            Some(Flight::Run(run)) => self.report_end(queue, *run),
            Some(Flight::Refused(launch, fault)) => self.fail(queue, launch, fault),
            None => {}
        }
        true
    }

    fn take(&mut self, queue: QueueId, flight: Flight<D>) {
        self.taken += 1;
        self.states[queue.0 as usize].flights.push_back(flight);
    }

    /// Receives the submissions that had begun when the device was lost, since one of them may have
    /// caused the loss. Returns `false` if they do not arrive in time.
    fn receive_all(&mut self) -> bool {
        let until = Instant::now() + SUBMISSION_TIME_MAX;
        while self.taken < self.common.begun.load(SeqCst) {
            match self.inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((queue, flight)) => self.take(queue, flight),
                Err(_) => return false,
            }
        }
        true
    }

    /// The launches that are in streams.
    fn runs(&self) -> impl Iterator<Item = &Run<D>> {
        self.states.iter().flat_map(|state| &state.flights).filter_map(|flight| match flight {
            Flight::Run(run) => Some(&**run),
            Flight::Refused(..) => None,
        })
    }

    /// Records the first error of the device.
    fn mark_lost(&self, error: &D::Error) {
        let cause = if error.is_device_lost() { error.fault() } else { error.to_string() };
        let fronts = self.states.iter().filter_map(|state| match state.flights.front() {
            Some(Flight::Run(run)) => Some(format!("`{}`", run.facts.name)),
            _ => None,
        });
        let names: Vec<String> = fronts.collect();
        let cause =
            if names.is_empty() { cause } else { format!("{cause}; {} may have run then", names.join(" and ")) };
        // If the engine's thread has recorded a cause meanwhile, that one is kept.
        let _ = self.common.lost.set(cause);
    }

    /// Whether all launches in flight belong to one task, so that this task caused the fault.
    fn is_of_one_task(&self) -> bool {
        let mut tasks = self.runs().map(|run| run.task);
        let first = tasks.next();
        tasks.all(|task| Some(task) == first)
    }

    /// Completes all submissions of a queue as failed, after the device was lost.
    fn abandon(&mut self, queue: usize, is_of_one: bool) {
        for (place, flight) in std::mem::take(&mut self.states[queue].flights).into_iter().enumerate() {
            match flight {
                Flight::Refused(launch, fault) => self.fail(queue, launch, fault),
                Flight::Run(run) => self.fail_lost(queue, &run, is_of_one, place == 0),
            }
        }
    }

    fn fail_lost(&self, queue: usize, run: &Run<D>, is_of_one: bool, may_have_run: bool) {
        let cause = self.common.lost.get().cloned().unwrap_or_default();
        let kind = if is_of_one { FaultKind::Fatal { cause } } else { FaultKind::Lost { cause, may_have_run } };
        self.fail(queue, run.launch, Fault::of_kernel(kind, &run.facts.name));
    }

    fn report_end(&mut self, queue: usize, mut run: Run<D>) {
        let clock = &mut self.states[queue].clock;
        let times = [run.submitted_ns, now_ns()];
        let span = match clock.place(&run.slot.began, &mut run.slot.ended, times, D::nanos_since) {
            Ok(span) => span,
            Err(error) => {
                self.mark_lost(&error);
                return self.fail_lost(queue, &run, false, true);
            }
        };
        let fault = D::trap(run.slot.words.trap(), &run.facts);
        let status = match &fault {
            Some(_) => LaunchStatus::Failed,
            None if run.evicted_word.is_some() && run.slot.words.is_evicted() => LaunchStatus::Evicted,
            None => LaunchStatus::Complete,
        };
        let mut report = LaunchReport { fault, ..LaunchReport::default() };
        if let Some(buffer) = &run.slot.print {
            D::take_printed(buffer, &run.facts, &mut report);
        }
        self.common.reports.put(run.launch, report);
        let completion = Completion {
            launch: run.launch,
            status,
            started_ns: span.started_ns,
            ended_ns: span.ended_ns,
            busy_ns: (span.ended_ns - span.started_ns).saturating_mul(run.units),
            reexecuted_blocks: 0,
            discarded_ns: 0,
        };
        let evicted_word = run.evicted_word;
        self.send(Ended { queue: QueueId(queue as u32), completion, evicted_word, slot: Some(run.slot) });
    }

    fn fail(&self, queue: usize, launch: LaunchId, fault: Fault) {
        self.common.reports.put(launch, LaunchReport { fault: Some(fault), ..LaunchReport::default() });
        let completion = Completion::unrun(launch, LaunchStatus::Failed);
        self.send(Ended { queue: QueueId(queue as u32), completion, evicted_word: None, slot: None });
    }

    fn send(&self, ended: Ended<D>) {
        // Fails only while the device is dropped, which drops the receiver.
        let _ = self.outbox.send(ended);
    }
}

/// Starts a clock from an event that passes now.
fn start_clock<D: Driver>(context: &Arc<D::Context>) -> Result<Clock<D::Event>, D::Error> {
    let (stream, event) = (D::stream(context, None, 0)?, D::event(context)?);
    D::record(&event, &stream)?;
    D::synchronize(&stream)?;
    Ok(Clock::new(event, now_ns()))
}

/// Yields the CPU for a while, in proportion to the time waited.
fn pause(waited_ns: u64) {
    match waited_ns {
        0..BUSY_POLL_NS => std::hint::spin_loop(),
        _ => std::thread::sleep(Duration::from_nanos((waited_ns / PAUSE_DIVISOR).min(PAUSE_NS_MAX))),
    }
}
