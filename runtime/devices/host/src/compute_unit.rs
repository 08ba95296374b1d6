//! A compute unit: a thread that runs chunks of blocks, always from the most urgent of its queues
//! that has blocks to run.

use super::arena::Arena;
use super::device_side::Shared;
use super::diagnose::{self, Limits};
use super::fault::{self, Stops};
use super::helpers::UnitContext;
use super::launch::Launch;
use super::queue::{Chunk, End, Outcome};
use atoll_core::QueueId;
use atoll_device::link::ChunkWriter;
use atoll_device::link::{HALT_SIGNAL, Occupation, Order, State};
use atoll_device::now_ns;
use atoll_device::ring::Corrupt;
use atoll_kgraph::host_abi::{HOST_ABI_VERSION, HostContext};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The stop word of kernels that must not be stopped.
static NEVER_STOP: AtomicU32 = AtomicU32::new(0);

/// One compute unit, on its own thread.
#[derive(Debug)]
pub(crate) struct ComputeUnit<'a> {
    pub(crate) index: u32,
    pub(crate) shared: &'a Shared,
    pub(crate) shared_memory: Arena,
    pub(crate) scratch: Arena,
    pub(crate) chunks: ChunkWriter,
    /// The queues it serves.
    pub(crate) order: Order,
}

