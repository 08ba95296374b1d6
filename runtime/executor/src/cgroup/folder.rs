//! The folders and files of groups.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

/// Writes an existing file. The kernel creates the files of a group; a missing file belongs to a
/// controller that the group does not have.
pub(super) fn write_existing(file: &Path, text: &str) -> io::Result<()> {
    let opened = OpenOptions::new().write(true).truncate(true).open(file);
    opened.and_then(|mut opened| opened.write_all(text.as_bytes())).map_err(|error| at(file, &error))
}

/// Adds the path to an error.
pub(super) fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Creates the folder of a group.
#[cfg(not(test))]
pub(super) fn make_folder(path: &Path) -> io::Result<()> {
    std::fs::create_dir(path)
}

/// Creates the folder of a group with the files that the kernel would create for the controllers of
/// its parent.
#[cfg(test)]
pub(super) fn make_folder(path: &Path) -> io::Result<()> {
    std::fs::create_dir(path)?;
    let controllers = std::fs::read_to_string(path.with_file_name("cgroup.controllers"))?;
    let mut files = vec!["cgroup.procs"];
    for controller in controllers.split_whitespace() {
        files.extend_from_slice(match controller {
            "memory" => &["memory.high", "memory.max", "memory.oom.group", "memory.swap.max", "memory.stat"],
            "pids" => &["pids.max"],
            "cpu" => &["cpu.weight", "cpu.max", "cpu.stat"],
            _ => &[],
        });
    }
    files.into_iter().try_for_each(|file| std::fs::write(path.join(file), ""))?;
    std::fs::write(path.join("memory.current"), "0\n")
}
