//! An interpreter of AMD code objects, so that kernels for AMD GPUs are tested without one.
//!
//! It executes the linked ELF files themselves: what LLVM and lld made for gfx906, gfx90a, gfx1100
//! and their relatives. LLVM's disassembler decodes, this crate gives each instruction its meaning,
//! and every access to memory is checked.
//!
//! ```no_run
//! # use atoll_amd_interp::{Launch, Memory, Options, Program, run};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let program = Program::load(&std::fs::read("kernels.hsaco")?)?;
//! let mut memory = Memory::new();
//! let data = memory.add("data", vec![0; 4096]);
//! let kernarg = data.to_le_bytes().to_vec();
//! let launch = Launch { grid: [4, 1, 1], block: [256, 1, 1], dynamic_lds: 0, kernarg };
//! let stats = run(&[&program], "fill", &launch, &mut memory, &Options::default())?;
//! println!("{} instructions", stats.total());
//! # Ok(())
//! # }
//! ```
//!
//! From file to result:
//!
//! - `program`, `descriptor`, `target`: ELF, kernel descriptors, architectures.
//! - `disasm`, `text`, `operand`, `decode`: bytes to LLVM's text, to operands and modifiers, to an
//!   operation. Each address is decoded once.
//! - `op`: the forms of operations. The tables of the families have one line per mnemonic: `salu`,
//!   `valu_int`, `valu_float`, `convert`, `compare`, `special` (steps of division), `cross_lane`,
//!   `control` (branches, EXEC, barriers, hardware registers), `flat` (global, flat, scratch,
//!   buffer), `lds`, `smem`, `matrix`.
//! - `exec`: reads operands, calls the operation's function, writes results; DPP, SDWA, packed
//!   halves, dual instructions, output modifiers.
//! - `soft`, `mode`: floating-point formats with exact arithmetic, rounded as MODE says.
//! - `wave`, `space`, `transfer`, `memory`: registers, address spaces, buffers.
//! - `launch`, `run`: registers at the start, and the order of waves.
//!
//! Invariants:
//!
//! - An instruction, operand, modifier or hardware register that is not known stops the wave with
//!   its name and address. Nothing is skipped but caches, waits and clocks.
//! - An access lies inside one buffer or in memory of the caller, the workgroup's LDS or the lane's
//!   scratch, and a register inside what the kernel descriptor allocates; else the wave stops.
//! - No file makes this crate panic, and every run ends, at the latest by its limit.
//! - The same seed gives the same run. Registers, LDS and scratch that nothing has set hold bytes
//!   that depend on the seed.
//!
//! Not here: time, caches, and what an absent wait would do, since an instruction's effect is
//! visible before the next one starts; hazards that compilers avoid with `s_nop`; textures, images,
//! global data share, trap handlers, XNACK, and jumps between waves of different size.
//!
//! Numbers: arithmetic that IEEE 754 defines is exact, in all rounding and denormal modes.
//! `v_rcp`, `v_rsq`, `v_sqrt`, `v_exp`, `v_log`, `v_sin` and `v_cos` are computed in f64 and
//! rounded once; hardware is off by up to one unit in the last place. Their subnormal sources and
//! results of f32 are zero. Matrix products are summed in f64. NaNs keep the payload of the first NaN source.
//!
//! Start reading at `run.rs`, then `exec.rs`.

mod access;
mod atomics;
mod compare;
mod control;
mod convert;
mod cross_lane;
mod decode;
mod descriptor;
mod disasm;
mod dpp;
mod exec;
mod fault;
mod flat;
mod launch;
mod lds;
mod matrix;
mod memory;
mod mode;
mod op;
mod operand;
mod program;
mod run;
mod salu;
mod smem;
mod soft;
mod space;
mod special;
mod target;
mod text;
mod transfer;
mod valu_float;
mod valu_int;
mod wave;

pub use descriptor::Descriptor;
pub use fault::{Fault, FaultKind, LoadError, RunError};
pub use launch::Launch;
pub use memory::{AddressSpace, Memory};
pub use op::Class;
pub use program::{DEFAULT_BASE, Kernel, Program};
pub use run::{Dispatch, Options, Stats, Workgroup, run};
pub use target::{Accumulators, Generation, Target};
