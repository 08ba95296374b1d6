//! TLS of the ports, with certificates from PEM files that can be reloaded.

use rustls::crypto::{CryptoProvider, ring};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::fmt::Display;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use tokio_rustls::TlsAcceptor;

use crate::limits::PEM_BYTES_MAX;

/// The protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    /// HTTP/1.1: the inference and metrics ports.
    Http1,
    /// HTTP/2: the gRPC port.
    Http2,
    /// Sessions of CUDA programs: the sessions port.
    Session,
}

impl Wire {
    /// The protocol name for ALPN.
    fn alpn(self) -> &'static [u8] {
        match self {
            Wire::Http1 => b"http/1.1",
            Wire::Http2 => b"h2",
            Wire::Session => SESSION_ALPN,
        }
    }
}

/// The name of the protocol of CUDA sessions for ALPN.
pub const SESSION_ALPN: &[u8] = b"atoll-session";

/// PEM files of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, followed by those of intermediate authorities.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities of client certificates; `None` to request no client certificates.
    pub client_ca: Option<PathBuf>,
    /// Whether the metrics port uses TLS, too.
    pub metrics: bool,
}

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct TlsError {
    path: PathBuf,
    reason: String,
}

/// The current certificates.
pub(crate) struct Tls {
    files: TlsFiles,
    needs_certificate: bool,
    /// For HTTP/1.1, for HTTP/2 and for sessions.
    configs: RwLock<[Arc<ServerConfig>; 3]>,
}

impl Tls {
    /// Reads the files. With `needs_certificate`, handshakes without a client certificate fail.
    pub(crate) fn open(files: TlsFiles, needs_certificate: bool) -> Result<Tls, TlsError> {
        let configs = RwLock::new(configs(&files, needs_certificate)?);
        Ok(Tls { files, needs_certificate, configs })
    }

    /// Reads the files again. On an error, the old certificates stay in force. Open connections
    /// keep their certificates.
    pub(crate) fn reload(&self) -> Result<(), TlsError> {
        let configs = configs(&self.files, self.needs_certificate)?;
        *self.configs.write().unwrap_or_else(PoisonError::into_inner) = configs;
        Ok(())
    }

    /// Whether the metrics port uses TLS, too.
    pub(crate) fn covers_metrics(&self) -> bool {
        self.files.metrics
    }

    /// The acceptor of TLS handshakes with the current certificates.
    pub(crate) fn acceptor(&self, wire: Wire) -> TlsAcceptor {
        let [http1, http2, session] = &*self.configs.read().unwrap_or_else(PoisonError::into_inner);
        match wire {
            Wire::Http1 => http1.clone().into(),
            Wire::Http2 => http2.clone().into(),
            Wire::Session => session.clone().into(),
        }
    }
}

/// The same settings for each protocol.
fn configs(files: &TlsFiles, needs_certificate: bool) -> Result<[Arc<ServerConfig>; 3], TlsError> {
    let config = config(files, needs_certificate)?;
    Ok([Wire::Http1, Wire::Http2, Wire::Session].map(|wire| {
        let mut config = config.clone();
        config.alpn_protocols = vec![wire.alpn().to_vec()];
        Arc::new(config)
    }))
}

fn config(files: &TlsFiles, needs_certificate: bool) -> Result<ServerConfig, TlsError> {
    let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
    let chain = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?).map_err(|error| at(&files.key, error))?;
    let verifier = match &files.client_ca {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| at(path, error))?;
            }
            let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
            let builder = if needs_certificate { builder } else { builder.allow_unauthenticated() };
            builder.build().map_err(|error| at(path, error))?
        }
    };
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder
        .map_err(|error| at(&files.certificate, error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|error| at(&files.certificate, format!("{error} (with the key {})", files.key.display())))?;
    if files.client_ca.is_some() {
        // A resumed session would not verify the client's certificate again.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(config)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let found = found.map_err(|error| at(path, error))?;
    if found.is_empty() { Err(at(path, "it has no certificate in PEM form")) } else { Ok(found) }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| at(path, error))?;
    file.take(PEM_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| at(path, error))?;
    if bytes.len() as u64 > PEM_BYTES_MAX {
        return Err(at(path, format!("it is larger than {PEM_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

fn at(path: &Path, reason: impl Display) -> TlsError {
    TlsError { path: path.into(), reason: reason.to_string() }
}
