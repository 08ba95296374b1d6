//! Finds the control group of this process, and prepares it for the groups of executors.

use std::io;
use std::path::{Path, PathBuf};

/// The controllers that groups need.
const NEEDED: [&str; 2] = ["memory", "pids"];

/// The child into which the daemon moves.
const DAEMON: &str = "daemon";

/// The weight of the daemon for CPU time. That of an executor is 100 or less.
const DAEMON_WEIGHT: u32 = 1000;

/// Prefix of the names of executors' groups.
const EXECUTOR: &str = "executor-";

/// Extended attributes with which systemd marks groups that it delegates. Only root can read the
/// second one.
const DELEGATED: [&str; 2] = ["user.delegate", "trusted.delegate"];

/// Why this process cannot create control groups.
#[derive(Debug, thiserror::Error)]
pub enum NoControlGroups {
    /// A file of the system cannot be read.
    #[error("{path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The process has no group of cgroup v2, or its file system is not mounted.
    #[error("this machine has no cgroup v2, or it is not mounted here")]
    NoVersion2,
    /// The group has no such controller. On a machine that also has cgroup v1, v1 may use it.
    #[error("{group} has no controller `{controller}`: cgroup v1 uses it, or the group above does not hand it on")]
    NoController {
        /// The folder of the group.
        group: PathBuf,
        /// The controller.
        controller: &'static str,
    },
    /// The group belongs to a systemd unit that is not delegated.
    #[error("{group} belongs to systemd; set Delegate=yes in the unit")]
    NotDelegated {
        /// The folder of the group.
        group: PathBuf,
    },
    /// The process may not change the group.
    #[error("{group} is not delegated to this user: {source}")]
    NotOurs {
        /// The folder of the group.
        group: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other processes are in the group.
    #[error("{group} has other processes; start the daemon in a group of its own, for example as a systemd service")]
    Shared {
        /// The folder of the group.
        group: PathBuf,
    },
}

pub(super) fn read(path: impl AsRef<Path>) -> Result<String, NoControlGroups> {
    let path = path.as_ref();
    std::fs::read_to_string(path).map_err(|source| NoControlGroups::Unreadable { path: path.to_owned(), source })
}

/// The folder of this process's group: the mount of cgroup v2 and the path in it, from the texts of
/// `/proc/self/cgroup` and `/proc/self/mountinfo`.
pub(super) fn own_group(cgroup: &str, mounts: &str) -> Result<PathBuf, NoControlGroups> {
    let own = cgroup.lines().find_map(|line| line.strip_prefix("0::")).ok_or(NoControlGroups::NoVersion2)?;
    // A line: ID PARENT MAJOR:MINOR ROOT MOUNT OPTIONS [TAGS...] - TYPE SOURCE OPTIONS
    let mounted = mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        // The mount may begin below the root, as in containers.
        let below = match root {
            "/" => own,
            root => own.strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/'))?,
        };
        kind.starts_with("cgroup2 ").then(|| Path::new(at).join(below.trim_start_matches('/')))
    });
    mounted.ok_or(NoControlGroups::NoVersion2)
}

/// Rejects the group of a systemd unit, unless systemd has delegated it. Checked for root only:
/// other users can only write to groups that were given to them.
pub(super) fn check_delegated(base: &Path) -> Result<(), NoControlGroups> {
    let name = base.file_name().unwrap_or_default().to_string_lossy();
    let is_unit = [".service", ".scope", ".slice"].iter().any(|ending| name.ends_with(ending));
    if !is_unit || !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let is_marked = |mark: &str| {
        let mut value = [0u8; 8];
        rustix::fs::getxattr(base, mark, &mut value[..]).is_ok_and(|length| value[..length] == *b"1")
    };
    if DELEGATED.into_iter().any(is_marked) {
        return Ok(());
    }
    Err(NoControlGroups::NotDelegated { group: base.to_owned() })
}

/// The changes that [`prepare`] made.
pub(super) struct Prepared {
    /// Whether this process moved into a child of the group.
    pub(super) has_moved: bool,
    /// Whether the CPU time of children can be limited.
    pub(super) has_cpu: bool,
    /// Controllers that this process enabled for children.
    pub(super) handed_on: Vec<&'static str>,
}

/// Enables the controllers of a group for its children.
pub(super) fn prepare(base: &Path) -> Result<Prepared, NoControlGroups> {
    let offered = read(base.join("cgroup.controllers"))?;
    let has = |list: &str, controller: &str| list.split_whitespace().any(|name| name == controller);
    if let Some(controller) = NEEDED.into_iter().find(|controller| !has(&offered, controller)) {
        return Err(NoControlGroups::NoController { group: base.to_owned(), controller });
    }
    let handed_on = read(base.join("cgroup.subtree_control"))?;
    let mut wanted: Vec<&'static str> = NEEDED.into_iter().filter(|controller| !has(&handed_on, controller)).collect();
    let mut has_moved = false;
    match hand_on(base, &wanted) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            // Processes are in the group: this one, and perhaps others.
            move_to(&base.join(DAEMON)).map_err(|source| not_ours(base, source))?;
            has_moved = true;
            if hand_on(base, &wanted).is_err() {
                undo(base, &[], has_moved);
                return Err(NoControlGroups::Shared { group: base.to_owned() });
            }
        }
        Err(source) => return Err(not_ours(base, source)),
    }
    // Kernels with real-time group scheduling refuse the CPU controller while there are real-time
    // threads.
    let had_cpu = has(&handed_on, "cpu");
    let has_cpu = had_cpu || (has(&offered, "cpu") && hand_on(base, &["cpu"]).is_ok());
    if has_cpu && !had_cpu {
        wanted.push("cpu");
    }
    if has_moved && has_cpu {
        let _ = std::fs::write(base.join(DAEMON).join("cpu.weight"), DAEMON_WEIGHT.to_string());
    }
    // The files of a group may be writable although no groups can be created in it.
    let trial = base.join(group_name(std::process::id(), u64::MAX));
    let made = std::fs::create_dir(&trial);
    let _ = std::fs::remove_dir(&trial);
    if let Err(source) = made {
        undo(base, &wanted, has_moved);
        return Err(not_ours(base, source));
    }
    Ok(Prepared { has_moved, has_cpu, handed_on: wanted })
}

