//! Parameters that passes appended to a kernel, and that a launch must supply.

use crate::error::BenchError;
use crate::fence::Fence;
use crate::launch::Kernel;
use atoll_kgraph::{fence_params, preempt_params, virtual_params};
use atoll_passes::{Fencing, VirtualLaunch, Virtualization};

/// Appended parameters and changed launch shape.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Appended {
    /// Byte offset of the fence's parameters.
    pub(crate) fence: Option<u32>,
    /// Byte offset of the preemption parameters.
    pub(crate) preempt: Option<u32>,
    /// Whether blocks write the progress map.
    pub(crate) keeps_progress: bool,
    /// The virtual launch.
    pub(crate) virtual_launch: Option<VirtualLaunch>,
    /// Shared memory that a pass made dynamic.
    pub(crate) shared_bytes: u32,
}

impl Appended {
    /// Reads the report of the passes. Refuses a kernel that could not be fenced although that was
    /// requested.
    pub(crate) fn of(kernel: &Kernel<'_>) -> Result<Appended, BenchError> {
        let Some(report) = kernel.report else { return Ok(Appended::default()) };
        if let Fencing::Refused(reason) = &report.fencing {
            return Err(BenchError::NotFenced { entry: kernel.entry.to_owned(), reason: reason.clone() });
        }
        let virtual_launch = match &report.virtualization {
            Virtualization::Virtual(launch) => Some(*launch),
            Virtualization::NotAsked | Virtualization::Refused(_) => None,
        };
        Ok(Appended {
            fence: report.fence_offset(),
            preempt: report.preempt_offset(),
            keeps_progress: report.keeps_progress(),
            virtual_launch,
            shared_bytes: report.shared_bytes,
        })
    }

    /// Offset of the first appended parameter.
    pub(crate) fn begin(&self) -> Option<u32> {
        [self.fence, self.preempt, self.virtual_launch.map(|v| v.offset)].into_iter().flatten().min()
    }

    /// End of the last appended parameter in the parameter block; 0 if there are none.
    pub(crate) fn end(&self) -> u32 {
        let virtual_end = self.virtual_launch.map_or(0, |v| {
            v.offset + if v.block.is_none() { virtual_params::BYTES } else { virtual_params::BYTES_WITHOUT_BLOCK }
        });
        let preempt_end = self.preempt.map_or(0, |offset| offset + preempt_params::BYTES);
        let fence_end = self.fence.map_or(0, |offset| offset + fence_params::BYTES);
        virtual_end.max(preempt_end).max(fence_end)
    }

    /// Block shape of the real launch.
    pub(crate) fn real_block(&self, block: [u32; 3]) -> [u32; 3] {
        match self.virtual_launch {
            Some(_) => [block.iter().product::<u32>().next_multiple_of(32), 1, 1],
            None => block,
        }
    }

    /// Grid of the real launch.
    pub(crate) fn real_grid(&self, grid: [u32; 3]) -> Result<[u32; 3], BenchError> {
        if self.virtual_launch.is_none() {
            return Ok(grid);
        }
        let blocks = grid.iter().try_fold(1u32, |n, g| n.checked_mul(*g));
        blocks
            .map(|n| [n, 1, 1])
            .ok_or_else(|| BenchError::Launch("a virtual grid must have fewer than 2^32 blocks".into()))
    }

    /// Writes the fence's numeric parameters. Returns the addresses to fill in.
    pub(crate) fn write_fence(&self, bytes: &mut [u8], fence: &Fence, dynamic_shared_bytes: u32) -> Vec<(usize, u64)> {
        let Some(offset) = self.fence else { return Vec::new() };
        let at = |param: u32| (offset + param) as usize;
        for (param, range) in [(fence_params::MASK, &fence.region), (fence_params::CONSTANTS_MASK, &fence.constants)] {
            bytes[at(param)..][..8].copy_from_slice(&(range.end - range.start - 1).to_le_bytes());
        }
        bytes[at(fence_params::DYNAMIC_SHARED)..][..4].copy_from_slice(&dynamic_shared_bytes.to_le_bytes());
        vec![(at(fence_params::BASE), fence.region.start), (at(fence_params::CONSTANTS_BASE), fence.constants.start)]
    }

    /// Writes the parameters of the virtual launch.
    pub(crate) fn write_virtual(&self, bytes: &mut [u8], grid: [u32; 3], block: [u32; 3]) {
        let Some(launch) = self.virtual_launch else { return };
        let mut put = |param: u32, value: u32| {
            let at = (launch.offset + param) as usize;
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        };
        put(virtual_params::BLOCK_BASE, 0);
        for (axis, (grid, block)) in (0..).zip(grid.into_iter().zip(block)) {
            put(virtual_params::GRID + 4 * axis, grid);
            if launch.block.is_none() {
                put(virtual_params::BLOCK + 4 * axis, block);
            }
        }
    }
}
