//! The engine's side of the rings: submits launches and takes completions, independent of where the
//! compute units run.

use super::{CommandProducer, Link, LinkShape, State};
use crate::doorbell::FdBell;
use crate::error::{DeviceError, SubmitError};
use crate::lanes::Lane;
use crate::link::chunks::ChunkReader;
use crate::record::{COMPLETION_WORDS, ChunkRecord, Command, Completion, ComputeUnitUse, LaunchRecord, LaunchStatus};
use crate::ring::{Consumer, PushError};
use atoll_core::{LaunchId, QueueId};
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::SeqCst;

/// The engine's ends of the rings, and the bell.
#[derive(Debug)]
pub struct EngineSide {
    /// The rings.
    pub link: Link,
    queues: Vec<EngineQueue>,
    /// Queues of open lanes.
    open: Vec<u32>,
    chunks: Vec<ChunkReader>,
    queue_capacity: usize,
    completion_bell: FdBell,
    /// The device's side is another process, which may write anything into the shared memory.
    peer_is_untrusted: bool,
    /// The device's side wrote something invalid. Kept in private memory, where the peer cannot
    /// reset it.
    is_broken: bool,
    idle_rings: u64,
    /// The process of the compute units.
    process: i32,
}

/// The engine's side of a device queue.
#[derive(Debug)]
struct EngineQueue {
    commands: CommandProducer,
    completions: Consumer<COMPLETION_WORDS>,
    /// Launches whose completion has not been taken, oldest first.
    in_flight: VecDeque<LaunchId>,
    /// The launch that was aborted last.
    aborted: Option<LaunchId>,
}

impl EngineSide {
    /// Creates the rings. The caller passes link and bell to the device's side.
    pub fn new(shape: LinkShape) -> Result<EngineSide, DeviceError> {
        let link = Link::create(shape).map_err(os("create the command rings"))?;
        let completion_bell = FdBell::new().map_err(os("create an eventfd"))?;
        let queue_capacity = shape.capacity as usize;
        let queues = (0..shape.all_queues())
            .map(|queue| {
                let (commands, completions) = link.engine_ends(queue);
                EngineQueue { commands, completions, in_flight: VecDeque::with_capacity(queue_capacity), aborted: None }
            })
            .collect();
        let chunks = link.chunk_readers();
        Ok(EngineSide {
            link,
            queues,
            open: (0..shape.own_queues()).collect(),
            chunks,
            queue_capacity,
            completion_bell,
            peer_is_untrusted: false,
            is_broken: false,
            idle_rings: 0,
            process: own_process(),
        })
    }

    /// Treats the device's side as an untrusted process, which may write anything into the shared
    /// memory.
    pub fn with_untrusted_peer(self) -> EngineSide {
        EngineSide { peer_is_untrusted: true, ..self }
    }

    /// Sets the process of the compute units.
    pub fn set_process(&mut self, process: i32) {
        self.process = process;
    }

    /// How often the bell rang although no completion was waiting.
    pub fn idle_rings(&self) -> u64 {
        self.idle_rings
    }

    /// The device's end of the bell.
    pub fn device_bell(&self) -> Result<FdBell, DeviceError> {
        self.completion_bell.try_clone().map_err(os("duplicate an eventfd"))
    }

