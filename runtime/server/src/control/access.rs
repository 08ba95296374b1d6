//! Access control of the control socket: maps a peer's user id to a tenant and its limits.

use crate::bytes::size;
use crate::code::{CodeRights, TrustedKeys};
use crate::compiler::CompileLimits;
use crate::limits::{COMPILE_BYTES_DEFAULT, COMPILE_TIME_DEFAULT, CONFIGURATION_BYTES_MAX};
use atoll_engine::{BadTenant, Class, MemoryQuotas, Tenant, TenantBytes};
use atoll_store::{Limit, Quota};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Which users may use the control socket, as which tenant, and with which limits. Parsed from
/// `atoll.toml`:
///
/// ```toml
/// socket_mode = 0o660        # default 0o600: only the daemon's own user and root
/// allow_unknown = true       # users without a section become tenants named uid-UID
/// trusted_keys = ["RWQ…"]    # public keys of minisign that vouch for bundles
///
/// [default]                  # limits of tenants without a section; `local` has no limits
/// object_bytes = "1G"
///
/// [tenant.vision]
/// uids = [1000, 1001]
/// class = "best-effort"      # highest class of the tenant's work
/// functions = 16
/// trusted_code = true        # native code is taken as it was sent
/// compile_seconds = 60       # limits of compiling a bundle of it
/// compile_bytes = "1G"
/// device_bytes = "2G"        # device memory at one time: constants and invocations
/// best_effort_device_bytes = "1G"
/// object_bytes = "8G"
/// object_count = 1000
/// best_effort_object_bytes = "4G"
/// best_effort_object_count = 500
/// ```
#[derive(Clone, Debug)]
pub struct Access {
    tenants: BTreeMap<Tenant, TenantLimits>,
    uids: BTreeMap<u32, Tenant>,
    allow_unknown: bool,
    default: TenantLimits,
    /// The user id of the daemon itself.
    own_uid: u32,
    /// The keys whose signatures of bundles are trusted.
    pub(crate) keys: TrustedKeys,
    /// File mode of the socket.
    pub socket_mode: u32,
}

/// Limits of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantLimits {
    /// Highest class of its work.
    pub class: Class,
    /// Number of functions.
    pub functions: u64,
    /// Device memory at one time. Enforced by the engine ([`Access::memory_quotas`]), so it also
    /// holds for work that did not come over this socket.
    pub device: TenantBytes,
    /// Number and bytes of objects.
    pub objects: Quota,
    /// Whether code in its bundles is taken as it was sent.
    pub trusted_code: bool,
    /// What compiling one of its bundles may take.
    pub compile: CompileLimits,
}

/// The file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// It cannot be read.
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

/// The tenant that a connection acts for, with its limits.
#[derive(Clone, Debug)]
pub(crate) struct Principal {
    pub(crate) tenant: Tenant,
    pub(crate) limits: TenantLimits,
    /// Whether reports cover all tenants: for root and the daemon's own user, unless they chose a
    /// tenant.
    pub(crate) sees_all_tenants: bool,
}

/// Why a peer may not act.
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

/// The daemon's settings.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigurationFile {
    /// Permissions of the control socket, as in `0o660`; `0o600` (the daemon's own user and root)
    /// if absent.
    socket_mode: Option<u32>,
    /// Whether users without a tenant may connect; their tenants are called `uid-UID`.
    #[serde(default)]
    allow_unknown: bool,
    /// Public keys of minisign (the line that begins with `RW`). Native code in a bundle that one of
    /// them signed is taken as it was sent.
    #[serde(default)]
    trusted_keys: Vec<String>,
    /// Limits of tenants without a section.
    #[serde(default)]
    default: Section,
    /// Tenants by name.
    #[serde(default)]
    tenant: BTreeMap<String, Section>,
}

/// The users and limits of a tenant. An absent limit is that of `[default]`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    /// Users that act for the tenant. Not allowed in `[default]`.
    #[serde(default)]
    uids: Vec<u32>,
    /// The highest class of the tenant's work.
    class: Option<Class>,
    /// Number of functions; 64 if nothing is set.
    functions: Option<u64>,
    /// Whether native code in the tenant's bundles is taken as it was sent, instead of compiled anew
    /// from PTX; true for `local`, and false for others if nothing is set.
    trusted_code: Option<bool>,
    /// How many seconds a bundle of the tenant may compile; 600 if nothing is set.
    compile_seconds: Option<u64>,
    /// Memory that compiling a bundle of the tenant may take; 4 GiB if nothing is set.
    #[serde(default, deserialize_with = "size")]
    compile_bytes: Option<u64>,
    /// Device memory at one time, constants and invocations together; unlimited if nothing is set.
    #[serde(default, deserialize_with = "size")]
    device_bytes: Option<u64>,
    /// Device memory at one time of best-effort work; unlimited if nothing is set.
    #[serde(default, deserialize_with = "size")]
    best_effort_device_bytes: Option<u64>,
    /// Bytes of all objects; 4 GiB if nothing is set.
    #[serde(default, deserialize_with = "size")]
    object_bytes: Option<u64>,
    /// Number of objects; 10,000 if nothing is set.
    object_count: Option<u64>,
    /// Bytes of objects that are kept for best-effort work; unlimited if nothing is set.
    #[serde(default, deserialize_with = "size")]
    best_effort_object_bytes: Option<u64>,
    /// Number of objects that are kept for best-effort work; unlimited if nothing is set.
    best_effort_object_count: Option<u64>,
}

