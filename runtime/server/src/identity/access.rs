//! The configuration of tenants: their users and certificates, limits and rights.

use super::certificate::CertificateName;
use super::configuration::{ConfigurationFile, Grant, Section};
use super::principal::{Principal, TenantLimits};
use super::suspension::SuspensionSettings;
use crate::access_log::AccessLogConfig;
use crate::code::TrustedKeys;
use crate::limits::{
    CONFIGURATION_BYTES_MAX, CUDA_CONNECTIONS_PER_ADDRESS_DEFAULT, CUDA_KEEP_DEFAULT, CUDA_KEEP_MAX,
    REAL_TIME_SLOTS_DEFAULT,
};
use crate::otlp::OtlpConfig;
use crate::prices::millionths;
use crate::repository::scaling::ScalingSettings;
use atoll_engine::{BadTenant, FunctionKey, MemoryQuotas, ShareSpec, SuspensionConfig, Tenant};
use atoll_lease::limits::SLOTS_MAX;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The users and certificates of each tenant, and its limits and rights. Parsed from `atoll.toml`:
///
/// ```toml
/// socket_mode = 0o660        # default 0o600: only the daemon's own user and root
/// allow_unknown = true       # users without a section become tenants named uid-UID
/// trusted_keys = ["RWQ…"]    # public keys of minisign; code signed by them is trusted
/// auth_keys = "keys.json"    # tokens for HTTP and gRPC
/// allow_anonymous = "guest"  # tenant of requests without a token or certificate
/// sessions = "0.0.0.0:8003"  # address for CUDA sessions over the network
/// sessions_plain = false     # whether they need no TLS beyond loopback
/// sessions_keep_s = 30       # how long they are kept without a connection
/// sessions_per_address = 256 # connections of one IP address
/// sessions_suspend = true    # whether idle ones leave the device when others need their memory
/// sessions_suspend_idle_ms = 1000
/// sessions_host_bytes = "4G" # host memory of suspended ones
/// sessions_host_bytes_per_tenant = "2G"
/// access_log = "access.log"  # a line for each request
/// otlp_endpoint = "http://127.0.0.1:4318"   # a collector of traces
/// real_time_slots = 4        # of each device, for leases
///
/// [prices]                   # of a second on a device, in units of account
/// "host:0" = 0.000021
/// cpu = 0.000002             # of a second of CPU time of CPU stages
///
/// [scaling.resize]           # autoscaling of the instances of a deployed function
/// latency_ms = 50
///
/// [default]                  # limits of tenants without a section; `local` has no limits
/// object_bytes = "1G"
///
/// [tenant.vision]
/// uids = [1000, 1001]
/// certificates = ["cn:vision", "dns:vision.example"]
/// models = ["resnet*"]       # models that it may call besides its own functions
/// model_control = true       # may load and unload models
/// observer = true            # sees all tenants on the dashboard
/// shared_memory = true       # may register system shared memory named vision:…
/// cuda_shared_memory = true  # may register device memory of other processes
/// leases = true              # may hold leases of instances of its functions
/// class = "best-effort"      # highest class of the tenant's work
/// functions = 16
/// invocations = 64           # queued or running at one time
/// trusted_code = true        # runs native code of its bundles as it was sent
/// compile_seconds = 60       # limits of one compilation of its bundles
/// compile_seconds_per_hour = 600   # limit of all compilations in an hour
/// compile_bytes = "1G"
/// device_bytes = "2G"        # device memory at one time: constants and invocations
/// best_effort_device_bytes = "1G"
/// quota_request = 0.4        # part of the device's time that it is guaranteed
/// quota_limit = 0.8          # upper limit of that part
/// sm_partition = 50          # compute units that it may use, in percent
/// executor_bytes = "512M"    # memory of its executor besides device memory
/// cpus = 1.5                 # CPU time of its executor
/// descriptors = 4096         # file descriptors of the daemon, one for each constant
/// bundle_bytes = "4G"        # on disk: the bundles of its functions
/// object_bytes = "8G"
/// object_count = 1000
/// best_effort_object_bytes = "4G"
/// best_effort_object_count = 500
/// ```
#[derive(Clone, Debug)]
pub struct Access {
    tenants: BTreeMap<Tenant, Grant>,
    uids: BTreeMap<u32, Tenant>,
    certificates: BTreeMap<CertificateName, Tenant>,
    allow_unknown: bool,
    default: Grant,
    shares: BTreeMap<Tenant, ShareSpec>,
    prices: BTreeMap<String, u64>,
    scaling: BTreeMap<String, ScalingSettings>,
    anonymous: Option<Tenant>,
    auth_keys: Option<PathBuf>,
    sessions: Option<SocketAddr>,
    sessions_plain: bool,
    sessions_keep: Duration,
    sessions_per_address: u32,
    suspension: SuspensionSettings,
    access_log: Option<AccessLogConfig>,
    otlp: Option<OtlpConfig>,
    real_time_slots: u32,
    /// The user id of the daemon itself.
    own_uid: u32,
    /// The keys whose signatures of bundles are trusted.
    pub(crate) keys: TrustedKeys,
    /// File mode of the socket.
    pub socket_mode: u32,
}

