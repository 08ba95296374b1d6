//! The jail: what an executor gives up before it runs untrusted code.
//!
//! The kernels of a tenant are native code. A kernel that escapes its checks controls this process,
//! but nothing else: the process has no file system (landlock), no privileges and no way to gain
//! any, no inherited descriptors, limits on memory and files, and only the system calls that its
//! threads need while they run (seccomp). The daemon is protected because its memory belongs to
//! another process, and because it validates everything that it receives from here.
//!
//! Not here: a limit on address space (`RLIMIT_AS`), which would count the sparse device memory;
//! private memory is limited instead (`RLIMIT_DATA`). Nor protection against side channels:
//! executors share cores.

use super::wire;
use landlock::{ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetError, RulesetStatus, Scope};
use rustix::process::{DumpableBehavior, Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};
use std::collections::BTreeMap;
use std::os::fd::AsFd;

/// Descriptors: the channel, the bell, memory, and those of one message.
const DESCRIPTORS_MAX: u64 = 32 + wire::DESCRIPTORS_MAX as u64;

/// Private memory in bytes beyond that of compute units: the program itself, and loaded code.
const PRIVATE_BYTES: u64 = 2 << 30;

/// The system calls that threads make once they run. Any other call means foreign code and ends the
/// process.
const ALLOWED: &[i64] = &[
    // The channel and the bell, on existing descriptors; modules and constants that arrive.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_pread64,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_close,
    // Memory.
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_brk,
    // Waiting, and reading the clock if the kernel does not provide it without a call.
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_restart_syscall,
    // Faults of kernels, and the end.
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sigaltstack,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Seeds of hash tables.
    libc::SYS_getrandom,
];

/// Calls that the standard library may make but does not need; they fail instead of ending the
/// process.
const REFUSED: &[i64] = &[
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_ioctl,
    libc::SYS_fcntl,
    libc::SYS_sched_getaffinity,
    libc::SYS_prlimit64,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
];

/// The out-of-memory score of executors: if memory is short, the system kills them before the
/// daemon.
const OUT_OF_MEMORY_SCORE: &str = "900";

/// The first step, before anything is received: closes inherited descriptors, and makes it
/// impossible to gain privileges.
pub(super) fn enter_alone() -> std::io::Result<()> {
    close_inherited()?;
    rustix::thread::set_no_new_privs(true)?;
    // A process may always raise its own score. Ignores an error: without this file there is no
    // score.
    let _ = std::fs::write("/proc/self/oom_score_adj", OUT_OF_MEMORY_SCORE);
    Ok(())
}

