//! The part of a session that is on a device: its memory, its function and its kernels. It moves to
//! another device as a whole, while the session is suspended.

use super::code::SessionCode;
use super::counts::Counts;
use crate::identity::Principal;
use crate::limits::{CUDA_RESUME_INTERVAL, CUDA_RESUME_TIME, CUDA_SUSPEND_TIME};
use crate::running::Running;
use atoll_engine::{
    Class, DeviceId, EngineError, FlushRequest, FlushWork, InvocationResult, InvokeError, SessionId, ShareClient,
    SuspendError,
};
use atoll_fleet::Inference;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often a session that waits for a task checks whether its client is still there.
const CLIENT_INTERVAL: Duration = Duration::from_millis(20);

/// Pause before a session that waits for memory tries other devices again.
const OTHERS_INTERVAL: Duration = Duration::from_secs(1);

/// The part of a session that is on a device.
pub(super) struct Live {
    pub(super) engine: Arc<dyn Inference>,
    pub(super) principal: Principal,
    pub(super) running: Arc<Running>,
    pub(super) counts: Arc<Counts>,
    /// Dropped after the session is closed.
    pub(super) code: SessionCode,
    pub(super) session: SessionId,
    /// The number of `session`, for others.
    pub(super) at: Arc<AtomicU64>,
    pub(super) class: Class,
    /// Its own share, if it has one.
    pub(super) share: Option<ShareClient>,
    /// The client's socket, to notice that the client is gone.
    pub(super) client: OwnedFd,
}

/// Why work of a program did not run, or not to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// No device has memory for the session. It stays suspended, and the work did not begin.
    #[error("no device has memory for the session, which stays suspended: {0}")]
    NoMemory(InvokeError),
    #[error(transparent)]
    Task(#[from] InvokeError),
}