/// Why a configuration file was not read.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is not valid.
    #[error("{path}: {reason}")]
    Format {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
}

/// Why a peer is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denied {
    #[error(
        "user {uid} is not assigned to a tenant; add uids = [{uid}] to a section [tenant.NAME] of the daemon's \
        configuration"
    )]
    Unknown { uid: u32 },
    #[error("user {uid} may act for tenant `{own}` only")]
    NotYours { uid: u32, own: Tenant },
}

impl Access {
    /// Access for the daemon's own user and root only.
    pub fn own(own_uid: u32) -> Access {
        Access {
            tenants: BTreeMap::new(),
            uids: BTreeMap::new(),
            certificates: BTreeMap::new(),
            allow_unknown: false,
            default: Grant::other(),
            shares: BTreeMap::new(),
            prices: BTreeMap::new(),
            scaling: BTreeMap::new(),
            anonymous: None,
            auth_keys: None,
            sessions: None,
            sessions_plain: false,
            sessions_keep: CUDA_KEEP_DEFAULT,
            sessions_per_address: CUDA_CONNECTIONS_PER_ADDRESS_DEFAULT,
            suspension: SuspensionSettings::default(),
            access_log: None,
            otlp: None,
            real_time_slots: REAL_TIME_SLOTS_DEFAULT,
            own_uid,
            keys: TrustedKeys::default(),
            socket_mode: 0o600,
        }
    }

    /// Reads a configuration file.
    pub fn read(path: &Path, own_uid: u32) -> Result<Access, AccessError> {
        let mut text = String::new();
        let read = File::open(path).and_then(|file| file.take(CONFIGURATION_BYTES_MAX).read_to_string(&mut text));
        read.map_err(|source| AccessError::Io { path: path.into(), source })?;
        let mut access =
            Access::parse(&text, own_uid).map_err(|reason| AccessError::Format { path: path.into(), reason })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        access.auth_keys = access.auth_keys.map(|keys| folder.join(keys));
        if let Some(log) = &mut access.access_log {
            log.file = log.file.take().map(|file| folder.join(file));
        }
        Ok(access)
    }

