//! Places a launch in the memory of an interpreter: its buffers, and the memory for parameters that
//! passes appended.

use crate::appended::Appended;
use crate::block::{ParameterBlock, parameter_count};
use crate::error::BenchError;
use crate::fence::{Fence, FenceLayout};
use crate::launch::{Buffer, Kernel, Launch};
use atoll_kgraph::preempt_params;
use atoll_ptx::Function;

/// The memory of an interpreter.
pub(crate) trait Memory {
    /// Adds memory and returns its address, a multiple of its size rounded up to a power of two.
    fn add(&mut self, name: &str, bytes: Vec<u8>, writable: bool) -> u64;
}

/// What a launch of a kernel must supply.
#[derive(Clone, Debug)]
pub(crate) struct Signature {
    function: Function,
    appended: Appended,
    block: [u32; 3],
    own_params: usize,
}

/// A launch in the memory of an interpreter.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    /// The parameter block.
    pub(crate) params: Vec<u8>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub(crate) shared_bytes: u32,
    /// Addresses of the buffers.
    pub(crate) buffers: Vec<u64>,
    /// Offset of each buffer in its allocation.
    pub(crate) offsets: Vec<usize>,
}

impl Signature {
    /// The signature of a kernel.
    pub(crate) fn of(kernel: &Kernel<'_>) -> Result<Signature, BenchError> {
        let appended = Appended::of(kernel)?;
        let function = kernel.module.function(kernel.entry);
        let function = function.ok_or_else(|| BenchError::Launch(format!("there is no kernel `{}`", kernel.entry)))?;
        let own_params = parameter_count(function, appended.begin());
        Ok(Signature { function: function.clone(), appended, block: kernel.block, own_params })
    }

    /// The block shape of the launch.
    pub(crate) fn real_block(&self) -> [u32; 3] {
        self.appended.real_block(self.block)
    }

    /// Prepares parameters and memory of a launch.
    pub(crate) fn bind(
        &self,
        launch: &Launch,
        buffers: &[Buffer],
        memory: &mut impl Memory,
    ) -> Result<Bound, BenchError> {
        let mut block = ParameterBlock::new(&self.function, self.own_params, &launch.args, buffers)?;
        let set = |bytes: &mut [u8], at: usize, address: u64| bytes[at..at + 8].copy_from_slice(&address.to_le_bytes());
        block.bytes.resize(block.bytes.len().max(self.appended.end() as usize), 0);
        let (places, offsets) = if self.appended.fence.is_some() {
            let layout = FenceLayout::of(buffers);
            let fence = add_fenced(memory, &layout, buffers);
            for (at, address) in self.appended.write_fence(&mut block.bytes, &fence, launch.shared_bytes) {
                set(&mut block.bytes, at, address);
            }
            (layout.addresses(fence.region.start, fence.constants.start), layout.offsets())
        } else {
            let places = buffers.iter().map(|b| memory.add(&b.name, b.bytes.clone(), b.writable));
            (places.collect(), vec![0; buffers.len()])
        };
        for (at, buffer, offset) in block.addresses {
            set(&mut block.bytes, at, places[buffer] + offset);
        }
        self.appended.write_virtual(&mut block.bytes, launch.grid, self.block);
        if let Some(offset) = self.appended.preempt {
            for (param, address) in add_preemption(memory, launch) {
                set(&mut block.bytes, (offset + param) as usize, address);
            }
        }
        Ok(Bound {
            params: block.bytes,
            grid: self.appended.real_grid(launch.grid)?,
            block: self.real_block(),
            shared_bytes: launch.shared_bytes.saturating_add(self.appended.shared_bytes),
            buffers: places,
            offsets,
        })
    }
}

/// The memory of a fenced kernel: two allocations in which buffers are adjacent.
fn add_fenced(memory: &mut impl Memory, layout: &FenceLayout, buffers: &[Buffer]) -> Fence {
    let (region, constants) = layout.contents(buffers);
    let region = memory.add("region", region, true);
    let constants = memory.add("constants", constants, false);
    Fence { region: region..region + layout.region_bytes, constants: constants..constants + layout.constants_bytes }
}

/// The words of a preemptible launch, and the parameters that point to them.
fn add_preemption(memory: &mut impl Memory, launch: &Launch) -> [(u32, u64); 3] {
    let blocks: u64 = launch.grid.iter().map(|g| u64::from(*g)).product();
    [
        (preempt_params::EPOCH_WORD, memory.add("epoch word", vec![0; 4], false)),
        (preempt_params::EVICTED_WORD, memory.add("evicted word", vec![0; 4], true)),
        (preempt_params::PROGRESS, memory.add("progress map", vec![0; blocks as usize], true)),
    ]
}
