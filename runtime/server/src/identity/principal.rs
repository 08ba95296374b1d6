//! A tenant with its rights, and all checks of rights. Quotas are checked elsewhere, beside the
//! resource that they limit.

use super::patterns::Patterns;
use super::reason::Reason;
use crate::code::CodeRights;
use crate::compiler::CompileLimits;
use crate::limits::{COMPILE_BYTES_DEFAULT, COMPILE_TIME_DEFAULT};
use atoll_engine::{Class, Tenant, TenantBytes};
use atoll_store::{Limit, Quota};
use std::sync::Arc;
use std::time::Duration;

/// The tenant that a request or a connection acts for, with its limits and rights.
#[derive(Clone, Debug)]
pub(crate) struct Principal {
    pub(crate) tenant: Tenant,
    pub(crate) limits: TenantLimits,
    /// Patterns of the names that it may call over HTTP and gRPC besides its own functions.
    pub(super) models: Arc<Patterns>,
    pub(super) model_control: bool,
    pub(super) observes: bool,
    pub(super) shared_memory: bool,
    pub(super) cuda_shared_memory: bool,
    pub(super) leases: bool,
    /// Whether reports to it cover all tenants. True for root and the daemon's own user unless they
    /// chose a tenant.
    pub(crate) sees_all_tenants: bool,
}

/// Limits of a tenant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TenantLimits {
    /// The highest class that its work may have.
    pub class: Class,
    /// Largest number of functions.
    pub functions: u64,
    /// Most invocations that are queued or running at one time.
    pub invocations: u64,
    /// Device memory at one time. The engine enforces it (`Access::memory_quotas`), so it applies
    /// to requests over all interfaces.
    pub device: TenantBytes,
    /// Memory of each of its executors besides device memory, in bytes; `None` for the engine's
    /// default.
    pub executor_bytes: Option<u64>,
    /// CPUs that each of its executors may use; `None` for unlimited.
    pub cpus: Option<f64>,
    /// File descriptors of the daemon that its functions may take, one for each constant.
    pub descriptors: u64,
    /// Most bytes of the bundles of its functions.
    pub bundle_bytes: u64,
    /// Most objects, by number and bytes.
    pub objects: Quota,
    /// Whether code in its bundles runs as it was sent.
    pub trusted_code: bool,
    /// Limits of compiling one of its bundles.
    pub compile: CompileLimits,
    /// Seconds that the compiler may spend for it in an hour; unlimited if `u64::MAX`.
    pub compile_seconds_per_hour: u64,
}

impl TenantLimits {
    /// Limits of the daemon's own tenant.
    pub(crate) const ALL: TenantLimits = TenantLimits {
        class: Class::RealTime,
        functions: 4096,
        invocations: u64::MAX,
        device: TenantBytes::UNLIMITED,
        executor_bytes: None,
        cpus: None,
        descriptors: u64::MAX,
        bundle_bytes: u64::MAX,
        objects: Quota::NONE,
        trusted_code: true,
        compile: CompileLimits { time: COMPILE_TIME_DEFAULT, memory_bytes: COMPILE_BYTES_DEFAULT },
        compile_seconds_per_hour: u64::MAX,
    };

    /// Limits of tenants that the configuration does not mention: enough to work, too little to
    /// disturb others.
    pub(super) const DEFAULT: TenantLimits = TenantLimits {
        class: Class::RealTime,
        functions: 64,
        invocations: 1024,
        device: TenantBytes::UNLIMITED,
        executor_bytes: None,
        cpus: None,
        descriptors: 16_384,
        bundle_bytes: 16 << 30,
        objects: Quota { all: Limit { bytes: 4 << 30, count: 10_000 }, best_effort: Limit::NONE },
        trusted_code: false,
        compile: CompileLimits { time: COMPILE_TIME_DEFAULT, memory_bytes: COMPILE_BYTES_DEFAULT },
        compile_seconds_per_hour: 1800,
    };

    /// Its rights for code in bundles.
    pub(crate) fn code(&self) -> CodeRights {
        let seconds = self.compile_seconds_per_hour;
        let per_hour = (seconds != u64::MAX).then(|| Duration::from_secs(seconds));
        CodeRights { trusted: self.trusted_code, limits: self.compile, per_hour }
    }
}

