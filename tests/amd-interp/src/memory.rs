//! Global memory: named buffers at distant addresses, and optionally memory of the caller. Every
//! access must lie inside one buffer or in the caller's memory.

use std::sync::Arc;

use crate::fault::FaultKind;

/// Distance in bytes between buffers that [`Memory::add`] places, so that an index past the end of
/// a buffer does not reach the next one.
const DISTANCE: u64 = 1 << 36;
const FIRST: u64 = 0x1000_0000_0000;

struct Buffer {
    name: String,
    base: u64,
    bytes: Vec<u8>,
    writable: bool,
}

/// Memory of the caller, which other threads may access while a kernel runs, such as words that the
/// host polls. It is used for every address that is in no buffer.
pub trait AddressSpace: Send + Sync {
    /// Reads bytes at an address. Returns false if they do not all lie in readable memory. An
    /// aligned word is read atomically.
    fn read(&self, address: u64, out: &mut [u8]) -> bool;

    /// Writes bytes at an address. Returns false if they do not all lie in writable memory. An
    /// aligned word is written atomically.
    fn write(&self, address: u64, bytes: &[u8]) -> bool;
}

/// The memory that kernels can access.
#[derive(Default)]
pub struct Memory {
    buffers: Vec<Buffer>,
    added: u64,
    beside: Option<Arc<dyn AddressSpace>>,
}

impl Memory {
    /// Memory without buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Memory without buffers, in addition to memory of the caller.
    pub fn beside(space: Arc<dyn AddressSpace>) -> Self {
        Self { beside: Some(space), ..Self::default() }
    }

    /// Adds a writable buffer and returns its address.
    pub fn add(&mut self, name: &str, bytes: Vec<u8>) -> u64 {
        self.add_next(name, bytes, true)
    }

    /// Adds a buffer that kernels only read, and returns its address.
    pub fn add_constant(&mut self, name: &str, bytes: Vec<u8>) -> u64 {
        self.add_next(name, bytes, false)
    }

    fn add_next(&mut self, name: &str, bytes: Vec<u8>, writable: bool) -> u64 {
        let base = FIRST + self.added * DISTANCE;
        self.added += 1;
        self.add_at(name, base, bytes, writable);
        base
    }

    /// Adds a buffer at an address that the caller chooses.
    pub fn add_at(&mut self, name: &str, base: u64, bytes: Vec<u8>, writable: bool) {
        let place = self.buffers.partition_point(|b| b.base < base);
        self.buffers.insert(place, Buffer { name: name.to_owned(), base, bytes, writable });
    }

    /// Removes the buffer that begins at `base`, and returns its bytes.
    pub fn remove(&mut self, base: u64) -> Option<Vec<u8>> {
        let index = self.buffers.iter().position(|b| b.base == base)?;
        Some(self.buffers.remove(index).bytes)
    }

    /// Whether a buffer begins at `base`.
    pub fn has(&self, base: u64) -> bool {
        self.buffers.iter().any(|b| b.base == base)
    }

    /// The bytes of the buffer that begins at `base`.
    pub fn bytes(&self, base: u64) -> Option<&[u8]> {
        self.buffers.iter().find(|b| b.base == base).map(|b| &b.bytes[..])
    }

    /// The bytes of the buffer that begins at `base`, for writing.
    pub fn bytes_mut(&mut self, base: u64) -> Option<&mut [u8]> {
        self.buffers.iter_mut().find(|b| b.base == base).map(|b| &mut b.bytes[..])
    }

    fn find(&self, address: u64, bytes: usize) -> Option<(usize, usize)> {
        let index = self.buffers.partition_point(|b| b.base <= address).checked_sub(1)?;
        let start = usize::try_from(address - self.buffers[index].base).ok()?;
        (start.checked_add(bytes)? <= self.buffers[index].bytes.len()).then_some((index, start))
    }

    /// Copies bytes out of a buffer.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), FaultKind> {
        let Some((index, start)) = self.find(address, out.len()) else {
            let found = self.beside.as_ref().is_some_and(|space| space.read(address, out));
            let outside = FaultKind::OutsideBuffers { access: "read", address, bytes: out.len() };
            return if found { Ok(()) } else { Err(outside) };
        };
        out.copy_from_slice(&self.buffers[index].bytes[start..start + out.len()]);
        Ok(())
    }

    /// Copies bytes into a buffer.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), FaultKind> {
        let Some((index, start)) = self.find(address, bytes.len()) else {
            let found = self.beside.as_ref().is_some_and(|space| space.write(address, bytes));
            let outside = FaultKind::OutsideBuffers { access: "write", address, bytes: bytes.len() };
            return if found { Ok(()) } else { Err(outside) };
        };
        let buffer = &mut self.buffers[index];
        if !buffer.writable {
            let buffer = buffer.name.clone();
            return Err(FaultKind::ReadOnly { buffer, address, bytes: bytes.len() });
        }
        buffer.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}
