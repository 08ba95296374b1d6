//! Runs the calls of a session on the engine. Calls are collected, and run as one task when the
//! message ends, when the program reads data, or when there are many. All streams share one order,
//! that of the calls.

use super::code::{Module, SessionCode};
use super::counts::{Counts, TenantSession};
use super::errors::of_calls;
use super::facts;
use crate::identity::Principal;
use crate::limits::{CUDA_FLUSH_BLOCKS_MAX, CUDA_FLUSH_BYTES_MAX, CUDA_FLUSH_CALLS_MAX, CUDA_VARIABLES_BYTES};
use crate::running::Running;
use atoll_engine::limits::FLUSH_BLOCKS_MAX;
use atoll_engine::{Class, FlushRequest, FlushWork, InvocationResult, InvokeError, SessionId, ShareClient};
use atoll_fleet::Inference;
use atoll_session::limits::IMAGE_ASK_BYTES;
use atoll_session::{Backend, Code, KernelFacts, Launch, LoadFailure, Span};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often a session that waits for a task checks whether its client is still there.
const CLIENT_INTERVAL: Duration = Duration::from_millis(20);

/// A session of a program.
pub(super) struct EngineBackend {
    pub(super) engine: Arc<dyn Inference>,
    pub(super) principal: Principal,
    pub(super) running: Arc<Running>,
    pub(super) counts: Arc<Counts>,
    /// Dropped after the session is closed.
    pub(super) code: SessionCode,
    pub(super) session: SessionId,
    /// Its memory, at the addresses that kernels see. The memory for variables of modules follows
    /// it.
    pub(super) memory: Span,
    pub(super) class: Class,
    /// Its own share, if it has one.
    pub(super) share: Option<ShareClient>,
    /// The client's socket, to notice that the client is gone.
    pub(super) client: OwnedFd,
    /// The calls that have not run.
    pub(super) work: Collected,
    /// The error that every later call returns.
    pub(super) broken: Option<Code>,
    /// An error that no call has returned yet.
    pub(super) late: Option<Code>,
    /// Its place among the sessions of its tenant.
    pub(super) _seat: TenantSession,
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
        let answer = self.submit(calls);
        answer.map(|result| result.outputs.into_iter().map(|output| output.bytes).collect()).map_err(|error| {
            let code = of_calls(&error, self.code.has_traps);
            tracing::warn!(session = %self.code.base, %error, %code, "calls of a CUDA session failed");
            let is_over = matches!(code, Code::DEVICE_UNAVAILABLE);
            self.broken = (code.is_sticky() || is_over).then_some(code);
            code
        })
    }

    pub(super) fn submit(&self, work: Vec<FlushWork>) -> Result<InvocationResult, InvokeError> {
        let permit = self.running.admit(&self.principal, 1).map_err(|denial| {
            tracing::warn!(session = %self.code.base, %denial, "calls of a CUDA session were refused");
            let capacity = usize::try_from(self.principal.limits.invocations).unwrap_or(usize::MAX);
            InvokeError::QueueFull { capacity }
        })?;
        let (sender, answered) = mpsc::sync_channel(1);
        let reply = Box::new(move |result| {
            // Before the answer, so that its receiver finds the permit released.
            drop(permit);
            let _ = sender.send(result);
        });
        let instance = self.share.as_ref().and_then(|share| share.instance.clone());
        let request = FlushRequest { work, class: Some(self.class), priority: 0, instance };
        let id = self.engine.submit_flush(self.session, request, reply);
        let mut is_cancelled = false;
        loop {
            match answered.recv_timeout(CLIENT_INTERVAL) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Timeout) if !is_cancelled && self.is_client_gone() => {
                    self.engine.cancel(id);
                    is_cancelled = true;
                }
                Err(RecvTimeoutError::Timeout) => {}
                // Engines always answer.
                Err(RecvTimeoutError::Disconnected) => return Err(InvokeError::ShuttingDown),
            }
        }
    }

    /// Whether the client has closed the connection or died. A client of a session never closes one
    /// direction only.
    fn is_client_gone(&self) -> bool {
        let mut polled = [PollFd::new(&self.client, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().intersects(gone)
    }
}

impl Drop for EngineBackend {
    fn drop(&mut self) {
        self.engine.close_session(self.session);
        if let Some(share) = &self.share {
            self.engine.remove_share(share);
        }
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
        let (module, contents) = self.code.module(image)?;
        for (at, bytes) in contents {
            if let Err(code) = self.copy_in(None, at, &bytes) {
                self.code.unload(&module);
                return Err(LoadFailure { code, log: String::new() });
            }
        }
        Ok(Rc::new(module))
    }

    fn kept_image(&mut self, digest: &[u8; 32]) -> Option<Arc<[u8]>> {
        self.code.warm.image(&self.code.base.tenant, digest)
    }

    fn keep_image(&mut self, digest: [u8; 32], image: &Arc<[u8]>) {
        // A client sends a smaller one without asking for it.
        if image.len() >= IMAGE_ASK_BYTES {
            self.code.warm.keep_image(&self.code.base.tenant, digest, image);
        }
    }

    fn unload(&mut self, module: &Rc<Module>) {
        // Collected launches may need its kernels.
        if let Err(code) = self.run() {
            self.late.get_or_insert(code);
        }
        self.code.unload(module);
    }

    fn kernel(&mut self, module: &Rc<Module>, name: &str) -> Result<(Kernel, KernelFacts), Code> {
        let index = module.kernels().iter().position(|kernel| kernel.name == name).ok_or(Code::NOT_FOUND)?;
        let dynamic_shared_bytes_max = Cell::new(facts::SHARED_BYTES_DEFAULT);
        let facts = facts::of_kernel(&module.kernels()[index]);
        Ok((Kernel { module: module.clone(), index, dynamic_shared_bytes_max }, facts))
    }

    fn variable(&mut self, module: &Rc<Module>, name: &str) -> Result<Span, Code> {
        module.variable(name).ok_or(Code::NOT_FOUND)
    }

    fn set_attribute(&mut self, kernel: &Kernel, attribute: i32, value: i32) -> Result<(), Code> {
        if attribute == MAX_DYNAMIC_SHARED {
            let bytes = u32::try_from(value).ok().filter(|bytes| *bytes <= facts::SHARED_BYTES_MAX);
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
        if shared_bytes > shared_max || described.shared_bytes.saturating_add(shared_bytes) > facts::SHARED_BYTES_MAX {
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
        let function = self.code.function(&kernel.module, (&described.name, block, shared_bytes))?;
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
