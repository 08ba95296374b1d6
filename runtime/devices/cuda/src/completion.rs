//! The thread that detects the ends of launches.

use super::error;
use super::segment::{Key, Segment};
use super::slot::{LaunchWords, Slot};
use atoll_core::{DeviceOffset, LaunchId, QueueId};
use atoll_cuda::{Context, CudaError, Event, Stream};
use atoll_device::clock::Clock;
use atoll_device::doorbell::FdBell;
use atoll_device::{Completion, Fault, FaultKind, LaunchReport, LaunchStatus};
use atoll_device::{Reports, now_ns};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Upper limit for the driver call that submits a launch when the context is lost; far above its
/// usual time.
const SUBMISSION_TIME_MAX: Duration = Duration::from_millis(100);

/// How long the thread polls without a pause: even short kernels take a few microseconds.
const BUSY_POLL_NS: u64 = 20_000;

/// A pause is this fraction of the time waited so far.
const PAUSE_DIVISOR: u64 = 16;

/// Longest pause in nanoseconds.
const PAUSE_NS_MAX: u64 = 200_000;

/// One submission: one launch, or several that were submitted together.
#[derive(Debug)]
pub(super) enum Flight {
    /// In its stream.
    Run(Run),
    /// Not submitted to the driver; it completes after the launches before it.
    Refused(LaunchId, Fault),
}

/// Work that was put into a stream at once.
#[derive(Debug)]
pub(super) struct Run {
    /// One launch, or those of a segment.
    pub(super) launches: Vec<InRun>,
    pub(super) slot: Slot,
    /// The words of the launches.
    pub(super) words: LaunchWords,
    pub(super) segment: Option<(Key, Segment)>,
    pub(super) submitted_ns: u64,
}

/// A launch in a stream.
#[derive(Debug)]
pub(super) struct InRun {
    pub(super) launch: LaunchId,
    /// The name of its kernel.
    pub(super) kernel: String,
    /// Compute units that its blocks can occupy.
    pub(super) units: u64,
    /// Where the engine reads the evicted word, for launches that have one.
    pub(super) evicted_word: Option<DeviceOffset>,
    /// Whether its kernel reports faults in the fault word.
    pub(super) reports_faults: bool,
    /// The offset of the epoch word, which identifies the task.
    pub(super) task: DeviceOffset,
}

/// Launches that ended, with the resources they used.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) queue: QueueId,
    /// Their completions, each with the offset where the engine reads the evicted word, if any.
    pub(super) completions: Vec<(Completion, Option<DeviceOffset>)>,
    pub(super) slot: Option<Slot>,
    pub(super) segment: Option<(Key, Segment)>,
}

/// The thread's view of a queue.
#[derive(Debug)]
struct QueueState {
    flights: VecDeque<Flight>,
    clock: Clock<Event>,
}

/// State that both threads of a device share.
#[derive(Clone, Debug, Default)]
pub(super) struct Common {
    pub(super) bell_rang: Arc<AtomicU32>,
    pub(super) reports: Arc<Reports>,
    pub(super) lost: Arc<OnceLock<String>>,
    /// Launches that were sent to the completion thread or are about to be.
    pub(super) begun: Arc<AtomicU64>,
}

/// The state of the thread.
#[derive(Debug)]
pub(super) struct Poller {
    states: Vec<QueueState>,
    inbox: Receiver<(QueueId, Flight)>,
    outbox: Sender<Ended>,
    bell: FdBell,
    common: Common,
    /// Whether other processes may have ended the context.
    is_shared: bool,
    /// Launches that it has received.
    taken: u64,
}

impl Poller {
    pub(super) fn new(
        context: &Arc<Context>,
        queues: u32,
        inbox: Receiver<(QueueId, Flight)>,
        outbox: Sender<Ended>,
        bell: FdBell,
        common: Common,
        is_shared: bool,
    ) -> Result<Poller, CudaError> {
        let state = |_| Ok(QueueState { flights: VecDeque::new(), clock: start_clock(context)? });
        let states = (0..queues).map(state).collect::<Result<_, CudaError>>()?;
        Ok(Poller { states, inbox, outbox, bell, common, is_shared, taken: 0 })
    }

