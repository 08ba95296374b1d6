//! The client of the API server: requests of JSON, with the account of the pod.

use crate::request::Refused;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use ureq::http::Response;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

/// Time for a request that is not a watch.
pub const TIMEOUT: Duration = Duration::from_secs(15);

/// Largest answer, and largest line of a watch, in bytes: more than a page of the largest resources.
pub const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// Longest name of a resource in characters.
const NAME_MAX: usize = 253;

/// Files that each pod has of its service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Flags that say where the API server is.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ApiServerArgs {
    /// Address of the API server [default: that of the cluster, from the variables of the pod]
    #[arg(long, value_name = "URL")]
    api_server: Option<String>,

    /// Authorities of the API server's certificate in PEM form [default: those of the service
    /// account]
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,

    /// File with the token for the API server [default: that of the service account]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl ApiServerArgs {
    /// The client.
    ///
    /// # Errors
    /// Fails if no flag names the API server outside of a pod, or as [`ApiServer::new`].
    pub fn client(&self) -> Result<ApiServer> {
        let account = |name: &str| Some(PathBuf::from(ACCOUNT).join(name)).filter(|path| path.exists());
        let base = match &self.api_server {
            Some(base) => base.clone(),
            None => cluster().context("this is no pod of a cluster; name the API server with --api-server URL")?,
        };
        let authorities = self.ca_file.clone().or_else(|| account("ca.crt"));
        let token_file = self.token_file.clone().or_else(|| account("token"));
        ApiServer::new(&base, authorities.as_deref(), token_file)
    }
}

/// The address of the API server for pods.
fn cluster() -> Option<String> {
    let host = std::env::var("KUBERNETES_SERVICE_HOST").ok()?;
    let port = std::env::var("KUBERNETES_SERVICE_PORT").ok()?;
    Some(if host.contains(':') { format!("https://[{host}]:{port}") } else { format!("https://{host}:{port}") })
}

/// The API server.
#[derive(Clone, Debug)]
pub struct ApiServer {
    agent: Agent,
    base: String,
    token_file: Option<PathBuf>,
}

/// The methods that send a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Creates.
    Post,
    /// Replaces.
    Put,
    /// Merges, as RFC 7386 says.
    Patch,
    /// Deletes.
    Delete,
}

impl ApiServer {
    /// `base` is the address, as in `https://10.0.0.1:443`. `authorities` has the authorities of its
    /// certificate in PEM form; the file with the token is read for each request, since it changes.
    ///
    /// # Errors
    /// Fails if there are no authorities for an address with TLS, or if they cannot be read.
    pub fn new(base: &str, authorities: Option<&Path>, token_file: Option<PathBuf>) -> Result<ApiServer> {
        let config = Agent::config_builder().http_status_as_error(false).proxy(None).max_redirects(0);
        let config = config.timeout_global(Some(TIMEOUT)).timeout_connect(Some(TIMEOUT / 3));
        let agent = match (base.starts_with("https://"), authorities) {
            (true, Some(path)) => config.tls_config(tls(path)?).build().new_agent(),
            (true, None) => bail!("{base} has TLS; name the authorities of its certificate with --ca-file FILE"),
            (false, _) => config.build().new_agent(),
        };
        Ok(ApiServer { agent, base: base.trim_end_matches('/').into(), token_file })
    }

    fn authorization(&self) -> Result<Option<String>, Refused> {
        let Some(path) = &self.token_file else { return Ok(None) };
        let read = std::fs::read_to_string(path).map_err(|error| failed(format!("{}: {error}", path.display())))?;
        Ok(Some(format!("Bearer {}", read.trim())))
    }