impl TenantLimits {
    /// Limits of the daemon's own tenant.
    pub(super) const ALL: TenantLimits = TenantLimits {
        class: Class::RealTime,
        functions: 4096,
        device: TenantBytes::UNLIMITED,
        objects: Quota::NONE,
        trusted_code: true,
        compile: CompileLimits { time: COMPILE_TIME_DEFAULT, memory_bytes: COMPILE_BYTES_DEFAULT },
    };

    /// Limits of tenants that the configuration does not mention: enough to work, too little to
    /// disturb others.
    const DEFAULT: TenantLimits = TenantLimits {
        class: Class::RealTime,
        functions: 64,
        device: TenantBytes::UNLIMITED,
        objects: Quota { all: Limit { bytes: 4 << 30, count: 10_000 }, best_effort: Limit::NONE },
        trusted_code: false,
        compile: CompileLimits { time: COMPILE_TIME_DEFAULT, memory_bytes: COMPILE_BYTES_DEFAULT },
    };

    /// How its code is treated.
    pub(crate) fn code(&self) -> CodeRights {
        CodeRights { trusted: self.trusted_code, limits: self.compile }
    }
}

impl Section {
    fn over(&self, base: &TenantLimits) -> TenantLimits {
        let limit = |bytes: Option<u64>, count: Option<u64>, base: Limit| Limit {
            bytes: bytes.unwrap_or(base.bytes),
            count: count.unwrap_or(base.count),
        };
        TenantLimits {
            class: self.class.unwrap_or(base.class),
            functions: self.functions.unwrap_or(base.functions),
            device: TenantBytes {
                all: self.device_bytes.unwrap_or(base.device.all),
                best_effort: self.best_effort_device_bytes.unwrap_or(base.device.best_effort),
            },
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
        }
    }
}

impl Access {
    /// Access for the daemon's own user and root only.
    pub fn own(own_uid: u32) -> Access {
        Access {
            tenants: BTreeMap::new(),
            uids: BTreeMap::new(),
            allow_unknown: false,
            default: TenantLimits::DEFAULT,
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
        Access::parse(&text, own_uid).map_err(|reason| AccessError::Format { path: path.into(), reason })
    }

    fn parse(text: &str, own_uid: u32) -> Result<Access, String> {
        let file: ConfigurationFile = toml::from_str(text).map_err(|error| error.to_string())?;
        let mut access = Access { allow_unknown: file.allow_unknown, ..Access::own(own_uid) };
        let keys = file.trusted_keys.iter().map(String::as_str);
        access.keys = TrustedKeys::parse(keys).map_err(|error| format!("trusted_keys: {error}"))?;
        access.default = file.default.over(&TenantLimits::DEFAULT);
        if !file.default.uids.is_empty() {
            return Err("[default] must not have uids; list users in a section [tenant.NAME]".into());
        }
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
            let base = if tenant.is_local() { TenantLimits::ALL } else { access.default };
            access.tenants.insert(tenant.clone(), section.over(&base));
            for uid in section.uids {
                if let Some(other) = access.uids.insert(uid, tenant.clone()) {
                    return Err(format!("user {uid} is listed in both [tenant.{other}] and [tenant.{tenant}]"));
                }
            }
        }
        Ok(access)
    }

    /// The device memory quotas of all tenants, for the engine.
    pub fn memory_quotas(&self) -> MemoryQuotas {
        let tenants = self.tenants.iter().map(|(tenant, limits)| (tenant.clone(), limits.device));
        MemoryQuotas { default: self.default.device, tenants: tenants.collect() }
    }

    /// The tenant that a peer acts for: the tenant of its user id, or the requested one if the peer
    /// may choose.
    pub(crate) fn principal(&self, uid: u32, wanted: Option<Tenant>) -> Result<Principal, Denied> {
        let may_choose = uid == self.own_uid || uid == 0;
        let own = match self.uids.get(&uid) {
            Some(tenant) => tenant.clone(),
            None if may_choose => Tenant::default(),
            None if self.allow_unknown => format!("uid-{uid}").parse().map_err(|_| Denied::Unknown { uid })?,
            None => return Err(Denied::Unknown { uid }),
        };
        match wanted {
            Some(wanted) if may_choose || wanted == own => Ok(self.of(wanted, false)),
            Some(_) => Err(Denied::NotYours { uid, own }),
            None => Ok(self.of(own, may_choose)),
        }
    }

