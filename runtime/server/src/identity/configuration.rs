//! The file with the daemon's settings, `atoll.toml`.

use super::patterns::Patterns;
use super::principal::TenantLimits;
use crate::bytes::size;
use crate::compiler::CompileLimits;
use crate::instances::share;
use crate::repository::scaling::ScalingSettings;
use atoll_engine::{Class, ShareSpec, Tenant, TenantBytes};
use atoll_store::{Limit, Quota};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The kernel limits CPU time in milliseconds of each tenth of a second.
const CPUS_MIN: f64 = 0.01;

/// Limits and rights of a tenant.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) limits: TenantLimits,
    pub(super) models: Arc<Patterns>,
    pub(super) model_control: bool,
    pub(super) observes: bool,
    /// `None` if the configuration says nothing.
    pub(super) shared_memory: Option<bool>,
    pub(super) leases: bool,
}

/// The daemon's settings.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConfigurationFile {
    /// Permissions of the control socket, as in `0o660`; `0o600` (the daemon's own user and root)
    /// if absent.
    pub(super) socket_mode: Option<u32>,
    /// Whether users without a tenant may connect; their tenants are called `uid-UID`.
    #[serde(default)]
    pub(super) allow_unknown: bool,
    /// The file with the tokens of HTTP clients, as `--auth-keys`; relative to the folder of this
    /// file.
    pub(super) auth_keys: Option<String>,
    /// The tenant of HTTP requests without a token and a client certificate. If absent, it is
    /// `local` on loopback while there are no keys and no client certificates, and otherwise such
    /// requests are refused.
    pub(super) allow_anonymous: Option<String>,
    /// The file of the access log, relative to the folder of this file, or `-` for standard output.
    /// No access log if absent.
    pub(super) access_log: Option<String>,
    /// The form of the lines of the access log: `json` (the default) or `text`.
    pub(super) access_log_format: Option<String>,
    /// The collector that traces of requests are sent to by OTLP over HTTP, as in
    /// `http://127.0.0.1:4318`; no traces if absent.
    pub(super) otlp_endpoint: Option<String>,
    /// The part of the requests without a `traceparent` of their client that is traced, from 0 to 1;
    /// 1 if absent. With 0, no request is traced.
    pub(super) otlp_sample_rate: Option<f64>,
    /// Public keys of minisign (the line that begins with `RW`). Native code in a bundle that one of
    /// them signed is taken as it was sent.
    #[serde(default)]
    pub(super) trusted_keys: Vec<String>,
    /// Prices of a second on devices, by their names, in units of account; 0 for a device without
    /// one. The unit is the operator's choice.
    #[serde(default)]
    pub(super) prices: BTreeMap<String, f64>,
    /// Real-time slots of each device, for leases; 4 if absent. Leases that have more than these
    /// together after a restart are revoked, the newest first.
    pub(super) real_time_slots: Option<u32>,
    /// How instances of deployed functions follow the load, by the function's name, as in `resize`
    /// or `TENANT:NAME`; as `[scaling]` in the settings of a model.
    #[serde(default)]
    pub(super) scaling: BTreeMap<String, ScalingSettings>,
    /// Limits and rights of tenants without a section.
    #[serde(default)]
    pub(super) default: Section,
    /// Tenants by name.
    #[serde(default)]
    pub(super) tenant: BTreeMap<String, Section>,
}

