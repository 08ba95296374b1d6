//! Identifies the senders of HTTP and gRPC requests, and the clients of CUDA sessions over the
//! network. Operators can reload the keys and certificates
//! of a running daemon.

use super::access::Access;
use super::certificate;
use super::keys::{KeyError, KeyFile, Keys, now_s};
use super::principal::Principal;
use super::reason::Reason;
use crate::tls::{Tls, TlsError, TlsFiles};
use atoll_engine::Tenant;
use axum::http::{HeaderMap, header};
use rustls_pki_types::CertificateDer;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::watch;

/// Who may use the daemon.
#[derive(Clone, Debug)]
pub struct IdentityConfig {
    /// Tenants, their users, limits and rights.
    pub access: Access,
    /// The file with the tokens of HTTP and gRPC clients; `None` for no tokens.
    pub keys: Option<PathBuf>,
    /// Certificates; `None` for ports without TLS.
    pub tls: Option<TlsFiles>,
    /// The tenant of HTTP and gRPC requests with neither a token nor a client certificate. With
    /// `None`, such requests are refused if the daemon has keys or a CA for clients. If it has
    /// neither, they act for `local` on loopback, and beyond loopback the daemon does not start
    /// ([`GateError::Open`]).
    pub anonymous: Option<Tenant>,
}

impl IdentityConfig {
    /// No tokens, no TLS, and no tenant but `local`.
    pub fn own() -> IdentityConfig {
        let access = Access::own(rustix::process::getuid().as_raw());
        IdentityConfig { access, keys: None, tls: None, anonymous: None }
    }
}

/// Why clients cannot be identified.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// The keys file cannot be used.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The daemon would listen beyond loopback without authentication.
    #[error(
        "cannot listen on {host} without authentication: everybody who reaches it could use this daemon. Create a key \
        with `atoll auth create --auth-keys FILE --tenant NAME` and start with --auth-keys FILE, or ask clients for \
        certificates with --tls-client-ca, or let everybody in with --allow-anonymous"
    )]
    Open {
        /// The address.
        host: IpAddr,
    },
}

/// The tenant of a connection's client certificate.
#[derive(Clone, Debug)]
pub(crate) enum Peer {
    /// The certificate is assigned to this tenant.
    Tenant(Arc<Principal>),
    /// The certificate is assigned to no tenant, or to several.
    Unknown,
}

/// The keys and certificates of a daemon after a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reloaded {
    /// Number of keys that can be used; `None` without a keys file.
    pub(crate) keys: Option<usize>,
    /// Whether there are certificates.
    pub(crate) tls: bool,
}

/// Identifies the senders of HTTP and gRPC requests.
pub(crate) struct Gate {
    access: Access,
    keys: Option<(PathBuf, RwLock<Arc<Keys>>)>,
    tls: Option<Arc<Tls>>,
    anonymous: Option<Arc<Principal>>,
    /// Changes when the keys were read again.
    reloads: watch::Sender<()>,
}

impl Gate {
    /// Reads keys and certificates for a daemon that listens on `host`.
    pub(crate) fn open(config: &IdentityConfig, host: IpAddr) -> Result<Gate, GateError> {
        let access = config.access.clone();
        let asks_for_certificates = config.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        let anonymous = match &config.anonymous {
            Some(tenant) => Some(tenant.clone()),
            None if config.keys.is_some() || asks_for_certificates => None,
            None if host.is_loopback() => Some(Tenant::default()),
            None => return Err(GateError::Open { host }),
        };
        let keys = match &config.keys {
            Some(path) => Some((path.clone(), RwLock::new(Arc::new(Keys::new(KeyFile::read(path)?, &access))))),
            None => None,
        };
        // TLS requires a client certificate if neither tokens nor anonymous requests are accepted.
        let needs_certificate = keys.is_none() && anonymous.is_none();
        let tls = config.tls.as_ref().map(|files| Tls::open(files.clone(), needs_certificate)).transpose()?;
        let anonymous = anonymous.map(|tenant| Arc::new(access.of_anonymous(tenant, host.is_loopback())));
        Ok(Gate { access, keys, tls: tls.map(Arc::new), anonymous, reloads: watch::Sender::new(()) })
    }

    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    /// The certificates of the inference port.
    pub(crate) fn tls(&self) -> Option<&Arc<Tls>> {
        self.tls.as_ref()
    }

    /// Whether the daemon has keys or certificates that can be reloaded.
    pub(crate) fn can_reload(&self) -> bool {
        self.keys.is_some() || self.tls.is_some()
    }