/// Closes all descriptors but the standard ones.
pub(super) fn close_inherited() -> std::io::Result<()> {
    // SAFETY: closes descriptors that nothing in this process owns.
    match unsafe { libc::close_range(3, libc::c_uint::MAX, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// The jail of a process with a driver, which opens files and makes system calls at will; kernels
/// run on the driver's device, not here. Returns what is missing.
pub(super) fn enter_with_driver() -> std::io::Result<Vec<String>> {
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(null.as_fd())?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    let mut missing = vec!["files and system calls are not restricted: the GPU's driver needs them".to_owned()];
    missing.extend(restrict_network().err().map(|error| format!("landlock: {error}")));
    Ok(missing)
}

/// The second step, before threads start, so that they inherit the limits. The compute units may
/// use `private_bytes` of private memory. Returns what this machine does not support.
pub(super) fn enter_before_threads(private_bytes: u64) -> std::io::Result<Vec<String>> {
    // No other process may inspect this one.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(null.as_fd())?;
    rustix::stdio::dup2_stdout(null.as_fd())?;
    // From here on output is discarded; errors go over the channel.
    rustix::stdio::dup2_stderr(null.as_fd())?;
    drop(null);
    give_up(DESCRIPTORS_MAX, PRIVATE_BYTES + private_bytes)
}

/// Gives up files, capabilities, and resources beyond these limits. Returns what this machine does
/// not support.
pub(super) fn give_up(descriptors: u64, private_bytes: u64) -> std::io::Result<Vec<String>> {
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    let mut missing = Vec::new();
    if let Err(error) = restrict_files() {
        missing.push(format!("landlock: {error}"));
    }
    rustix::thread::set_capabilities(None, none)?;
    for (resource, most) in [
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Nofile, descriptors),
        (Resource::Data, private_bytes),
        (Resource::Memlock, 0),
        (Resource::Msgqueue, 0),
    ] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(missing)
}

/// The last step, when all threads run.
pub(super) fn enter() -> Result<(), String> {
    let _ = setrlimit(Resource::Nproc, Rlimit { current: Some(0), maximum: Some(0) });
    // Two filters, since each can give only two answers; the stricter answer wins.
    let refusing =
        filter(&[REFUSED], uncounted_memory()?, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32))?;
    let own = (libc::SYS_tgkill, only_to_ourselves()?);
    let killing = filter(&[REFUSED, ALLOWED], [own], SeccompAction::KillProcess, SeccompAction::Allow)?;
    apply(&[refusing, killing])
}

/// The stricter answer of several filters wins.
pub(super) fn apply(filters: &[BpfProgram]) -> Result<(), String> {
    filters.iter().try_for_each(|program| {
        seccompiler::apply_filter_all_threads(program).map_err(|error| format!("seccomp: {error}"))
    })
}

fn restrict_files() -> Result<(), String> {
    restricted(|| {
        let ruleset = Ruleset::default()
            .handle_access(AccessFs::from_all(ABI::V5))?
            .handle_access(AccessNet::from_all(ABI::V5))?;
        Ok(ruleset.scope(Scope::from_all(ABI::V6))?.create()?.restrict_self()?.ruleset)
    })
}

fn restrict_network() -> Result<(), String> {
    restricted(|| {
        Ok(Ruleset::default().handle_access(AccessNet::from_all(ABI::V5))?.create()?.restrict_self()?.ruleset)
    })
}

fn restricted(enforce: impl Fn() -> Result<RulesetStatus, RulesetError>) -> Result<(), String> {
    match enforce() {
        Ok(RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced) => Ok(()),
        Ok(RulesetStatus::NotEnforced) => {
            Err("this kernel was built or started without it; only seccomp blocks file access".to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// A filter that answers `listed` to the calls of the lists, and to calls whose arguments match one
/// of their rules, and `other` to all others. A call is in a list or has rules, and not both.
pub(super) fn filter(
    lists: &[&[i64]],
    ruled: impl IntoIterator<Item = (i64, SeccompRule)>,
    other: SeccompAction,
    listed: SeccompAction,
) -> Result<BpfProgram, String> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        lists.iter().flat_map(|list| list.iter()).map(|call| (*call, Vec::new())).collect();
    ruled.into_iter().for_each(|(call, rule)| rules.entry(call).or_default().push(rule));
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
    let filter = SeccompFilter::new(rules, other, listed, arch).map_err(|error| error.to_string())?;
    filter.try_into().map_err(|error: seccompiler::BackendError| error.to_string())
}

/// Mappings that `RLIMIT_DATA` does not count: shared anonymous memory, and stacks that grow.
pub(super) fn uncounted_memory() -> Result<[(i64, SeccompRule); 2], String> {
    let with = |flags: libc::c_int| {
        let flags = u64::from(flags.unsigned_abs());
        let condition = SeccompCondition::new(3, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(flags), flags);
        let rule = SeccompRule::new(vec![condition.map_err(|error| error.to_string())?]);
        Ok::<_, String>((libc::SYS_mmap, rule.map_err(|error| error.to_string())?))
    };
    Ok([with(libc::MAP_SHARED | libc::MAP_ANONYMOUS)?, with(libc::MAP_GROWSDOWN)?])
}

/// Signals to threads of this process only: the watchdog's, and that of `abort`.
pub(super) fn only_to_ourselves() -> Result<SeccompRule, String> {
    let own = u64::from(std::process::id());
    let condition =
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, own).map_err(|error| error.to_string())?;
    SeccompRule::new(vec![condition]).map_err(|error| error.to_string())
}
