//! Global memory: buffers at addresses so far apart that an out-of-bounds offset does not reach
//! another buffer.

use crate::fault::{FaultKind, Near};

/// Address bits below a region. A buffer starts in the middle of a region of 1 TiB, so an access
/// that misses the buffer by less than half a region is still reported against that buffer.
const REGION_BITS: u32 = 40;
const MIDDLE: u64 = 1 << (REGION_BITS - 1);

/// The first region of module-scope variables; buffers use the regions below.
const FIRST_VARIABLE: u64 = 0x40_0000;

/// Windows of the other state spaces in the generic address space, far above every buffer.
pub(crate) const SHARED_WINDOW: u64 = 0x7f_0001 << REGION_BITS;
pub(crate) const LOCAL_WINDOW: u64 = 0x7f_0002 << REGION_BITS;
pub(crate) const CONST_WINDOW: u64 = 0x7f_0003 << REGION_BITS;
pub(crate) const PARAM_WINDOW: u64 = 0x7f_0004 << REGION_BITS;
/// Addresses of functions: one byte per function.
pub(crate) const CODE_WINDOW: u64 = 0x7f_0005 << REGION_BITS;

/// The window that contains an address.
pub(crate) fn window(address: u64) -> u64 {
    address >> REGION_BITS << REGION_BITS
}

/// The accesses that a kernel may make to a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only loads.
    Read,
    /// Loads and stores.
    ReadWrite,
}

#[derive(Clone, Debug)]
struct Buffer {
    name: String,
    bytes: Vec<u8>,
    access: Access,
}

/// The buffers of launches, and the variables of modules.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    buffers: Vec<Buffer>,
    /// The `.global` variables of all programs that have run.
    variables: Vec<Buffer>,
    programs: Vec<(u64, usize)>,
    /// Index of the first variable of the current program.
    first_variable: usize,
}

/// A `.global` variable with its initial content.
#[derive(Clone, Debug)]
pub(crate) struct GlobalVariable {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

/// The address of a program's variable number `index`.
pub(crate) fn variable_address(index: usize) -> u64 {
    (FIRST_VARIABLE + index as u64) << REGION_BITS | MIDDLE
}

impl Memory {
    /// Memory without buffers.
    pub fn new() -> Memory {
        Memory::default()
    }

    /// Adds a buffer and returns its address, an odd multiple of 2³⁹. There is room for about four
    /// million buffers.
    pub fn add(&mut self, name: &str, bytes: Vec<u8>, access: Access) -> u64 {
        self.buffers.push(Buffer { name: name.to_owned(), bytes, access });
        (self.buffers.len() as u64) << REGION_BITS | MIDDLE
    }

    /// The content of the buffer that contains an address returned by [`Memory::add`]; empty if
    /// there is none.
    pub fn bytes(&self, address: u64) -> &[u8] {
        self.index(address).map_or(&[], |index| &self.buffers[index].bytes)
    }

    /// Like [`Memory::bytes`], mutable.
    pub fn bytes_mut(&mut self, address: u64) -> &mut [u8] {
        match self.index(address) {
            Some(index) => &mut self.buffers[index].bytes,
            None => &mut [],
        }
    }

    fn index(&self, address: u64) -> Option<usize> {
        let index = (address >> REGION_BITS).checked_sub(1)? as usize;
        (index < self.buffers.len()).then_some(index)
    }

    /// Makes the `.global` variables of a program accessible. They keep their contents between
    /// launches.
    pub(crate) fn select(&mut self, program: u64, variables: &[GlobalVariable]) {
        if let Some((_, first)) = self.programs.iter().find(|(id, _)| *id == program) {
            self.first_variable = *first;
            return;
        }
        self.first_variable = self.variables.len();
        self.programs.push((program, self.first_variable));
        let buffer =
            |v: &GlobalVariable| Buffer { name: v.name.clone(), bytes: v.bytes.clone(), access: Access::ReadWrite };
        self.variables.extend(variables.iter().map(buffer));
    }

    fn buffer(&mut self, address: u64) -> Option<&mut Buffer> {
        let region = address >> REGION_BITS;
        if region >= FIRST_VARIABLE {
            return self.variables.get_mut(self.first_variable + (region - FIRST_VARIABLE) as usize);
        }
        self.buffers.get_mut(region.checked_sub(1)? as usize)
    }

    /// The bytes of an access, if it is allowed.
    pub(crate) fn access(&mut self, address: u64, bytes: u32, write: bool) -> Result<&mut [u8], FaultKind> {
        let Some(buffer) = self.buffer(address) else {
            return Err(FaultKind::OutOfBounds { address, bytes, near: None });
        };
        let offset = address as i64 - (window(address) | MIDDLE) as i64;
        let near = |b: &Buffer| Some(Near { name: b.name.clone(), bytes: b.bytes.len() as u64, offset });
        let inside = usize::try_from(offset).ok().filter(|at| at.saturating_add(bytes as usize) <= buffer.bytes.len());
        let Some(at) = inside else { return Err(FaultKind::OutOfBounds { address, bytes, near: near(buffer) }) };
        if write && buffer.access == Access::Read {
            return Err(FaultKind::ReadOnly { address, bytes, near: near(buffer) });
        }
        Ok(&mut buffer.bytes[at..at + bytes as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_stay_in_their_buffer() {
        let mut memory = Memory::new();
        let (a, b) = (memory.add("a", vec![1; 8], Access::ReadWrite), memory.add("b", vec![2; 8], Access::Read));
        assert_eq!(memory.access(a + 4, 4, true).unwrap(), &[1; 4]);
        assert!(matches!(
            memory.access(a + 5, 4, true),
            Err(FaultKind::OutOfBounds { near: Some(Near { offset: 5, .. }), .. })
        ));
        assert!(matches!(
            memory.access(b - 1, 1, false),
            Err(FaultKind::OutOfBounds { near: Some(Near { offset: -1, .. }), .. })
        ));
        assert!(matches!(memory.access(b, 8, true), Err(FaultKind::ReadOnly { .. })));
        assert!(matches!(memory.access(0, 4, false), Err(FaultKind::OutOfBounds { near: None, .. })));
        assert!(matches!(memory.access(u64::MAX, 4, false), Err(FaultKind::OutOfBounds { .. })));
        assert_eq!(memory.bytes(b), &[2; 8]);
    }
}
