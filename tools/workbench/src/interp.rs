//! Kernels in the interpreter: slow, but every access is checked against its buffer.

use crate::appended::Appended;
use crate::block::{ParameterBlock, parameter_count};
use crate::error::BenchError;
use crate::fence::Fence;
use crate::fence::FenceLayout;
use crate::launch::{Buffer, Kernel, KernelDevice, Launch, Outcome};
use atoll_interp::{Access, Memory, Options, Program};
use atoll_kgraph::preempt_params;
use atoll_ptx::Function;
use std::time::Instant;

/// The interpreter as a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct InterpBench {
    /// Thread scheduling order and instruction limit.
    pub options: Options,
}

/// A kernel loaded into the interpreter.
#[derive(Debug)]
pub struct InterpKernel {
    program: Program,
    function: Function,
    appended: Appended,
    block: [u32; 3],
    own_params: usize,
}

impl KernelDevice for InterpBench {
    type Loaded = InterpKernel;

    fn load(&mut self, kernel: &Kernel<'_>) -> Result<InterpKernel, BenchError> {
        let appended = Appended::of(kernel)?;
        let program = Program::new(kernel.module, kernel.entry)?;
        let function = kernel.module.function(kernel.entry).expect("it was read").clone();
        let own_params = parameter_count(&function, appended.begin());
        Ok(InterpKernel { program, function, appended, block: kernel.block, own_params })
    }

    fn launch(
        &mut self,
        kernel: &InterpKernel,
        launch: &Launch,
        buffers: &mut [Buffer],
        repeat: u32,
    ) -> Result<Outcome, BenchError> {
        let mut outcome = Outcome::default();
        let mut working = buffers.to_vec();
        for repetition in 0..repeat.max(1) {
            let start = Instant::now();
            let report = self.once(kernel, launch, &mut working)?;
            outcome.times.push(start.elapsed());
            if repetition == 0 {
                buffers.clone_from_slice(&working);
                (outcome.printed, outcome.printed_lost_bytes) = (report.printed, report.printed_lost_bytes);
            }
        }
        Ok(outcome)
    }

    fn unload(&mut self, _: InterpKernel) {}
}

/// A launch that has not started.
#[derive(Clone, Debug)]
pub struct InterpLaunch {
    /// Shape and parameters.
    pub launch: atoll_interp::Launch,
    /// The buffers, and the memory for parameters that passes appended.
    pub memory: Memory,
    buffers: Vec<u64>,
    /// Offset of each buffer in its memory allocation.
    offsets: Vec<usize>,
}

impl InterpLaunch {
    /// Device addresses of the buffers.
    pub fn addresses(&self) -> &[u64] {
        &self.buffers
    }

    /// Content of a buffer in the memory of this launch, or in a copy of it.
    pub fn content<'m>(&self, memory: &'m Memory, index: usize, bytes: usize) -> &'m [u8] {
        &memory.bytes(self.buffers[index])[self.offsets[index]..][..bytes]
    }
}

impl InterpKernel {
    /// The interpreter's program, for callers that run its blocks themselves.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Prepares parameters and memory of a launch.
    pub fn bind(&self, launch: &Launch, buffers: &[Buffer]) -> Result<InterpLaunch, BenchError> {
        let mut block = ParameterBlock::new(&self.function, self.own_params, &launch.args, buffers)?;
        let mut memory = Memory::new();
        let set = |bytes: &mut [u8], at: usize, address: u64| bytes[at..at + 8].copy_from_slice(&address.to_le_bytes());
        block.bytes.resize(block.bytes.len().max(self.appended.end() as usize), 0);
        let (places, offsets) = if self.appended.fence.is_some() {
            let layout = FenceLayout::of(buffers);
            let fence = add_fenced(&mut memory, &layout, buffers);
            for (at, address) in self.appended.write_fence(&mut block.bytes, &fence, launch.shared_bytes) {
                set(&mut block.bytes, at, address);
            }
            (layout.addresses(fence.region.start, fence.constants.start), layout.offsets())
        } else {
            let access = |b: &Buffer| if b.writable { Access::ReadWrite } else { Access::Read };
            (buffers.iter().map(|b| memory.add(&b.name, b.bytes.clone(), access(b))).collect(), vec![0; buffers.len()])
        };
        for (at, buffer, offset) in block.addresses {
            set(&mut block.bytes, at, places[buffer] + offset);
        }
        self.appended.write_virtual(&mut block.bytes, launch.grid, self.block);
        if let Some(offset) = self.appended.preempt {
            let blocks: u64 = launch.grid.iter().map(|g| u64::from(*g)).product();
            let words = [
                (preempt_params::EPOCH_WORD, memory.add("epoch word", vec![0; 4], Access::Read)),
                (preempt_params::EVICTED_WORD, memory.add("evicted word", vec![0; 4], Access::ReadWrite)),
                (preempt_params::PROGRESS, memory.add("progress map", vec![0; blocks as usize], Access::ReadWrite)),
            ];
            for (param, address) in words {
                set(&mut block.bytes, (offset + param) as usize, address);
            }
        }
        let launch = atoll_interp::Launch {
            grid: self.appended.real_grid(launch.grid)?,
            block: self.appended.real_block(self.block),
            shared_bytes: launch.shared_bytes.saturating_add(self.appended.shared_bytes),
            params: block.bytes,
        };
        Ok(InterpLaunch { launch, memory, buffers: places, offsets })
    }
}

/// The memory of a fenced kernel: two allocations in which buffers are adjacent.
fn add_fenced(memory: &mut Memory, layout: &FenceLayout, buffers: &[Buffer]) -> Fence {
    let (region, constants) = layout.contents(buffers);
    let region = memory.add("region", region, Access::ReadWrite);
    let constants = memory.add("constants", constants, Access::Read);
    Fence { region: region..region + layout.region_bytes, constants: constants..constants + layout.constants_bytes }
}

impl InterpBench {
    fn once(
        &self,
        kernel: &InterpKernel,
        launch: &Launch,
        buffers: &mut [Buffer],
    ) -> Result<atoll_interp::Report, BenchError> {
        let mut bound = kernel.bind(launch, buffers)?;
        let report = atoll_interp::run(&kernel.program, &bound.launch, &mut bound.memory, &self.options);
        for (index, buffer) in buffers.iter_mut().enumerate() {
            let bytes = buffer.bytes.len();
            buffer.bytes.copy_from_slice(bound.content(&bound.memory, index, bytes));
        }
        Ok(report?)
    }
}
