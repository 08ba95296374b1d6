//! An interpreter of AMD code objects. It tests kernels for AMD GPUs without a GPU.
//!
//! It executes the linked ELF files themselves, as LLVM and lld make them for gfx906, gfx90a,
//! gfx1100 and related architectures. LLVM's disassembler decodes each instruction, this crate
//! executes it, and every access to memory is checked.
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
//! - `disasm`, `text`, `operand`, `decode`: from bytes to LLVM's text, to operands and modifiers,
//!   to an operation. Each address is decoded once.
//! - `op`: the forms of operations. The tables of the families have one line per mnemonic: `salu`,
//!   `valu_int`, `valu_float`, `convert`, `compare`, `special` (steps of division), `cross_lane`,
//!   `control` (branches, EXEC, barriers, hardware registers), `flat` (global, flat, scratch,
//!   buffer), `lds`, `smem`, `matrix`.
//! - `exec`: reads operands, calls the operation's function, writes results; DPP, SDWA, packed
//!   halves, dual instructions, output modifiers.
//! - `soft`, `mode`: floating-point formats with exact arithmetic, rounded as the MODE register
//!   says.
//! - `wave`, `space`, `transfer`, `memory`: registers, address spaces, buffers.
//! - `launch`, `run`: initial registers, and the order in which waves run.
//!
//! Invariants:
//!
//! - An unknown instruction, operand, modifier or hardware register stops the wave; the fault has
//!   its name and address. Only instructions for caches, waits and clocks are skipped.
//! - Every access lies inside one buffer, in memory of the caller, in the workgroup's LDS or in the
//!   lane's scratch, and every register is one that the kernel descriptor allocates. Otherwise the
//!   wave stops.
//! - No file makes this crate panic, and every run ends, at the latest at its instruction limit.
//! - The same seed gives the same run. Uninitialized registers, LDS and scratch hold bytes that
//!   depend on the seed.
//!
//! Not modelled: time; caches; missing waits, since an instruction's effect is visible before the
//! next one starts; hazards that compilers avoid by `s_nop`; textures, images, global data share,
//! trap handlers, XNACK, and jumps between waves of different size.
//!
//! Numbers: arithmetic that IEEE 754 defines is exact, in all rounding and denormal modes. `v_rcp`,
//! `v_rsq`, `v_sqrt`, `v_exp`, `v_log`, `v_sin` and `v_cos` are computed in f64 and rounded once;
//! hardware may be off by one unit in the last place. Their subnormal f32 sources and results
//! become zero. Matrix products are summed in f64. A NaN result has the payload of the first NaN
//! source.
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