    pub(super) fn parse(text: &str, own_uid: u32) -> Result<Access, String> {
        let file: ConfigurationFile = toml::from_str(text).map_err(|error| error.to_string())?;
        let mut access = Access { allow_unknown: file.allow_unknown, ..Access::own(own_uid) };
        access.suspension = SuspensionSettings::of(&file)?;
        let keys = file.trusted_keys.iter().map(String::as_str);
        access.keys = TrustedKeys::parse(keys).map_err(|error| format!("trusted_keys: {error}"))?;
        access.default = file.default.over(&Grant::other()).map_err(|reason| format!("[default]: {reason}"))?;
        if !file.default.uids.is_empty() || !file.default.certificates.is_empty() {
            return Err("[default] must not have uids or certificates; list them in a section [tenant.NAME]".into());
        }
        let states_share = [file.default.quota_request, file.default.quota_limit, file.default.sm_partition];
        if states_share.iter().any(Option::is_some) {
            return Err("[default] must not have a share; set quota_request in a section [tenant.NAME]".into());
        }
        for (device, units) in file.prices {
            let price = millionths(units).map_err(|reason| format!("[prices]: {device}: {reason}"))?;
            access.prices.insert(device, price);
        }
        if let Some(slots) = file.real_time_slots {
            if slots > SLOTS_MAX {
                return Err(format!("real_time_slots is {slots}, but a device has at most {SLOTS_MAX}"));
            }
            access.real_time_slots = slots;
        }
        for (function, settings) in &file.scaling {
            settings.check().map_err(|reason| format!("[scaling.{function}]: {reason}"))?;
        }
        access.scaling = file.scaling;
        access.auth_keys = file.auth_keys.map(PathBuf::from);
        if let Some(address) = file.sessions {
            let parsed = address.parse();
            access.sessions =
                Some(parsed.map_err(|_| format!("sessions: `{address}` is not an IP address with a port"))?);
        }
        access.sessions_plain = file.sessions_plain;
        if let Some(seconds) = file.sessions_keep_s {
            access.sessions_keep = Duration::from_secs(seconds.into());
            if access.sessions_keep > CUDA_KEEP_MAX {
                return Err(format!(
                    "sessions_keep_s is {seconds}, and at most {} is allowed",
                    CUDA_KEEP_MAX.as_secs()
                ));
            }
        }
        if let Some(most) = file.sessions_per_address {
            if most == 0 {
                return Err("sessions_per_address is 0, so no client could connect".into());
            }
            access.sessions_per_address = most;
        }
        let format = file.access_log_format.as_deref();
        access.access_log = match &file.access_log {
            Some(log) => Some(AccessLogConfig::parse(log, format)?),
            None if format.is_some() => return Err("access_log_format needs access_log".into()),
            None => None,
        };
        let rate = file.otlp_sample_rate;
        access.otlp = match &file.otlp_endpoint {
            Some(endpoint) => Some(OtlpConfig::new(endpoint, rate.unwrap_or(1.0))?),
            None if rate.is_some() => return Err("otlp_sample_rate needs otlp_endpoint".into()),
            None => None,
        };
        let anonymous = file.allow_anonymous.map(|name| name.parse()).transpose();
        access.anonymous = anonymous.map_err(|error: BadTenant| format!("allow_anonymous: {error}"))?;
        if let Some(mode) = file.socket_mode {
            if mode & !0o666 != 0 {
                return Err(format!(
                    "socket_mode is {mode:#o}, but may only grant read and write permissions, as in 0o660"
                ));
            }
            access.socket_mode = mode;
        }
        for (name, section) in file.tenant {
            let tenant: Tenant = name.parse().map_err(|error: BadTenant| error.to_string())?;
            access.add(tenant, section)?;
        }
        Ok(access)
    }

    fn add(&mut self, tenant: Tenant, section: Section) -> Result<(), String> {
        let base = if tenant.is_local() { Grant::local() } else { self.default.clone() };
        let grant = section.over(&base).map_err(|reason| format!("[tenant.{tenant}]: {reason}"))?;
        let share = section.share(&tenant).map_err(|reason| format!("[tenant.{tenant}]: {reason}"))?;
        self.shares.extend(share.map(|share| (tenant.clone(), share)));
        self.tenants.insert(tenant.clone(), grant);
        for uid in section.uids {
            if let Some(other) = self.uids.insert(uid, tenant.clone()) {
                return Err(format!("user {uid} is listed in both [tenant.{other}] and [tenant.{tenant}]"));
            }
        }
        for name in section.certificates {
            let parsed = name.parse().map_err(|reason| format!("[tenant.{tenant}]: {reason}"))?;
            if let Some(other) = self.certificates.insert(parsed, tenant.clone()) {
                return Err(format!("certificate {name} is listed in both [tenant.{other}] and [tenant.{tenant}]"));
            }
        }
        Ok(())
    }

    /// The device memory quotas of all tenants, for the engine.
    pub fn memory_quotas(&self) -> MemoryQuotas {
        let tenants = self.tenants.iter().map(|(tenant, grant)| (tenant.clone(), grant.limits.device));
        MemoryQuotas { default: self.default.limits.device, tenants: tenants.collect() }
    }

    /// The limits of tenants with sections.
    pub fn tenant_limits(&self) -> impl Iterator<Item = (&Tenant, &TenantLimits)> {
        self.tenants.iter().map(|(tenant, grant)| (tenant, &grant.limits))
    }

    /// The limits of tenants without sections. `local` has none.
    pub fn default_limits(&self) -> &TenantLimits {
        &self.default.limits
    }

    /// The shares of tenants.
    pub fn shares(&self) -> &BTreeMap<Tenant, ShareSpec> {
        &self.shares
    }

    /// The autoscaling settings of a deployed function; `None` if it is not autoscaled.
    pub(crate) fn scaling(&self, function: &FunctionKey) -> Option<ScalingSettings> {
        self.scaling.get(&function.to_string()).copied()
    }

    /// The functions with [`Access::scaling`].
    pub(crate) fn scaled_names(&self) -> impl Iterator<Item = &String> {
        self.scaling.keys()
    }

    /// Prices by name of device, in millionths of the unit of account per second.
    pub(crate) fn prices(&self) -> &BTreeMap<String, u64> {
        &self.prices
    }

