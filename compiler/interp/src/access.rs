//! Translates addresses of all state spaces to bytes.

use crate::block::{BlockRun, Thread};
use crate::fault::{FaultKind, Near};
use crate::memory::{CONST_WINDOW, LOCAL_WINDOW, Memory, PARAM_WINDOW, SHARED_WINDOW, window};
use crate::op::{Addr, Space};

/// The bytes of a state space other than global memory: its name, its content, and the offset of
/// the access.
struct Window<'m> {
    name: &'static str,
    bytes: &'m mut [u8],
    offset: u64,
}

impl Window<'_> {
    fn out_of_bounds(&self, address: u64, bytes: u32) -> FaultKind {
        let near = Near { name: self.name.to_owned(), bytes: self.bytes.len() as u64, offset: self.offset as i64 };
        FaultKind::OutOfBounds { address, bytes, near: Some(near) }
    }
}

impl BlockRun<'_> {
    /// The address of a memory operand in one thread.
    pub(crate) fn address(&self, thread: usize, addr: &Addr) -> u64 {
        let sum = self.value(thread, addr.base).wrapping_add_signed(addr.offset);
        if addr.short && !matches!(addr.space, Space::Global | Space::Generic) { sum & 0xffff_ffff } else { sum }
    }

    /// The bytes of one thread's access, which must be aligned to `align`.
    pub(crate) fn bytes<'m>(
        &'m mut self,
        memory: &'m mut Memory,
        thread: usize,
        (space, address): (Space, u64),
        (bytes, align): (u32, u32),
        write: bool,
    ) -> Result<&'m mut [u8], FaultKind> {
        if !address.is_multiple_of(align.max(1).into()) {
            return Err(FaultKind::Misaligned { address, bytes });
        }
        let of_kernel = space == Space::Generic;
        let (space, offset) = match (space, window(address)) {
            (Space::Generic, SHARED_WINDOW) => (Space::Shared, address - SHARED_WINDOW),
            (Space::Generic, LOCAL_WINDOW) => (Space::Local, address - LOCAL_WINDOW),
            (Space::Generic, CONST_WINDOW) => (Space::Const, address - CONST_WINDOW),
            (Space::Generic, PARAM_WINDOW) => (Space::Param, address - PARAM_WINDOW),
            (Space::Generic | Space::Global, _) => return memory.access(address, bytes, write),
            (space, _) => (space, address),
        };
        let Thread { local, frames, .. } = &mut self.threads[thread];
        let outermost = of_kernel || frames.len() == 1;
        let place = match space {
            Space::Shared => Window { name: "shared memory", bytes: &mut self.shared, offset },
            Space::Local => Window { name: "local memory", bytes: local, offset },
            Space::Const => Window { name: "constant memory", bytes: &mut self.constants, offset },
            // A generic address of a parameter refers to a kernel parameter.
            _ => match if of_kernel { frames.first_mut() } else { frames.last_mut() } {
                Some(frame) => Window { name: "parameters", bytes: &mut frame.params, offset },
                None => return Err(FaultKind::OutOfBounds { address, bytes, near: None }),
            },
        };
        // Kernel parameters are read-only; the parameters of a call are written by the caller.
        let read_only = space == Space::Const
            || space == Space::Param && outermost && offset < u64::from(self.program.functions[0].own_params);
        let end = offset.checked_add(bytes.into()).filter(|end| *end <= place.bytes.len() as u64);
        let Some(end) = end else { return Err(place.out_of_bounds(address, bytes)) };
        if write && read_only {
            return Err(FaultKind::ReadOnly { address, bytes, near: None });
        }
        Ok(&mut place.bytes[offset as usize..end as usize])
    }
}
