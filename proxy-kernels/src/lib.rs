//! What lets kernels share a launch (design D6): the occupancy of each device, and the dkp modules
//! that are generated from it.
//!
//! A dkp kernel ("dynamic kernel padding", REEF §5) runs one real-time candidate and several
//! best-effort candidates in one launch, each in a range of blocks of its own. [`dkp_modules`]
//! makes one module per register class from kernels that the passes `virtualize_block_index` and
//! `outline_kernel_body` prepared, so that no thread gets more registers than its class needs and
//! nothing spills.
//!
//! - [`DeviceModel`], [`Occupancy`]: how many blocks of a kernel a compute unit holds;
//! - [`RegisterClass`]: which candidates may be in one module;
//! - [`dkp_modules`], [`DkpModule`]: the modules, and how a launch of one is laid out.
//!
//! What it is not: it chooses no pairs (that is the scheduler's) and compiles nothing. AMD's proxy
//! kernels, which jump to candidates instead of containing them, will stand beside `dkp` and share
//! the occupancy model.

mod device_model;
mod dkp;
mod merge;
mod occupancy;
mod register_class;

pub use device_model::{DeviceModel, RegisterFile, SharedMemory};
pub use dkp::{Candidate, DkpModule, DkpModules, NotPadded, candidate_facts, dkp_modules};
pub use occupancy::{KernelNeeds, Limit, Occupancy};
pub use register_class::RegisterClass;