    /// Sends a request without a body. The answer has to end `within` a time.
    ///
    /// # Errors
    /// Fails if no answer arrives, or with the status and message of a refusal.
    pub fn get(&self, path: &str, within: Duration) -> Result<Response<Body>, Refused> {
        let mut request = self.agent.get(format!("{}{path}", self.base)).header("Accept", "application/json");
        if let Some(value) = self.authorization()? {
            request = request.header("Authorization", value);
        }
        let answer = request.config().timeout_global(Some(within)).build().call();
        accepted(answer.map_err(|error| failed(error.to_string()))?)
    }

    /// Sends JSON and returns the answer.
    ///
    /// # Errors
    /// As [`ApiServer::get`].
    pub fn send(&self, method: Method, path: &str, body: &Value) -> Result<Value, Refused> {
        let url = format!("{}{path}", self.base);
        let request = match method {
            Method::Post => self.agent.post(url),
            Method::Put => self.agent.put(url),
            Method::Patch => self.agent.patch(url),
            Method::Delete => self.agent.delete(url).force_send_body(),
        };
        let content = if method == Method::Patch { "application/merge-patch+json" } else { "application/json" };
        let mut request = request.header("Accept", "application/json").header("Content-Type", content);
        if let Some(value) = self.authorization()? {
            request = request.header("Authorization", value);
        }
        let answer = request.send(body.to_string().as_bytes()).map_err(|error| failed(error.to_string()))?;
        json(accepted(answer)?)
    }
}

/// A request that got no answer, or an answer that cannot be read.
#[must_use]
pub fn failed(message: String) -> Refused {
    Refused { status: None, message }
}

/// A name as a part of a path.
///
/// # Errors
/// Fails if a resource cannot have the name.
pub fn checked(name: &str) -> Result<&str, Refused> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    match (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(is_plain) {
        true => Ok(name),
        false => Err(Refused { status: Some(400), message: format!("{name:?} is not the name of a resource") }),
    }
}

/// A value of a query.
#[must_use]
pub fn escaped(value: &str) -> String {
    let escaped = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    value.bytes().map(escaped).collect()
}

fn accepted(answer: Response<Body>) -> Result<Response<Body>, Refused> {
    let status = answer.status().as_u16();
    if (200..300).contains(&status) {
        return Ok(answer);
    }
    let message = match json(answer) {
        Ok(answer) => answer["message"].as_str().unwrap_or("no reason is given").to_owned(),
        Err(error) => error.message,
    };
    Err(Refused { status: Some(status), message: format!("status {status}: {message}") })
}

/// The JSON of an answer.
///
/// # Errors
/// Fails if the answer breaks off, is too large or is not JSON.
pub fn json(mut answer: Response<Body>) -> Result<Value, Refused> {
    let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
    let body = body.map_err(|error| failed(error.to_string()))?;
    serde_json::from_slice(&body).map_err(|error| failed(error.to_string()))
}

/// TLS with the authorities of a file.
fn tls(authorities: &Path) -> Result<TlsConfig> {
    let pem = std::fs::read(authorities).with_context(|| authorities.display().to_string())?;
    let mut certificates: Vec<Certificate<'static>> = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.with_context(|| authorities.display().to_string())? {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() {
        bail!("{} has no certificate in PEM form", authorities.display());
    }
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&certificates))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_cannot_change_a_path() {
        assert!(checked("resnet50-0.x").is_ok());
        for wrong in ["", "..%2f", "a/b", "a?b", "A", "a b"] {
            assert!(checked(wrong).is_err(), "{wrong}");
        }
        assert_eq!(escaped("a=b&c d/é"), "a%3Db%26c%20d%2F%C3%A9");
    }

    #[test]
    fn an_address_with_tls_needs_authorities() {
        let error = ApiServer::new("https://10.0.0.1", None, None).err().unwrap();
        assert!(error.to_string().contains("--ca-file"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.crt");
        std::fs::write(&path, "").unwrap();
        let error = ApiServer::new("https://10.0.0.1", Some(&path), None).err().unwrap();
        assert!(error.to_string().contains("no certificate"), "{error}");
    }
}