    /// Reads keys and certificates again. If one of them cannot be read, its old content stays in
    /// force.
    pub(crate) fn reload(&self) -> Result<Reloaded, GateError> {
        // The certificates are read even if the keys are broken.
        let keys = self.keys.as_ref().map(|(path, keys)| {
            let read = Arc::new(Keys::new(KeyFile::read(path)?, &self.access));
            let active = read.active(now_s());
            *keys.write().unwrap_or_else(PoisonError::into_inner) = read;
            self.reloads.send_replace(());
            Ok::<_, KeyError>(active)
        });
        self.tls.as_ref().map(|tls| tls.reload()).transpose()?;
        Ok(Reloaded { keys: keys.transpose()?, tls: self.tls.is_some() })
    }

    /// Changes when the keys were read again, so that long connections identify their clients again.
    pub(crate) fn reloads(&self) -> watch::Receiver<()> {
        self.reloads.subscribe()
    }

    /// The tenant of a client's certificate, which TLS has verified.
    pub(crate) fn peer(&self, certificate: &CertificateDer<'_>) -> Peer {
        match self.access.of_certificate(&certificate::names(certificate)) {
            Some(principal) => Peer::Tenant(Arc::new(principal)),
            None => Peer::Unknown,
        }
    }

    /// Identifies the sender of a request by its header `Authorization` and the certificate of the
    /// connection, as [`Gate::identify_by`].
    pub(crate) fn identify(&self, headers: &HeaderMap, peer: Option<&Peer>) -> Result<Arc<Principal>, Reason> {
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        let token = given.next().map(|value| {
            let value = value.to_str().ok().filter(|_| given.next().is_none());
            // The empty text is no token.
            value.and_then(bearer).unwrap_or_default()
        });
        self.identify_by(token, peer)
    }

    /// Identifies a client: by its token if it sent one, otherwise by the certificate of the
    /// connection, otherwise by the rule for anonymous requests. A client with an invalid token or
    /// certificate is never treated as anonymous.
    pub(crate) fn identify_by(&self, token: Option<&str>, peer: Option<&Peer>) -> Result<Arc<Principal>, Reason> {
        if let (Some((_, keys)), Some(token)) = (&self.keys, token) {
            let keys = keys.read().unwrap_or_else(PoisonError::into_inner).clone();
            return keys.find(token, now_s()).cloned().ok_or(Reason::BadToken);
        }
        match (peer, &self.anonymous) {
            (Some(Peer::Tenant(principal)), _) => Ok(principal.clone()),
            (Some(Peer::Unknown), _) => Err(Reason::UnknownCertificate),
            (None, Some(principal)) => Ok(principal.clone()),
            (None, None) => Err(Reason::NoCredentials),
        }
    }
}

