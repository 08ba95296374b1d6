//! Scheduling priority: how soon a thread gets a CPU after it wakes. If the system refuses a call
//! here, only latency suffers.
//!
//! The engine's thread sleeps until an event, and then has microseconds of work. While compute
//! units keep all CPUs busy, a thread of ordinary priority waits for a CPU up to a scheduling tick:
//! milliseconds at the 99th percentile. There are two remedies, the better one first:
//!
//! - *Real-time priority* (`SCHED_FIFO`, lowest level): the thread preempts all ordinary threads.
//!   Requires `CAP_SYS_NICE` or a nonzero limit `RLIMIT_RTPRIO`.
//! - *A short time slice* (`sched_setattr`, Linux 6.12 or newer): a thread with a short slice
//!   preempts threads with longer slices when it wakes. Requires no privilege.

use std::mem::size_of;

/// The requested time slice: the smallest that Linux accepts.
const SLICE_NS: u64 = 100_000;

/// The lowest real-time priority: above every ordinary thread, below all other real-time threads of
/// the machine.
const REAL_TIME_PRIORITY: u32 = 1;

/// Threads and processes started by this thread get ordinary priority.
const RESET_ON_FORK: u64 = 1;

/// The priority that a thread was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakePriority {
    /// It preempts every ordinary thread when it wakes.
    RealTime,
    /// It preempts threads with longer time slices when it wakes.
    ShortSlice,
    /// It has ordinary priority.
    Ordinary,
}

/// Scheduling attributes of a thread: `struct sched_attr`, first version.
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

const _: () = assert!(size_of::<Attributes>() == 48, "the size of the first version of `struct sched_attr`");

/// Gives the calling thread the highest wake-up priority that the system grants.
pub fn wake_first() -> WakePriority {
    let real_time =
        Attributes { policy: libc::SCHED_FIFO as u32, priority: REAL_TIME_PRIORITY, ..Attributes::default() };
    if set(real_time) { WakePriority::RealTime } else { wake_soon() }
}

/// Runs long work at ordinary priority, so that other threads on the CPU need not wait for it.
/// `granted` is the result of [`wake_first`] on this thread.
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
    // Older systems accept the call and ignore the slice, so the result is read back.
    if set(short) && get().is_some_and(|now| now.runtime_ns == SLICE_NS) {
        WakePriority::ShortSlice
    } else {
        WakePriority::Ordinary
    }
}

fn set(attributes: Attributes) -> bool {
    let attributes = Attributes { size: size_of::<Attributes>() as u32, flags: RESET_ON_FORK, ..attributes };
    // SAFETY: the kernel reads `size` bytes of a structure that outlives the call; thread 0 is the
    // calling one.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) == 0 }
}

fn get() -> Option<Attributes> {
    let mut attributes = Attributes::default();
    // SAFETY: the kernel writes at most the given size, which is that of the structure; thread 0 is
    // the calling one.
    let answer = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size_of::<Attributes>(), 0) };
    (answer == 0).then_some(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs on a new thread, so that no other test inherits the priority.
    fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(work).join().unwrap()
    }

    #[test]
    fn the_granted_priority_is_in_effect() {
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
        assert_eq!(policies.0, policies.2, "and the priority is restored");
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