impl ComputeUnit<'_> {
    /// Runs until the device ends.
    pub(crate) fn run(&mut self) {
        loop {
            let ticket = self.shared.link.bell().ticket();
            if self.shared.link.state() != State::Running {
                return;
            }
            self.prepare_scratch();
            match self.work() {
                Ok(true) => {}
                Ok(false) => self.idle(ticket),
                Err(corrupt) => {
                    tracing::error!(compute_unit = self.index, %corrupt, "the device is lost");
                    self.shared.mark_lost();
                }
            }
        }
    }

    /// Runs chunks until there are none; false if there was none at all.
    fn work(&mut self) -> Result<bool, Corrupt> {
        let mut worked = false;
        let mut left_behind = None;
        while let Some((queue, chunk)) = self.claim()? {
            // Wakes another unit: this one may have been the last that served the queue it leaves.
            if let Some(before) = left_behind.filter(|before| *before != queue) {
                self.shared.link.wake(before as u32, 1);
            }
            let outcome = self.execute(queue, &chunk);
            self.chunks.note(&outcome.record(self.index, QueueId(queue as u32), chunk.launch.record.launch));
            drop(chunk);
            left_behind = self.shared.finish(queue, &outcome)?.then_some(queue);
            worked = true;
            if self.shared.link.state() != State::Running {
                break;
            }
        }
        Ok(worked)
    }

    /// Takes the next chunk of the queues it serves.
    fn claim(&mut self) -> Result<Option<(usize, Chunk)>, Corrupt> {
        self.shared.link.refresh(self.index, &mut self.order);
        self.shared.claim(&self.order.queues, now_ns())
    }

    /// Grows the scratch memory for the largest loaded kernel. Called between chunks and after a
    /// load, so that no request pays for it.
    fn prepare_scratch(&mut self) {
        // A failure is reported when a chunk needs the memory.
        let _ = self.scratch.grow(self.shared.scratch_bytes.load(Relaxed));
    }

    /// Waits for the bell: spins for a while, then sleeps. While other units run blocks, the next
    /// launch is about a chunk away, and waking a sleeper would cost more than spinning.
    fn idle(&self, ticket: u32) {
        let bell = self.shared.link.bell();
        let start = Instant::now();
        loop {
            if bell.ticket() != ticket {
                return;
            }
            let is_busy = self.shared.running.load(Relaxed) > 0;
            let spin_ns = if is_busy { self.shared.busy_spin_ns } else { self.shared.spin_ns };
            if start.elapsed() >= Duration::from_nanos(spin_ns) {
                return bell.sleep(ticket);
            }
            std::hint::spin_loop();
        }
    }

    fn execute(&mut self, queue: usize, chunk: &Chunk) -> Outcome {
        let launch = &*chunk.launch;
        let started_ns = now_ns();
        self.shared.running.fetch_add(1, Relaxed);
        let has_scratch = self.scratch.grow(launch.kernel().facts.scratch_bytes).is_ok();
        let words = self.shared.link.unit(self.index);
        words.begin(Occupation::new(queue as u32, chunk.interruptible_from_ns == 0, chunk.block_ns));
        let end = if has_scratch { self.call(queue as u32, launch, chunk) } else { End::Failed };
        words.end();
        self.shared.running.fetch_sub(1, Relaxed);
        let given = chunk.blocks.clone();
        // Blocks without a progress byte: either they found the epoch raised, so the launch is
        // evicted and they have ended, or the kernel was stopped before them.
        let missing = launch.first_missing(given.start, given.end);
        let stopped_at = if missing < given.end && !launch.is_evicted() { missing } else { given.end };
        Outcome { given, stopped_at, end, started_ns, ended_ns: now_ns() }
    }

    /// Calls the kernel.
    fn call(&mut self, queue: u32, launch: &Launch, chunk: &Chunk) -> End {
        let kernel = launch.kernel();
        let stop_word = if launch.is_preemptible() { self.shared.link.stop_word(queue) } else { &NEVER_STOP };
        let watch = &self.shared.watches[self.index as usize];
        let words = self.shared.link.unit(self.index);
        let stops = Stops {
            halt_word: watch.halt_word(),
            stop_word,
            interruptible_from_ns: chunk.interruptible_from_ns,
            words,
        };
        let context = HostContext {
            version: HOST_ABI_VERSION,
            compute_unit: self.index,
            params: launch.params(),
            grid: launch.record.grid,
            block: kernel.facts.block,
            block_begin: chunk.blocks.start,
            block_end: chunk.blocks.end,
            shared: self.shared_memory.address(),
            shared_bytes: launch.record.shared_bytes,
            scratch_bytes: self.scratch.bytes() as u32,
            scratch: self.scratch.address(),
            stop_word: stop_word.as_ptr() as u64,
            helpers: &raw const self.shared.helpers as u64,
            block_word: 0,
            halt_word: watch.halt_word().as_ptr() as u64,
        };
        let mut unit = UnitContext::new(context, launch);
        unit.host.block_word = unit.block.as_ptr() as u64;
        let is_aborted = || self.shared.link.is_aborted(queue, launch.record.launch);
        watch.begin(queue, launch.record.launch, chunk.deadline_ns, chunk.interruptible_from_ns);
        if is_aborted() {
            watch.end();
            return End::Aborted;
        }
        // SAFETY: the context and all it points to outlive the call; params, shared and scratch
        // memory are as large as the kernel's facts require (checked by `Launch::bind`,
        // `Module::load` and `execute`); the engine guarantees that the addresses in the parameters
        // are valid for the kernel.
        let ended = unsafe {
            fault::call(kernel.entry, launch.module().code(), &stops, (&raw const unit).cast::<HostContext>())
        };
        let was_halted = watch.end();
        if was_halted && is_aborted() {
            // Other faults of an aborted launch are not reported.
            return End::Aborted;
        }
        let trap = unit.trap();
        if !was_halted && trap.is_none() && ended.is_err_and(|interruption| interruption.signal == HALT_SIGNAL) {
            return End::Interrupted;
        }
        let limits =
            Limits { time_ns: self.shared.time_limit_ns, is_ending: self.shared.link.state() != State::Running };
        let fault = match (ended, trap) {
            (Err(interruption), None) => diagnose::of_interruption(&unit, &interruption, limits),
            (_, Some(note)) => diagnose::of_trap(&unit, &note, limits),
            (Ok(()), None) => return End::Returned,
        };
        // Only logged for debugging: the report is what users see.
        tracing::debug!(launch = launch.record.launch.0, "{fault}");
        launch.draft.fail(fault);
        End::Failed
    }
}