/// A right that a principal does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denial {
    #[error(
        "tenant `{tenant}` may run best-effort work only; ask for it with priority 2 over HTTP, or with class \
        best-effort"
    )]
    Class { tenant: Tenant },
    /// The answer must be the same as for a model that does not exist.
    #[error("there is no such model")]
    Model,
    #[error("tenant `{tenant}` may not load or unload models; its section of the configuration has no model_control")]
    ModelControl { tenant: Tenant },
    #[error("tenant `{tenant}` may not register shared memory; its section of the configuration has no shared_memory")]
    SharedMemory { tenant: Tenant },
    #[error(
        "tenant `{tenant}` may not use CUDA shared memory; its section of the configuration has no cuda_shared_memory"
    )]
    CudaSharedMemory { tenant: Tenant },
    #[error("only root and the daemon's own user may do this, unless they chose a tenant")]
    Operator,
    #[error("tenant `{tenant}` may hold no leases; its section of the configuration has no leases = true")]
    Lease { tenant: Tenant },
    #[error(
        "tenant `{tenant}` has {running} invocations waiting or running, and may have {limit} at one time; this call \
        counts as {wanted}. Call again when some have ended, or raise its quota `invocations`"
    )]
    Invocations { tenant: Tenant, wanted: u64, running: u64, limit: u64 },
}

impl Denial {
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Denial::Class { .. } => Reason::Class,
            Denial::Model => Reason::Model,
            Denial::ModelControl { .. } => Reason::ModelControl,
            Denial::SharedMemory { .. } => Reason::SharedMemory,
            Denial::CudaSharedMemory { .. } => Reason::CudaSharedMemory,
            Denial::Operator => Reason::Operator,
            Denial::Lease { .. } => Reason::Lease,
            Denial::Invocations { .. } => Reason::Invocations,
        }
    }
}

impl Principal {
    /// Whether it may call the function with this owner and this model name. It may call its own
    /// functions and names that its patterns allow. Models of the repository belong to `local`; for
    /// them the patterns decide, even for `local` itself. The decision does not depend on whether
    /// the function exists.
    pub(crate) fn may_call(&self, owner: &str, name: &str) -> Result<(), Denial> {
        let is_own = owner == self.tenant.as_str() && !self.tenant.is_local();
        if is_own || self.models.allow(name) { Ok(()) } else { Err(Denial::Model) }
    }

    /// Like [`Principal::may_call`], for a name that has not been looked up yet.
    pub(crate) fn may_call_name(&self, name: &str) -> Result<(), Denial> {
        let local = Tenant::default();
        self.may_call(name.split_once(':').map_or(local.as_str(), |(owner, _)| owner), name)
    }

    /// Whether it may ask for this class.
    pub(crate) fn may_run(&self, class: Class) -> Result<(), Denial> {
        match (class, self.limits.class) {
            (Class::RealTime, Class::BestEffort) => Err(Denial::Class { tenant: self.tenant.clone() }),
            _ => Ok(()),
        }
    }

    /// Whether it may load and unload models of the repository.
    pub(crate) fn may_control_models(&self) -> Result<(), Denial> {
        if self.model_control { Ok(()) } else { Err(Denial::ModelControl { tenant: self.tenant.clone() }) }
    }

    /// Whether it may register regions of system shared memory.
    pub(crate) fn may_share_memory(&self) -> Result<(), Denial> {
        if self.shared_memory { Ok(()) } else { Err(Denial::SharedMemory { tenant: self.tenant.clone() }) }
    }

    /// Whether it may register regions of CUDA shared memory. The daemon cannot tell whose memory a
    /// handle names.
    pub(crate) fn may_share_cuda_memory(&self) -> Result<(), Denial> {
        if self.cuda_shared_memory { Ok(()) } else { Err(Denial::CudaSharedMemory { tenant: self.tenant.clone() }) }
    }

    /// Whether it may hold leases, and ask for the free capacity of devices.
    pub(crate) fn may_lease(&self) -> Result<(), Denial> {
        if self.leases { Ok(()) } else { Err(Denial::Lease { tenant: self.tenant.clone() }) }
    }

    /// Whether it may operate the daemon, for example reload keys.
    pub(crate) fn may_operate(&self) -> Result<(), Denial> {
        if self.sees_all_tenants { Ok(()) } else { Err(Denial::Operator) }
    }

    /// The principal as a viewer of the dashboard: a tenant that is an observer sees all tenants
    /// there.
    pub(crate) fn on_dashboard(&self) -> Principal {
        Principal { sees_all_tenants: self.sees_all_tenants || self.observes, ..self.clone() }
    }

    /// Whether reports to it include the work of this tenant.
    pub(crate) fn sees(&self, tenant: &Tenant) -> bool {
        self.sees_all_tenants || *tenant == self.tenant
    }
}

#[cfg(test)]
impl Principal {
    /// A tenant with all rights that sees only itself.
    pub(crate) fn of_test(tenant: &str) -> Principal {
        Principal {
            tenant: tenant.parse().unwrap(),
            limits: TenantLimits::ALL,
            models: Arc::new(Patterns::all()),
            model_control: true,
            observes: false,
            shared_memory: true,
            cuda_shared_memory: true,
            leases: true,
            sees_all_tenants: false,
        }
    }
}
