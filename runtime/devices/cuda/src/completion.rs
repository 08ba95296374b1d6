//! The thread that sees launches end.

use super::clock::Clock;
use super::error;
use super::segment::{Key, Segment};
use super::slot::{EvictedWords, Slot};
use atoll_core::{DeviceOffset, LaunchId, QueueId};
use atoll_cuda::{Context, CudaError, Event, Stream};
use atoll_device::doorbell::FdBell;
use atoll_device::{Completion, Fault, FaultKind, LaunchReport, LaunchStatus};
use atoll_device::{Reports, now_ns};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long a call of the driver that submits a launch may take when the context is lost; far above
/// what it takes.
const HEAR_WITHIN: Duration = Duration::from_millis(100);

/// How long it asks without a pause: no kernel is shorter than a few microseconds.
const EAGER_NS: u64 = 20_000;

/// It pauses for one part in so many of what it has waited.
const PAUSE_DIVISOR: u64 = 16;

/// Longest pause.
const PAUSE_NS_MAX: u64 = 200_000;

/// A launch on its way, or several that went together.
#[derive(Debug)]
pub(super) enum Flight {
    /// In its stream.
    Run(Run),
    /// Not there, for a reason; it ends when those in front of it have.
    Refused(LaunchId, Fault),
}

/// What was put into a stream at once.
#[derive(Debug)]
pub(super) struct Run {
    /// One, or those of a segment.
    pub(super) launches: Vec<InRun>,
    pub(super) slot: Slot,
    /// Of each launch.
    pub(super) evicted: EvictedWords,
    pub(super) segment: Option<(Key, Segment)>,
    pub(super) submitted_ns: u64,
}

/// A launch in a stream.
#[derive(Debug)]
pub(super) struct InRun {
    pub(super) launch: LaunchId,
    /// The kernel's name.
    pub(super) kernel: String,
    /// Compute units that it can keep busy.
    pub(super) units: u64,
    /// Where the engine looks for the evicted word, of launches that have one.
    pub(super) evicted_word: Option<DeviceOffset>,
    /// The epoch word, by which launches of a task are known.
    pub(super) task: DeviceOffset,
}

/// Launches that ended, with what they had.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) queue: QueueId,
    /// Each with its evicted word, as the engine knows it.
    pub(super) completions: Vec<(Completion, Option<DeviceOffset>)>,
    pub(super) slot: Option<Slot>,
    pub(super) segment: Option<(Key, Segment)>,
}

/// What the thread looks at, of a queue.
#[derive(Debug)]
struct Lane {
    flights: VecDeque<Flight>,
    clock: Clock,
}

/// The thread's state.
#[derive(Debug)]
pub(super) struct Poller {
    lanes: Vec<Lane>,
    inbox: Receiver<(QueueId, Flight)>,
    outbox: Sender<Ended>,
    bell: FdBell,
    bell_rang: Arc<AtomicU32>,
    reports: Arc<Reports>,
    lost: Arc<OnceLock<String>>,
    is_shared: bool,
    begun: Arc<AtomicU64>,
    /// Launches of those that it has heard of.
    taken: u64,
}

