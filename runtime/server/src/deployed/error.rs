//! Errors of deployments.

use crate::code::CodeError;
use crate::names::BadName;
use atoll_engine::{EngineError, Tenant};
use atoll_kgraph::BundleError;
use atoll_store::StoreError;

/// Why a function was not deployed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeployError {
    #[error(transparent)]
    BadName(#[from] BadName),
    #[error("tenant `{tenant}` has reached its limit of {limit} functions; remove one first")]
    TooMany { tenant: Tenant, limit: u64 },
    #[error(
        "the bundle needs {wanted} bytes; of the bundle bytes of tenant `{tenant}`, {used} of {limit} are used. Remove \
        functions, or raise the quota"
    )]
    NoRoom { tenant: Tenant, wanted: u64, used: u64, limit: u64 },
    #[error(
        "the function has {wanted} constants, each of which takes a descriptor; of the descriptors of tenant \
        `{tenant}`, {used} of {limit} are used. Remove functions, or raise the quota"
    )]
    NoDescriptors { tenant: Tenant, wanted: u64, used: u64, limit: u64 },
    #[error(
        "this device does not isolate the memory of tenants, so the daemon does not run kernels of tenant `{tenant}`; \
        on an NVIDIA GPU, start the daemon with --tenant-memory, or, if you trust all tenants, with --trust-tenants"
    )]
    NotTrusted { tenant: Tenant },
    #[error("a model of the repository already has the name `{0}`; choose another name")]
    Taken(String),
    #[error("a graph already has the name `{0}`; choose another name, or remove the graph first")]
    TakenByGraph(String),
    #[error(transparent)]
    Code(#[from] CodeError),
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl DeployError {
    /// Whether a quota of the tenant is the cause.
    pub(crate) fn is_over_quota(&self) -> bool {
        match self {
            DeployError::TooMany { .. }
            | DeployError::NoRoom { .. }
            | DeployError::NoDescriptors { .. }
            | DeployError::Code(CodeError::Budget { .. })
            | DeployError::Engine(EngineError::OverQuota { .. }) => true,
            DeployError::BadName(_)
            | DeployError::NotTrusted { .. }
            | DeployError::Taken(_)
            | DeployError::TakenByGraph(_)
            | DeployError::Code(_)
            | DeployError::Bundle(_)
            | DeployError::Store(_)
            | DeployError::Engine(_) => false,
        }
    }
}
