//! Kernels in the interpreter: slow, but every access is checked against its buffer.

use crate::bind::{self, Bound, Signature};
use crate::error::BenchError;
use crate::launch::{Buffer, Kernel, KernelDevice, Launch, Outcome};
use atoll_interp::{Access, Memory, Options, Program};
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
    signature: Signature,
}

impl KernelDevice for InterpBench {
    type Loaded = InterpKernel;

    fn load(&mut self, kernel: &Kernel<'_>) -> Result<InterpKernel, BenchError> {
        let signature = Signature::of(kernel)?;
        Ok(InterpKernel { program: Program::new(kernel.module, kernel.entry)?, signature })
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
        let mut memory = Memory::new();
        let Bound { params, grid, block, shared_bytes, buffers, offsets } =
            self.signature.bind(launch, buffers, &mut memory)?;
        let launch = atoll_interp::Launch { grid, block, shared_bytes, params };
        Ok(InterpLaunch { launch, memory, buffers, offsets })
    }
}

impl bind::Memory for Memory {
    fn add(&mut self, name: &str, bytes: Vec<u8>, writable: bool) -> u64 {
        self.add(name, bytes, if writable { Access::ReadWrite } else { Access::Read })
    }
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
