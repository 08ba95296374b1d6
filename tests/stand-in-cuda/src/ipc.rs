//! Files of device memory that other processes may map, and their handles.
//!
//! Exported memory is in a file in `/dev/shm`, and a handle names the file. The file is removed when
//! the memory is freed. If a process ends without freeing its memory, the next process that exports
//! memory removes the file.

use crate::raw::PAGE_BYTES;
use crate::status::Status;
use atoll_cuda_api::types::CUipcMemHandle;
use rustix::fs::{Mode, OFlags, fstat, ftruncate, open};
use rustix::io::{Errno, pwrite};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The folder of the files.
const FOLDER: &str = "/dev/shm";

/// The beginning of their names; the number of the process follows.
const PREFIX: &str = "atoll-stand-in-cuda.";

/// The beginning of a handle.
const MAGIC: [u8; 8] = *b"stand-in";

/// Exported memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Export {
    pid: u32,
    /// The device of the memory.
    pub(crate) device: u32,
    /// Distinguishes the exports of a process, and of processes that had the same id.
    number: u64,
    /// The size of the memory.
    pub(crate) bytes: u64,
}

impl Export {
    /// Moves contents to a new file.
    pub(crate) fn create(device: u32, contents: &[u8]) -> Result<(Export, OwnedFd), Status> {
        remove_abandoned();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
        let export = Export { pid: std::process::id(), device, number: now, bytes: contents.len() as u64 };
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let file = open(export.path(), flags, Mode::RUSR | Mode::WUSR).map_err(|_| Status::MapFailed)?;
        match export.fill(&file, contents) {
            Ok(()) => Ok((export, file)),
            Err(_) => {
                export.remove();
                Err(Status::OutOfMemory)
            }
        }
    }

    fn fill(self, file: &OwnedFd, contents: &[u8]) -> Result<(), Errno> {
        ftruncate(file, self.bytes.next_multiple_of(PAGE_BYTES))?;
        let mut done = 0;
        while done < contents.len() {
            done += pwrite(file, &contents[done..], done as u64)?;
        }
        Ok(())
    }

    /// Opens the file of another process that runs.
    pub(crate) fn open(self) -> Result<OwnedFd, Status> {
        if self.pid == std::process::id() {
            return Err(Status::InvalidContext);
        }
        if !is_running(self.pid) {
            self.remove();
            return Err(Status::InvalidHandle);
        }
        let file = open(self.path(), OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        let file = file.map_err(|_| Status::InvalidHandle)?;
        let bytes = fstat(&file).map_or(0, |about| u64::try_from(about.st_size).unwrap_or(0));
        if bytes == self.bytes.next_multiple_of(PAGE_BYTES) { Ok(file) } else { Err(Status::InvalidHandle) }
    }

    /// Removes the file. Processes that have mapped it keep the memory.
    pub(crate) fn remove(self) {
        let _ = std::fs::remove_file(self.path());
    }

    pub(crate) fn to_handle(self) -> CUipcMemHandle {
        let mut reserved = [0; 64];
        reserved[..8].copy_from_slice(&MAGIC);
        reserved[8..12].copy_from_slice(&self.pid.to_le_bytes());
        reserved[12..16].copy_from_slice(&self.device.to_le_bytes());
        reserved[16..24].copy_from_slice(&self.number.to_le_bytes());
        reserved[24..32].copy_from_slice(&self.bytes.to_le_bytes());
        CUipcMemHandle { reserved }
    }

    pub(crate) fn of_handle(handle: &CUipcMemHandle) -> Result<Export, Status> {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| handle.reserved[at + index]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| handle.reserved[at + index]));
        let export = Export { pid: word(8), device: word(12), number: long(16), bytes: long(24) };
        // A file has at most `i64::MAX` bytes.
        let is_possible = export.bytes > 0 && export.bytes <= i64::MAX as u64 - PAGE_BYTES;
        let is_own = is_possible && export.to_handle().reserved == handle.reserved;
        if is_own { Ok(export) } else { Err(Status::InvalidHandle) }
    }

    fn path(self) -> PathBuf {
        Path::new(FOLDER).join(format!("{PREFIX}{}.{}", self.pid, self.number))
    }
}

fn is_running(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// Removes the files of processes that have ended.
fn remove_abandoned() {
    for entry in std::fs::read_dir(FOLDER).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('.').next()?.parse().ok());
        if pid.is_some_and(|pid| !is_running(pid)) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
