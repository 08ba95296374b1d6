//! The device's side of one device queue: decides which blocks of which launch run next.
//!
//! Launches run in order, one at a time; compute units take the blocks of a launch in chunks. After
//! each chunk a compute unit may turn to a more urgent queue. So a chunk should be short compared
//! with the acceptable delay of a real-time launch, and long compared with the cost of taking it.
//! The block time of a launch is unknown before it runs, so it starts with chunks of one block and
//! enlarges them by the measured time. A preemptible launch starts with the block time of the
//! kernel's last launch: if that is too short now, the stop word still ends the chunk after a block.

use super::fault::Stops;
use super::launch::Launch;
use super::run_time::RunTime;
use atoll_core::{LaunchId, QueueId};
use atoll_device::KeepReports;
use atoll_device::link::{CommandConsumer, Link};
use atoll_device::record::{COMPLETION_WORDS, ChunkEnd, ChunkRecord, Command, Completion, LaunchStatus};
use atoll_device::report::{Fault, FaultKind, LaunchReport};
use atoll_device::ring::{Corrupt, Producer, PushError};
use std::ops::Range;
use std::sync::Arc;

/// A chunk is at most this many times larger than the largest one measured, to limit the cost of a
/// wrong estimate.
const CHUNK_GROWTH: u64 = 8;

/// Work shorter than this in total is not split: distributing it costs about as much.
const SPLIT_NS_MIN: u64 = 2_000;

/// How many times longer the chunks of preemptible launches may be than those of others.
const STOPPABLE: u64 = 4;

/// Chunks in a row that may end without a finished block before the launch counts as broken. Only a
/// kernel that stops without writing its progress map reaches this limit.
const FRUITLESS_CHUNKS_MAX: u32 = 100_000;

/// Launches that may end without a kernel call before a claim returns without a chunk: a long queue
/// of stale launches must not keep a compute unit from a more urgent queue.
const ENDED_PER_CLAIM: u32 = 16;

/// Blocks for one compute unit.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) launch: Arc<Launch>,
    pub(crate) blocks: Range<u64>,
    /// When the blocks must be finished, by the launch's time limit; monotonic nanoseconds.
    pub(crate) deadline_ns: u64,
    /// When they may first be interrupted; monotonic nanoseconds.
    pub(crate) interruptible_from_ns: u64,
    /// Time of one block in nanoseconds, if known.
    pub(crate) block_ns: Option<u64>,
}

/// The result of running a chunk.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The blocks of the chunk.
    pub(crate) given: Range<u64>,
    /// Blocks from here on did not run or did not finish, because the stop word was set.
    pub(crate) stopped_at: u64,
    pub(crate) end: End,
    pub(crate) started_ns: u64,
    pub(crate) ended_ns: u64,
}

impl Outcome {
    /// How long the compute unit was busy with the chunk, in nanoseconds.
    pub(crate) fn busy_ns(&self) -> u64 {
        self.ended_ns.saturating_sub(self.started_ns)
    }

    /// The record of the chunk for observers.
    pub(crate) fn record(&self, unit: u32, queue: QueueId, launch: LaunchId) -> ChunkRecord {
        let end = match self.end {
            End::Returned if self.stopped_at < self.given.end => ChunkEnd::Stopped,
            End::Returned => ChunkEnd::Finished,
            End::Failed => ChunkEnd::Failed,
            End::Aborted => ChunkEnd::Aborted,
            End::Interrupted => ChunkEnd::Interrupted,
        };
        let (first_block, blocks) = (self.given.start, self.stopped_at - self.given.start);
        ChunkRecord {
            unit,
            launch,
            queue,
            first_block,
            blocks,
            began_ns: self.started_ns,
            ended_ns: self.ended_ns,
            end,
        }
    }
}

/// How the call of a kernel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The kernel returned.
    Returned,
    /// It trapped, faulted or exceeded the time limit.
    Failed,
    /// The engine aborted its launch.
    Aborted,
    /// It was stopped in the middle of a block, which has to run again from its start.
    Interrupted,
}

/// The answer to a compute unit that asks for work.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) chunk: Option<Chunk>,
    /// Blocks of the same launch that no compute unit has taken yet.
    pub(crate) waiting: u64,
    /// Launches that ended during the claim.
    pub(crate) completed: u32,
}

impl Claim {
    /// No chunk was found within the limit of ended launches; asking again may find one.
    pub(crate) fn is_cut_short(&self) -> bool {
        self.chunk.is_none() && self.completed >= ENDED_PER_CLAIM
    }
}