    /// Runs until the device is dropped and all submitted work has ended.
    pub(super) fn run(mut self) {
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

    /// Receives submissions; sleeps while none is pending. False at the end.
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

    /// Checks whether the oldest submission of a queue has ended. If so, reports its completions
    /// and returns true. If the device is lost, completes all submissions as failed.
    fn poll(&mut self, queue: usize) -> bool {
        let Some(front) = self.states[queue].flights.front() else { return false };
        let is_over = match front {
            Flight::Refused(..) => Ok(true),
            Flight::Run(_) if self.common.lost.get().is_some() => Ok(true),
            Flight::Run(run) => run.slot.ended.is_passed(),
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
        if let Some(flight) = self.states[queue].flights.pop_front() {
            self.report_end(queue, flight);
        }
        true
    }

    fn take(&mut self, queue: QueueId, flight: Flight) {
        self.taken += flight.launches();
        self.states[queue.0 as usize].flights.push_back(flight);
    }

    /// Receives the submissions that had begun when the context was lost, since one of them may
    /// have caused the loss. False if they do not arrive in time.
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

    /// Records the first error of the context.
    fn mark_lost(&self, error: &CudaError) {
        let cause = if error.is_context_lost() { error::fault(error) } else { error.to_string() };
        let fronts = self.states.iter().filter_map(|state| state.flights.front()).flat_map(Flight::runs);
        let names: Vec<String> = fronts.map(|run| format!("`{}`", run.kernel)).collect();
        let cause =
            if names.is_empty() { cause } else { format!("{cause}; {} may have run then", names.join(" and ")) };
        // The engine's thread may have recorded a cause meanwhile; then that one is kept.
        let _ = self.common.lost.set(cause);
    }

    /// Whether all launches in flight belong to one task, which then caused the fault.
    fn is_of_one_task(&self) -> bool {
        let mut tasks = self.states.iter().flat_map(|state| &state.flights).flat_map(Flight::runs).map(|run| run.task);
        let first = tasks.next();
        tasks.all(|task| Some(task) == first)
    }

    fn abandon(&mut self, queue: usize, is_of_one: bool) {
        for (place, flight) in std::mem::take(&mut self.states[queue].flights).into_iter().enumerate() {
            match flight {
                Flight::Refused(..) => self.report_end(queue, flight),
                Flight::Run(run) => self.fail_all(queue, &run.launches, is_of_one, place == 0),
            }
        }
    }

    /// Completes launches as failed that were in a stream when the device was lost.
    fn fail_all(&mut self, queue: usize, launches: &[InRun], is_of_one: bool, may_have_run: bool) {
        for run in launches {
            let cause = self.common.lost.get().cloned().unwrap_or_default();
            let kind = if is_of_one { FaultKind::Fatal { cause } } else { FaultKind::Lost { cause, may_have_run } };
            self.fail(queue, run.launch, Fault::of_kernel(kind, &run.kernel));
        }
    }

    fn report_end(&mut self, queue: usize, flight: Flight) {
        let Run { launches, mut slot, words, segment, submitted_ns } = match flight {
            Flight::Refused(launch, fault) => return self.fail(queue, launch, fault),
            Flight::Run(run) => run,
        };
        let (clock, times) = (&mut self.states[queue].clock, [submitted_ns, now_ns()]);
        let span = match clock.place(&slot.began, &mut slot.ended, times, Event::nanos_since) {
            Ok(span) => span,
            Err(error) => {
                self.mark_lost(&error);
                return self.fail_all(queue, &launches, false, true);
            }
        };
        let count = launches.len() as u64;
        let completion = |(index, run): (usize, InRun)| {
            let fault = if run.reports_faults { words.fault(index, &run.kernel) } else { None };
            let status = match &fault {
                Some(_) => LaunchStatus::Failed,
                None if run.evicted_word.is_some() && words.is_evicted(index) => LaunchStatus::Evicted,
                None => LaunchStatus::Complete,
            };
            if fault.is_some() {
                self.common.reports.put(run.launch, LaunchReport { fault, ..LaunchReport::default() });
            }
            // The start of each launch in a segment is unknown: all get the time of the segment,
            // and an equal share of the cost.
            let busy_ns = (span.ended_ns - span.started_ns).saturating_mul(run.units) / count;
            let completion = Completion {
                launch: run.launch,
                status,
                started_ns: span.started_ns,
                ended_ns: span.ended_ns,
                busy_ns,
                reexecuted_blocks: 0,
                discarded_ns: 0,
            };
            (completion, run.evicted_word)
        };
        let completions = launches.into_iter().enumerate().map(completion).collect();
        self.send(Ended { queue: QueueId(queue as u32), completions, slot: Some(slot), segment });
    }

    fn fail(&mut self, queue: usize, launch: LaunchId, fault: Fault) {
        self.common.reports.put(launch, LaunchReport { fault: Some(fault), ..LaunchReport::default() });
        let completions = vec![(Completion::unrun(launch, LaunchStatus::Failed), None)];
        self.send(Ended { queue: QueueId(queue as u32), completions, slot: None, segment: None });
    }

    fn send(&self, ended: Ended) {
        // The receiver is gone while the device is dropped.
        let _ = self.outbox.send(ended);
    }
}

impl Flight {
    /// The launches that were put into a stream.
    fn runs(&self) -> &[InRun] {
        match self {
            Flight::Run(run) => &run.launches,
            Flight::Refused(..) => &[],
        }
    }

    /// The number of launches.
    fn launches(&self) -> u64 {
        match self {
            Flight::Run(run) => run.launches.len() as u64,
            Flight::Refused(..) => 1,
        }
    }
}

/// Starts a clock from an event that passes now.
fn start_clock(context: &Arc<Context>) -> Result<Clock<Event>, CudaError> {
    let (stream, event) = (Stream::new(context, 0)?, Event::new(context)?);
    event.record(&stream)?;
    stream.synchronize()?;
    Ok(Clock::new(event, now_ns()))
}

/// Yields the CPU for a while, in proportion to the time waited.
fn pause(waited_ns: u64) {
    match waited_ns {
        0..BUSY_POLL_NS => std::hint::spin_loop(),
        _ => std::thread::sleep(Duration::from_nanos((waited_ns / PAUSE_DIVISOR).min(PAUSE_NS_MAX))),
    }
}
