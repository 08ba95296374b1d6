//! The interface to the compiler of dkp (dynamic kernel padding) modules.
//!
//! A dkp module has kernels of several functions, so it can only be compiled once these functions
//! are loaded. The caller that starts the engine passes in a [`PaddingService`] for it. Until a
//! module is ready, or without a service, real-time launches run unpadded.

use atoll_core::Tenant;
use atoll_core::memory::FunctionId;
use atoll_device::ModuleId;
use atoll_kgraph::dkp::{DkpCandidate, DkpFacts};
use atoll_kgraph::{Bundle, KernelFacts, Profile};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Compiles dkp modules. Called on its own thread; it may take long.
pub trait PaddingService: Send + Sync + fmt::Debug + 'static {
    /// The measured profile of a bundle on a kind of device (`host`) with `compute_units` compute
    /// units, if there is one, and if its kernels may be padded.
    fn profile(&self, bundle: &Bundle, device: &str, compute_units: u32) -> Option<Profile>;

    /// Compiles modules of the kernels of some bundles, ordered by the registers of their entries.
    /// Kernels that one module contains can share launches.
    ///
    /// # Errors
    /// The reason why there are none.
    fn compile(&self, target: &str, bundles: &[Arc<Bundle>]) -> Result<Vec<PaddingModule>, String>;
}

/// A module in which kernels of several bundles can share launches.
#[derive(Clone, Debug)]
pub struct PaddingModule {
    /// The code, for the requested target.
    pub code: Vec<u8>,
    /// Its kernel, once for each block size of a launch ([`DkpFacts::threads`]).
    pub kernels: Vec<KernelFacts>,
    /// How its launches are laid out.
    pub facts: DkpFacts,
    /// For each candidate, the index of its bundle among those given, and of its kernel in the
    /// bundle.
    pub candidates: Vec<(usize, u32)>,
}

/// A kernel of a function: its index in the bundle.
pub(crate) type KernelOf = (FunctionId, u32);

/// A padding module on the device.
#[derive(Debug)]
pub(crate) struct LoadedPadding {
    pub(crate) id: ModuleId,
    pub(crate) facts: DkpFacts,
    /// The candidate index of each kernel.
    pub(crate) candidates: HashMap<KernelOf, usize>,
    /// The profiles of all functions whose kernels may be in it.
    pub(crate) profiles: Arc<HashMap<FunctionId, Profile>>,
}

impl LoadedPadding {
    /// The candidate that a kernel is in this module.
    pub(crate) fn candidate(&self, kernel: KernelOf) -> Option<&DkpCandidate> {
        self.candidates.get(&kernel).map(|index| &self.facts.candidates[*index])
    }
}

/// A request to compile modules for the functions of a tenant.
pub(crate) struct PaddingJob {
    pub(crate) tenant: Tenant,
    pub(crate) target: String,
    /// Increasing; only the newest job of a tenant counts.
    pub(crate) number: u32,
    pub(crate) functions: Vec<(FunctionId, Arc<Bundle>)>,
}

/// The result of a job.
pub(crate) struct PaddingResult {
    pub(crate) tenant: Tenant,
    pub(crate) target: String,
    pub(crate) number: u32,
    /// The functions with profiles, in the order of the modules' bundles.
    pub(crate) functions: Vec<(FunctionId, Profile)>,
    pub(crate) modules: Result<Vec<PaddingModule>, String>,
}
