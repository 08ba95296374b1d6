//! CPU affinity of threads. If the system refuses a call here, only speed suffers.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPUs that the calling thread may run on, by number; empty if the system does not report them.
pub fn allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Pins the calling thread, and threads that it starts later, to these CPUs.
pub fn keep_to(cpus: &[usize]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    let _ = sched_setaffinity(None, &set);
}