/// Why a session is not suspended, resumed or moved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LiveError {
    #[error("there is no such session")]
    Gone,
    #[error("the running work of the session has not ended within {} s", CUDA_SUSPEND_TIME.as_secs())]
    Busy,
    #[error("{to} is of another kind than {from}; a session moves only to a device of the same kind")]
    OtherKind { from: String, to: String },
    #[error("a session on {0} does not move: other GPUs have other addresses")]
    OnGpu(String),
    #[error("{0} is drained or lost")]
    NotReady(String),
    #[error(transparent)]
    Suspend(#[from] SuspendError),
    #[error("the session stays where it is: its code cannot be loaded there: {0}")]
    Code(#[from] EngineError),
    #[error("the session stays where it is: {0} has no room for its share")]
    Share(String),
    #[error("the session stays where it is: {0}")]
    Refused(InvokeError),
    #[error("the session is lost: {0}")]
    Lost(InvokeError),
    #[error("the session is lost: its code cannot be loaded again: {0}")]
    NoCode(EngineError),
    #[error("the session stays suspended: {0}")]
    Memory(InvokeError),
}

impl Live {
    fn device(&self) -> DeviceId {
        DeviceId::of_id(self.session.0)
    }

    /// Runs work of the program. If the session is suspended, it is resumed first: on its device, or
    /// on another one of the same kind if its device has no memory for it.
    pub(super) fn run(&mut self, work: Vec<FlushWork>) -> Result<InvocationResult, CallError> {
        let is_away = self.engine.hold_session(self.session);
        let resumed = if is_away { self.resume() } else { Ok(()) };
        // The flush that brought it back has ended the hold. If it was suspended since, the engine
        // brings it back for the work.
        self.engine.hold_session(self.session);
        let answer = resumed.and_then(|()| self.submit(work).map_err(CallError::Task));
        self.engine.release_session(self.session);
        answer
    }

    /// Waits until the session is on a device.
    fn resume(&mut self) -> Result<(), CallError> {
        let begin = Instant::now();
        let mut others_at = begin;
        loop {
            let error = match self.touch() {
                Ok(()) => return Ok(()),
                Err(error) if !self.lacks_memory(&error) => return Err(error.into()),
                Err(error) => error,
            };
            if others_at <= Instant::now() {
                others_at = Instant::now() + OTHERS_INTERVAL;
                if self.resume_elsewhere() {
                    return Ok(());
                }
            }
            if begin.elapsed() >= CUDA_RESUME_TIME || self.is_client_gone() {
                return Err(CallError::NoMemory(error));
            }
            std::thread::sleep(CUDA_RESUME_INTERVAL);
        }
    }

    /// Resumes the session on another device. Returns whether one has memory for it.
    fn resume_elsewhere(&mut self) -> bool {
        self.others().into_iter().any(|device| {
            let moved = self.move_to(device);
            // The session is another one now, also if it came back.
            self.engine.hold_session(self.session);
            match moved {
                Ok(()) => self.touch().is_ok(),
                Err(error) => {
                    tracing::debug!(session = %self.code.base, %error, "a CUDA session does not move");
                    false
                }
            }
        })
    }

    /// The other devices of the same kind that take work.
    fn others(&self) -> Vec<DeviceId> {
        let devices = (0..self.engine.devices().len()).map(|at| DeviceId(at as u16));
        devices.filter(|device| *device != self.device() && self.check_device(*device).is_ok()).collect()
    }

    /// Returns an error unless the session can move to a device.
    fn check_device(&self, device: DeviceId) -> Result<(), LiveError> {
        let (traits, status) = (self.engine.traits(), self.engine.devices_state());
        let name = |device: DeviceId| self.engine.devices().get(usize::from(device.0)).cloned().unwrap_or_default();
        let kind = |device: DeviceId| traits.get(usize::from(device.0)).map(|traits| &traits.kind);
        if kind(device) != kind(self.device()) {
            return Err(LiveError::OtherKind { from: name(self.device()), to: name(device) });
        }
        if traits.get(usize::from(self.device().0)).is_some_and(|traits| traits.capability.is_some()) {
            return Err(LiveError::OnGpu(name(self.device())));
        }
        let state = status.devices.get(usize::from(device.0)).copied().unwrap_or_default();
        if state.is_drained || state.is_lost { Err(LiveError::NotReady(name(device))) } else { Ok(()) }
    }

    /// Whether a flush failed because the device has no memory for the session.
    fn lacks_memory(&self, error: &InvokeError) -> bool {
        match error {
            InvokeError::OutOfMemory { .. } | InvokeError::OverQuota { .. } | InvokeError::Unavailable(_) => true,
            InvokeError::Device(_) | InvokeError::DeviceLost(_) => {
                let status = self.engine.devices_state();
                status.devices.get(usize::from(self.device().0)).is_some_and(|state| state.is_lost)
            }
            _ => false,
        }
    }

    /// Brings the session to a device, by default the one that it is or was on.
    pub(super) fn resume_on(&mut self, device: Option<DeviceId>) -> Result<(), LiveError> {
        if let Some(device) = device.filter(|device| *device != self.device()) {
            self.check_device(device)?;
            self.engine.suspend_session(self.session, CUDA_SUSPEND_TIME)?;
            self.move_to(device)?;
        }
        self.touch().map_err(|error| match error {
            InvokeError::NoSession | InvokeError::SessionLost => LiveError::Lost(error),
            error => LiveError::Memory(error),
        })
    }

    /// Moves the suspended session to another device, where it is suspended, too. If that device
    /// refuses it, it stays where it was.
    fn move_to(&mut self, device: DeviceId) -> Result<(), LiveError> {
        let name = self.engine.devices().get(usize::from(device.0)).cloned().ok_or(LiveError::Gone)?;
        let contents = self.engine.take_suspended(self.session)?;
        let from = self.code.device.clone();
        let moved = self.code.move_to(&name).map_err(LiveError::from).and_then(|()| self.check_share(&name));
        let (refused, contents) = match moved {
            Ok(()) => match self.engine.open_suspended(&self.code.base, contents) {
                Ok(session) => {
                    self.become_session(session);
                    self.counts.moves.fetch_add(1, Relaxed);
                    tracing::info!(session = %self.code.base, from, to = name, "a CUDA session moves");
                    return Ok(());
                }
                Err(failed) => {
                    let (error, contents) = *failed;
                    (LiveError::Refused(error), contents)
                }
            },
            Err(error) => (error, contents),
        };
        self.code.move_to(&from).map_err(LiveError::NoCode)?;
        let back = self.engine.open_suspended(&self.code.base, contents);
        self.become_session(back.map_err(|failed| {
            let (error, _) = *failed;
            LiveError::Lost(error)
        })?);
        Err(refused)
    }

    /// Continues as another session of an engine.
    fn become_session(&mut self, session: SessionId) {
        self.session = session;
        self.at.store(session.0, Relaxed);
    }

    /// Returns an error if the device did not accept the session's share when the code was loaded.
    fn check_share(&self, name: &str) -> Result<(), LiveError> {
        match &self.share {
            Some(share) if !self.engine.holds_share(share) => Err(LiveError::Share(name.to_owned())),
            _ => Ok(()),
        }
    }

    /// Runs a flush without effect, which brings the session to its device.
    fn touch(&self) -> Result<(), InvokeError> {
        self.submit(vec![FlushWork::Fill { to: 0, pattern: [0; 8], bytes: 0 }]).map(drop)
    }

    /// Runs work, and waits for it.
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
    pub(super) fn is_client_gone(&self) -> bool {
        let mut polled = [PollFd::new(&self.client, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().intersects(gone)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.engine.close_session(self.session);
        if let Some(share) = &self.share {
            self.engine.remove_share(share);
        }
    }
}
