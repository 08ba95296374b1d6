//! How a client of the daemon authenticates itself, and verifies the daemon.

use crate::failure::{OrUserError, user_error};
use anyhow::{Context, Result};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

/// Environment variable with the token, used if the flag is absent.
pub const TOKEN_VARIABLE: &str = "ATOLL_TOKEN";

/// Files with the system's certificate authorities on common distributions; `SSL_CERT_FILE` names
/// another file.
const SYSTEM_AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Largest file to read.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Flags of commands that call a daemon over the network.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct CredentialArgs {
    /// File with a token of the daemon [default: the variable ATOLL_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Authorities of the daemon's certificate in PEM form, for an address with TLS, such as one
    /// that begins with `https://` [default: those of the system]
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,

    /// Client certificate in PEM form, for a daemon that asks for one
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Private key of the client certificate in PEM form
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

impl CredentialArgs {
    /// The token to send, if there is one.
    pub fn token(&self) -> Result<Option<String>> {
        let (token, from) = match &self.token_file {
            Some(path) => (String::from_utf8(read(path)?).ok(), path.display().to_string()),
            None => match std::env::var(TOKEN_VARIABLE) {
                Err(std::env::VarError::NotPresent) => return Ok(None),
                variable => (variable.ok(), format!("the variable {TOKEN_VARIABLE}")),
            },
        };
        let token = token.map(|token| token.trim().to_owned());
        match token.filter(|token| !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic())) {
            Some(token) => Ok(Some(token)),
            // Does not print the value, which may be a secret.
            None => Err(user_error(format!(
                "{from} has no token; `atoll auth create` prints one, which starts with atoll_"
            ))),
        }
    }

    /// The settings of TLS for HTTP.
    pub fn tls(&self) -> Result<TlsConfig> {
        let certificate = self.certificate()?.map(|(chain, key)| ClientCert::new_with_certs(&chain, key));
        Ok(TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&certificates(&self.authorities()?)?))
            .client_cert(certificate)
            .unversioned_rustls_crypto_provider(provider())
            .build())
    }

    /// The settings of TLS for another protocol than HTTP, which has this name for ALPN.
    pub fn client_config(&self, alpn: &[u8]) -> Result<Arc<ClientConfig>> {
        let authorities = self.authorities()?;
        let mut roots = RootCertStore::empty();
        let (usable, _) = roots.add_parsable_certificates(certificates(&authorities)?.iter().map(der));
        if usable == 0 {
            return Err(user_error(format!("{} has no authority that can be used", authorities.display())));
        }
        let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        let builder = builder.with_root_certificates(roots);
        let mut config = match self.certificate()? {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let key = PrivateKeyDer::try_from(key.der().to_vec()).map_err(user_error)?;
                let config = builder.with_client_auth_cert(chain.iter().map(der).collect(), key);
                config.context("the client certificate cannot be used").or_user_error()?
            }
        };
        config.alpn_protocols = vec![alpn.to_vec()];
        Ok(Arc::new(config))
    }

    /// The client certificate with its chain, and its key.
    fn certificate(&self) -> Result<Option<(Vec<Certificate<'static>>, PrivateKey<'static>)>> {
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        let pem = PrivateKey::from_pem(&read(key)?);
        let key = pem.with_context(|| format!("{} has no private key", key.display())).or_user_error()?;
        Ok(Some((certificates(certificate)?, key)))
    }

    /// The file with the authorities of the daemon's certificate.
    fn authorities(&self) -> Result<PathBuf> {
        self.tls_ca.clone().map_or_else(system_authorities, Ok)
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn der(certificate: &Certificate<'static>) -> CertificateDer<'static> {
    CertificateDer::from(certificate.der().to_vec())
}

fn system_authorities() -> Result<PathBuf> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let known = || SYSTEM_AUTHORITIES.iter().map(PathBuf::from).find(|path| path.exists());
    named.or_else(known).ok_or_else(|| {
        user_error("this system has no file of certificate authorities; name those of the daemon with --tls-ca FILE")
    })
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>> {
    let pem = read(path)?;
    let items: Result<Vec<PemItem<'static>>, _> = parse_pem(&pem).collect();
    let items = items.with_context(|| format!("{} is not a PEM file", path.display())).or_user_error()?;
    let certificates = items.into_iter().filter_map(|item| match item {
        PemItem::Certificate(certificate) => Some(certificate),
        _ => None,
    });
    let certificates: Vec<_> = certificates.collect();
    if certificates.is_empty() {
        return Err(user_error(format!("{} has no certificate in PEM form", path.display())));
    }
    Ok(certificates)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    read.with_context(|| format!("cannot read {}", path.display())).or_user_error()?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_from_its_file_and_is_never_printed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let args = CredentialArgs { token_file: Some(path.clone()), ..CredentialArgs::default() };
        std::fs::write(&path, "atoll_1_2\n").unwrap();
        assert_eq!(args.token().unwrap().as_deref(), Some("atoll_1_2"));
        for wrong in [&b""[..], b"\n", b"secret one", b"secret\none", b"secret\xff"] {
            std::fs::write(&path, wrong).unwrap();
            let error = args.token().unwrap_err().to_string();
            assert!(error.contains("has no token") && !error.contains("secret"), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(args.token().is_err(), "a missing file is not the same as no token");
    }

    #[test]
    fn files_without_certificates_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        std::fs::write(&path, "").unwrap();
        let args = CredentialArgs { tls_ca: Some(path), ..CredentialArgs::default() };
        assert!(args.tls().unwrap_err().to_string().contains("ca.pem has no certificate"));
    }
}
