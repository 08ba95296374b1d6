//! The process of an executor: starts it, enforces its limits, kills it and reaps it.

use super::{IDLE_RINGS_MAX, Loss, Start, Supervised};
use atoll_device::LossCause;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// An executor's process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) executor: Arc<Supervised>,
    pub(super) child: Child,
    pub(super) pidfd: OwnedFd,
    started: Instant,
    pub(super) is_killed: bool,
    /// Signs of life: the last beat and count of completions, and when they changed.
    beat: (u32, Instant),
    completed: (u64, Instant),
    idle_rings: u64,
}

impl Process {
    pub(super) fn start(start: Start) -> std::io::Result<Process> {
        let Start { program, arguments, environment, socket, executor } = start;
        let mut command = Command::new(program);
        // The name in process lists, instead of `exe`.
        command.arg0("atoll");
        // A process group of its own, so that signals from a terminal reach only the daemon.
        command.args(arguments).env_clear().envs(environment).stdin(socket).stdout(Stdio::null()).process_group(0);
        if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
            command.env("LD_LIBRARY_PATH", path);
        }
        let mut child = command.spawn()?;
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).inspect_err(|_| {
            let _ = child.kill();
            let _ = child.wait();
        })?;
        let now = Instant::now();
        Ok(Process {
            executor,
            child,
            pidfd,
            started: now,
            is_killed: false,
            beat: (0, now),
            completed: (0, now),
            idle_rings: 0,
        })
    }

    /// Handles messages, time limits and the end of the process; true once the process was reaped.
    pub(super) fn poll(&mut self) -> bool {
        if !self.is_killed {
            self.executor.receive();
            self.executor.flush(&mut self.executor.messages());
            self.enforce_limits(Instant::now());
        }
        match self.child.try_wait() {
            Ok(None) => false,
            Ok(Some(status)) => {
                self.reap(ended(status));
                true
            }
            Err(error) => {
                self.reap(LossCause::Died(format!("cannot be waited for: {error}")));
                true
            }
        }
    }

    /// Kills the executor if it broke the protocol, exceeded a time limit, or is to end.
    fn enforce_limits(&mut self, now: Instant) {
        if let Some(cause) = self.violation(now) {
            self.executor.end(cause);
        }
        if self.executor.kill_reason.get().is_some() {
            self.is_killed = true;
            self.kill();
        }
    }

    /// Kills the process. A client of a service is detached from the service first, on another
    /// thread.
    fn kill(&self) {
        let detaching = self.executor.service.clone().zip(self.pidfd.try_clone().ok()).map(|(service, pidfd)| {
            let pid = self.child.id();
            let detach = move || {
                if let Err(error) = service.detach(pid) {
                    tracing::warn!(
                        pid, %error,
                        "killing a process that could not be detached from its service; other clients may fail"
                    );
                }
                let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            };
            std::thread::Builder::new().name("atoll-detach".to_owned()).spawn(detach)
        });
        if !matches!(detaching, Some(Ok(_))) {
            let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        }
    }

    /// The violation or exceeded time limit, if any.
    fn violation(&mut self, now: Instant) -> Option<LossCause> {
        let (executor, time_limits) = (&self.executor, self.executor.time_limits);
        let activity = &executor.activity;
        let seen = executor.link.beat_word().load(Relaxed);
        let completed = activity.completed.load(Relaxed);
        let idle_rings = activity.idle_rings.load(Relaxed);
        let is_busy = activity.in_flight.load(Relaxed) > 0;
        if seen != self.beat.0 {
            self.beat = (seen, now);
        }
        if completed != self.completed.0 || !is_busy {
            self.completed = (completed, now);
        }
        let rings = std::mem::replace(&mut self.idle_rings, idle_rings).abs_diff(idle_rings);
        let is_ready = executor.ready().is_some();
        let pending_answers =
            if is_ready { executor.pending_answers() } else { vec![(self.started, time_limits.answer_within)] };
        let over = |since: Instant, limit: Duration| now.saturating_duration_since(since) > limit;
        if let Some((_, limit)) = pending_answers.iter().find(|(since, limit)| over(*since, *limit)) {
            return Some(LossCause::Hung(format!("did not answer within {limit:?}")));
        }
        // An executor does not beat before it runs.
        if is_ready && (is_busy || !pending_answers.is_empty()) && over(self.beat.1, time_limits.hang_after) {
            return Some(LossCause::Hung(format!("showed no sign of life for {:?}", time_limits.hang_after)));
        }
        if over(self.completed.1, time_limits.launch_within) {
            return Some(LossCause::Hung(format!("ended no launch within {:?}", time_limits.launch_within)));
        }
        (rings > IDLE_RINGS_MAX).then(|| LossCause::ProtocolViolation("it rings without completions".to_owned()))
    }

    fn reap(&self, how: LossCause) {
        let executor = &self.executor;
        // Messages that the executor sent before it died count.
        executor.receive();
        let cause = executor.kill_reason.get().cloned().unwrap_or(how);
        let _ = executor.loss.set(Loss { pid: self.child.id(), cause });
        executor.changed.notify_all();
        executor.bell.force();
    }
}

/// How a process ended.
fn ended(status: ExitStatus) -> LossCause {
    const NAMES: [(i32, &str); 9] = [
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGXFSZ, "SIGXFSZ"),
    ];
    LossCause::Died(match (status.signal(), status.code()) {
        (Some(libc::SIGSYS), _) => return LossCause::ForbiddenCall,
        (Some(signal), _) => match NAMES.iter().find(|(number, _)| *number == signal) {
            Some((_, name)) => format!("was killed by {name}"),
            None => format!("was killed by signal {signal}"),
        },
        (None, code) => format!("ended by itself, with status {}", code.unwrap_or(-1)),
    })
}
