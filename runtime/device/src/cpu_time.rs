//! CPU time of a process as the operating system accounts for it, independent of the process's own
//! reports.

use std::mem::MaybeUninit;
use std::time::Duration;

/// CPU time (user and system) of all threads that a process ever had. `None` if there is no such
/// process. A process that ended still exists until its parent has waited for it.
pub fn process_cpu_time(pid: u32) -> Option<Duration> {
    let mut clock = 0;
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: `clock` is a valid place for a clock id.
    if unsafe { libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) } != 0 {
        return None;
    }
    // SAFETY: `time` is a valid place for a time. An unknown clock is an error.
    if unsafe { libc::clock_gettime(clock, time.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call above succeeded, so it has written the time.
    let time = unsafe { time.assume_init() };
    Some(Duration::new(time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_that_computes_uses_time_and_one_that_sleeps_does_not() {
        let own = process_cpu_time(std::process::id()).unwrap();
        let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let mut idle = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        while process_cpu_time(busy.id()).unwrap() < Duration::from_millis(50) {
            std::thread::yield_now();
        }
        assert!(process_cpu_time(idle.id()).unwrap() < Duration::from_millis(50));
        assert!(process_cpu_time(std::process::id()).unwrap() > own);
        for child in [&mut busy, &mut idle] {
            child.kill().unwrap();
        }
        // A process that ended still counts.
        while !std::fs::read_to_string(format!("/proc/{}/stat", busy.id())).unwrap().contains(") Z ") {
            std::thread::yield_now();
        }
        assert!(process_cpu_time(busy.id()).unwrap() >= Duration::from_millis(50));
        for child in [&mut busy, &mut idle] {
            child.wait().unwrap();
        }
        assert_eq!(process_cpu_time(busy.id()), None);
    }
}
