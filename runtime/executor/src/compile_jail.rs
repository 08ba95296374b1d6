//! The jail of a process that compiles the code of a tenant, and of one that runs its CPU stages.
//!
//! A compiler is large and reads input of the tenant, so a bug in it may give the tenant control of
//! this process. The process has its input in memory and two pipes to the daemon, and nothing else:
//! no files, no network, no privileges, no other processes, and only the system calls for memory and
//! threads.
//!
//! There are two differences from the jail of executors. Threads start and end while the process
//! runs. And a system call that is not listed fails instead of ending the process, because the
//! libraries of compilers try calls that they do not need.
//!
//! A stage process may also read its requests from its standard input. It has no descriptors
//! besides the standard ones.

use crate::jail::{apply, close_inherited, filter, give_up, only_to_ourselves, uncounted_memory};
use rustix::process::DumpableBehavior;
use seccompiler::{SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

/// Descriptors: the standard ones, and some that libraries may open for a moment.
const DESCRIPTORS_MAX: u64 = 8;

/// The system calls that a compilation makes.
const ALLOWED: &[i64] = &[
    // The pipes to the daemon.
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    // Memory.
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_brk,
    // Threads.
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_futex,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Clocks, seeds of hash tables, and how much memory the machine has, for sorting.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_getrandom,
    libc::SYS_sysinfo,
    // Overflows of stacks, and `abort`.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_getpid,
    libc::SYS_gettid,
];

/// System calls with which stage processes read requests.
const READING: &[i64] = &[libc::SYS_read, libc::SYS_readv];

/// Confines a process that compiles untrusted code; this cannot be undone. To be called once, while
/// the process has one thread, after its input is mapped and before it is read. Closes all
/// descriptors but the standard ones. Limits private memory to `private_bytes`. Returns the parts of
/// the jail that this machine does not support.
///
/// # Errors
/// If a part that is required fails, with its name.
pub fn enter_compile_jail(private_bytes: u64) -> Result<Vec<String>, String> {
    enter(private_bytes, &[ALLOWED])
}

/// Confines a process that runs the CPU stages of a tenant, as [`enter_compile_jail`] does. The
/// process may still read from its standard input.
///
/// # Errors
/// If a part that is required fails, with its name.
pub fn enter_stage_jail(private_bytes: u64) -> Result<Vec<String>, String> {
    enter(private_bytes, &[ALLOWED, READING])
}

fn enter(private_bytes: u64, allowed: &[&[i64]]) -> Result<Vec<String>, String> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error: std::io::Error| format!("{what}: {error}")
    };
    close_inherited().map_err(failed("closing descriptors"))?;
    rustix::thread::set_no_new_privs(true).map_err(|error| failed("no_new_privs")(error.into()))?;
    // No other process may inspect this one.
    let not_dumpable = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    not_dumpable.map_err(|error| failed("dumpable")(error.into()))?;
    let missing = give_up(DESCRIPTORS_MAX, private_bytes).map_err(failed("limits"))?;
    // If `clone3` is missing, glibc starts threads by `clone`, whose flags a filter can check. The
    // flags of `clone3` are in memory.
    let no_clone3 = filter(&[&[libc::SYS_clone3]], [], SeccompAction::Allow, errno(libc::ENOSYS))?;
    let no_uncounted = filter(&[], uncounted_memory()?, SeccompAction::Allow, errno(libc::EPERM))?;
    let ruled = [(libc::SYS_clone, threads_only()?), (libc::SYS_tgkill, only_to_ourselves()?)];
    // `clone3` is listed, so that the filter above answers it.
    let lists = [allowed, &[&[libc::SYS_clone3]]].concat();
    let listed = filter(&lists, ruled, errno(libc::EPERM), SeccompAction::Allow)?;
    apply(&[no_clone3, no_uncounted, listed])?;
    Ok(missing)
}

fn errno(number: i32) -> SeccompAction {
    SeccompAction::Errno(number.unsigned_abs())
}

/// A new thread of this process, and no new process.
fn threads_only() -> Result<SeccompRule, String> {
    let thread = libc::CLONE_THREAD as u64;
    let condition = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(thread), thread);
    SeccompRule::new(vec![condition.map_err(|error| error.to_string())?]).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    use std::fs::File;
    use std::io::{ErrorKind, Read};
    use std::net::{TcpListener, UdpSocket};
    use std::os::unix::net::UnixDatagram;
    use std::process::{Command, Stdio};

    /// Set in the process that enters the jail: this test once more.
    const INSIDE: &str = "ATOLL_TEST_INSIDE_COMPILE_JAIL";
    const NAME: &str = "compile_jail::tests::a_process_in_the_jail_has_memory_threads_and_its_pipes_only";
    const LIMIT: u64 = 512 << 20;

    #[test]
    fn a_process_in_the_jail_has_memory_threads_and_its_pipes_only() {
        if let Some(kind) = std::env::var_os(INSIDE) {
            return inside(kind == "stages");
        }
        for kind in ["compiler", "stages"] {
            let itself = std::env::current_exe().unwrap();
            let arguments = ["--exact", NAME, "--nocapture", "--test-threads=1"];
            let output = Command::new(itself).args(arguments).env(INSIDE, kind).stdin(Stdio::null()).output().unwrap();
            let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
            assert!(output.status.success() && text.contains("refused all"), "{kind}: {}: {text}", output.status);
        }
    }

    #[allow(clippy::print_stdout, reason = "the other process reads it")]
    fn inside(is_of_stages: bool) {
        let own = std::env::current_exe().unwrap();
        assert!(File::open(&own).is_ok());
        let enter = if is_of_stages { enter_stage_jail } else { enter_compile_jail };
        enter(LIMIT).unwrap();
        assert_eq!(std::io::stdin().read(&mut [0]).is_ok(), is_of_stages, "reading requests");
        let refused = |what: &str, error: std::io::Error| {
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{what}: {error}");
        };
        refused("a file", File::open(&own).unwrap_err());
        refused("a new file", File::create("/tmp/atoll-escaped").unwrap_err());
        refused("metadata", std::fs::metadata(&own).unwrap_err());
        refused("a folder", std::fs::read_dir("/").unwrap_err());
        refused("TCP", TcpListener::bind("127.0.0.1:0").unwrap_err());
        refused("UDP", UdpSocket::bind("127.0.0.1:0").unwrap_err());
        refused("a Unix socket", UnixDatagram::unbound().unwrap_err());
        refused("a program", Command::new(&own).spawn().unwrap_err());
        refused("a memory file", memfd_create("escaped", MemfdFlags::CLOEXEC).unwrap_err().into());
        for flags in [MapFlags::SHARED, MapFlags::PRIVATE | MapFlags::GROWSDOWN] {
            let nowhere = std::ptr::null_mut();
            // SAFETY: a new mapping at an address that the kernel chooses.
            let mapped = unsafe { mmap_anonymous(nowhere, 4096, ProtFlags::READ | ProtFlags::WRITE, flags) };
            refused("memory that no limit counts", mapped.unwrap_err().into());
        }
        refused("a signal", rustix::process::test_kill_process(rustix::process::Pid::INIT).unwrap_err().into());
        // What a compilation needs.
        let threads: Vec<_> = (0..4_usize).map(|number| std::thread::spawn(move || vec![number; 1 << 20])).collect();
        let sum: usize = threads.into_iter().map(|thread| thread.join().unwrap().into_iter().sum::<usize>()).sum();
        assert_eq!(sum, 6 << 20);
        assert!(Vec::<u8>::new().try_reserve_exact(LIMIT as usize).is_err(), "private memory is limited");
        println!("refused all");
    }
}