    /// The real-time slots of each device.
    pub(crate) fn real_time_slots(&self) -> u32 {
        self.real_time_slots
    }

    /// The keys file of the configuration.
    pub fn auth_keys(&self) -> Option<&Path> {
        self.auth_keys.as_deref()
    }

    /// The address of CUDA sessions over the network.
    pub fn sessions(&self) -> Option<SocketAddr> {
        self.sessions
    }

    /// Whether that address may be beyond loopback without TLS.
    pub fn sessions_plain(&self) -> bool {
        self.sessions_plain
    }

    /// How long a session is kept without a connection.
    pub fn sessions_keep(&self) -> Duration {
        self.sessions_keep
    }

    /// Most connections of one address for sessions.
    pub fn sessions_per_address(&self) -> u32 {
        self.sessions_per_address
    }

    /// How sessions are suspended to host memory, for all engines.
    pub fn sessions_suspension(&self) -> SuspensionConfig {
        self.suspension.config()
    }

    /// The access log of the configuration.
    pub fn access_log(&self) -> Option<&AccessLogConfig> {
        self.access_log.as_ref()
    }

    /// The collector of traces of the configuration.
    pub fn otlp(&self) -> Option<&OtlpConfig> {
        self.otlp.as_ref()
    }

    /// The tenant of anonymous requests; `None` if they are refused.
    pub fn anonymous(&self) -> Option<&Tenant> {
        self.anonymous.as_ref()
    }

    /// Whether a user operates the daemon: root, and the daemon's own user.
    pub(crate) fn is_operator(&self, uid: u32) -> bool {
        uid == self.own_uid || uid == 0
    }

    /// The tenant that a peer acts for: the tenant of its user id, or the requested one if the peer
    /// may choose.
    pub(crate) fn principal(&self, uid: u32, wanted: Option<Tenant>) -> Result<Principal, Denied> {
        let may_choose = self.is_operator(uid);
        let own = match self.uids.get(&uid) {
            Some(tenant) => tenant.clone(),
            None if may_choose => Tenant::default(),
            None if self.allow_unknown => format!("uid-{uid}").parse().map_err(|_| Denied::Unknown { uid })?,
            None => return Err(Denied::Unknown { uid }),
        };
        match wanted {
            Some(wanted) if may_choose || wanted == own => Ok(self.of(wanted)),
            Some(_) => Err(Denied::NotYours { uid, own }),
            None => Ok(Principal { sees_all_tenants: may_choose, ..self.of(own) }),
        }
    }

    /// The principal of the tenant that the names of a certificate are assigned to; `None` if they
    /// are assigned to no tenant, or to several.
    pub(super) fn of_certificate(&self, names: &[CertificateName]) -> Option<Principal> {
        let mut tenants = names.iter().filter_map(|name| self.certificates.get(name));
        let tenant = tenants.next()?;
        tenants.all(|other| other == tenant).then(|| self.of(tenant.clone()))
    }

    /// The limits of a tenant.
    pub(crate) fn limits(&self, tenant: &Tenant) -> TenantLimits {
        self.of(tenant.clone()).limits
    }

    /// The principal of a tenant.
    pub(super) fn of(&self, tenant: Tenant) -> Principal {
        let grant = self.grant(&tenant);
        let is_local = tenant.is_local();
        Principal {
            tenant,
            limits: grant.limits,
            models: grant.models,
            model_control: grant.model_control,
            observes: grant.observes,
            shared_memory: grant.shared_memory.unwrap_or(is_local),
            cuda_shared_memory: grant.cuda_shared_memory.unwrap_or(is_local),
            leases: grant.leases,
            sees_all_tenants: false,
        }
    }

    /// The principal of requests with neither a token nor a certificate. If the server listens
    /// beyond loopback, they may come from any machine, so they may use shared memory only if the
    /// configuration allows it explicitly.
    pub(super) fn of_anonymous(&self, tenant: Tenant, is_loopback: bool) -> Principal {
        let Grant { shared_memory, cuda_shared_memory, .. } = self.grant(&tenant);
        let is_allowed = tenant.is_local() && is_loopback;
        Principal {
            shared_memory: shared_memory.unwrap_or(is_allowed),
            cuda_shared_memory: cuda_shared_memory.unwrap_or(is_allowed),
            ..self.of(tenant)
        }
    }

    fn grant(&self, tenant: &Tenant) -> Grant {
        let default = if tenant.is_local() { Grant::local() } else { self.default.clone() };
        self.tenants.get(tenant).cloned().unwrap_or(default)
    }
}

#[cfg(test)]
mod tests;