    /// A descriptor that is readable while completions wait.
    pub fn completion_fd(&self) -> BorrowedFd<'_> {
        self.completion_bell.as_fd()
    }

    /// Whether the device is lost.
    pub fn is_lost(&self) -> bool {
        self.is_broken || self.link.state() != State::Running
    }

    /// Number of launches whose completion has not been taken.
    pub fn in_flight(&self) -> usize {
        self.queues.iter().map(|queue| queue.in_flight.len()).sum()
    }

    /// Puts a launch into a queue, and wakes or interrupts compute units for it.
    ///
    /// # Panics
    /// If the device has no such queue.
    pub fn submit(&mut self, queue: QueueId, record: &LaunchRecord, params: &[u8]) -> Result<(), SubmitError> {
        if self.is_lost() {
            return Err(SubmitError::Lost);
        }
        let index = queue.0;
        let queue = &mut self.queues[index as usize];
        if queue.in_flight.len() >= self.queue_capacity {
            return Err(SubmitError::Full);
        }
        queue.commands.push_with(|slot| Command::put(slot, record, params)).map_err(|error| match error {
            PushError::Full => SubmitError::Full,
            PushError::Corrupt(_) => SubmitError::Lost,
        })?;
        queue.in_flight.push_back(record.launch);
        std::sync::atomic::fence(SeqCst);
        self.link.raise_stop(index);
        // A compute unit that runs blocks of this queue will look at it again by itself.
        if !self.link.is_served(index) {
            let blocks = record.grid.iter().fold(1, |n, g| u64::saturating_mul(n, u64::from(*g)));
            self.link.interrupt_for(index, blocks, self.process);
        }
        // One is enough: it wakes others if there are blocks for them.
        self.link.wake(index, 1);
        Ok(())
    }

    /// Opens a lane: from now on these compute units serve its queues.
    ///
    /// # Panics
    /// If the device has no such queues.
    pub fn open_lane(&mut self, lane: &Lane, units: &[u32]) {
        self.link.set_lane(lane.queues.clone(), lane.paired_queues, units);
        self.open.extend(lane.queues.clone());
    }

    /// Closes a lane: no compute unit serves its queues, which must be empty.
    ///
    /// # Panics
    /// If the device has no such queues, or launches are in them.
    pub fn close_lane(&mut self, queues: Range<u32>) {
        assert!(self.is_idle(queues.clone()), "a lane is closed while its queues hold launches");
        self.link.set_lane(queues.clone(), false, &[]);
        self.open.retain(|queue| !queues.contains(queue));
    }

    /// Whether these queues are empty.
    ///
    /// # Panics
    /// If the device has no such queues.
    pub fn is_idle(&self, mut queues: Range<u32>) -> bool {
        queues.all(|queue| self.queues[queue as usize].in_flight.is_empty())
    }

    /// Stops running blocks of an evicted launch; see
    /// [`Launching::interrupt`](crate::Launching::interrupt).
    ///
    /// # Panics
    /// If the device has no such queue.
    pub fn interrupt(&mut self, queue: QueueId, launch: LaunchId, blocks: u64) {
        if self.queues[queue.0 as usize].in_flight.contains(&launch) {
            self.link.interrupt_evicted(queue.0, blocks, self.process);
        }
    }

    /// Aborts a launch, if it is the oldest of its queue.
    ///
    /// # Panics
    /// If the device has no such queue.
    pub fn abort(&mut self, queue: QueueId, launch: LaunchId) {
        let EngineQueue { in_flight, aborted, .. } = &mut self.queues[queue.0 as usize];
        if in_flight.front() == Some(&launch) {
            *aborted = Some(launch);
            self.link.abort(queue.0, launch);
        }
    }

    /// The next completion.
    pub fn next_completion(&mut self) -> Option<Completion> {
        let found = self.poll();
        if found.is_some() || !self.silence() {
            return found;
        }
        let found = self.poll();
        self.idle_rings += u64::from(found.is_none());
        found
    }

    fn silence(&self) -> bool {
        let flag = self.link.completion_flag();
        if self.peer_is_untrusted {
            self.completion_bell.silence_untrusted(flag)
        } else {
            self.completion_bell.silence(flag)
        }
    }

    /// The oldest waiting completion of the first open queue that has one.
    fn poll(&mut self) -> Option<Completion> {
        for &queue in &self.open {
            match self.queues[queue as usize].next_completion() {
                Ok(Some(completion)) => return Some(completion),
                Ok(None) => {}
                Err(BrokenPeer) => {
                    self.is_broken = true;
                    self.link.end(State::Lost);
                }
            }
        }
        None
    }

    /// Takes at most `max` chunks of each compute unit. Returns how many were lost.
    pub fn take_chunks(&mut self, max: u64, each: &mut dyn FnMut(ChunkRecord)) -> u64 {
        self.chunks.iter_mut().map(|chunks| chunks.take(max, each)).fold(0, u64::saturating_add)
    }

    /// Number of chunks that have not been taken.
    pub fn chunks_left(&self) -> u64 {
        self.chunks.iter().map(ChunkReader::left).fold(0, u64::saturating_add)
    }

    /// The use of each compute unit, as it reports it.
    pub fn compute_units(&self) -> Vec<ComputeUnitUse> {
        self.chunks.iter().map(ChunkReader::usage).collect()
    }

    /// After the device is lost: a failed completion for the oldest launch of a queue that still
    /// has one.
    pub fn abandon(&mut self) -> Option<(QueueId, Completion)> {
        let find = |(index, queue): (usize, &mut EngineQueue)| Some((QueueId(index as u32), queue.abandon()?));
        self.queues.iter_mut().enumerate().find_map(find)
    }
}

fn os<E: Into<std::io::Error>>(what: &'static str) -> impl Fn(E) -> DeviceError {
    move |source| DeviceError::Os { what, source: source.into() }
}

fn own_process() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// The device's side wrote an impossible completion.
#[derive(Debug)]
struct BrokenPeer;

impl EngineQueue {
    fn next_completion(&mut self) -> Result<Option<Completion>, BrokenPeer> {
        let Some(words) = self.completions.pop().map_err(|_| BrokenPeer)? else { return Ok(None) };
        let completion = Completion::from_words(&words).ok_or(BrokenPeer)?;
        let is_unasked = completion.status == LaunchStatus::Aborted && self.aborted != Some(completion.launch);
        if self.in_flight.front() != Some(&completion.launch) || is_unasked {
            return Err(BrokenPeer);
        }
        self.in_flight.pop_front();
        Ok(Some(completion))
    }

    /// The failed completion of a launch that was lost with the device.
    fn abandon(&mut self) -> Option<Completion> {
        let launch = self.in_flight.pop_front()?;
        Some(Completion::unrun(launch, LaunchStatus::Failed))
    }
}