/// The users, limits and rights of a tenant. An absent limit or right is that of `[default]`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Section {
    /// Users that act for the tenant. Not allowed in `[default]`.
    #[serde(default)]
    pub(super) uids: Vec<u32>,
    /// Client certificates that act for the tenant, by a name in them: `cn:NAME` (the subject's
    /// common name), `dns:NAME` or `uri:URI` (alternative names). Not allowed in `[default]`.
    #[serde(default)]
    pub(super) certificates: Vec<String>,
    /// Names or patterns of what the tenant may call over HTTP, besides its own functions: models
    /// of the repository as in `resnet*`, functions of other tenants as in `team:*`. All models of
    /// the repository if nothing is set; for `local` also all public functions.
    pub(super) models: Option<Vec<String>>,
    /// Whether the tenant may load and unload models of the repository; false if nothing is set,
    /// but true for `local`.
    pub(super) model_control: Option<bool>,
    /// Whether the tenant sees the work of all tenants on the dashboard; false if nothing is set, but
    /// true for `local`.
    pub(super) observer: Option<bool>,
    /// Whether the tenant may register regions of system shared memory: files in `/dev/shm` whose
    /// names begin with the tenant's name and a colon, of users that act for the tenant; false if
    /// nothing is set, but true for `local`, whose files may have any name. Where the daemon listens
    /// beyond loopback, it is also false for requests to `local` without a token or certificate.
    pub(super) shared_memory: Option<bool>,
    /// Whether the tenant may hold leases of its functions' instances, as a placement engine does;
    /// false if nothing is set, but true for `local`.
    pub(super) leases: Option<bool>,
    /// The highest class of the tenant's work.
    pub(super) class: Option<Class>,
    /// Number of functions; 64 if nothing is set.
    pub(super) functions: Option<u64>,
    /// Invocations that the tenant has waiting or running at one time, of its functions and of
    /// models; 1,024 if nothing is set.
    pub(super) invocations: Option<u64>,
    /// Whether native code in the tenant's bundles is taken as it was sent, instead of compiled anew
    /// from PTX; true for `local`, and false for others if nothing is set.
    pub(super) trusted_code: Option<bool>,
    /// How many seconds a bundle of the tenant may compile; 600 if nothing is set.
    pub(super) compile_seconds: Option<u64>,
    /// How many seconds the compiler may work for the tenant in an hour, one bundle after another;
    /// 1,800 if nothing is set. What it has used is forgiven evenly over the hour. A bundle that was
    /// compiled before takes none.
    pub(super) compile_seconds_per_hour: Option<u64>,
    /// Memory that compiling a bundle of the tenant may take; 4 GiB if nothing is set.
    #[serde(default, deserialize_with = "size")]
    pub(super) compile_bytes: Option<u64>,
    /// Device memory at one time, constants and invocations together; unlimited if nothing is set.
    #[serde(default, deserialize_with = "size")]
    pub(super) device_bytes: Option<u64>,
    /// Device memory at one time of best-effort work; unlimited if nothing is set.
    #[serde(default, deserialize_with = "size")]
    pub(super) best_effort_device_bytes: Option<u64>,
    /// Memory of each of the tenant's executors besides device memory, where the daemon can make
    /// control groups: its program, loaded code, and the shared and local memory of blocks. If
    /// nothing is set, 256 MiB, and for each compute unit 16 MiB and the local memory that its
    /// kernels declare; unlimited for `local`.
    #[serde(default, deserialize_with = "size")]
    pub(super) executor_bytes: Option<u64>,
    /// CPU time of each of the tenant's executors, in CPUs as in 1.5, where the daemon can make
    /// control groups with the controller `cpu`; unlimited if nothing is set.
    pub(super) cpus: Option<f64>,
    /// The fraction of time on each device that the tenant gets whenever it has work: above 0, at
    /// most 1. Not allowed in `[default]`, like the next two. Without it the tenant has no share,
    /// and its work is not limited in time.
    pub(super) quota_request: Option<f64>,
    /// The fraction of time that it gets at most; 1 if nothing is set.
    pub(super) quota_limit: Option<f64>,
    /// Compute units that it may use, in percent; 100 if nothing is set.
    pub(super) sm_partition: Option<f64>,
    /// Descriptors of the daemon that the constants of the tenant's functions may take, one each;
    /// 16,384 if nothing is set.
    pub(super) descriptors: Option<u64>,
    /// Bytes of the bundles of all deployed functions; 16 GiB if nothing is set.
    #[serde(default, deserialize_with = "size")]
    pub(super) bundle_bytes: Option<u64>,
    /// Bytes of all objects; 4 GiB if nothing is set.
    #[serde(default, deserialize_with = "size")]
    pub(super) object_bytes: Option<u64>,
    /// Number of objects; 10,000 if nothing is set.
    pub(super) object_count: Option<u64>,
    /// Bytes of objects that are kept for best-effort work; unlimited if nothing is set.
    #[serde(default, deserialize_with = "size")]
    pub(super) best_effort_object_bytes: Option<u64>,
    /// Number of objects that are kept for best-effort work; unlimited if nothing is set.
    pub(super) best_effort_object_count: Option<u64>,
}

