//! Runs the calls of a session on the engine. Calls are collected, and run as one task when the
//! message ends, when the program reads data, or when there are many. All streams share one order,
//! that of the calls.

use super::code::Module;
use super::counts::{Counts, TenantSession};
use super::errors::of_calls;
use super::facts::{self, Limits};
use super::live::CallError;
use super::registry::{Entry, Registry};
use crate::limits::{CUDA_FLUSH_BLOCKS_MAX, CUDA_FLUSH_BYTES_MAX, CUDA_FLUSH_CALLS_MAX, CUDA_VARIABLES_BYTES};
use atoll_engine::limits::FLUSH_BLOCKS_MAX;
use atoll_engine::{FlushWork, FunctionKey};
use atoll_session::limits::IMAGE_ASK_BYTES;
use atoll_session::{Backend, Code, KernelFacts, KnownShape, Launch, LoadFailure, Offer, Span, StoredCounts};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// A session of a program.
pub(super) struct EngineBackend {
    pub(super) counts: Arc<Counts>,
    pub(super) registry: Arc<Registry>,
    /// The session for others, with the part of it that is on a device.
    pub(super) entry: Arc<Entry>,
    /// Its function.
    pub(super) base: FunctionKey,
    /// Its memory, at the addresses that kernels see. The memory for variables of modules follows
    /// it. The addresses stay the same if the session moves.
    pub(super) memory: Span,
    /// The calls that have not run.
    pub(super) work: Collected,
    /// The error that every later call returns.
    pub(super) broken: Option<Code>,
    /// An error that no call has returned yet.
    pub(super) late: Option<Code>,
    /// Its place among the sessions of its tenant.
    pub(super) seat: TenantSession,
    /// What launches on its device may have.
    pub(super) limits: Limits,
}

/// Collected calls.
#[derive(Debug, Default)]
pub(super) struct Collected {
    calls: Vec<FlushWork>,
    bytes: usize,
    blocks: u64,
    launches: u64,
}

/// An event. A timed one is recorded after the work before it has run.
#[derive(Debug)]
pub(super) struct Event {
    recorded: Cell<Option<Instant>>,
    is_timed: bool,
}

/// A kernel with the dynamic shared memory that its launches may have.
#[derive(Debug)]
pub(super) struct Kernel {
    module: Rc<Module>,
    index: usize,
    dynamic_shared_bytes_max: Cell<u32>,
}

/// `CU_EVENT_DISABLE_TIMING`
const DISABLE_TIMING: u32 = 2;

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
const MAX_DYNAMIC_SHARED: i32 = 8;

impl EngineBackend {
    /// The offset of an address in the session's memory. The caller has checked the range.
    fn offset(&self, at: u64) -> Result<u64, Code> {
        let bytes = self.memory.bytes + CUDA_VARIABLES_BYTES;
        at.checked_sub(self.memory.at).filter(|offset| *offset <= bytes).ok_or(Code::INVALID_VALUE)
    }

    fn collect(&mut self, call: FlushWork) -> Result<(), Code> {
        self.broken.map_or(Ok(()), Err)?;
        let is_full = self.work.bytes >= CUDA_FLUSH_BYTES_MAX
            || self.work.calls.len() >= CUDA_FLUSH_CALLS_MAX
            || self.work.blocks >= CUDA_FLUSH_BLOCKS_MAX;
        if is_full {
            self.run()?;
        }
        self.work.bytes += match &call {
            FlushWork::Launch { params, .. } => params.len(),
            FlushWork::CopyIn { bytes, .. } => bytes.len(),
            FlushWork::CopyOut { bytes, .. } => *bytes as usize,
            FlushWork::Copy { .. } | FlushWork::Fill { .. } => 0,
        };
        if let FlushWork::Launch { grid, .. } = &call {
            self.work.launches += 1;
            self.work.blocks += grid.iter().map(|size| u64::from(*size)).fold(1, u64::saturating_mul);
        }
        self.work.calls.push(call);
        Ok(())
    }

    /// Runs the collected calls as one task, and waits for it. Returns the data of copies to the
    /// client.
    pub(super) fn run(&mut self) -> Result<Vec<Vec<u8>>, Code> {
        self.broken.map_or(Ok(()), Err)?;
        let Collected { calls, launches, .. } = std::mem::take(&mut self.work);
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        self.counts.flushes.fetch_add(1, Relaxed);
        self.counts.launches.fetch_add(launches, Relaxed);
        let (answer, has_traps) = self.entry.with(|live| (live.run(calls), live.code.has_traps));
        answer.map(|result| result.outputs.into_iter().map(|output| output.bytes).collect()).map_err(|error| {
            let code = match &error {
                CallError::NoMemory(_) => Code::OUT_OF_MEMORY,
                CallError::Task(error) => of_calls(error, has_traps),
            };
            tracing::warn!(session = %self.base, %error, %code, "calls of a CUDA session failed");
            let is_over = matches!(code, Code::DEVICE_UNAVAILABLE);
            self.broken = (code.is_sticky() || is_over).then_some(code);
            code
        })
    }
}