    fn of(&self, tenant: Tenant, sees_all_tenants: bool) -> Principal {
        Principal { limits: self.limits(&tenant), tenant, sees_all_tenants }
    }

    /// The limits of a tenant.
    pub(crate) fn limits(&self, tenant: &Tenant) -> TenantLimits {
        let default = if tenant.is_local() { TenantLimits::ALL } else { self.default };
        self.tenants.get(tenant).copied().unwrap_or(default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        socket_mode = 0o660
        [default]
        object_bytes = "1K"
        [tenant.vision]
        uids = [1000, 1001]
        class = "best-effort"
        functions = 2
        device_bytes = "2G"
        best_effort_device_bytes = "1M"
        object_count = 7
        [tenant.speech]
        uids = [1002]
        object_bytes = 5
    "#;

    #[test]
    fn users_are_their_tenants() {
        let access = Access::parse(TEXT, 500).unwrap();
        let who = |uid, wanted: Option<&str>| {
            access.principal(uid, wanted.map(|name| name.parse().unwrap())).map(|p| p.tenant.to_string())
        };
        assert_eq!(who(1001, None).as_deref(), Ok("vision"));
        assert_eq!(who(1001, Some("vision")).as_deref(), Ok("vision"));
        let denied = Denied::NotYours { uid: 1001, own: "vision".parse().unwrap() };
        for other in ["speech", "local", "unknown"] {
            assert_eq!(
                who(1001, Some(other)),
                Err(denied.clone()),
                "the answer does not reveal whether the tenant exists"
            );
        }
        for own in [0, 500] {
            assert_eq!((who(own, None).as_deref(), who(own, Some("speech")).as_deref()), (Ok("local"), Ok("speech")));
        }
        assert_eq!(who(1003, None), Err(Denied::Unknown { uid: 1003 }));
        assert_eq!(who(1003, Some("vision")), Err(Denied::Unknown { uid: 1003 }));
        let open = Access::parse("allow_unknown = true", 500).unwrap();
        assert_eq!(open.principal(1003, None).unwrap().tenant.as_str(), "uid-1003");
        assert!(open.principal(1003, Some("uid-1004".parse().unwrap())).is_err());
    }

    #[test]
    fn limits_are_the_tenants_then_the_defaults() {
        let access = Access::parse(TEXT, 500).unwrap();
        let limits = |uid| access.principal(uid, None).unwrap().limits;
        let vision = limits(1000);
        assert_eq!((vision.class, vision.functions), (Class::BestEffort, 2));
        assert_eq!(vision.device, TenantBytes { all: 2 << 30, best_effort: 1 << 20 });
        let quotas = access.memory_quotas();
        assert_eq!(
            (quotas.tenants[&"vision".parse().unwrap()], quotas.default),
            (vision.device, TenantBytes::UNLIMITED)
        );
        assert_eq!(vision.objects.all, Limit { bytes: 1024, count: 7 });
        assert_eq!((limits(1002).objects.all.bytes, limits(500)), (5, TenantLimits::ALL));
        assert_eq!(access.socket_mode, 0o660);
    }

    #[test]
    fn code_is_trusted_of_the_daemon_itself_and_of_whom_the_configuration_names() {
        let text = "[default]\ncompile_seconds = 9\n[tenant.vision]\ntrusted_code = true\ncompile_bytes = \"1M\"";
        let access = Access::parse(text, 500).unwrap();
        let code = |tenant: &str| access.limits(&tenant.parse().unwrap()).code();
        assert_eq!(["local", "vision", "other"].map(|tenant| code(tenant).trusted), [true, true, false]);
        assert_eq!(
            (code("vision").limits.time, code("other").limits.time),
            (Duration::from_secs(9), Duration::from_secs(9))
        );
        assert_eq!((code("vision").limits.memory_bytes, code("other").limits.memory_bytes), (1 << 20, 4 << 30));
        let strict = Access::parse("[tenant.local]\ntrusted_code = false", 500).unwrap();
        assert!(!strict.limits(&Tenant::default()).code().trusted, "the operator may distrust itself");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            ("[tenant.\"a b\"]", "`a b` is not a tenant name"),
            ("[tenant.a]\nuids = [1]\n[tenant.b]\nuids = [1]", "user 1 is listed in both [tenant.a] and [tenant.b]"),
            ("[tenant.a]\nobject_bytes = \"2X\"", "unknown unit `X`"),
            ("[tenant.a]\nclass = \"urgent\"", "urgent"),
            ("socket_mode = 0o777", "0o777"),
            ("what = 1", "what"),
            ("[default]\nobjects = 1", "objects"),
            ("[default]\nuids = [1]", "[default] must not have uids"),
            ("[tenant.a]\nobjects = 1", "objects"),
            ("trusted_keys = [\"RWnonsense\"]", "trusted_keys: `RWnonsense` is not a public key"),
            ("[tenant.a]\ntrusted_code = 1", "trusted_code"),
        ] {
            let error = Access::parse(text, 0).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