/// The token in a value of the header `Authorization` (RFC 6750 §2.1).
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_matches(' '))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::path::Path;

    fn config(keys: Option<&Path>, anonymous: Option<&str>) -> IdentityConfig {
        IdentityConfig {
            keys: keys.map(Path::to_path_buf),
            anonymous: anonymous.map(|name| name.parse().unwrap()),
            ..IdentityConfig::own()
        }
    }

    fn who(gate: &Gate, values: &[&str], peer: Option<&Peer>) -> Result<String, Reason> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::AUTHORIZATION, value.parse().unwrap());
        }
        gate.identify(&headers, peer).map(|principal| principal.tenant.to_string())
    }

    #[test]
    fn without_keys_loopback_is_local_and_other_addresses_are_refused() {
        for host in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into(), [127, 1, 2, 3].into()] {
            let gate = Gate::open(&config(None, None), host).unwrap();
            assert_eq!(who(&gate, &[], None).as_deref(), Ok("local"));
            assert_eq!(who(&gate, &["Bearer x"], None).as_deref(), Ok("local"), "there are no tokens");
            assert!(!gate.can_reload());
        }
        let everywhere = IpAddr::from(Ipv4Addr::UNSPECIFIED);
        let error = Gate::open(&config(None, None), everywhere).err().unwrap().to_string();
        for says in ["0.0.0.0", "--auth-keys", "--tls-client-ca", "--allow-anonymous"] {
            assert!(error.contains(says), "{error}");
        }
        let gate = Gate::open(&config(None, Some("guest")), everywhere).unwrap();
        assert_eq!(who(&gate, &[], None).as_deref(), Ok("guest"));
    }

    #[test]
    fn anonymous_requests_from_anywhere_share_memory_only_if_the_configuration_says_so() {
        let may = |text: &str, tenant: &str, host: [u8; 4]| {
            let access = Access::parse(text, 500).unwrap();
            let gate = Gate::open(&IdentityConfig { access, ..config(None, Some(tenant)) }, host.into()).unwrap();
            gate.identify(&HeaderMap::new(), None).unwrap().may_share_memory().is_ok()
        };
        let (yes, no) = ("[tenant.local]\nshared_memory = true", "[tenant.local]\nshared_memory = false");
        for (text, on_loopback, beyond) in
            [("", true, false), ("[tenant.local]", true, false), (yes, true, true), (no, false, false)]
        {
            assert_eq!([[127, 0, 0, 1], [0; 4]].map(|host| may(text, "local", host)), [on_loopback, beyond], "{text}");
            assert_eq!([[127, 0, 0, 1], [0; 4]].map(|host| may(text, "guest", host)), [false, false], "{text}");
        }
        assert!(may("[default]\nshared_memory = true", "guest", [0; 4]));
    }

    #[test]
    fn the_right_to_cuda_shared_memory_has_the_same_defaults() {
        for (text, host, expected) in [
            ("", [127, 0, 0, 1], true),
            ("", [0; 4], false),
            ("[tenant.local]\nshared_memory = true", [0; 4], false),
            ("[tenant.local]\ncuda_shared_memory = true", [0; 4], true),
            ("[tenant.local]\ncuda_shared_memory = false", [127, 0, 0, 1], false),
        ] {
            let access = Access::parse(text, 500).unwrap();
            let gate = Gate::open(&IdentityConfig { access, ..config(None, Some("local")) }, host.into()).unwrap();
            let caller = gate.identify(&HeaderMap::new(), None).unwrap();
            assert_eq!(caller.may_share_cuda_memory().is_ok(), expected, "{text} {host:?}");
        }
    }

    #[test]
    fn a_token_decides_then_the_certificate_then_the_rule() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.json");
        let token = KeyFile::create(&path, "vision".parse().unwrap(), None, "").unwrap();
        let gate = Gate::open(&config(Some(&path), None), Ipv4Addr::UNSPECIFIED.into()).unwrap();
        let good = format!("Bearer {token}");
        let certificate = Peer::Tenant(Arc::new(gate.access.of("speech".parse().unwrap())));
        assert_eq!(who(&gate, &[&good], None).as_deref(), Ok("vision"));
        assert_eq!(who(&gate, &[&good.replace("Bearer ", "bEARER  ")], None).as_deref(), Ok("vision"));
        assert_eq!(who(&gate, &[&good], Some(&certificate)).as_deref(), Ok("vision"));
        assert_eq!(who(&gate, &[&good], Some(&Peer::Unknown)).as_deref(), Ok("vision"));
        assert_eq!(who(&gate, &[], Some(&certificate)).as_deref(), Ok("speech"));
        assert_eq!(who(&gate, &[], Some(&Peer::Unknown)), Err(Reason::UnknownCertificate));
        assert_eq!(who(&gate, &[], None), Err(Reason::NoCredentials));
        let last = good.len() - 1;
        for wrong in ["", "Bearer", "Bearer ", "Basic YTpi", &good[..last], &good[7..], &format!("{good} x")] {
            assert_eq!(who(&gate, &[wrong], Some(&certificate)), Err(Reason::BadToken), "{wrong}");
        }
        assert_eq!(who(&gate, &[&good, &good], None), Err(Reason::BadToken), "two tokens are none");
        let open = Gate::open(&config(Some(&path), Some("guest")), Ipv4Addr::LOCALHOST.into()).unwrap();
        assert_eq!(who(&open, &[], None).as_deref(), Ok("guest"));
        assert_eq!(who(&open, &["Bearer x"], None), Err(Reason::BadToken), "a bad token is not anonymous");
    }

    #[test]
    fn a_file_that_is_broken_leaves_the_keys_in_force() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.json");
        let token = KeyFile::create(&path, "vision".parse().unwrap(), None, "").unwrap();
        let gate = Gate::open(&config(Some(&path), None), Ipv4Addr::LOCALHOST.into()).unwrap();
        let is_known = || who(&gate, &[&format!("Bearer {token}")], None).is_ok();
        let good = std::fs::read(&path).unwrap();
        std::fs::write(&path, "{").unwrap();
        let error = gate.reload().unwrap_err().to_string();
        assert!(error.contains("keys.json is not a valid keys file") && is_known(), "{error}");
        std::fs::remove_file(&path).unwrap();
        assert!(gate.reload().is_err() && is_known());
        std::fs::write(&path, good).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        assert_eq!(gate.reload().unwrap(), Reloaded { keys: Some(1), tls: false });
        KeyFile::revoke(&path, &token.id).unwrap();
        assert!(is_known(), "until the file is read again");
        assert_eq!(gate.reload().unwrap(), Reloaded { keys: Some(0), tls: false });
        assert!(!is_known());
    }
}