impl Poller {
    #[expect(
        clippy::too_many_arguments,
        reason = "both ends of what the device's two threads share are made in one place"
    )]
    pub(super) fn new(
        context: &Arc<Context>,
        queues: u32,
        inbox: Receiver<(QueueId, Flight)>,
        outbox: Sender<Ended>,
        bell: FdBell,
        bell_rang: Arc<AtomicU32>,
        reports: Arc<Reports>,
        lost: Arc<OnceLock<String>>,
    ) -> Result<Poller, CudaError> {
        let lane = |_| Ok(Lane { flights: VecDeque::new(), clock: start_clock(context)? });
        let lanes = (0..queues).map(lane).collect::<Result<_, CudaError>>()?;
        Ok(Poller {
            lanes,
            inbox,
            outbox,
            bell,
            bell_rang,
            reports,
            lost,
            is_shared: false,
            begun: Arc::default(),
            taken: 0,
        })
    }

    /// What it takes to say who ended the context: whether other processes can, so that nobody here
    /// need have done it, and how many launches the driver has been given or is being given.
    pub(super) fn judging(self, is_shared: bool, begun: Arc<AtomicU64>) -> Poller {
        Poller { is_shared, begun, ..self }
    }

    /// Until the device is dropped and everything it was given has ended.
    pub(super) fn run(mut self) {
        let mut waited_since_ns = now_ns();
        while self.listen() {
            let told = (0..self.lanes.len()).filter(|queue| self.look(*queue)).count();
            if told > 0 {
                waited_since_ns = now_ns();
                self.bell.ring(&self.bell_rang);
            } else {
                pause(now_ns().saturating_sub(waited_since_ns));
            }
        }
    }

    /// Takes what was submitted; sleeps while there is nothing to wait for. False at the end.
    fn listen(&mut self) -> bool {
        let mut is_idle = self.lanes.iter().all(|lane| lane.flights.is_empty());
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

    /// Whether the oldest launch of a queue has ended; if so, tells.
    fn look(&mut self, queue: usize) -> bool {
        let Some(front) = self.lanes[queue].flights.front() else { return false };
        let is_over = match front {
            Flight::Refused(..) => Ok(true),
            Flight::Run(_) if self.lost.get().is_some() => Ok(true),
            Flight::Run(run) => run.slot.ended.is_passed(),
        };
        match is_over {
            Ok(false) => return false,
            Ok(true) => {}
            Err(error) => self.lose(&error),
        }
        if self.lost.get().is_some() {
            // What runs on the device nobody can ask any more: everything ends, the oldest of each queue first.
            let is_of_one = self.hears_of_all() && !self.is_shared && self.is_of_one_task();
            (0..self.lanes.len()).for_each(|queue| self.abandon(queue, is_of_one));
            return true;
        }
        if let Some(flight) = self.lanes[queue].flights.pop_front() {
            self.tell(queue, flight);
        }
        true
    }

    fn take(&mut self, queue: QueueId, flight: Flight) {
        self.taken += flight.launches();
        self.lanes[queue.0 as usize].flights.push_back(flight);
    }

    /// Takes in what was being submitted when the context was lost, since that may be what ended
    /// it. False if it does not come.
    fn hears_of_all(&mut self) -> bool {
        let until = Instant::now() + HEAR_WITHIN;
        while self.taken < self.begun.load(SeqCst) {
            match self.inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((queue, flight)) => self.take(queue, flight),
                Err(_) => return false,
            }
        }
        true
    }

    /// The first error of the context is the one to tell.
    fn lose(&self, error: &CudaError) {
        let cause = if error.is_context_lost() { error::fault(error) } else { error.to_string() };
        let fronts = self.lanes.iter().filter_map(|lane| lane.flights.front()).flat_map(Flight::runs);
        let names: Vec<String> = fronts.map(|run| format!("`{}`", run.kernel)).collect();
        let cause =
            if names.is_empty() { cause } else { format!("{cause}; {} may have run then", names.join(" and ")) };
        // It may have been lost by the engine's thread meanwhile, which is as good a cause.
        let _ = self.lost.set(cause);
    }

    /// Whether all that is in flight belongs to one task, which then did whatever was done.
    fn is_of_one_task(&self) -> bool {
        let mut tasks = self.lanes.iter().flat_map(|lane| &lane.flights).flat_map(Flight::runs).map(|run| run.task);
        let first = tasks.next();
        tasks.all(|task| Some(task) == first)
    }

    fn abandon(&mut self, queue: usize, is_of_one: bool) {
        for (place, flight) in std::mem::take(&mut self.lanes[queue].flights).into_iter().enumerate() {
            match flight {
                Flight::Refused(..) => self.tell(queue, flight),
                Flight::Run(run) => self.fail_all(queue, &run.launches, is_of_one, place == 0),
            }
        }
    }

    /// The device was lost with launches in a stream.
    fn fail_all(&mut self, queue: usize, launches: &[InRun], is_of_one: bool, may_have_run: bool) {
        for run in launches {
            let cause = self.lost.get().cloned().unwrap_or_default();
            let kind = if is_of_one { FaultKind::Fatal { cause } } else { FaultKind::Lost { cause, may_have_run } };
            self.fail(queue, run.launch, Fault::of_kernel(kind, &run.kernel));
        }
    }

    fn tell(&mut self, queue: usize, flight: Flight) {
        let Run { launches, mut slot, evicted, segment, submitted_ns } = match flight {
            Flight::Refused(launch, fault) => return self.fail(queue, launch, fault),
            Flight::Run(run) => run,
        };
        let span = match self.lanes[queue].clock.place(&slot.began, &mut slot.ended, submitted_ns, now_ns()) {
            Ok(span) => span,
            Err(error) => {
                self.lose(&error);
                return self.fail_all(queue, &launches, false, true);
            }
        };
        let count = launches.len() as u64;
        let completion = |(index, run): (usize, InRun)| {
            let status = if run.evicted_word.is_some() && evicted.is_set(index) {
                LaunchStatus::Evicted
            } else {
                LaunchStatus::Complete
            };
            // Of launches that went together nobody says when each began: all of them get the whole time, and a
            // part of what it cost.
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
        self.reports.put(launch, LaunchReport { fault: Some(fault), ..LaunchReport::default() });
        let completions = vec![(Completion::unrun(launch, LaunchStatus::Failed), None)];
        self.send(Ended { queue: QueueId(queue as u32), completions, slot: None, segment: None });
    }

    fn send(&self, ended: Ended) {
        // Nobody listens while the device is dropped.
        let _ = self.outbox.send(ended);
    }
}

impl Flight {
    /// Launches in a stream.
    fn runs(&self) -> &[InRun] {
        match self {
            Flight::Run(run) => &run.launches,
            Flight::Refused(..) => &[],
        }
    }

    /// How many they are.
    fn launches(&self) -> u64 {
        match self {
            Flight::Run(run) => run.launches.len() as u64,
            Flight::Refused(..) => 1,
        }
    }
}

/// An event that passed just now.
fn start_clock(context: &Arc<Context>) -> Result<Clock, CudaError> {
    let (stream, event) = (Stream::new(context, 0)?, Event::new(context)?);
    event.record(&stream)?;
    stream.synchronize()?;
    Ok(Clock::new(event, now_ns()))
}

/// Leaves the CPU to others for a while, the longer the longer it was waited.
fn pause(waited_ns: u64) {
    match waited_ns {
        0..EAGER_NS => std::hint::spin_loop(),
        _ => std::thread::sleep(Duration::from_nanos((waited_ns / PAUSE_DIVISOR).min(PAUSE_NS_MAX))),
    }
}
