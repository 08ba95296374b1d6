//! Dynamic kernel padding (dkp, REEF §5): occupancy models of devices, and generation of dkp
//! modules.
//!
//! A dkp kernel runs one real-time candidate and several best-effort candidates in one launch, each
//! in its own range of blocks. [`dkp_modules`] generates one module per register class from kernels
//! that the passes `virtualize_block_index` and `outline_kernel_body` have prepared. A launch
//! therefore gives no thread more registers than the module's class allows.
//!
//! - [`DeviceModel`], [`Occupancy`]: how many blocks of a kernel fit a compute unit;
//! - [`RegisterClass`]: which candidates may share a module;
//! - [`dkp_modules`], [`DkpModule`]: the modules, and the facts from which launches are laid out;
//! - [`AmdModel`], [`Level`], [`Proxy`]: the occupancy levels of AMD GPUs, and the proxy kernels of
//!   each, which jump to candidates instead of containing them.
//!
//! Not here: the choice of kernels to pair (scheduler) and code generation for targets.
//!
//! Invariants: no candidate uses a module variable with state; every candidate of a module fits the
//! module's register class.
//!
//! Start reading at `dkp.rs`.

mod amd;
mod body_call;
mod device_model;
mod dkp;
mod merge;
mod occupancy;
mod register_class;

pub use amd::{AmdModel, JumpTarget, Level, Proxy, ScalarFile};
pub use device_model::{DeviceModel, RegisterFile, SharedMemory};
pub use dkp::{Candidate, DkpModule, DkpModules, NotPadded, candidate_facts, dkp_modules};
pub use occupancy::{KernelNeeds, Limit, Occupancy};
pub use register_class::RegisterClass;
