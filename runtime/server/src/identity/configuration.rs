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

/// The kernel limits CPU time in units of 1 ms per 100 ms, so 0.01 is the smallest limit.
const CPUS_MIN: f64 = 0.01;

/// Limits and rights of a tenant.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) limits: TenantLimits,
    pub(super) models: Arc<Patterns>,
    pub(super) model_control: bool,
    pub(super) observes: bool,
    /// `None` if the configuration does not set it.
    pub(super) shared_memory: Option<bool>,
    /// As `shared_memory`.
    pub(super) cuda_shared_memory: Option<bool>,
    pub(super) leases: bool,
}

/// The daemon's settings.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConfigurationFile {
    /// Permissions of the control socket, as in `0o660`; `0o600` (the daemon's own user and root)
    /// if absent.
    pub(super) socket_mode: Option<u32>,
    /// Whether users without a section may connect to the control socket; their tenants are named
    /// `uid-UID`.
    #[serde(default)]
    pub(super) allow_unknown: bool,
    /// The file with the tokens of HTTP and gRPC clients, as `--auth-keys`; relative to the folder
    /// of this file.
    pub(super) auth_keys: Option<String>,
    /// The tenant of HTTP and gRPC requests with neither a token nor a client certificate. If
    /// absent, such requests are refused if the daemon has keys or a CA for clients. If it has
    /// neither, they act for `local` on loopback, and beyond loopback the daemon does not start.
    pub(super) allow_anonymous: Option<String>,
    /// The address at which sessions of CUDA programs come over the network, as `--sessions`.
    pub(super) sessions: Option<String>,
    /// Whether that address may be beyond loopback without TLS, as `--sessions-plain`.
    #[serde(default)]
    pub(super) sessions_plain: bool,
    /// How long a session of a CUDA program is kept when its client has lost the connection, in
    /// seconds, at most 3600; 0 if it ends with the connection. 30 if absent.
    pub(super) sessions_keep_s: Option<u32>,
    /// Most connections for sessions of CUDA programs of one IP address (of IPv6: of one network of 64
    /// bits). 256 if absent.
    pub(super) sessions_per_address: Option<u32>,
    /// Whether the memory of an idle session of a CUDA program moves to host memory when others need
    /// it. `atoll session suspend` does so in any case. True if absent.
    pub(super) sessions_suspend: Option<bool>,
    /// How long a session of a CUDA program is idle before others may have its memory, in
    /// milliseconds, at most 3600000; 1000 if absent.
    pub(super) sessions_suspend_idle_ms: Option<u32>,
    /// Host memory of all suspended sessions of CUDA programs, in bytes; 4 GiB if absent.
    #[serde(default, deserialize_with = "size")]
    pub(super) sessions_host_bytes: Option<u64>,
    /// Host memory of the suspended sessions of one tenant, in bytes; 2 GiB if absent.
    #[serde(default, deserialize_with = "size")]
    pub(super) sessions_host_bytes_per_tenant: Option<u64>,
    /// The file of the access log, relative to the folder of this file, or `-` for standard output.
    /// No access log if absent.
    pub(super) access_log: Option<String>,
    /// The form of the lines of the access log: `json` (the default) or `text`.
    pub(super) access_log_format: Option<String>,
    /// The URL of the collector that receives traces of requests by OTLP over HTTP, as in
    /// `http://127.0.0.1:4318`; no traces if absent.
    pub(super) otlp_endpoint: Option<String>,
    /// The fraction of requests that is traced, from 0 to 1, among those without the header
    /// `traceparent`; 1 if absent. With 0, no request is traced.
    pub(super) otlp_sample_rate: Option<f64>,
    /// Public keys of minisign (the line that begins with `RW`). The native code of a bundle that
    /// is signed with one of them runs as it was sent.
    #[serde(default)]
    pub(super) trusted_keys: Vec<String>,
    /// Price of each device by its name, in units of account per second; 0 for a device that is not
    /// listed. `cpu` is the price of a second of CPU time of CPU stages. The operator chooses the
    /// unit.
    #[serde(default)]
    pub(super) prices: BTreeMap<String, f64>,
    /// Real-time slots of each device, for leases; 4 if absent. If the leases of a device have more
    /// slots than this after a restart, the newest ones are revoked.
    pub(super) real_time_slots: Option<u32>,
    /// Autoscaling of instances by name of the deployed function, `NAME` or `TENANT:NAME`. The
    /// fields are those of `[scaling]` in the settings of a model.
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
    /// Names or patterns of the models and functions that the tenant may call over HTTP and gRPC
    /// besides its own functions: `resnet*` for models of the repository, `team:*` for functions of
    /// another tenant. If nothing is set, all models of the repository; for `local` also all public
    /// functions.
    pub(super) models: Option<Vec<String>>,
    /// Whether the tenant may load and unload models of the repository. If nothing is set, true for
    /// `local` and false for others.
    pub(super) model_control: Option<bool>,
    /// Whether the tenant sees the work of all tenants on the dashboard. If nothing is set, true
    /// for `local` and false for others.
    pub(super) observer: Option<bool>,
    /// Whether the tenant may register regions of system shared memory. Its regions are in files in
    /// `/dev/shm` that belong to a user of the tenant and whose names begin with the tenant's name
    /// and a colon; those of `local` may have any name. If nothing is set, true for `local` and
    /// false for others. If nothing is set and the daemon listens beyond loopback, it is also false
    /// for requests that act for `local` without a token or certificate.
    pub(super) shared_memory: Option<bool>,
    /// Whether the tenant may register regions of CUDA shared memory: device memory of other
    /// processes, by handles of CUDA IPC. The GPU's driver decides which handles the daemon can open,
    /// and the daemon cannot tell whose memory a handle names. If nothing is set, the default is that
    /// of `shared_memory`.
    pub(super) cuda_shared_memory: Option<bool>,
    /// Whether the tenant may hold leases of instances of its functions, as a placement engine
    /// does. If nothing is set, true for `local` and false for others.
    pub(super) leases: Option<bool>,
    /// The highest class of the tenant's work.
    pub(super) class: Option<Class>,
    /// Largest number of functions; 64 if nothing is set.
    pub(super) functions: Option<u64>,
    /// Most invocations of the tenant, of its functions and of models of the repository, that are
    /// queued or running at one time; 1,024 if nothing is set.
    pub(super) invocations: Option<u64>,
    /// Whether native code in the tenant's bundles runs as it was sent, instead of being recompiled
    /// from PTX. True for `local`; if nothing is set, false for others.
    pub(super) trusted_code: Option<bool>,
    /// Longest time that compiling a bundle of the tenant may take, in seconds; 600 if nothing is
    /// set.
    pub(super) compile_seconds: Option<u64>,
    /// Longest time that the compiler may work for the tenant in an hour, in seconds; 1,800 if
    /// nothing is set. Used time is forgiven evenly over the hour. Bundles whose code is cached use
    /// none.
    pub(super) compile_seconds_per_hour: Option<u64>,
    /// Most memory that compiling a bundle of the tenant may take; 4 GiB if nothing is set.
    #[serde(default, deserialize_with = "size")]
    pub(super) compile_bytes: Option<u64>,
    /// Device memory at one time, constants and invocations together; unlimited if nothing is set.
    #[serde(default, deserialize_with = "size")]
    pub(super) device_bytes: Option<u64>,
    /// Device memory at one time of best-effort work; unlimited if nothing is set.
    #[serde(default, deserialize_with = "size")]
    pub(super) best_effort_device_bytes: Option<u64>,
    /// Memory of each of the tenant's executors besides device memory: its program, loaded code,
    /// and the shared and local memory of blocks. Needs control groups. If nothing is set, 256 MiB,
    /// plus 16 MiB and the local memory that its kernels declare for each compute unit; unlimited
    /// for `local`.
    #[serde(default, deserialize_with = "size")]
    pub(super) executor_bytes: Option<u64>,
    /// CPU time of each of the tenant's executors in CPUs, as in 1.5. Needs control groups with the
    /// controller `cpu`. Unlimited if nothing is set.
    pub(super) cpus: Option<f64>,
    /// The fraction of each device's time that the tenant gets whenever it has work: above 0, at
    /// most 1. Without it the tenant has no share, and its time is not limited. Like `quota_limit`
    /// and `sm_partition`, not allowed in `[default]`.
    pub(super) quota_request: Option<f64>,
    /// Upper limit of the fraction of time; 1 if nothing is set.
    pub(super) quota_limit: Option<f64>,
    /// Compute units that it may use, in percent; 100 if nothing is set.
    pub(super) sm_partition: Option<f64>,
    /// Most file descriptors of the daemon that the tenant's functions may take, one for each
    /// constant; 16,384 if nothing is set.
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
        let (shared_memory, cuda_shared_memory) = (None, None);
        Grant { limits, models, model_control: true, observes: true, shared_memory, cuda_shared_memory, leases: true }
    }

    pub(super) fn other() -> Grant {
        let models = Arc::new(Patterns::repository());
        let limits = TenantLimits::DEFAULT;
        let (shared_memory, cuda_shared_memory) = (None, None);
        Grant {
            limits,
            models,
            model_control: false,
            observes: false,
            shared_memory,
            cuda_shared_memory,
            leases: false,
        }
    }
}

impl Section {
    /// The grant of this section. Limits and rights that it does not set are those of `base`.
    pub(super) fn over(&self, base: &Grant) -> Result<Grant, String> {
        let models = match &self.models {
            Some(models) => Arc::new(Patterns::new(models.clone())?),
            None => base.models.clone(),
        };
        let model_control = self.model_control.unwrap_or(base.model_control);
        let observes = self.observer.unwrap_or(base.observes);
        let shared_memory = self.shared_memory.or(base.shared_memory);
        let cuda_shared_memory = self.cuda_shared_memory.or(base.cuda_shared_memory);
        let leases = self.leases.unwrap_or(base.leases);
        if let Some(cpus) = self.cpus.filter(|cpus| !cpus.is_finite() || *cpus < CPUS_MIN) {
            return Err(format!("cpus = {cpus} is not a number of at least {CPUS_MIN}"));
        }
        let limits = self.limits(&base.limits);
        Ok(Grant { limits, models, model_control, observes, shared_memory, cuda_shared_memory, leases })
    }

    /// The share of the tenant, checked; `None` if the section sets no share.
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
