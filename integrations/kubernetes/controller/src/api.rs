//! The client of the API server: the few requests that the controller needs.

use crate::controller::{Verb, Write};
use crate::hold::Refused;
use crate::resources::{Kind, Resource};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use ureq::http::Response;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

/// Time for a request that is not a watch.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The API server ends a watch after this long, and the next one begins.
const WATCH_S: u64 = 240;

/// Resources of one page of a list.
const PAGE: usize = 500;

/// Largest answer, and largest line of a watch, in bytes: more than a page of the largest resources.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// Longest name of a resource in characters.
const NAME_MAX: usize = 253;

/// The API server.
#[derive(Clone)]
pub(crate) struct Api {
    agent: Agent,
    base: String,
    token_file: Option<PathBuf>,
    /// Namespace of the daemons and of the controller.
    namespace: String,
}

/// An event of a watch.
#[derive(Debug)]
pub(crate) enum Watched {
    /// A resource is new, or has changed.
    Set(Box<Resource>),
    /// A resource is gone.
    Gone(Box<Resource>),
    /// Nothing has changed up to this version.
    Version(String),
}

/// How a watch ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The next watch goes on where it ended.
    InTime,
    /// The API server no longer knows the version: list again.
    TooOld,
}

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

impl Api {
    /// `base` is the address, as in `https://10.0.0.1:443`. `authorities` has the authorities of its
    /// certificate in PEM form; the file with the token is read for each request, since it changes.
    ///
    /// # Errors
    /// Fails if there are no authorities for an address with TLS, or if they cannot be read.
    pub(crate) fn new(
        base: &str,
        authorities: Option<&Path>,
        token_file: Option<PathBuf>,
        namespace: &str,
    ) -> Result<Api> {
        let config = Agent::config_builder().http_status_as_error(false).proxy(None).max_redirects(0);
        let config = config.timeout_global(Some(TIMEOUT)).timeout_connect(Some(TIMEOUT / 3));
        let agent = match (base.starts_with("https://"), authorities) {
            (true, Some(path)) => config.tls_config(tls(path)?).build().new_agent(),
            (true, None) => bail!("{base} has TLS; name the authorities of its certificate with --ca-file FILE"),
            (false, _) => config.build().new_agent(),
        };
        Ok(Api { agent, base: base.trim_end_matches('/').into(), token_file, namespace: namespace.into() })
    }

    fn authorization(&self) -> Result<Option<String>, Refused> {
        let Some(path) = &self.token_file else { return Ok(None) };
        let read = std::fs::read_to_string(path).map_err(|error| failed(format!("{}: {error}", path.display())))?;
        Ok(Some(format!("Bearer {}", read.trim())))
    }

    fn get(&self, path: &str, within: Duration) -> Result<Response<Body>, Refused> {
        let mut request = self.agent.get(format!("{}{path}", self.base)).header("Accept", "application/json");
        if let Some(value) = self.authorization()? {
            request = request.header("Authorization", value);
        }
        let answer = request.config().timeout_global(Some(within)).build().call();
        accepted(answer.map_err(|error| failed(error.to_string()))?)
    }

