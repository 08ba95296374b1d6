//! Who a peer is and what it may have: the configuration, and the one place that is asked.

use crate::bytes::size;
use crate::limits::CONFIGURATION_BYTES_MAX;
use atoll_engine::{BadTenant, Class, MemoryQuotas, Tenant, TenantBytes};
use atoll_store::{Limit, Quota};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Who may use the control socket, as whom, and how much.
///
/// ```toml
/// socket_mode = 0o660        # 0o600 where nothing is said: the daemon's own user and root
/// allow_unknown = true       # other users are tenants called uid-UID
///
/// [default]                  # what tenants may have that have no section of their own; local may have everything
/// object_bytes = "1G"
///
/// [tenant.vision]
/// uids = [1000, 1001]
/// class = "best-effort"      # the highest class of their work
/// functions = 16
/// device_bytes = "2G"        # of device memory at once: constants and invocations
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
    /// The daemon's own.
    own_uid: u32,
    /// Permissions of the socket.
    pub socket_mode: u32,
}

/// What a tenant may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantLimits {
    /// The highest class of its work.
    pub class: Class,
    /// Functions.
    pub functions: u64,
    /// Device memory at once. The engine sees to it ([`Access::memory_quotas`]), also where no
    /// connection asks for anything.
    pub device: TenantBytes,
    /// Objects.
    pub objects: Quota,
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// It cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It says something that cannot be.
    #[error("{path}: {reason}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What.
        reason: String,
    },
}

/// Whom a connection acts for, and what they may have.
#[derive(Clone, Debug)]
pub(crate) struct Principal {
    pub(crate) tenant: Tenant,
    pub(crate) limits: TenantLimits,
    /// Root and the daemon's own user, acting for nobody in particular.
    pub(crate) sees_everybody: bool,
}

/// Why a peer may not act.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denied {
    #[error(
        "user {uid} has no tenant here; a section [tenant.NAME] with uids = [{uid}] in the daemon's configuration gives one"
    )]
    Unknown { uid: u32 },
    #[error("user {uid} acts for tenant `{own}` and no other")]
    NotYours { uid: u32, own: Tenant },
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigurationFile {
    socket_mode: Option<u32>,
    #[serde(default)]
    allow_unknown: bool,
    #[serde(default)]
    default: Section,
    #[serde(default)]
    tenant: BTreeMap<String, Section>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    #[serde(default)]
    uids: Vec<u32>,
    class: Option<Class>,
    functions: Option<u64>,
    #[serde(default, deserialize_with = "size")]
    device_bytes: Option<u64>,
    #[serde(default, deserialize_with = "size")]
    best_effort_device_bytes: Option<u64>,
    #[serde(default, deserialize_with = "size")]
    object_bytes: Option<u64>,
    object_count: Option<u64>,
    #[serde(default, deserialize_with = "size")]
    best_effort_object_bytes: Option<u64>,
    best_effort_object_count: Option<u64>,
}

impl TenantLimits {
    /// Of the daemon's own tenant.
    pub(super) const ALL: TenantLimits =
        TenantLimits { class: Class::RealTime, functions: 4096, device: TenantBytes::UNLIMITED, objects: Quota::NONE };

    /// Of tenants where the configuration says nothing: enough to work, too little to be in the way
    /// of others.
    const DEFAULT: TenantLimits = TenantLimits {
        class: Class::RealTime,
        functions: 64,
        device: TenantBytes::UNLIMITED,
        objects: Quota { all: Limit { bytes: 4 << 30, count: 10_000 }, best_effort: Limit::NONE },
    };
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
        }
    }
}

impl Access {
    /// The daemon's own user and root, and nobody else.
    pub fn own(own_uid: u32) -> Access {
        Access {
            tenants: BTreeMap::new(),
            uids: BTreeMap::new(),
            allow_unknown: false,
            default: TenantLimits::DEFAULT,
            own_uid,
            socket_mode: 0o600,
        }
    }

    /// What a configuration file says.
    pub fn read(path: &Path, own_uid: u32) -> Result<Access, AccessError> {
        let mut text = String::new();
        let read = File::open(path).and_then(|file| file.take(CONFIGURATION_BYTES_MAX).read_to_string(&mut text));
        read.map_err(|source| AccessError::Io { path: path.into(), source })?;
        Access::parse(&text, own_uid).map_err(|reason| AccessError::Format { path: path.into(), reason })
    }

    fn parse(text: &str, own_uid: u32) -> Result<Access, String> {
        let file: ConfigurationFile = toml::from_str(text).map_err(|error| error.to_string())?;
        let mut access = Access { allow_unknown: file.allow_unknown, ..Access::own(own_uid) };
        access.default = file.default.over(&TenantLimits::DEFAULT);
        if !file.default.uids.is_empty() {
            return Err("[default] has uids; users belong to a [tenant.NAME]".into());
        }
        if let Some(mode) = file.socket_mode {
            if mode & !0o666 != 0 {
                return Err(format!("socket_mode is {mode:#o}; it takes permissions to read and write, as in 0o660"));
            }
            access.socket_mode = mode;
        }
        for (name, section) in file.tenant {
            let tenant: Tenant = name.parse().map_err(|error: BadTenant| error.to_string())?;
            let base = if tenant.is_local() { TenantLimits::ALL } else { access.default };
            access.tenants.insert(tenant.clone(), section.over(&base));
            for uid in section.uids {
                if let Some(other) = access.uids.insert(uid, tenant.clone()) {
                    return Err(format!("user {uid} stands in [tenant.{other}] and in [tenant.{tenant}]"));
                }
            }
        }
        Ok(access)
    }

    /// What tenants may have of the device, for the engine.
    pub fn memory_quotas(&self) -> MemoryQuotas {
        let tenants = self.tenants.iter().map(|(tenant, limits)| (tenant.clone(), limits.device));
        MemoryQuotas { default: self.default.device, tenants: tenants.collect() }
    }

    /// Whom a peer acts for: the tenant of its user, or one that it names and may.
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

    fn of(&self, tenant: Tenant, sees_everybody: bool) -> Principal {
        let default = if tenant.is_local() { TenantLimits::ALL } else { self.default };
        Principal { limits: self.tenants.get(&tenant).copied().unwrap_or(default), tenant, sees_everybody }
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
        for other in ["speech", "local", "nobody"] {
            assert_eq!(who(1001, Some(other)), Err(denied.clone()), "and whether there is such a tenant is not told");
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
    fn mistakes_are_named() {
        for (text, expected) in [
            ("[tenant.\"a b\"]", "`a b` names no tenant"),
            ("[tenant.a]\nuids = [1]\n[tenant.b]\nuids = [1]", "user 1 stands in [tenant.a] and in [tenant.b]"),
            ("[tenant.a]\nobject_bytes = \"2X\"", "`X` is no unit"),
            ("[tenant.a]\nclass = \"urgent\"", "urgent"),
            ("socket_mode = 0o777", "0o777"),
            ("what = 1", "what"),
            ("[default]\nobjects = 1", "objects"),
            ("[default]\nuids = [1]", "[default] has uids"),
            ("[tenant.a]\nobjects = 1", "objects"),
        ] {
            let error = Access::parse(text, 0).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