/// Turns a command into a launch.
pub(crate) trait Bind {
    /// Returns the launch, or its id and why it cannot run.
    fn bind(&self, command: Command) -> Result<Launch, (LaunchId, Box<Fault>)>;
}

/// One device queue.
#[derive(Debug)]
pub(crate) struct DeviceQueue {
    index: u32,
    link: Link,
    commands: CommandConsumer,
    completions: Producer<COMPLETION_WORDS>,
    active: Option<Active>,
    pacing: Pacing,
    reports: Arc<dyn KeepReports>,
}

/// Parameters for the size of chunks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacing {
    pub(crate) chunk_ns: u64,
    /// Time limit of a launch in nanoseconds, counted while at least one compute unit runs its
    /// blocks.
    pub(crate) time_limit_ns: u64,
}

/// The launch at the head of the queue.
#[derive(Debug)]
struct Active {
    launch: Arc<Launch>,
    /// Blocks from here on have not been taken.
    next: u64,
    /// Blocks that stopped compute units returned; at most one range for each unit.
    returned: Vec<Range<u64>>,
    time: RunTime,
    failed: bool,
    aborted: bool,
    /// When its first block started; `None` before.
    started_ns: Option<u64>,
    ended_ns: u64,
    /// Time of its chunks, summed over compute units.
    busy_ns: u64,
    /// Time per block in the kernel's last launch, which sizes chunks until one is measured.
    expected_ns: Option<u64>,
    /// Of the measured chunks: the recent longest time per block, and the largest number of blocks.
    block_ns: Option<u64>,
    largest: u64,
    /// Chunks in a row that were returned without a finished block and without an interruption.
    fruitless: u32,
    reexecuted_blocks: u64,
    discarded_ns: u64,
}

impl DeviceQueue {
    pub(crate) fn new(index: u32, link: &Link, pacing: Pacing, reports: Arc<dyn KeepReports>) -> Self {
        let (commands, completions) = link.device_ends(index);
        DeviceQueue { index, link: link.clone(), commands, completions, active: None, pacing, reports }
    }

    /// Takes the next chunk. Launches without blocks to run end here; stale ones end as evicted,
    /// without a kernel call.
    pub(crate) fn claim(&mut self, binder: &impl Bind, now_ns: u64) -> Result<Claim, Corrupt> {
        let mut claim = Claim { chunk: None, waiting: 0, completed: self.advance(binder, now_ns)? };
        if let Some(active) = &mut self.active
            && let Some(chunk) = active.claim(self.pacing, self.link.units_of(self.index), now_ns)
        {
            claim.chunk = Some(chunk);
            claim.waiting = active.waiting();
        }
        Ok(claim)
    }

    /// Ends launches that have no blocks to run and none running, until the head has blocks or the
    /// limit is reached. Returns how many ended.
    pub(crate) fn advance(&mut self, binder: &impl Bind, now_ns: u64) -> Result<u32, Corrupt> {
        let mut completed = 0;
        while completed < ENDED_PER_CLAIM {
            if self.active.is_none() && !self.start_next(binder, now_ns, &mut completed)? {
                break;
            }
            let Some(active) = &mut self.active else { continue };
            let is_aborted = self.link.is_aborted(self.index, active.launch.record.launch);
            active.update(self.pacing, is_aborted, now_ns);
            if active.time.running() > 0 || active.waiting() > 0 {
                break;
            }
            active.ended_ns = active.ended_ns.max(now_ns);
            self.complete()?;
            completed += 1;
        }
        Ok(completed)
    }

    /// Takes back a chunk that has run; true if its launch ended with it.
    pub(crate) fn finish(&mut self, outcome: &Outcome) -> Result<bool, Corrupt> {
        let Some(active) = &mut self.active else { return Ok(false) };
        active.finish(outcome);
        let is_over = active.time.running() == 0 && active.waiting() == 0;
        if is_over {
            self.complete()?;
        }
        Ok(is_over)
    }

    /// Whether a compute unit that asks may get a chunk: the active launch has blocks to run, or
    /// there is no active launch and commands are queued.
    pub(crate) fn is_runnable(&mut self) -> Result<bool, Corrupt> {
        match &self.active {
            Some(active) => Ok(active.waiting() > 0),
            None => Ok(!self.commands.is_empty()?),
        }
    }