impl Drop for EngineBackend {
    fn drop(&mut self) {
        let stored = self.entry.stored();
        self.observe_stored(StoredCounts { functions: 0, bytes: 0, ..stored });
        self.registry.end(&self.entry);
        self.counts.memory_bytes.fetch_sub(self.memory.bytes, Relaxed);
    }
}

impl Backend for EngineBackend {
    type Stream = ();
    type Event = Event;
    type Module = Rc<Module>;
    type Kernel = Kernel;

    fn stream(&mut self, _flags: u32, _priority: i32) -> Result<(), Code> {
        Ok(())
    }

    fn event(&mut self, flags: u32) -> Result<Event, Code> {
        Ok(Event { recorded: Cell::new(None), is_timed: flags & DISABLE_TIMING == 0 })
    }

    fn load(&mut self, image: &[u8]) -> Result<Rc<Module>, LoadFailure> {
        let (module, contents) = self.entry.with(|live| live.code.module(image))?;
        for (at, bytes) in contents {
            if let Err(code) = self.copy_in(None, at, &bytes) {
                self.entry.with(|live| live.code.unload(&module));
                return Err(LoadFailure { code, log: String::new() });
            }
        }
        Ok(Rc::new(module))
    }

    fn kept_image(&mut self, digest: &[u8; 32]) -> Option<Arc<[u8]>> {
        self.entry.with(|live| live.code.warm.image(&live.code.base.tenant, digest))
    }

    fn keep_image(&mut self, digest: [u8; 32], image: &Arc<[u8]>) {
        // A client sends a smaller one without asking for it.
        if image.len() >= IMAGE_ASK_BYTES {
            self.entry.with(|live| live.code.warm.keep_image(&live.code.base.tenant, digest, image));
        }
    }

    fn offer(&mut self) -> Offer {
        // They count as the functions that the tenant has deployed do.
        let (left, shapes) = self.entry.with(|live| {
            let left = live.principal.limits.functions.saturating_sub(live.code.deployed());
            (left, live.code.warm.shapes(&live.code.base.tenant))
        });
        let (functions, bytes) = self.seat.allow_stored(left);
        Offer { functions, bytes, shapes }
    }

    fn keep_shape(&mut self, shape: KnownShape) {
        self.entry.with(|live| live.code.warm.keep_shape(&live.code.base.tenant, shape));
    }

    fn is_client_gone(&mut self) -> bool {
        self.entry.with(|live| live.is_client_gone())
    }

    fn observe_stored(&mut self, counts: StoredCounts) {
        let before = self.entry.set_stored(counts);
        self.counts.note_stored(before, counts);
        // The program's own log has the others.
        if before.differences == 0 && counts.differences > 0 {
            tracing::info!(session = %self.base, "a run of a CUDA program differs from a stored function");
        }
    }

    fn unload(&mut self, module: &Rc<Module>) {
        // Collected launches may need its kernels.
        if let Err(code) = self.run() {
            self.late.get_or_insert(code);
        }
        self.entry.with(|live| live.code.unload(module));
    }

    fn kernel(&mut self, module: &Rc<Module>, name: &str) -> Result<(Kernel, KernelFacts), Code> {
        let index = module.kernels().iter().position(|kernel| kernel.name == name).ok_or(Code::NOT_FOUND)?;
        let dynamic_shared_bytes_max = Cell::new(facts::SHARED_BYTES_DEFAULT);
        let facts = facts::of_kernel(&module.kernels()[index], self.limits.capability);
        Ok((Kernel { module: module.clone(), index, dynamic_shared_bytes_max }, facts))
    }

    fn variable(&mut self, module: &Rc<Module>, name: &str) -> Result<Span, Code> {
        module.variable(name).ok_or(Code::NOT_FOUND)
    }

    fn set_attribute(&mut self, kernel: &Kernel, attribute: i32, value: i32) -> Result<(), Code> {
        if attribute == MAX_DYNAMIC_SHARED {
            let bytes = u32::try_from(value).ok().filter(|bytes| *bytes <= self.limits.shared_bytes_max);
            kernel.dynamic_shared_bytes_max.set(bytes.ok_or(Code::INVALID_VALUE)?);
        }
        Ok(())
    }

