//! Flags of `atoll serve` that say who may use the daemon.

use crate::failure::{OrUserError, user_error};
use anyhow::Result;
use atoll_client::Tenant;
use atoll_server::{Access, IdentityConfig, TlsFiles};
use std::path::{Path, PathBuf};

/// Environment variable with the path of the keys file, used if the flag is absent.
pub(super) const AUTH_KEYS_VARIABLE: &str = "ATOLL_AUTH_KEYS";

/// Tokens, certificates, and requests without either.
#[derive(Debug, clap::Args)]
pub(super) struct IdentityArgs {
    /// Keys of HTTP and gRPC clients, as `atoll auth create` writes them; requests then need a
    /// token. Read again on SIGHUP and `atoll auth reload` [default: auth_keys of --config]
    #[arg(long, value_name = "FILE", env = AUTH_KEYS_VARIABLE)]
    auth_keys: Option<PathBuf>,

    /// Certificate chain of the HTTP and gRPC ports in PEM form. Read again on SIGHUP and
    /// `atoll auth reload`
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Private key of the certificate in PEM form
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Authorities of client certificates in PEM form. The section of a tenant in --config lists
    /// its certificates
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,

    /// Serve the metrics port with TLS, too
    #[arg(long, requires = "tls_cert")]
    tls_metrics: bool,

    /// Serve requests with neither a token nor a client certificate as this tenant [without a name:
    /// local, which may do everything] [default: allow_anonymous of --config; else local on
    /// loopback while there are neither keys nor --tls-client-ca]
    #[arg(long, value_name = "TENANT", num_args = 0..=1, require_equals = true, default_missing_value = "local")]
    allow_anonymous: Option<Tenant>,
}

impl IdentityArgs {
    /// The flags together with the configuration file, if there is one.
    pub(super) fn identity(self, config: Option<&Path>) -> Result<IdentityConfig> {
        let own_uid = rustix::process::getuid().as_raw();
        let access = config.map_or_else(|| Ok(Access::own(own_uid)), |path| Access::read(path, own_uid));
        let access = access.or_user_error()?;
        let tls = match (self.tls_cert, self.tls_key) {
            (Some(certificate), Some(key)) => {
                Some(TlsFiles { certificate, key, client_ca: self.tls_client_ca, metrics: self.tls_metrics })
            }
            _ => None,
        };
        Ok(IdentityConfig {
            keys: self.auth_keys.or_else(|| access.auth_keys().map(Path::to_path_buf)),
            anonymous: self.allow_anonymous.or_else(|| access.anonymous().cloned()),
            tls,
            access,
        })
    }
}

/// The keys file of a command that changes it.
pub(super) fn keys_file(flag: Option<&Path>, config: Option<&Path>) -> Result<PathBuf> {
    let configured = |path: &Path| -> Result<Option<PathBuf>> {
        let access = Access::read(path, rustix::process::getuid().as_raw()).or_user_error()?;
        Ok(access.auth_keys().map(Path::to_path_buf))
    };
    match (flag, config) {
        (Some(path), _) => Ok(path.into()),
        (None, Some(config)) => {
            configured(config)?.ok_or_else(|| user_error(format!("{} has no auth_keys", config.display())))
        }
        (None, None) => Err(user_error(
            "which keys file? Name it with --auth-keys FILE, or name the daemon's configuration, which has auth_keys, \
            with --config FILE",
        )),
    }
}
