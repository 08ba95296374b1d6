//! How soon the system gives a thread a CPU once it wakes. What the system refuses here costs
//! latency, nothing else.
//!
//! The engine's thread sleeps until something happens, and then has microseconds of work. Where
//! compute units keep all CPUs busy, a thread of ordinary priority waits for one of them: up to
//! a scheduling tick, milliseconds at the 99th percentile. Two means against that, the better one
//! first:
//!
//! - *Real-time priority* (`SCHED_FIFO`, the lowest level): the thread preempts any ordinary one.
//!   Needs `CAP_SYS_NICE` or a limit of real-time priority (`RLIMIT_RTPRIO`).
//! - *A short time slice* (`sched_setattr`, Linux 6.12 or newer): a thread that asks for a short
//!   slice preempts one with a longer slice when it wakes. Needs no right.

use std::mem::size_of;

/// The time slice that is asked for; the least that the system takes.
const SLICE_NS: u64 = 100_000;

/// The lowest real-time priority: ahead of every ordinary thread, behind everything that whoever
/// runs this machine made real-time.
const REAL_TIME_PRIORITY: u32 = 1;

/// Threads started by this one have ordinary priority.
const RESET_ON_FORK: u64 = 1;

/// What a thread has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakePriority {
    /// It preempts every ordinary thread when it wakes.
    RealTime,
    /// It preempts threads with longer time slices when it wakes.
    ShortSlice,
    /// It waits like all others.
    Ordinary,
}

/// The system's description of how a thread is scheduled (`struct sched_attr`, its first version).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

const _: () = assert!(size_of::<Attributes>() == 48, "the size that the kernel takes for the first version");

/// Gives the calling thread the best that the system grants.
pub fn wake_first() -> WakePriority {
    let real_time =
        Attributes { policy: libc::SCHED_FIFO as u32, priority: REAL_TIME_PRIORITY, ..Attributes::default() };
    if set(real_time) { WakePriority::RealTime } else { wake_soon() }
}

/// Does long work, which others on the CPU must not wait for, at ordinary priority; `granted` is
/// what [`wake_first`] answered on this thread.
pub fn at_ordinary_priority<T>(granted: WakePriority, work: impl FnOnce() -> T) -> T {
    if granted != WakePriority::RealTime {
        return work();
    }
    wake_soon();
    let done = work();
    wake_first();
    done
}

/// Gives the calling thread a short time slice and ordinary priority.
fn wake_soon() -> WakePriority {
    let short = Attributes { policy: libc::SCHED_OTHER as u32, runtime_ns: SLICE_NS, ..Attributes::default() };
    // Older systems take the call and ignore the slice, so they are asked what became of it.
    if set(short) && get().is_some_and(|now| now.runtime_ns == SLICE_NS) {
        WakePriority::ShortSlice
    } else {
        WakePriority::Ordinary
    }
}

fn set(attributes: Attributes) -> bool {
    let attributes = Attributes { size: size_of::<Attributes>() as u32, flags: RESET_ON_FORK, ..attributes };
    // SAFETY: the kernel reads `size` bytes of a structure that lives across the call; thread 0 is
    // the calling one.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) == 0 }
}

fn get() -> Option<Attributes> {
    let mut attributes = Attributes::default();
    // SAFETY: the kernel writes at most the size that is given, which is the structure's; thread 0
    // is the calling one.
    let answer = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size_of::<Attributes>(), 0) };
    (answer == 0).then_some(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs on a thread of its own, so that no other test inherits the priority.
    fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(work).join().unwrap()
    }

    #[test]
    fn a_thread_has_what_it_is_told_it_got() {
        let (got, found) = on_a_thread(|| (wake_first(), get().unwrap()));
        match got {
            WakePriority::RealTime => {
                assert_eq!((found.policy, found.priority), (libc::SCHED_FIFO as u32, REAL_TIME_PRIORITY))
            }
            WakePriority::ShortSlice => {
                assert_eq!((found.policy, found.runtime_ns), (libc::SCHED_OTHER as u32, SLICE_NS))
            }
            WakePriority::Ordinary => assert_eq!(found.policy, libc::SCHED_OTHER as u32),
        }
        let (soon, found) = on_a_thread(|| {
            wake_first();
            (wake_soon(), get().unwrap())
        });
        assert_eq!(found.policy, libc::SCHED_OTHER as u32);
        assert_eq!(soon == WakePriority::ShortSlice, found.runtime_ns == SLICE_NS);
    }

    #[test]
    fn long_work_is_done_at_ordinary_priority() {
        let policies = on_a_thread(|| {
            let granted = wake_first();
            let before = get().unwrap().policy;
            (before, at_ordinary_priority(granted, || get().unwrap().policy), get().unwrap().policy)
        });
        assert_eq!(policies.1, libc::SCHED_OTHER as u32);
        assert_eq!(policies.0, policies.2, "and gets its priority back");
    }

    #[test]
    fn threads_started_by_an_urgent_one_are_ordinary() {
        let child = on_a_thread(|| {
            wake_first();
            on_a_thread(|| get().unwrap())
        });
        assert_eq!(child.policy, libc::SCHED_OTHER as u32);
    }
}
