//! A compute unit: a thread that runs chunks of blocks, always of the most urgent queue that has some.

use super::arena::Arena;
use super::executor::Shared;
use super::fault::{self, Fault};
use super::launch::Launch;
use super::link::State;
use super::queue::{Chunk, Outcome};
use crate::ring::Corrupt;
use atoll_kgraph::host_abi::{HOST_ABI_VERSION, HostContext, HostHelpers};
use rustix::time::{ClockId, clock_gettime};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What kernels that must not be stopped poll.
static NEVER_STOP: AtomicU32 = AtomicU32::new(0);

/// What a compute unit hands to a kernel, with room behind it for what the helpers have to say.
#[repr(C)]
#[derive(Debug)]
struct UnitContext {
    host: HostContext,
    /// A [`TrapCode`](atoll_kgraph::host_abi::TrapCode), 0 while all is well.
    trap_code: AtomicU32,
    trap_line: AtomicU32,
}

/// The table of helpers, the same for all.
pub(crate) fn helpers() -> HostHelpers {
    HostHelpers { trap: trap as *const () as u64, print: print as *const () as u64, check: check as *const () as u64 }
}

/// [`HostHelpers::trap`].
///
/// # Safety
/// `context` is the one the running kernel was called with.
unsafe extern "C" fn trap(context: *const HostContext, code: u32, line: u32, _thread: u32, _access: u32, _address: u64) {
    // SAFETY: kernels get the address of the `host` field of a `UnitContext`, its first, and no other context; both words are atomic.
    let unit = unsafe { &*context.cast::<UnitContext>() };
    unit.trap_line.store(line, Relaxed);
    unit.trap_code.store(code.max(1), Relaxed);
}

/// [`HostHelpers::print`].
unsafe extern "C" fn print(_: *const HostContext, _format: u64, _arguments: u64, _arguments_bytes: u32, _line: u32, _thread: u32) -> i32 {
    -1
}

/// [`HostHelpers::check`].
unsafe extern "C" fn check(_: *const HostContext, _access: u32, _line: u32, _thread: u32, _address: u64, _local_bytes: u32) -> u32 {
    1
}

/// Monotonic nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// One compute unit, on its own thread.
#[derive(Debug)]
pub(crate) struct ComputeUnit<'a> {
    pub(crate) index: u32,
    pub(crate) shared: &'a Shared,
    pub(crate) shared_memory: Arena,
    pub(crate) scratch: Arena,
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
                    self.shared.lose();
                }
            }
        }
    }

    /// Runs chunks while there are any; false if there was none.
    fn work(&mut self) -> Result<bool, Corrupt> {
        let mut worked = false;
        let mut left_behind = None;
        while let Some((queue, chunk)) = self.shared.claim(now_ns())? {
            // Whoever leaves a queue for a more urgent one may be the last that looked at it.
            if left_behind.is_some_and(|before| before != queue) {
                self.shared.link.bell().ring(1);
            }
            let outcome = self.execute(queue, &chunk);
            drop(chunk);
            left_behind = self.shared.finish(queue, &outcome)?.then_some(queue);
            worked = true;
            if self.shared.link.state() != State::Running {
                break;
            }
        }
        Ok(worked)
    }

    /// Scratch memory for the largest kernel that is loaded; between chunks and after a load, so that no request pays for it.
    fn prepare_scratch(&mut self) {
        // A failure shows again, and is answered, when a chunk needs the memory.
        let _ = self.scratch.grow(self.shared.scratch_bytes.load(Relaxed));
    }

    /// Waits for the bell: spins for a moment, then sleeps. While others run blocks, the next launch is at most about a chunk away, and waking a sleeper would cost more than that
    /// moment is worth.
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
        let failed = self.scratch.grow(launch.kernel().facts.scratch_bytes).is_err() || !self.call(queue, launch, &chunk.blocks);
        self.shared.running.fetch_sub(1, Relaxed);
        let given = chunk.blocks.clone();
        // Blocks without a progress byte either found the epoch raised, then the launch is evicted and they are done with it, or the kernel was stopped in front of them.
        let missing = launch.first_missing(given.start, given.end);
        let stopped_at = if missing < given.end && !launch.is_evicted() { missing } else { given.end };
        Outcome { given, stopped_at, failed, started_ns, ended_ns: now_ns() }
    }

    /// Calls the kernel; false if it trapped or faulted.
    fn call(&mut self, queue: usize, launch: &Launch, blocks: &Range<u64>) -> bool {
        let kernel = launch.kernel();
        let stop_word = if launch.is_preemptible() { self.shared.link.stop_word(queue as u32) } else { &NEVER_STOP };
        let mut running = 0_u64;
        let context = UnitContext {
            host: HostContext {
                version: HOST_ABI_VERSION,
                compute_unit: self.index,
                params: launch.params(),
                grid: launch.record.grid,
                block: kernel.facts.block,
                block_begin: blocks.start,
                block_end: blocks.end,
                shared: self.shared_memory.address(),
                shared_bytes: launch.record.shared_bytes,
                scratch_bytes: self.scratch.bytes() as u32,
                scratch: self.scratch.address(),
                stop_word: stop_word.as_ptr() as u64,
                helpers: &raw const self.shared.helpers as u64,
                block_word: &raw mut running as u64,
                halt_word: NEVER_STOP.as_ptr() as u64,
            },
            trap_code: AtomicU32::new(0),
            trap_line: AtomicU32::new(0),
        };
        // SAFETY: the context and all it points to live across the call; params, shared and scratch memory are as large as the kernel's facts say (checked by `Launch::bind`,
        // `Module::load` and `execute`); that addresses in the parameters are good for the kernel is the engine's promise.
        let ended = unsafe { fault::call(kernel.entry, (&raw const context).cast::<HostContext>()) };
        if let Err(Fault { signal, address }) = ended {
            tracing::error!(launch = launch.record.launch.0, kernel = kernel.facts.name, signal, address, "the kernel faulted");
            return false;
        }
        let code = context.trap_code.load(Relaxed);
        if code != 0 {
            let line = context.trap_line.load(Relaxed);
            tracing::error!(launch = launch.record.launch.0, kernel = kernel.facts.name, code, line, "the kernel trapped");
        }
        code == 0
    }
}
