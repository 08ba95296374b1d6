//! Global memory: named buffers at distant addresses. Every access lies inside one buffer.

use crate::fault::FaultKind;

/// Distance between buffers that [`Memory::add`] places, in bytes. An index that runs over the end
/// of a buffer does not reach the next.
const DISTANCE: u64 = 1 << 36;
const FIRST: u64 = 0x1000_0000_0000;

struct Buffer {
    name: String,
    base: u64,
    bytes: Vec<u8>,
    writable: bool,
}

/// The buffers that kernels can reach.
#[derive(Default)]
pub struct Memory {
    buffers: Vec<Buffer>,
    added: u64,
}

impl Memory {
    /// Memory without buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a writable buffer and returns its address.
    pub fn add(&mut self, name: &str, bytes: Vec<u8>) -> u64 {
        let base = FIRST + self.added * DISTANCE;
        self.added += 1;
        self.add_at(name, base, bytes, true);
        base
    }

    /// Adds a buffer at an address of the caller's choice.
    pub fn add_at(&mut self, name: &str, base: u64, bytes: Vec<u8>, writable: bool) {
        let place = self.buffers.partition_point(|b| b.base < base);
        self.buffers.insert(place, Buffer { name: name.to_owned(), base, bytes, writable });
    }

    /// Removes the buffer that begins at `base`.
    pub fn remove(&mut self, base: u64) {
        self.buffers.retain(|b| b.base != base);
    }

    /// Whether a buffer begins at `base`.
    pub fn has(&self, base: u64) -> bool {
        self.buffers.iter().any(|b| b.base == base)
    }

    /// The bytes of the buffer that begins at `base`.
    pub fn bytes(&self, base: u64) -> Option<&[u8]> {
        self.buffers.iter().find(|b| b.base == base).map(|b| &b.bytes[..])
    }

    /// The bytes of the buffer that begins at `base`, to change.
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
        let outside = FaultKind::OutsideBuffers { access: "read", address, bytes: out.len() };
        let (index, start) = self.find(address, out.len()).ok_or(outside)?;
        out.copy_from_slice(&self.buffers[index].bytes[start..start + out.len()]);
        Ok(())
    }

    /// Copies bytes into a buffer.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), FaultKind> {
        let outside = FaultKind::OutsideBuffers { access: "write", address, bytes: bytes.len() };
        let (index, start) = self.find(address, bytes.len()).ok_or(outside)?;
        let buffer = &mut self.buffers[index];
        if !buffer.writable {
            let buffer = buffer.name.clone();
            return Err(FaultKind::ReadOnly { buffer, address, bytes: bytes.len() });
        }
        buffer.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}
