//! Who makes dkp modules (design D6).
//!
//! Kernels of different functions meet only here, so their common modules are made while functions
//! run: whoever starts the engine plugs in a [`PaddingService`]. Until a module is there, or where
//! nobody makes any, real-time launches run alone.

use atoll_core::Tenant;
use atoll_core::memory::FunctionId;
use atoll_device::ModuleId;
use atoll_kgraph::dkp::DkpFacts;
use atoll_kgraph::{Bundle, KernelFacts, Profile};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Makes what padding needs. Called on a thread of its own, and may take its time.
pub trait PaddingService: Send + Sync + fmt::Debug + 'static {
    /// How long the launches of a bundle take on a device (`host`) of so many compute units, if
    /// somebody measured it.
    fn profile(&self, bundle: &Bundle, device: &str, compute_units: u32) -> Option<Profile>;

    /// Makes modules of all kernels of some bundles that can share launches; those of different
    /// modules cannot.
    ///
    /// # Errors
    /// Why there are none, in words.
    fn compile(&self, target: &str, bundles: &[Arc<Bundle>]) -> Result<Vec<PaddingModule>, String>;
}

/// Code in which kernels of several bundles run side by side.
#[derive(Clone, Debug)]
pub struct PaddingModule {
    /// The code, for the target that was asked for.
    pub code: Vec<u8>,
    /// Its one kernel, once for each size that blocks of a launch can have ([`DkpFacts::threads`]).
    pub kernels: Vec<KernelFacts>,
    /// How its launches are laid out.
    pub facts: DkpFacts,
    /// For each candidate the index of its bundle among those given, and of its kernel there.
    pub candidates: Vec<(usize, u32)>,
}

/// A module on the device.
#[derive(Debug)]
pub(crate) struct LoadedPadding {
    /// What launches that may share one have in common.
    pub(crate) number: u32,
    pub(crate) id: ModuleId,
    pub(crate) facts: DkpFacts,
    /// The candidate that a kernel of a function is.
    pub(crate) candidates: HashMap<(FunctionId, u32), usize>,
    /// Of all functions whose kernels may be in it.
    pub(crate) profiles: Arc<HashMap<FunctionId, Profile>>,
}

/// The functions of a tenant that are to share launches.
pub(crate) struct PaddingJob {
    pub(crate) tenant: Tenant,
    pub(crate) target: String,
    /// The newest job of a tenant is the one that counts.
    pub(crate) number: u32,
    pub(crate) functions: Vec<(FunctionId, Arc<Bundle>)>,
}

/// What became of a job.
pub(crate) struct Padded {
    pub(crate) tenant: Tenant,
    pub(crate) target: String,
    pub(crate) number: u32,
    /// Those that were profiled, in the order of the modules' bundles.
    pub(crate) functions: Vec<(FunctionId, Profile)>,
    pub(crate) modules: Result<Vec<PaddingModule>, String>,
}
