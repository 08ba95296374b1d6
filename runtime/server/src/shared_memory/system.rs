//! System shared memory: a range of a file in `/dev/shm`, with copies from and to it.

use super::file::{FOLDER, open_shared};
use super::region::Failure;
use crate::identity::{Access, Principal};
use crate::requests::error::{Kind, RequestError};
use atoll_protocol::{RegionStatus, RegisterRequest};
use rustix::fs::fstat;
use rustix::io::{Errno, pread, pwrite};
use std::os::fd::OwnedFd;

/// A range that was within its file when it was registered; the file may be shorter now. Offsets are
/// relative to the range, and were checked against its size.
#[derive(Debug)]
pub(super) struct SystemMemory {
    file: OwnedFd,
    key: String,
    offset: u64,
}

impl SystemMemory {
    /// Opens the range of a request. `name` is the checked name of the file.
    pub(super) fn open(
        access: &Access,
        caller: &Principal,
        name: &str,
        request: &RegisterRequest,
    ) -> Result<SystemMemory, RequestError> {
        let RegisterRequest { key, offset, byte_size } = request.clone();
        if byte_size == 0 {
            return Err(RequestError::bad_request("its byte_size is 0"));
        }
        let (file, file_bytes) = open_shared(access, caller, name)?;
        if offset.checked_add(byte_size).is_none_or(|end| end > file_bytes) {
            return Err(RequestError::bad_request(format!(
                "{byte_size} bytes at offset {offset} exceed {FOLDER}/{name}, which has {file_bytes} bytes"
            )));
        }
        Ok(SystemMemory { file, key, offset })
    }

    #[cfg(test)]
    pub(super) fn of_test(file: OwnedFd) -> SystemMemory {
        SystemMemory { file, key: "k".into(), offset: 0 }
    }

    pub(super) fn status(&self, name: &str, byte_size: u64) -> RegionStatus {
        RegionStatus { name: name.into(), key: self.key.clone(), offset: self.offset, byte_size }
    }

    pub(super) fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), Failure> {
        let (at, mut done) = (self.at(at), 0);
        while done < bytes.len() {
            match pread(&self.file, &mut bytes[done..], at.saturating_add(done as u64)) {
                Ok(0) => return Err(shrunk()),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed(format!("cannot be read: {error}"))),
            }
        }
        Ok(())
    }

    /// Fails if the file ends before the end of a range. A write beyond the end would extend the
    /// file. If the client shrinks the file after this check, a write extends it again, but not
    /// beyond the region.
    pub(super) fn check_size(&self, at: u64, bytes: u64) -> Result<(), Failure> {
        let file_bytes = fstat(&self.file).map_err(|error| failed(format!("cannot be used: {error}")))?;
        let is_inside = self.at(at).saturating_add(bytes) <= u64::try_from(file_bytes.st_size).unwrap_or(0);
        if is_inside { Ok(()) } else { Err(shrunk()) }
    }

    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Failure> {
        let (at, mut done) = (self.at(at), 0);
        while done < bytes.len() {
            match pwrite(&self.file, &bytes[done..], at.saturating_add(done as u64)) {
                Ok(0) => return Err(failed("takes no more bytes".into())),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed(format!("cannot be written: {error}"))),
            }
        }
        Ok(())
    }

    /// The offset in the file. Cannot overflow: the range was within the file.
    fn at(&self, at: u64) -> u64 {
        self.offset.saturating_add(at)
    }
}

fn shrunk() -> Failure {
    failed("is beyond the end of its file, which became shorter after it was registered".into())
}

fn failed(reason: String) -> Failure {
    (Kind::BadRequest, reason)
}
