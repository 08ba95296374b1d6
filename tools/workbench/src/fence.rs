//! Memory layout of a fenced kernel: writable buffers in one range, read-only ones in another. The
//! size of each range is a power of two, and each is aligned to its size.

use crate::launch::Buffer;
use std::ops::Range;

/// Alignment of buffers, as for `cudaMalloc`.
pub(crate) const BUFFER_ALIGN: u64 = 256;

/// The two memory ranges that a fenced kernel may access, as offsets in device memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Writable buffers.
    pub region: Range<u64>,
    /// Read-only buffers.
    pub constants: Range<u64>,
}

/// Placement of buffers in the two ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FenceLayout {
    /// For each buffer: whether it is in the region, and its offset in its range.
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
        // Not smaller than any access, even for an empty range.
        let size = |end: u64| end.max(BUFFER_ALIGN).checked_next_power_of_two().unwrap_or(1 << 63);
        FenceLayout { places, region_bytes: size(region), constants_bytes: size(constants) }
    }

    /// Places the ranges after `begin`, the larger one first.
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

    /// Address of each buffer, for the given beginnings of the ranges.
    pub(crate) fn addresses(&self, region: u64, constants: u64) -> Vec<u64> {
        self.places.iter().map(|&(in_region, at)| at + if in_region { region } else { constants }).collect()
    }

    /// Contents of both ranges, with zeros between the buffers.
    pub(crate) fn contents(&self, buffers: &[Buffer]) -> (Vec<u8>, Vec<u8>) {
        let (mut region, mut constants) = (vec![0; self.region_bytes as usize], vec![0; self.constants_bytes as usize]);
        for (&(in_region, at), buffer) in self.places.iter().zip(buffers) {
            let range = if in_region { &mut region } else { &mut constants };
            range[at as usize..][..buffer.bytes.len()].copy_from_slice(&buffer.bytes);
        }
        (region, constants)
    }

    /// Offset of each buffer in its range.
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