    /// Makes the next command the active launch; false if there is none.
    fn start_next(&mut self, binder: &impl Bind, now_ns: u64, completed: &mut u32) -> Result<bool, Corrupt> {
        let Some(command) = self.commands.pop_with(Command::take)? else { return Ok(false) };
        match binder.bind(command) {
            Ok(launch) => self.active = Some(Active::new(launch, now_ns)),
            Err((launch, fault)) => {
                self.reports.put(launch, LaunchReport { fault: Some(*fault), ..LaunchReport::default() });
                let completion = Completion::unrun(launch, LaunchStatus::Failed);
                self.report(Completion { started_ns: now_ns, ended_ns: now_ns, ..completion })?;
                *completed += 1;
            }
        }
        Ok(true)
    }

    fn complete(&mut self) -> Result<(), Corrupt> {
        let Some(active) = self.active.take() else { return Ok(()) };
        let status = match (active.failed, active.aborted, active.launch.is_evicted()) {
            (true, ..) => LaunchStatus::Failed,
            (_, true, _) => LaunchStatus::Aborted,
            (.., true) => LaunchStatus::Evicted,
            _ => LaunchStatus::Complete,
        };
        if let Some(block_ns) = active.block_ns {
            active.launch.kernel().keep_block_ns(block_ns);
        }
        let launch = active.launch.record.launch;
        self.reports.put(launch, active.launch.draft.finish());
        let Active { ended_ns, busy_ns, reexecuted_blocks, discarded_ns, .. } = active;
        let started_ns = active.started_ns.unwrap_or(ended_ns);
        self.report(Completion { launch, status, started_ns, ended_ns, busy_ns, reexecuted_blocks, discarded_ns })
    }

    fn report(&mut self, completion: Completion) -> Result<(), Corrupt> {
        match self.completions.push(&completion.to_words()) {
            Ok(()) => Ok(()),
            Err(PushError::Corrupt(corrupt)) => Err(corrupt),
            // The engine's side submits no more launches than there are slots, so only a peer that
            // breaks the protocol causes this.
            Err(PushError::Full) => Err(Corrupt { ours: completion.launch.0, theirs: 0 }),
        }
    }
}

impl Active {
    fn new(launch: Launch, now_ns: u64) -> Active {
        let launch = Arc::new(launch);
        let expected_ns = if launch.is_preemptible() { launch.kernel().block_ns() } else { None };
        Active {
            launch,
            next: 0,
            returned: Vec::new(),
            time: RunTime::default(),
            failed: false,
            aborted: false,
            started_ns: None,
            ended_ns: now_ns,
            busy_ns: 0,
            expected_ns,
            block_ns: None,
            largest: 0,
            fruitless: 0,
            reexecuted_blocks: 0,
            discarded_ns: 0,
        }
    }

    /// Blocks that are neither finished nor running.
    fn waiting(&self) -> u64 {
        self.launch.blocks - self.next + self.returned.iter().map(|r| r.end - r.start).sum::<u64>()
    }

    /// Updates the blocks that are left to run: none if the launch is aborted or stale, or its time
    /// is over.
    fn update(&mut self, pacing: Pacing, is_aborted: bool, now_ns: u64) {
        if self.waiting() > 0 && is_aborted {
            self.aborted = true;
            self.skip_the_rest();
        }
        if self.waiting() > 0 && self.launch.is_stale() {
            self.evict();
        }
        // Skips blocks that ran before the launch was evicted.
        if self.returned.is_empty() && self.launch.is_preemptible() {
            self.next = self.launch.first_missing(self.next, self.launch.blocks);
        }
        if self.time.left_ns(pacing.time_limit_ns, now_ns) == 0 {
            self.run_out_of_time(pacing.time_limit_ns);
        }
    }

    /// Takes blocks to run.
    fn claim(&mut self, pacing: Pacing, compute_units: u32, now_ns: u64) -> Option<Chunk> {
        let left_ns = self.time.left_ns(pacing.time_limit_ns, now_ns);
        let blocks = self.take(self.chunk_blocks(pacing, compute_units))?;
        let interruptible_from_ns = match (self.launch.is_interruptible(), self.time.uninterrupted_ns()) {
            (false, _) => Stops::NEVER,
            (true, 0) => 0,
            (true, uninterrupted_ns) => now_ns.saturating_add(uninterrupted_ns),
        };
        self.time.begin(now_ns);
        self.started_ns.get_or_insert(now_ns);
        let (launch, deadline_ns) = (self.launch.clone(), now_ns.saturating_add(left_ns));
        Some(Chunk { launch, blocks, deadline_ns, interruptible_from_ns, block_ns: self.block_ns })
    }

