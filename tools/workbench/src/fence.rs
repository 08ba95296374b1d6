//! Where the buffers of a fenced kernel lie: what it may write in one range of memory, what it may
//! only read in another, each aligned to its size, a power of two.

use crate::launch::Buffer;
use std::ops::Range;

/// Buffers begin at multiples of this, as `cudaMalloc` returns them.
pub(crate) const BUFFER_ALIGN: u64 = 256;

/// The two ranges of memory that a fenced kernel may touch, as offsets in device memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Buffers that are writable.
    pub region: Range<u64>,
    /// The others, for loads alone.
    pub constants: Range<u64>,
}

/// How buffers share the two ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FenceLayout {
    /// For each buffer whether it lies in the region, and its offset there or among the constants.
    places: Vec<(bool, u64)>,
    pub(crate) region_bytes: u64,
    pub(crate) constants_bytes: u64,
}

impl FenceLayout {
    pub(crate) fn of(buffers: &[Buffer]) -> FenceLayout {
        let (mut region, mut constants) = (0_u64, 0_u64);
        let mut place = |buffer: &Buffer| {
            let end = if buffer.writable { &mut region } else { &mut constants };
            let at = end.next_multiple_of(BUFFER_ALIGN);
            *end = at.saturating_add(buffer.bytes.len() as u64);
            (buffer.writable, at)
        };
        let places = buffers.iter().map(&mut place).collect();
        // Larger than any access, also where nothing lies in it.
        let size = |end: u64| end.max(BUFFER_ALIGN).checked_next_power_of_two().unwrap_or(1 << 63);
        FenceLayout { places, region_bytes: size(region), constants_bytes: size(constants) }
    }

    /// Puts the ranges behind `begin`, the larger one first.
    pub(crate) fn behind(&self, begin: u64) -> Fence {
        let range = |begin: u64, bytes: u64| {
            let at = begin.checked_next_multiple_of(bytes).unwrap_or(u64::MAX);
            at..at.saturating_add(bytes)
        };
        if self.region_bytes >= self.constants_bytes {
            let region = range(begin, self.region_bytes);
            Fence { constants: range(region.end, self.constants_bytes), region }
        } else {
            let constants = range(begin, self.constants_bytes);
            Fence { region: range(constants.end, self.region_bytes), constants }
        }
    }

    /// The address of each buffer where the ranges begin there.
    pub(crate) fn addresses(&self, region: u64, constants: u64) -> Vec<u64> {
        self.places.iter().map(|&(in_region, at)| at + if in_region { region } else { constants }).collect()
    }

    /// The bytes of both ranges, buffers where they lie and zeroes between.
    pub(crate) fn contents(&self, buffers: &[Buffer]) -> (Vec<u8>, Vec<u8>) {
        let (mut region, mut constants) = (vec![0; self.region_bytes as usize], vec![0; self.constants_bytes as usize]);
        for (&(in_region, at), buffer) in self.places.iter().zip(buffers) {
            let range = if in_region { &mut region } else { &mut constants };
            range[at as usize..][..buffer.bytes.len()].copy_from_slice(&buffer.bytes);
        }
        (region, constants)
    }

    /// Offset of each buffer in the range it lies in.
    pub(crate) fn offsets(&self) -> Vec<usize> {
        self.places.iter().map(|&(_, at)| at as usize).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_aligned_and_hold_their_buffers() {
        let buffer = |bytes: usize, writable| Buffer { name: String::new(), bytes: vec![bytes as u8; bytes], writable };
        let buffers = [buffer(1000, true), buffer(5, false), buffer(300, true), buffer(4096, false), buffer(0, true)];
        let layout = FenceLayout::of(&buffers);
        assert_eq!((layout.region_bytes, layout.constants_bytes), (2048, 8192));
        let fence = layout.behind(1 << 16);
        assert_eq!(fence, Fence { region: 0x12000..0x12800, constants: 0x10000..0x12000 });
        assert_eq!(
            layout.addresses(fence.region.start, fence.constants.start),
            [0x12000, 0x10000, 0x12400, 0x10100, 0x12600]
        );
        let (region, constants) = layout.contents(&buffers);
        assert_eq!((region[999], region[1000], region[1024], region[1323]), (232, 0, 44, 44));
        assert_eq!((constants[4], constants[5], constants[256]), (5, 0, 0));
        assert_eq!(FenceLayout::of(&[]).behind(0), Fence { region: 0..256, constants: 256..512 });
    }
}
