//! The process of an executor: starts it, enforces its limits, kills it and reaps it.

use super::signs::{Observed, Signs};
use super::{CHECKS_PER_SECOND, Loss, MESSAGES_PER_TURN, Start, Supervised};
use atoll_device::LossCause;
use atoll_device::cpu_time::process_cpu_time;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// The text for a process that ended by SIGKILL.
const KILLED: &str = "was killed by SIGKILL";

/// An executor's process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) executor: Arc<Supervised>,
    pub(super) child: Child,
    pub(super) pidfd: OwnedFd,
    started: Instant,
    pub(super) is_killed: bool,
    signs: Signs,
    /// Number of processes that the system had killed for lack of memory when this one was started.
    system_kills: Option<u64>,
    /// When its control group was last read.
    group_read: Option<Instant>,
}

impl Process {
    pub(super) fn start(start: Start) -> std::io::Result<Process> {
        let Start { program, arguments, environment, socket, executor, group } = start;
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
        // The executor is in its group before it gets code: that is sent after this returns.
        if let Some((groups, spec)) = group {
            let _ = executor.group.set(groups.admit(&spec, child.id()).map_err(|error| error.to_string()));
        }
        let now = Instant::now();
        let signs = Signs::new(now);
        let system_kills = system_kills();
        Ok(Process { executor, child, pidfd, started: now, is_killed: false, signs, system_kills, group_read: None })
    }

    /// Handles messages, time limits and the end of the process; true once the process was reaped.
    pub(super) fn poll(&mut self) -> bool {
        // Read before the process is waited for, since its CPU time is lost then.
        if let Some(time) = process_cpu_time(self.child.id()) {
            self.executor.cpu_ns.store(time.as_nanos() as u64, Relaxed);
        }
        let now = Instant::now();
        self.read_group(now);
        if !self.is_killed {
            self.executor.receive(MESSAGES_PER_TURN);
            self.executor.flush(&mut self.executor.outgoing());
            self.enforce_limits(now);
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

    /// Reads the kernel's counts for its group, but not at every event, since that takes several
    /// system calls.
    fn read_group(&mut self, now: Instant) {
        let pause = Duration::from_secs(1) / CHECKS_PER_SECOND;
        if self.group_read.is_some_and(|last| now.saturating_duration_since(last) < pause) {
            return;
        }
        self.group_read = Some(now);
        if let Some(limit) = self.executor.group().and_then(|group| group.observe(now)) {
            self.executor.end(LossCause::OutOfMemory(limit));
        }
    }

    /// Kills the executor if it broke the protocol, exceeded a time limit, or is to end.
    fn enforce_limits(&mut self, now: Instant) {
        let seen = self.observe();
        if let Some(cause) = self.signs.judge(now, &seen, &self.executor.time_limits) {
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

    fn observe(&self) -> Observed {
        let executor = &self.executor;
        let activity = &executor.activity;
        let is_ready = executor.ready().is_some();
        let units = executor.link.shape().compute_units;
        Observed {
            beat: executor.link.beat_word().load(Relaxed),
            completed: activity.completed.load(Relaxed),
            is_busy: activity.in_flight.load(Relaxed) > 0,
            idle_rings: activity.idle_rings.load(Relaxed),
            reports: (executor.link.reports(), executor.reports_received()),
            is_ready,
            due: match is_ready {
                true => executor.pending_answers(),
                false => vec![(self.started, executor.time_limits.answer_within)],
            },
            busy: (Duration::from_nanos(executor.claimed_ns()), executor.age() * units),
            cpu: Duration::from_nanos(executor.cpu_ns()),
            // Devices with memory of their own do not compute on the CPU.
            billed: executor.memory.as_ref().map(|_| Duration::from_nanos(activity.billed_ns.load(Relaxed))),
            units,
            memory: executor.memory_use(),
        }
    }

    /// The cause of the end of a process, with the kernel's counts as evidence for lack of memory.
    fn explained(&self, how: LossCause) -> LossCause {
        // Reads the group again, since the kernel may have killed the process after the last check.
        self.executor.group().map(|group| group.observe(Instant::now()));
        let usage = self.executor.group_use().unwrap_or_default();
        match (how, usage.limit) {
            (LossCause::Died(how), _) if how != KILLED => LossCause::Died(how),
            (_, Some(limit)) if usage.kills > 0 => LossCause::OutOfMemory(limit),
            (LossCause::Died(how), _) if system_kills() > self.system_kills => {
                LossCause::Died(format!("{how}, when the machine was short of memory"))
            }
            (how, _) => how,
        }
    }

    fn reap(&self, how: LossCause) {
        let executor = &self.executor;
        // Messages that the executor sent before it died count; the socket holds a bounded number.
        executor.receive(usize::MAX);
        let cause = executor.kill_reason.get().cloned().unwrap_or_else(|| self.explained(how));
        let _ = executor.loss.set(Loss { pid: self.child.id(), cause });
        executor.changed.notify_all();
        executor.bell.force();
    }
}

/// Number of processes on the machine that the kernel has killed for lack of memory, in groups or
/// not.
fn system_kills() -> Option<u64> {
    let counts = std::fs::read_to_string("/proc/vmstat").ok()?;
    counts.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok())
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