impl Grant {
    /// Limits and rights of the daemon's own tenant.
    pub(super) fn local() -> Grant {
        let (limits, models) = (TenantLimits::ALL, Arc::new(Patterns::all()));
        Grant { limits, models, model_control: true, observes: true, shared_memory: None, leases: true }
    }

    pub(super) fn other() -> Grant {
        let models = Arc::new(Patterns::repository());
        let limits = TenantLimits::DEFAULT;
        Grant { limits, models, model_control: false, observes: false, shared_memory: None, leases: false }
    }
}

impl Section {
    /// The grant that this section makes of another one.
    pub(super) fn over(&self, base: &Grant) -> Result<Grant, String> {
        let models = match &self.models {
            Some(models) => Arc::new(Patterns::new(models.clone())?),
            None => base.models.clone(),
        };
        let model_control = self.model_control.unwrap_or(base.model_control);
        let observes = self.observer.unwrap_or(base.observes);
        let shared_memory = self.shared_memory.or(base.shared_memory);
        let leases = self.leases.unwrap_or(base.leases);
        if let Some(cpus) = self.cpus.filter(|cpus| !cpus.is_finite() || *cpus < CPUS_MIN) {
            return Err(format!("cpus = {cpus} is not a number of at least {CPUS_MIN}"));
        }
        Ok(Grant { limits: self.limits(&base.limits), models, model_control, observes, shared_memory, leases })
    }

    /// The share of the tenant, checked; `None` if the section states none.
    pub(super) fn share(&self, tenant: &Tenant) -> Result<Option<ShareSpec>, String> {
        let Some(request) = self.quota_request else {
            return match self.quota_limit.or(self.sm_partition) {
                Some(_) => Err("quota_limit and sm_partition need quota_request".into()),
                None => Ok(None),
            };
        };
        let (partition, limit) = (self.sm_partition.unwrap_or(100.0), self.quota_limit.unwrap_or(1.0));
        share(tenant, partition, request, limit).map(Some).map_err(|error| error.to_string())
    }

    fn limits(&self, base: &TenantLimits) -> TenantLimits {
        let limit = |bytes: Option<u64>, count: Option<u64>, base: Limit| Limit {
            bytes: bytes.unwrap_or(base.bytes),
            count: count.unwrap_or(base.count),
        };
        TenantLimits {
            class: self.class.unwrap_or(base.class),
            functions: self.functions.unwrap_or(base.functions),
            invocations: self.invocations.unwrap_or(base.invocations),
            device: TenantBytes {
                all: self.device_bytes.unwrap_or(base.device.all),
                best_effort: self.best_effort_device_bytes.unwrap_or(base.device.best_effort),
            },
            executor_bytes: self.executor_bytes.or(base.executor_bytes),
            cpus: self.cpus.or(base.cpus),
            descriptors: self.descriptors.unwrap_or(base.descriptors),
            bundle_bytes: self.bundle_bytes.unwrap_or(base.bundle_bytes),
            objects: Quota {
                all: limit(self.object_bytes, self.object_count, base.objects.all),
                best_effort: limit(
                    self.best_effort_object_bytes,
                    self.best_effort_object_count,
                    base.objects.best_effort,
                ),
            },
            trusted_code: self.trusted_code.unwrap_or(base.trusted_code),
            compile: CompileLimits {
                time: self.compile_seconds.map_or(base.compile.time, Duration::from_secs),
                memory_bytes: self.compile_bytes.unwrap_or(base.compile.memory_bytes),
            },
            compile_seconds_per_hour: self.compile_seconds_per_hour.unwrap_or(base.compile_seconds_per_hour),
        }
    }
}