fn not_ours(base: &Path, source: io::Error) -> NoControlGroups {
    NoControlGroups::NotOurs { group: base.to_owned(), source }
}

fn hand_on(base: &Path, controllers: &[&str]) -> io::Result<()> {
    if controllers.is_empty() {
        return Ok(());
    }
    let text: Vec<String> = controllers.iter().map(|controller| format!("+{controller}")).collect();
    std::fs::write(base.join("cgroup.subtree_control"), text.join(" "))
}

/// Moves this process into a group, which is created if it does not exist.
fn move_to(group: &Path) -> io::Result<()> {
    match std::fs::create_dir(group) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    std::fs::write(group.join("cgroup.procs"), std::process::id().to_string())
}

/// Undoes the changes of [`prepare`], unless another daemon has executors in the same group, which
/// would lose their limits.
pub(super) fn undo(base: &Path, handed_on: &[&str], has_moved: bool) {
    remove_stale(base);
    let entries = std::fs::read_dir(base).into_iter().flatten().flatten();
    if entries.into_iter().any(|entry| owner(&entry.file_name().to_string_lossy()).is_some()) {
        return;
    }
    for controller in handed_on {
        let _ = std::fs::write(base.join("cgroup.subtree_control"), format!("-{controller}"));
    }
    if has_moved && std::fs::write(base.join("cgroup.procs"), std::process::id().to_string()).is_ok() {
        let _ = std::fs::remove_dir(base.join(DAEMON));
    }
}

/// The name of a group: unique among the daemons that share a parent.
pub(super) fn group_name(pid: u32, number: u64) -> String {
    format!("{EXECUTOR}{pid}-{number}")
}

/// Removes groups of daemons that no longer exist. A group with processes cannot be removed.
pub(super) fn remove_stale(base: &Path) {
    for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = owner(&name.to_string_lossy()) else { continue };
        if pid == std::process::id() || !Path::new("/proc").join(pid.to_string()).exists() {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

/// The id of the process that created a group, from the group's name.
fn owner(name: &str) -> Option<u32> {
    let (pid, number) = name.strip_prefix(EXECUTOR)?.split_once('-')?;
    number.parse::<u64>().ok()?;
    pid.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFIED: &str = "25 20 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn the_own_group_is_found_below_the_mount() {
        let own = |cgroup: &str, mounts: &str| own_group(cgroup, mounts).ok();
        let service = "0::/system.slice/atoll.service\n";
        assert_eq!(own(service, UNIFIED), Some("/sys/fs/cgroup/system.slice/atoll.service".into()));
        assert_eq!(own("0::/\n", UNIFIED), Some("/sys/fs/cgroup/".into()));
        // Both versions side by side.
        let hybrid = "12:memory:/a\n1:name=systemd:/b\n0::/c\n";
        let mounts = "30 20 0:25 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
            31 20 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        assert_eq!(own(hybrid, mounts), Some("/sys/fs/cgroup/unified/c".into()));
        // A container that sees a part only.
        let part = "25 20 0:22 /box /sys/fs/cgroup ro - cgroup2 cgroup ro\n";
        assert_eq!(own("0::/box/a\n", part), Some("/sys/fs/cgroup/a".into()));
        assert_eq!(own("0::/boxes/a\n", part), None);
        // Version 1 only, no mount, and text of any kind.
        for (cgroup, mounts) in
            [("4:memory:/a\n", UNIFIED), (service, ""), ("", ""), ("0::/a", "- cgroup2 "), ("0::/a", "a b - cgroup2 x")]
        {
            assert_eq!(own(cgroup, mounts), None, "{cgroup:?} {mounts:?}");
        }
    }

    #[test]
    fn names_of_groups_name_their_daemon() {
        assert_eq!(owner(&group_name(17, 4)), Some(17));
        for other in ["executor-17", "executor-x-4", "executor-17-", "daemon", "executor--1", "executor-99999999999-1"]
        {
            assert_eq!(owner(other), None, "{other}");
        }
    }

    #[test]
    fn groups_of_daemons_that_are_gone_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str| std::fs::create_dir(folder.path().join(name)).unwrap();
        // Process ids end at 4 million.
        let (gone, alive) = (group_name(4_100_000_000, 1), group_name(1, 1));
        [&gone, &alive, "daemon"].into_iter().for_each(make);
        remove_stale(folder.path());
        let left = |name: &str| folder.path().join(name).exists();
        assert!(!left(&gone) && left(&alive) && left("daemon"));
    }
}
