//! Flushes of CUDA sessions: the calls that a program has recorded, as one invocation.
//!
//! A session has memory of its own and a function that is billed ([`EngineHandle::open_memory`]).
//! The kernels of the program are loaded as functions of the same tenant, one for each kernel and
//! launch shape. A flush is a step of the session: its launches run in order, are preempted like
//! those of any invocation, and access the session's memory by the addresses in their parameters.

use crate::binding::{Binding, FenceRanges, Piece};
use crate::chain::Chain;
use crate::clock;
use crate::config::FunctionKey;
use crate::error::InvokeError;
use crate::event::{Command, Submission};
use crate::function::Function;
use crate::handle::EngineHandle;
use crate::request::{InvocationId, PendingReply, Reply};
use crate::session::{Session, SessionId};
use atoll_core::Class;
use atoll_core::limits::TASK_STEPS_MAX;
use std::sync::Arc;

/// The work of a flush.
#[derive(Clone, Debug, Default)]
pub struct FlushRequest {
    /// What to do, in order; at most [`TASK_STEPS_MAX`] pieces.
    pub work: Vec<FlushWork>,
    /// The class; that of the session's function if `None`.
    pub class: Option<Class>,
    /// As [`crate::InvocationRequest::priority`].
    pub priority: u32,
    /// As [`crate::InvocationRequest::instance`].
    pub instance: Option<String>,
}

/// One piece of work. Offsets are in bytes from the start of the session's memory.
#[derive(Clone, Debug)]
pub enum FlushWork {
    /// A launch.
    Launch {
        /// The function that has the kernel, and only this kernel.
        function: FunctionKey,
        /// Blocks in x, y and z.
        grid: [u32; 3],
        /// The kernel's own parameters, with addresses as the kernel sees them.
        params: Vec<u8>,
    },
    /// A copy to the device.
    CopyIn {
        /// Destination.
        to: u64,
        /// The data.
        bytes: Vec<u8>,
    },
    /// A copy from the device: the next output of the result.
    CopyOut {
        /// Source.
        from: u64,
        /// Length.
        bytes: u64,
    },
    /// A copy on the device.
    Copy {
        /// Source.
        from: u64,
        /// Destination.
        to: u64,
        /// Length.
        bytes: u64,
    },
    /// A fill.
    Fill {
        /// Destination.
        to: u64,
        /// The bytes that are repeated.
        pattern: [u8; 8],
        /// Length.
        bytes: u64,
    },
}

impl EngineHandle {
    /// Opens a CUDA session. Its flushes are billed to `function`, which must be loaded. The
    /// session has `bytes` bytes of device memory from its first flush until it is closed.
    ///
    /// # Errors
    /// If there is no such function, or its tenant has too many sessions.
    pub fn open_memory(&self, function: &FunctionKey, bytes: u64) -> Result<SessionId, InvokeError> {
        let function = self.shared.find(function).ok_or(InvokeError::UnknownFunction)?;
        let id = SessionId(self.shared.next_id());
        self.shared.sessions.open_memory(id, function, bytes)?;
        Ok(id)
    }

    /// The address at which kernels see the first byte of a session's memory. `None` before the
    /// session's first flush, and on devices that do not know it.
    pub fn memory_address(&self, session: SessionId) -> Option<u64> {
        self.ask(|answer| Command::SessionAddress { session, answer }).flatten()
    }

    /// Runs the next flush of a CUDA session. The result has one output for each
    /// [`FlushWork::CopyOut`]. A flush that fails may have run in part.
    pub fn submit_flush(&self, session: SessionId, request: FlushRequest, reply: Reply) -> InvocationId {
        let id = InvocationId(self.shared.next_id());
        let found = self.shared.sessions.find(session).filter(|session| session.memory_bytes.is_some());
        let begun = found.ok_or(InvokeError::NoSession).and_then(|session| {
            let step = session.begin()?;
            Ok((session, step))
        });
        match begun {
            Ok((session, step)) => {
                let reply = PendingReply::to_step(reply, step);
                match self.prepare_flush(id, &session, request) {
                    Ok(submission) => self.pass_on(submission, reply),
                    Err(error) => reply.send(Err(error)),
                }
            }
            Err(error) => reply(Err(error)),
        }
        id
    }

    /// Checks and binds a flush, as far as that is possible without the device.
    fn prepare_flush(
        &self,
        id: InvocationId,
        session: &Arc<Session>,
        request: FlushRequest,
    ) -> Result<Submission, InvokeError> {
        if self.is_closed() {
            return Err(InvokeError::ShuttingDown);
        }
        let bad = |reason: String| InvokeError::BadInput(reason);
        if request.work.len() > TASK_STEPS_MAX {
            return Err(bad(format!("a flush has at most {TASK_STEPS_MAX} pieces of work")));
        }
        let FlushRequest { work, class, priority, instance } = request;
        let tenant = &session.function.key.tenant;
        let mut code: Vec<Option<Arc<Function>>> = Vec::with_capacity(work.len());
        for piece in &work {
            let FlushWork::Launch { function, .. } = piece else {
                code.push(None);
                continue;
            };
            let last = code.iter().rev().flatten().find(|last| last.key == *function).cloned();
            let found = last.or_else(|| self.shared.find(function)).filter(|found| found.key.tenant == *tenant);
            code.push(Some(found.ok_or(InvokeError::UnknownFunction)?));
        }
        let pieces: Vec<Piece<'_>> = work.iter().zip(&code).filter_map(piece).collect();
        let ranges = FenceRanges::of(&self.shared.device);
        let binding = Binding::of_flush(ranges, session.memory_bytes.unwrap_or(0), &pieces).map_err(bad)?;
        let class = class.unwrap_or(session.function.class);
        let slot = session.function.enqueue(class)?;
        let inputs = work.into_iter().filter_map(|piece| match piece {
            FlushWork::CopyIn { bytes, .. } => Some(bytes),
            _ => None,
        });
        let chain = Chain::of_flush(Arc::clone(&session.function), slot, binding, inputs.collect());
        Ok(Submission {
            id,
            chain,
            instance,
            class,
            priority,
            submitted: clock::now(),
            deadline: None,
            times_launches: false,
            session: Some(Arc::clone(session)),
            retries: 0,
            may_move: false,
            gathers: false,
            due: None,
        })
    }
}

fn piece<'a>((work, code): (&'a FlushWork, &'a Option<Arc<Function>>)) -> Option<Piece<'a>> {
    Some(match *work {
        FlushWork::Launch { grid, ref params, .. } => {
            let function = code.as_ref()?;
            Piece::Launch { code: function.id, kernel: function.image().kernels.first()?, grid, params }
        }
        FlushWork::CopyIn { to, ref bytes } => Piece::CopyIn { to, bytes: bytes.len() as u64 },
        FlushWork::CopyOut { from, bytes } => Piece::CopyOut { from, bytes },
        FlushWork::Copy { from, to, bytes } => Piece::Copy { from, to, bytes },
        FlushWork::Fill { to, pattern, bytes } => Piece::Fill { to, pattern, bytes },
    })
}