    fn copy_in(&mut self, _stream: Option<&()>, to: u64, bytes: &[u8]) -> Result<(), Code> {
        let to = self.offset(to)?;
        self.collect(FlushWork::CopyIn { to, bytes: bytes.to_vec() })
    }

    fn copy_out(&mut self, _stream: Option<&()>, from: u64, bytes: &mut [u8]) -> Result<(), Code> {
        let from = self.offset(from)?;
        self.collect(FlushWork::CopyOut { from, bytes: bytes.len() as u64 })?;
        let found = self.run()?.pop().filter(|found| found.len() == bytes.len()).ok_or(Code::UNKNOWN)?;
        bytes.copy_from_slice(&found);
        Ok(())
    }

    fn copy_within(&mut self, _stream: Option<&()>, to: u64, from: u64, bytes: u64) -> Result<(), Code> {
        let (from, to) = (self.offset(from)?, self.offset(to)?);
        self.collect(FlushWork::Copy { from, to, bytes })
    }

    fn fill(&mut self, _stream: Option<&()>, to: u64, value: u32, size: u32, count: u64) -> Result<(), Code> {
        let bytes = count.checked_mul(size.into()).ok_or(Code::INVALID_VALUE)?;
        let element = value.to_le_bytes();
        let pattern = std::array::from_fn(|at| element[at % size.clamp(1, 4) as usize]);
        let to = self.offset(to)?;
        self.collect(FlushWork::Fill { to, pattern, bytes })
    }

    fn launch(&mut self, _stream: Option<&()>, kernel: &Kernel, launch: Launch<'_>) -> Result<(), Code> {
        self.broken.map_or(Ok(()), Err)?;
        let Launch { grid, block, shared_bytes, is_cooperative, params } = launch;
        let described = &kernel.module.kernels()[kernel.index];
        let threads = block.iter().try_fold(1_u32, |threads, size| threads.checked_mul(*size));
        if threads.is_none_or(|threads| threads > described.threads_max) {
            return Err(Code::LAUNCH_OUT_OF_RESOURCES);
        }
        let shared_max = kernel.dynamic_shared_bytes_max.get();
        let all_shared = described.shared_bytes.saturating_add(shared_bytes);
        if shared_bytes > shared_max || all_shared > self.limits.shared_bytes_max {
            return Err(Code::INVALID_VALUE);
        }
        let blocks = grid.iter().map(|size| u64::from(*size)).fold(1, u64::saturating_mul);
        if blocks == 0 || blocks > FLUSH_BLOCKS_MAX {
            return Err(Code::INVALID_VALUE);
        }
        // Its blocks would have to run at the same time, and could not be preempted.
        if is_cooperative {
            return Err(Code::NOT_SUPPORTED);
        }
        let shape = (described.name.as_str(), block, shared_bytes);
        let function = self.entry.with(|live| live.code.function(&kernel.module, shape))?;
        self.collect(FlushWork::Launch { function, grid, params: params.to_vec() })
    }

    fn record(&mut self, event: &Event, _stream: Option<&()>) -> Result<(), Code> {
        if event.is_timed {
            self.run()?;
        }
        event.recorded.set(Some(Instant::now()));
        Ok(())
    }

    fn wait(&mut self, _stream: Option<&()>, _event: &Event) -> Result<(), Code> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Code> {
        let ran = if self.work.calls.is_empty() { Ok(()) } else { self.run().map(drop) };
        self.late.take().map_or(ran, Err)
    }

    fn synchronize(&mut self) -> Result<(), Code> {
        self.run().map(drop)
    }

    fn synchronize_stream(&mut self, _stream: Option<&()>) -> Result<(), Code> {
        self.synchronize()
    }

    fn synchronize_event(&mut self, _event: &Event) -> Result<(), Code> {
        self.synchronize()
    }

    fn query_stream(&mut self, _stream: Option<&()>) -> Result<(), Code> {
        self.synchronize()
    }

    fn query_event(&mut self, _event: &Event) -> Result<(), Code> {
        self.synchronize()
    }

    fn elapsed(&mut self, start: &Event, end: &Event) -> Result<f32, Code> {
        self.synchronize()?;
        if !start.is_timed || !end.is_timed {
            return Err(Code::INVALID_HANDLE);
        }
        let (start, end) = start.recorded.get().zip(end.recorded.get()).ok_or(Code::INVALID_HANDLE)?;
        let between = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f32() * 1e3;
        Ok(between(start, end) - between(end, start))
    }
}