    /// Sends JSON and returns the answer.
    fn send(&self, method: Method, path: &str, body: &Value) -> Result<Value, Refused> {
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

    /// All resources of a kind, and the version of the list, from which a watch continues.
    pub(crate) fn list(&self, kind: Kind) -> Result<(Vec<Resource>, String), Refused> {
        let (mut all, mut page) = (Vec::new(), String::new());
        loop {
            let path = format!("{}limit={PAGE}{page}", self.collection(kind));
            let mut answer = json(self.get(&path, TIMEOUT)?)?;
            let Value::Array(items) = answer["items"].take() else {
                return Err(failed(format!("the answer to {path} is not a list")));
            };
            for item in items {
                all.push(serde_json::from_value(item).map_err(|error| failed(format!("{path}: {error}")))?);
            }
            let version = answer["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
            match answer["metadata"]["continue"].as_str().filter(|next| !next.is_empty()) {
                Some(next) => page = format!("&continue={}", escaped(next)),
                None => return Ok((all, version)),
            }
        }
    }

    /// Reports changes since a version until the watch ends or `each` returns false.
    pub(crate) fn watch(
        &self,
        kind: Kind,
        version: &str,
        mut each: impl FnMut(Watched) -> bool,
    ) -> Result<Ended, Refused> {
        let query = format!("watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_S}");
        let path = format!("{}{query}&resourceVersion={}", self.collection(kind), escaped(version));
        let answer = match self.get(&path, Duration::from_secs(WATCH_S) + TIMEOUT) {
            Err(Refused { status: Some(410), .. }) => return Ok(Ended::TooOld),
            answer => answer?,
        };
        let mut lines = BufReader::new(answer.into_body().into_reader());
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = (&mut lines).take(ANSWER_BYTES_MAX).read_until(b'\n', &mut line);
            if read.map_err(|error| failed(error.to_string()))? == 0 {
                return Ok(Ended::InTime);
            }
            // A connection that breaks inside a line leaves one that is not JSON.
            let Line { kind, object } = serde_json::from_slice(&line).map_err(|error| failed(error.to_string()))?;
            if kind == "ERROR" {
                let is_old = object["code"] == 410;
                return if is_old { Ok(Ended::TooOld) } else { Err(failed(object["message"].to_string())) };
            }
            let resource: Resource =
                serde_json::from_value(object).map_err(|error| failed(format!("{path}: {error}")))?;
            let event = match kind.as_str() {
                "ADDED" | "MODIFIED" => Watched::Set(Box::new(resource)),
                "DELETED" => Watched::Gone(Box::new(resource)),
                _ => Watched::Version(resource.metadata.resource_version),
            };
            if !each(event) {
                return Ok(Ended::InTime);
            }
        }
    }

    /// Carries out a write. Returns the resource, if the API server sent it.
    pub(crate) fn write(&self, write: &Write) -> Result<Option<Resource>, Refused> {
        let (namespace, name) = (checked(&write.key.0)?, checked(&write.key.1)?);
        let collection = match write.kind {
            None => format!("/api/v1/namespaces/{namespace}/events"),
            Some(kind) => format!("/apis/atoll.dev/v1alpha1/namespaces/{namespace}/{}", plural(kind)),
        };
        let one = format!("{collection}/{name}");
        let answer = match &write.verb {
            Verb::Create(body) => self.send(Method::Post, &collection, body)?,
            Verb::Patch(body) => self.send(Method::Patch, &one, body)?,
            Verb::PatchStatus(body) => self.send(Method::Patch, &format!("{one}/status"), body)?,
            Verb::Delete(uid) => {
                let body = serde_json::json!({
                    "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": uid },
                });
                self.send(Method::Delete, &one, &body)?
            }
        };
        // The answer to a deletion may be a status.
        if answer["kind"] == "Status" {
            return Ok(None);
        }
        serde_json::from_value(answer).map(Some).map_err(|error| failed(error.to_string()))
    }

    /// The lease of the leader; `None` if there is none.
    pub(crate) fn leader(&self, name: &str) -> Result<Option<Value>, Refused> {
        match self.get(&format!("{}/{name}", self.leases()), TIMEOUT) {
            Ok(answer) => json(answer).map(Some),
            Err(Refused { status: Some(404), .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes or replaces the lease of the leader. A lease that has changed since is not replaced.
    pub(crate) fn lead(&self, name: &str, lease: &Value) -> Result<Value, Refused> {
        match lease["metadata"]["resourceVersion"].is_null() {
            true => self.send(Method::Post, &self.leases(), lease),
            false => self.send(Method::Put, &format!("{}/{name}", self.leases()), lease),
        }
    }

    fn leases(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace)
    }

    /// The path of all resources of a kind, up to more parameters.
    fn collection(&self, kind: Kind) -> String {
        match kind {
            Kind::Function | Kind::Instance => format!("/apis/atoll.dev/v1alpha1/{}?", plural(kind)),
            Kind::Node => "/api/v1/nodes?".into(),
            Kind::Pod => {
                let selector = escaped("app.kubernetes.io/component=daemon");
                format!("/api/v1/namespaces/{}/pods?labelSelector={selector}&", self.namespace)
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    Post,
    Put,
    Patch,
    Delete,
}

fn plural(kind: Kind) -> &'static str {
    match kind {
        Kind::Function => "atollfunctions",
        Kind::Instance => "atollinstances",
        Kind::Node => "nodes",
        Kind::Pod => "pods",
    }
}

/// A request that got no answer, or one that cannot be read.
fn failed(message: String) -> Refused {
    Refused { status: None, message }
}

/// A name as a part of a path.
fn checked(name: &str) -> Result<&str, Refused> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    match (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(is_plain) {
        true => Ok(name),
        false => Err(Refused { status: Some(400), message: format!("{name:?} is not the name of a resource") }),
    }
}

/// A value of a query.
fn escaped(value: &str) -> String {
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

fn json(mut answer: Response<Body>) -> Result<Value, Refused> {
    let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
    let body = body.map_err(|error| failed(error.to_string()))?;
    serde_json::from_slice(&body).map_err(|error| failed(error.to_string()))
}

/// TLS with the authorities of a file.
pub(crate) fn tls(authorities: &Path) -> Result<TlsConfig> {
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
        let error = Api::new("https://10.0.0.1", None, None, "atoll-system").err().unwrap();
        assert!(error.to_string().contains("--ca-file"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.crt");
        std::fs::write(&path, "").unwrap();
        assert!(
            Api::new("https://10.0.0.1", Some(&path), None, "n").err().unwrap().to_string().contains("no certificate")
        );
    }
}
