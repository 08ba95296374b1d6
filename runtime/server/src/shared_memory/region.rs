//! A region: memory that a client has registered, and copies from and to parts of it.

use super::cuda::CudaMemory;
use super::system::SystemMemory;
use crate::requests::error::{Kind, RequestError};
use atoll_protocol::{CudaRegionStatus, RegionStatus, SharedRange};
use std::sync::Arc;

/// Bytes that are written at once, which takes a few hundred microseconds.
const PIECE_BYTES: usize = 1 << 20;

/// Why bytes cannot be copied: the kind of the error, and the rest of a sentence about the region.
pub(super) type Failure = (Kind, String);

/// How memory is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// By a file in `/dev/shm`.
    System,
    /// By a handle of CUDA IPC.
    Cuda,
}

impl Sharing {
    /// Its name in messages.
    pub(super) fn label(self) -> &'static str {
        match self {
            Sharing::System => "system",
            Sharing::Cuda => "CUDA",
        }
    }
}

/// The memory of a region.
#[derive(Debug)]
pub(super) enum Memory {
    System(SystemMemory),
    Cuda(CudaMemory),
}

/// A registered region.
#[derive(Debug)]
pub(crate) struct Region {
    memory: Memory,
    byte_size: u64,
}

/// A part of a region. It keeps the region's memory open.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    region: Arc<Region>,
    range: SharedRange,
}

impl Region {
    pub(super) fn new(memory: Memory, byte_size: u64) -> Region {
        Region { memory, byte_size }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.byte_size
    }

    pub(super) fn sharing(&self) -> Sharing {
        match self.memory {
            Memory::System(_) => Sharing::System,
            Memory::Cuda(_) => Sharing::Cuda,
        }
    }

    /// Its status, if it is system shared memory.
    pub(super) fn status(&self, name: &str) -> Option<RegionStatus> {
        if let Memory::System(memory) = &self.memory { Some(memory.status(name, self.byte_size)) } else { None }
    }

    /// Its status, if it is CUDA shared memory.
    pub(super) fn cuda_status(&self, name: &str) -> Option<CudaRegionStatus> {
        if let Memory::Cuda(memory) = &self.memory { Some(memory.status(name, self.byte_size)) } else { None }
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
        Ok(Window { range: range.clone(), region: self })
    }
}

impl Window {
    /// The range that the request named, for the answer.
    pub(crate) fn range(&self) -> &SharedRange {
        &self.range
    }

    /// How its memory is shared.
    pub(crate) fn sharing(&self) -> Sharing {
        self.region.sharing()
    }

    /// Copies its bytes. The caller has reserved memory for them.
    pub(super) fn read(&self) -> Result<Vec<u8>, RequestError> {
        let bytes = usize::try_from(self.range.byte_size);
        let mut bytes = vec![0; bytes.map_err(|_| self.failed((Kind::BadRequest, "is too large".into())))?];
        let copied = match &self.region.memory {
            Memory::System(memory) => memory.read(self.range.offset, &mut bytes),
            Memory::Cuda(memory) => memory.read(self.range.offset, &mut bytes),
        };
        copied.map(|()| bytes).map_err(|failure| self.failed(failure))
    }

    /// Writes bytes to its beginning, in pieces. Before each piece, checks that the client still
    /// waits.
    pub(super) fn write(&self, bytes: &[u8], is_awaited: &dyn Fn() -> bool) -> Result<(), RequestError> {
        if bytes.len() as u64 > self.range.byte_size {
            let (need, has) = (bytes.len(), self.range.byte_size);
            let reason = format!("has room for {has} bytes of this output, which has {need} bytes");
            return Err(self.failed((Kind::BadRequest, reason)));
        }
        if let Memory::System(memory) = &self.region.memory {
            let checked = memory.check_size(self.range.offset, bytes.len() as u64);
            checked.map_err(|failure| self.failed(failure))?;
        }
        // Cannot overflow: the pieces are within the region.
        let mut at = self.range.offset;
        for piece in bytes.chunks(PIECE_BYTES) {
            if !is_awaited() {
                return Err(RequestError::new(Kind::Unavailable, "the client left before its outputs were written"));
            }
            let copied = match &self.region.memory {
                Memory::System(memory) => memory.write(at, piece),
                Memory::Cuda(memory) => memory.write(at, piece),
            };
            copied.map_err(|failure| self.failed(failure))?;
            at = at.saturating_add(piece.len() as u64);
        }
        Ok(())
    }

    fn failed(&self, (kind, reason): Failure) -> RequestError {
        RequestError::new(kind, format!("shared memory region {:?} {reason}", self.range.region))
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
        let region = Arc::new(Region::new(Memory::System(SystemMemory::of_test(file.into())), byte_size));
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
