//! The few requests to the API server that the controller needs.

use crate::controller::{Verb, Write};
use crate::resources::{Kind, Resource};
use atoll_kubernetes::api_server::{ANSWER_BYTES_MAX, ApiServer, Method, TIMEOUT, checked, escaped, failed, json};
use atoll_kubernetes::request::Refused;
use serde::Deserialize;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

/// The API server ends a watch after this long, and the next one begins.
const WATCH_S: u64 = 240;

/// Resources of one page of a list.
const PAGE: usize = 500;

/// The API server.
#[derive(Clone)]
pub(crate) struct Api {
    server: ApiServer,
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
    pub(crate) fn new(server: ApiServer, namespace: &str) -> Api {
        Api { server, namespace: namespace.into() }
    }

    /// All resources of a kind, and the version of the list, from which a watch continues.
    pub(crate) fn list(&self, kind: Kind) -> Result<(Vec<Resource>, String), Refused> {
        let (mut all, mut page) = (Vec::new(), String::new());
        loop {
            let path = format!("{}limit={PAGE}{page}", self.collection(kind));
            let mut answer = json(self.server.get(&path, TIMEOUT)?)?;
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
        let answer = match self.server.get(&path, Duration::from_secs(WATCH_S) + TIMEOUT) {
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
            Verb::Create(body) => self.server.send(Method::Post, &collection, body)?,
            Verb::Patch(body) => self.server.send(Method::Patch, &one, body)?,
            Verb::PatchStatus(body) => self.server.send(Method::Patch, &format!("{one}/status"), body)?,
            Verb::Delete(uid) => {
                let body = serde_json::json!({
                    "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": uid },
                });
                self.server.send(Method::Delete, &one, &body)?
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
        match self.server.get(&format!("{}/{name}", self.leases()), TIMEOUT) {
            Ok(answer) => json(answer).map(Some),
            Err(Refused { status: Some(404), .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes or replaces the lease of the leader. A lease that has changed since is not replaced.
    pub(crate) fn lead(&self, name: &str, lease: &Value) -> Result<Value, Refused> {
        match lease["metadata"]["resourceVersion"].is_null() {
            true => self.server.send(Method::Post, &self.leases(), lease),
            false => self.server.send(Method::Put, &format!("{}/{name}", self.leases()), lease),
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

fn plural(kind: Kind) -> &'static str {
    match kind {
        Kind::Function => "atollfunctions",
        Kind::Instance => "atollinstances",
        Kind::Node => "nodes",
        Kind::Pod => "pods",
    }
}
