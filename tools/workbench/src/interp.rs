//! Kernels in the interpreter: slow, and every access is held to its own buffer.

use crate::appended::Appended;
use crate::block::{ParameterBlock, parameter_count};
use crate::{BenchError, Buffer, Kernel, KernelDevice, Launch, Outcome};
use atoll_interp::{Access, Memory, Options, Program};
use atoll_kgraph::preempt_params;
use atoll_ptx::Function;
use std::time::Instant;

/// The interpreter as a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct InterpBench {
    /// The order in which threads take turns, and the limit of instructions.
    pub options: Options,
}

/// A kernel in it.
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
        let program = Program::new(kernel.module, kernel.entry)?;
        let function = kernel.module.function(kernel.entry).expect("it was read").clone();
        let appended = Appended::of(kernel);
        let own_params = parameter_count(&function, appended.begin());
        Ok(InterpKernel { program, function, appended, block: kernel.block, own_params })
    }

    fn launch(&mut self, kernel: &InterpKernel, launch: &Launch, buffers: &mut [Buffer], repeat: u32) -> Result<Outcome, BenchError> {
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

/// A launch in the interpreter that has not begun.
#[derive(Clone, Debug)]
pub struct InterpLaunch {
    /// Shape and parameters.
    pub launch: atoll_interp::Launch,
    /// The buffers, and what passes want besides.
    pub memory: Memory,
    /// Addresses of the buffers.
    pub buffers: Vec<u64>,
}

impl InterpKernel {
    /// The kernel as the interpreter runs it, for those who take its blocks into their own hands.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Lays out a launch: parameters and memory.
    pub fn bind(&self, launch: &Launch, buffers: &[Buffer]) -> Result<InterpLaunch, BenchError> {
        let mut block = ParameterBlock::new(&self.function, self.own_params, &launch.args, buffers)?;
        let mut memory = Memory::new();
        let access = |b: &Buffer| if b.writable { Access::ReadWrite } else { Access::Read };
        let places: Vec<u64> = buffers.iter().map(|b| memory.add(&b.name, b.bytes.clone(), access(b))).collect();
        let set = |bytes: &mut [u8], at: usize, address: u64| bytes[at..at + 8].copy_from_slice(&address.to_le_bytes());
        for (at, buffer, offset) in block.addresses {
            set(&mut block.bytes, at, places[buffer] + offset);
        }
        block.bytes.resize(block.bytes.len().max(self.appended.end() as usize), 0);
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
        Ok(InterpLaunch { launch, memory, buffers: places })
    }
}

impl InterpBench {
    fn once(&self, kernel: &InterpKernel, launch: &Launch, buffers: &mut [Buffer]) -> Result<atoll_interp::Report, BenchError> {
        let mut bound = kernel.bind(launch, buffers)?;
        let report = atoll_interp::run(&kernel.program, &bound.launch, &mut bound.memory, &self.options);
        for (buffer, &place) in buffers.iter_mut().zip(&bound.buffers) {
            buffer.bytes.copy_from_slice(bound.memory.bytes(place));
        }
        Ok(report?)
    }
}
