//! Kernels as code objects for AMD GPUs, in the interpreter of `tests/amd-interp`.

use crate::bind::{self, Bound, Signature};
use crate::error::BenchError;
use crate::launch::{Buffer, Kernel, KernelDevice, Launch, Outcome};
use atoll_amd_interp::{Memory, Options, Program, run};
use atoll_device::{LaunchReport, print_buffer};
pub use atoll_target_amd::Architecture;
use atoll_target_amd::{AmdError, KernelShape, LowerError, abi, compile};
use std::time::Instant;

/// Instructions of all waves of a launch; one that takes more probably does not end.
const INSTRUCTIONS_MAX: u64 = 1 << 28;

/// Bytes for what a launch prints.
const PRINT_BYTES: u32 = 1 << 20;

/// The interpreter of AMD code as a device of one architecture.
#[derive(Clone, Debug)]
pub struct AmdBench {
    /// The architecture to compile for.
    pub architecture: Architecture,
    /// Order of the waves, and instruction limit.
    pub options: Options,
}

/// A kernel loaded into the interpreter.
pub struct AmdKernel {
    entry: String,
    program: Program,
    signature: Signature,
    params_bytes: u32,
    /// Bytes between the kernel's static shared memory and the dynamic part.
    gap_bytes: u32,
}

impl AmdBench {
    /// A device of an architecture.
    pub fn new(architecture: Architecture) -> AmdBench {
        AmdBench { architecture, options: Options { limit: INSTRUCTIONS_MAX, ..Options::default() } }
    }
}

impl BenchError {
    /// Whether a target of LLVM does not support something that the kernel uses.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, BenchError::Amd(AmdError::Lower(LowerError::Unsupported { .. })))
    }
}

impl bind::Memory for Memory {
    fn add(&mut self, name: &str, bytes: Vec<u8>, writable: bool) -> u64 {
        if writable { self.add(name, bytes) } else { self.add_constant(name, bytes) }
    }
}

impl AmdKernel {
    /// Runs a launch, and returns what it printed.
    fn once(&self, launch: &Launch, buffers: &mut [Buffer], options: &Options) -> Result<LaunchReport, BenchError> {
        let mut memory = Memory::new();
        let Bound { mut params, grid, block, shared_bytes, buffers: addresses, offsets } =
            self.signature.bind(launch, buffers, &mut memory)?;
        params.resize(self.params_bytes as usize, 0);
        let trap = memory.add("trap record", vec![0; abi::TRAP_BYTES as usize]);
        let print = memory.add("print buffer", print_buffer::empty(PRINT_BYTES));
        let kernarg = abi::kernarg(&params, grid, block, shared_bytes, abi::Records { trap, print });
        let dynamic_lds = if shared_bytes == 0 { 0 } else { shared_bytes.saturating_add(self.gap_bytes) };
        let launch = atoll_amd_interp::Launch { grid, block, dynamic_lds, kernarg };
        let result = run(&[&self.program], &self.entry, &launch, &mut memory, options);
        for ((buffer, address), offset) in buffers.iter_mut().zip(addresses).zip(offsets) {
            // The address includes the offset.
            let allocation = memory.bytes(address - offset as u64).expect("the buffer was added");
            let bytes = buffer.bytes.len();
            buffer.bytes.copy_from_slice(&allocation[offset..][..bytes]);
        }
        result?;
        self.check_trap(memory.bytes(trap).expect("the record was added"))?;
        let mut report = LaunchReport::default();
        print_buffer::append(&mut report, &self.entry, memory.bytes(print).expect("the buffer was added"));
        Ok(report)
    }

    fn check_trap(&self, record: &[u8]) -> Result<(), BenchError> {
        let word = |at: u32| u32::from_le_bytes(std::array::from_fn(|byte| record[at as usize + byte]));
        if word(abi::TRAP_STATE) == 0 {
            return Ok(());
        }
        let (code, line) = (word(abi::TRAP_CODE), word(abi::TRAP_LINE));
        Err(BenchError::Launch(format!("kernel `{}` trapped with code {code} at line {line}", self.entry)))
    }
}

impl KernelDevice for AmdBench {
    type Loaded = AmdKernel;

    fn load(&mut self, kernel: &Kernel<'_>) -> Result<AmdKernel, BenchError> {
        let signature = Signature::of(kernel)?;
        let shape = KernelShape { name: kernel.entry.into(), block: signature.real_block() };
        let code = compile(kernel.module, &[shape], self.architecture, &atoll_target_amd::Options::default())?;
        let [facts] = &code.kernels[..] else {
            return Err(BenchError::Launch("the code object does not have one kernel".into()));
        };
        let fixed = facts.shared_static_bytes;
        Ok(AmdKernel {
            entry: kernel.entry.to_owned(),
            program: Program::load(&code.elf)?,
            signature,
            params_bytes: facts.params_bytes,
            gap_bytes: fixed.next_multiple_of(abi::DYNAMIC_SHARED_ALIGN) - fixed,
        })
    }

    fn launch(
        &mut self,
        kernel: &AmdKernel,
        launch: &Launch,
        buffers: &mut [Buffer],
        repeat: u32,
    ) -> Result<Outcome, BenchError> {
        let mut outcome = Outcome::default();
        let mut working = buffers.to_vec();
        for repetition in 0..repeat.max(1) {
            let start = Instant::now();
            let report = kernel.once(launch, &mut working, &self.options)?;
            outcome.times.push(start.elapsed());
            if repetition == 0 {
                buffers.clone_from_slice(&working);
                (outcome.printed, outcome.printed_lost_bytes) = (report.printed, report.printed_lost_bytes);
            }
        }
        Ok(outcome)
    }

    fn unload(&mut self, _: AmdKernel) {}
}
