//! The settings of the suspension of CUDA sessions.

use super::configuration::ConfigurationFile;
use crate::limits::{CUDA_HOST_BYTES_DEFAULT, CUDA_HOST_BYTES_PER_TENANT_DEFAULT, CUDA_SUSPEND_IDLE_MAX};
use atoll_engine::{HostLimits, HostRoom, SUSPEND_IDLE_DEFAULT, SuspensionConfig};
use std::time::Duration;

/// The settings of the suspension of CUDA sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SuspensionSettings {
    /// How long a session is idle before others may have its memory; `None` for never.
    idle: Option<Duration>,
    host: HostLimits,
}

impl Default for SuspensionSettings {
    fn default() -> SuspensionSettings {
        let host = HostLimits { all: CUDA_HOST_BYTES_DEFAULT, tenant: CUDA_HOST_BYTES_PER_TENANT_DEFAULT };
        SuspensionSettings { idle: Some(SUSPEND_IDLE_DEFAULT), host }
    }
}

impl SuspensionSettings {
    /// The settings of a configuration file.
    pub(super) fn of(file: &ConfigurationFile) -> Result<SuspensionSettings, String> {
        let default = SuspensionSettings::default();
        let idle = file.sessions_suspend_idle_ms.map(|ms| Duration::from_millis(ms.into()));
        if idle.is_some_and(|idle| idle > CUDA_SUSPEND_IDLE_MAX) {
            return Err(format!(
                "sessions_suspend_idle_ms is {}, and at most {} is allowed",
                idle.unwrap_or_default().as_millis(),
                CUDA_SUSPEND_IDLE_MAX.as_millis()
            ));
        }
        let host = HostLimits {
            all: file.sessions_host_bytes.unwrap_or(default.host.all),
            tenant: file.sessions_host_bytes_per_tenant.unwrap_or(default.host.tenant),
        };
        let is_automatic = file.sessions_suspend.unwrap_or(true);
        Ok(SuspensionSettings { idle: idle.or(default.idle).filter(|_| is_automatic), host })
    }

    /// A configuration for engines, which share the host memory.
    pub(super) fn config(self) -> SuspensionConfig {
        SuspensionConfig { idle: self.idle, host: HostRoom::new(self.host) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<SuspensionSettings, String> {
        let file: ConfigurationFile = toml::from_str(text).map_err(|error| error.to_string())?;
        SuspensionSettings::of(&file)
    }

    #[test]
    fn sessions_are_suspended_within_limits_unless_the_operator_wants_otherwise() {
        let default = settings("").unwrap();
        assert_eq!(default, SuspensionSettings::default());
        assert_eq!((default.idle, default.host.all), (Some(Duration::from_secs(1)), 4 << 30));
        let text = "sessions_suspend_idle_ms = 0\nsessions_host_bytes = \"1M\"\nsessions_host_bytes_per_tenant = 7";
        let set = settings(text).unwrap();
        assert_eq!((set.idle, set.host), (Some(Duration::ZERO), HostLimits { all: 1 << 20, tenant: 7 }));
        assert_eq!(settings("sessions_suspend = false").unwrap().idle, None);
        let room = set.config().host;
        assert_eq!(room.used(), 0);
    }

    #[test]
    fn wrong_settings_are_refused() {
        let error = settings("sessions_suspend_idle_ms = 3600001").unwrap_err();
        assert_eq!(error, "sessions_suspend_idle_ms is 3600001, and at most 3600000 is allowed");
        for wrong in [
            "sessions_suspend = 1",
            "sessions_suspend_idle_ms = -1",
            "sessions_host_bytes = \"much\"",
            "sessions_host_bytes_per_tenant = \"1T\"",
        ] {
            assert!(settings(wrong).is_err(), "{wrong}");
        }
    }
}
