//! Memory: allocations are made locally, copies and fills are recorded.

use crate::client::{Busy, Client};
use crate::code::Code;
use crate::limits::{ALIGN_BYTES, COPY_BYTES_MAX};
use crate::ranges::Span;
use crate::record::Record;
use crate::transport::Transport;

/// Maximum size in bytes of the copies to the host whose records are in the buffer.
const COPIES_BYTES_MAX: u64 = 64 << 20;

/// The owner of a range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Allocation { context: u32 },
    Variable { context: u32, module: u32 },
}

/// The range at an address of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryKind {
    /// The whole range.
    pub span: Span,
    /// The context that it belongs to.
    pub context: u32,
    /// Whether it is an allocation rather than a variable of a module.
    pub is_allocation: bool,
}

/// The destination of a copy to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCopy {
    /// The address in the program's memory.
    pub to: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl<T: Transport> Client<T> {
    /// Returns the free and the total bytes of the session's memory.
    pub fn memory_bytes(&self) -> (u64, u64) {
        self.arena.free_and_total()
    }

    /// Allocates memory. It is zero, or has the contents of memory that the session freed.
    pub fn allocate(&mut self, context: u32, bytes: u64) -> Result<u64, Code> {
        self.allocate_at(context, bytes, ALIGN_BYTES)
    }

    /// Allocates memory at a multiple of `align`, a power of two and at least [`ALIGN_BYTES`].
    pub fn allocate_at(&mut self, context: u32, bytes: u64, align: u64) -> Result<u64, Code> {
        self.check()?;
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let at = self.arena.take(bytes, align)?;
        self.ranges.insert(Span { at, bytes }, Owner::Allocation { context })?;
        self.push(&Record::Allocate { at, bytes })?;
        Ok(at)
    }

    /// Frees the allocation that begins at this address.
    pub fn free(&mut self, at: u64) -> Result<(), Code> {
        self.check()?;
        let found = self.find(at).filter(|found| found.is_allocation && found.span.at == at);
        let span = found.ok_or(Code::INVALID_VALUE)?.span;
        self.push(&Record::Free { at })?;
        self.ranges.remove(at);
        self.arena.give_back(span);
        Ok(())
    }

    /// The range at an address of the device.
    pub fn find(&self, at: u64) -> Option<MemoryKind> {
        let (span, owner) = self.ranges.find(at)?;
        Some(match *owner {
            Owner::Allocation { context } => MemoryKind { span, context, is_allocation: true },
            Owner::Variable { context, .. } => MemoryKind { span, context, is_allocation: false },
        })
    }

    /// Returns an error unless a range of device memory exists.
    pub fn check_span(&self, span: Span) -> Result<(), Code> {
        self.ranges.check(span)
    }

    /// Copies to the device. The bytes are read before the call returns.
    pub fn copy_in(&mut self, stream: u32, to: u64, bytes: &[u8]) -> Result<(), Code> {
        self.check_stream(stream)?;
        self.ranges.check(Span { at: to, bytes: bytes.len() as u64 })?;
        for (index, part) in bytes.chunks(COPY_BYTES_MAX).enumerate() {
            self.push(&Record::CopyIn { stream, to: to + (index * COPY_BYTES_MAX) as u64, bytes: part })?;
        }
        Ok(())
    }

    /// Records a copy from the device. The data is in the program's memory after the next call that
    /// waits, such as [`Client::complete_copies`].
    pub fn copy_out(&mut self, stream: u32, to: HostCopy, from: u64) -> Result<(), Code> {
        self.check_stream(stream)?;
        self.check()?;
        self.ranges.check(Span { at: from, bytes: to.bytes })?;
        if to.bytes == 0 {
            return Ok(());
        }
        self.recorder.push(&Record::CopyOut { stream, from, bytes: to.bytes });
        self.busy.insert(stream, Busy::CopyBack);
        self.copies.push(to);
        self.copies_bytes += to.bytes;
        let is_full = self.copies_bytes > COPIES_BYTES_MAX || self.recorder.is_full();
        if is_full { self.complete_copies() } else { Ok(()) }
    }

    /// Whether a recorded copy from the device that is not complete writes into a range of the
    /// program's memory.
    pub fn is_awaited(&self, at: u64, bytes: u64) -> bool {
        let ends = |at: u64, bytes: u64| at.saturating_add(bytes);
        self.copies.iter().any(|copy| copy.to < ends(at, bytes) && at < ends(copy.to, copy.bytes))
    }

    /// Waits for all recorded copies from the device.
    pub fn complete_copies(&mut self) -> Result<(), Code> {
        self.check()?;
        if self.copies.is_empty() {
            return Ok(());
        }
        self.exchange_checked().map(drop).map_err(|(code, _)| code)
    }

    /// Copies on the device.
    pub fn copy_within(&mut self, stream: u32, to: u64, from: u64, bytes: u64) -> Result<(), Code> {
        self.check_stream(stream)?;
        self.ranges.check(Span { at: to, bytes })?;
        self.ranges.check(Span { at: from, bytes })?;
        if bytes == 0 { Ok(()) } else { self.push(&Record::CopyWithin { stream, to, from, bytes }) }
    }

    /// Fills rows with an element of `size` bytes. `(pitch, width, height)` are the bytes from one
    /// row to the next, the elements of a row, and the number of rows.
    pub fn fill(&mut self, stream: u32, to: u64, rows: (u64, u64, u64), (value, size): (u32, u32)) -> Result<(), Code> {
        self.check_stream(stream)?;
        self.check_fill(to, rows, size)?;
        let (pitch, width, height) = rows;
        if width == 0 || height == 0 {
            return Ok(());
        }
        self.push(&Record::Fill { stream, to, pitch, width, height, value, size })
    }

    /// Returns the error of a fill that can be found without the server.
    pub fn check_fill(&self, to: u64, (pitch, width, height): (u64, u64, u64), size: u32) -> Result<(), Code> {
        if width == 0 || height == 0 {
            return Ok(());
        }
        let row = width.checked_mul(size.into()).ok_or(Code::INVALID_VALUE)?;
        let is_apart = height > 1 && (pitch < row || !pitch.is_multiple_of(size.into()));
        if !to.is_multiple_of(size.into()) || is_apart {
            return Err(Code::INVALID_VALUE);
        }
        let before = if height == 1 { Some(0) } else { pitch.checked_mul(height - 1) };
        let bytes = before.and_then(|before| before.checked_add(row)).ok_or(Code::INVALID_VALUE)?;
        self.ranges.check(Span { at: to, bytes })
    }
}
