//! Which CPUs of this machine threads run on. What the system refuses here costs speed, nothing
//! else.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPUs that the calling thread may run on, by the system's numbers; none where it does not say.
pub fn allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Keeps the calling thread, and those that it starts from now on, on these.
pub fn keep_to(cpus: &[usize]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    let _ = sched_setaffinity(None, &set);
}
