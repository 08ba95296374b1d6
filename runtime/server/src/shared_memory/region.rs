//! A region: a range of a file of shared memory, with copies from and to it.

use super::file::{FOLDER, open_shared};
use crate::identity::{Access, Principal};
use crate::requests::error::{Kind, RequestError};
use atoll_protocol::{RegionStatus, RegisterRequest, SharedRange};
use rustix::fs::fstat;
use rustix::io::{Errno, pread, pwrite};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes that are written at once, which takes a few hundred microseconds.
const PIECE_BYTES: usize = 1 << 20;

/// A registered region. Its range was within the file when it was registered; the file may be
/// shorter now.
#[derive(Debug)]
pub(crate) struct Region {
    file: OwnedFd,
    key: String,
    offset: u64,
    byte_size: u64,
}

/// A part of a region. It keeps the region's file open.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    region: Arc<Region>,
    range: SharedRange,
    /// Its offset in the file, in bytes.
    at: u64,
}

impl Region {
    /// Opens the region of a request. `name` is the checked name of the file.
    pub(super) fn open(
        access: &Access,
        caller: &Principal,
        name: &str,
        request: &RegisterRequest,
    ) -> Result<Region, RequestError> {
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
        Ok(Region { file, key, offset, byte_size })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.byte_size
    }

    pub(super) fn status(&self, name: &str) -> RegionStatus {
        let Region { key, offset, byte_size, .. } = self;
        RegionStatus { name: name.into(), key: key.clone(), offset: *offset, byte_size: *byte_size }
    }

    /// A part of the region. Checks the offset and the size that a request gives.
    pub(super) fn window(self: Arc<Region>, range: &SharedRange) -> Result<Window, RequestError> {
        let SharedRange { region: name, offset, byte_size } = range;
        let end = offset.checked_add(*byte_size);
        if end.is_none_or(|end| end > self.byte_size) {
            let all = self.byte_size;
            return Err(RequestError::bad_request(format!(
                "{byte_size} bytes at offset {offset} exceed shared memory region {name:?}, which has {all} bytes"
            )));
        }
        // Cannot overflow: the region was within a file, and `offset` is within the region.
        let at = self.offset.saturating_add(*offset);
        Ok(Window { range: range.clone(), at, region: self })
    }
}

impl Window {
    /// The range that the request named, for the answer.
    pub(crate) fn range(&self) -> &SharedRange {
        &self.range
    }

    /// Copies its bytes. The caller has reserved memory for them.
    pub(super) fn read(&self) -> Result<Vec<u8>, RequestError> {
        let bytes = usize::try_from(self.range.byte_size).map_err(|_| self.failed("is too large"))?;
        let (mut bytes, mut done) = (vec![0; bytes], 0);
        while done < bytes.len() {
            match pread(&self.region.file, &mut bytes[done..], self.at.saturating_add(done as u64)) {
                Ok(0) => return Err(self.shrunk()),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.failed(&format!("cannot be read: {error}"))),
            }
        }
        Ok(bytes)
    }

    /// Writes bytes to its beginning, in pieces. Before each piece, checks that the client still
    /// waits.
    pub(super) fn write(&self, bytes: &[u8], is_awaited: &dyn Fn() -> bool) -> Result<(), RequestError> {
        if bytes.len() as u64 > self.range.byte_size {
            let (need, has) = (bytes.len(), self.range.byte_size);
            return Err(self.failed(&format!("has room for {has} bytes of this output, which has {need} bytes")));
        }
        // A write beyond the end would extend the file, so checks the size first. If the client
        // shrinks the file after this check, the write extends it again, but not beyond the region.
        let file_bytes = fstat(&self.region.file).map_err(|error| self.failed(&format!("cannot be used: {error}")))?;
        if self.at.saturating_add(bytes.len() as u64) > u64::try_from(file_bytes.st_size).unwrap_or(0) {
            return Err(self.shrunk());
        }
        let mut done = 0;
        while done < bytes.len() {
            if !is_awaited() {
                return Err(RequestError::new(Kind::Unavailable, "the client left before its outputs were written"));
            }
            let piece = &bytes[done..bytes.len().min(done.saturating_add(PIECE_BYTES))];
            match pwrite(&self.region.file, piece, self.at.saturating_add(done as u64)) {
                Ok(0) => return Err(self.failed("takes no more bytes")),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.failed(&format!("cannot be written: {error}"))),
            }
        }
        Ok(())
    }

    fn shrunk(&self) -> RequestError {
        self.failed("is beyond the end of its file, which became shorter after it was registered")
    }

    fn failed(&self, reason: &str) -> RequestError {
        RequestError::bad_request(format!("shared memory region {:?} {reason}", self.range.region))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn nothing_is_written_for_a_client_that_left() {
        let file = tempfile::tempfile().unwrap();
        let all = 3 * PIECE_BYTES + 5;
        file.set_len(all as u64).unwrap();
        let byte_size = all as u64;
        let region = Arc::new(Region { file: file.into(), key: "k".into(), offset: 0, byte_size });
        let window = region.window(&SharedRange { region: "r".into(), offset: 0, byte_size }).unwrap();
        let bytes = vec![7; all];
        assert_eq!(window.write(&bytes, &|| false).unwrap_err().kind, Kind::Unavailable);
        assert!(window.read().unwrap().iter().all(|byte| *byte == 0));
        // The client disconnects while the second piece is written.
        let asked = Cell::new(0);
        assert!(window.write(&bytes, &|| asked.replace(asked.get() + 1) < 2).is_err());
        assert_eq!(window.read().unwrap().iter().filter(|byte| **byte == 7).count(), 2 * PIECE_BYTES);
        assert_eq!(window.write(&bytes, &|| true), Ok(()));
        assert_eq!(window.read().unwrap(), bytes);
    }
}