    /// Fails the launch because its time is over between two blocks.
    fn run_out_of_time(&mut self, limit_ns: u64) {
        if self.waiting() == 0 {
            return;
        }
        let block = self.returned.iter().map(|range| range.start).chain([self.next]).min().unwrap_or(self.next);
        self.launch.draft.fail(Fault {
            block: Some(self.launch.block_index(block)),
            ..Fault::of_kernel(FaultKind::TimeLimit { limit_ns }, &self.launch.kernel().facts.name)
        });
        self.failed = true;
        self.skip_the_rest();
    }

    /// Takes at most `count` waiting blocks, returned ones first.
    fn take(&mut self, count: u64) -> Option<Range<u64>> {
        if let Some(range) = self.returned.pop() {
            let cut = range.end.min(range.start + count);
            if cut < range.end {
                self.returned.push(cut..range.end);
            }
            return Some(range.start..cut);
        }
        let begin = self.next;
        self.next = self.launch.blocks.min(begin + count);
        (begin < self.next).then_some(begin..self.next)
    }

    fn chunk_blocks(&self, pacing: Pacing, compute_units: u32) -> u64 {
        let Some(block_ns) = self.block_ns.or(self.expected_ns) else { return 1 };
        let growth = if self.block_ns.is_some() { self.largest.saturating_mul(CHUNK_GROWTH) } else { u64::MAX };
        // A single compute unit shares its launches with no other.
        let sharing = if compute_units == 1 { 1 } else { 2 * u64::from(compute_units) };
        let fair = self.waiting().div_ceil(sharing);
        let unsplit = SPLIT_NS_MIN / block_ns;
        // Between the blocks of a preemptible launch, the stop word is checked anyway.
        let chunk_ns = if self.launch.is_preemptible() { STOPPABLE * pacing.chunk_ns } else { pacing.chunk_ns };
        fair.max(unsplit).min(chunk_ns / block_ns).min(growth).max(1)
    }

    fn finish(&mut self, outcome: &Outcome) {
        let is_fruitless = outcome.stopped_at == outcome.given.start;
        let was_interrupted = outcome.end == End::Interrupted;
        self.time.end(outcome.ended_ns, !is_fruitless, was_interrupted);
        self.ended_ns = self.ended_ns.max(outcome.ended_ns);
        self.busy_ns += outcome.busy_ns();
        self.failed |= outcome.end == End::Failed;
        self.aborted |= outcome.end == End::Aborted;
        if outcome.stopped_at < outcome.given.end {
            self.returned.push(outcome.stopped_at..outcome.given.end);
        }
        if was_interrupted {
            self.reexecuted_blocks += u64::from(outcome.stopped_at < outcome.given.end);
            // The finished blocks of the chunk are assumed to have taken the usual time.
            let finished = outcome.stopped_at - outcome.given.start;
            let block_ns = self.block_ns.or(self.expected_ns).unwrap_or(0);
            self.discarded_ns += outcome.busy_ns().saturating_sub(finished * block_ns);
        } else {
            self.measure(outcome);
            self.fruitless = if is_fruitless { self.fruitless + 1 } else { 0 };
            self.failed |= self.fruitless > FRUITLESS_CHUNKS_MAX;
        }
        // Reported at once: the next compute unit to look may be busy with a more urgent queue for
        // long.
        if self.waiting() > 0 && self.launch.is_stale() {
            self.evict();
        }
        if self.failed || self.aborted {
            self.skip_the_rest();
        }
    }

    /// A longer block time counts at once, a shorter one by half: chunks that are too long do more
    /// harm than chunks that are too short.
    fn measure(&mut self, outcome: &Outcome) {
        let blocks = outcome.stopped_at - outcome.given.start;
        if blocks == 0 {
            return;
        }
        let block_ns = (outcome.ended_ns.saturating_sub(outcome.started_ns) / blocks).max(1);
        self.block_ns = Some(self.block_ns.map_or(block_ns, |old| block_ns.max(old.midpoint(block_ns))));
        self.largest = self.largest.max(blocks);
    }

    fn evict(&mut self) {
        self.launch.set_evicted();
        self.skip_the_rest();
    }

    fn skip_the_rest(&mut self) {
        self.next = self.launch.blocks;
        self.returned.clear();
    }
}
