//! The few requests to the API server that the driver needs.

use crate::names::DRIVER;
use crate::slices::{Node, Slice, Write};
use atoll_kubernetes::api_server::{ApiServer, Method, TIMEOUT, checked, escaped, failed, json};
use atoll_kubernetes::request::Refused;
use serde_json::{Value, json};
use std::sync::{Mutex, PoisonError};

/// Versions of the group that the driver knows, the best first.
const VERSIONS: [&str; 2] = ["v1", "v1beta2"];

/// The group.
const GROUP: &str = "/apis/resource.k8s.io";

/// Slices of one page of a list.
const PAGE: usize = 500;

/// The API server.
#[derive(Debug)]
pub(crate) struct Api {
    server: ApiServer,
    /// The version of the group; `None` until the API server was asked.
    version: Mutex<Option<&'static str>>,
}

impl Api {
    pub(crate) fn new(server: ApiServer) -> Api {
        Api { server, version: Mutex::new(None) }
    }

    /// Forgets the version: the API server may be a newer one.
    pub(crate) fn forget(&self) {
        *self.version.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The version of the group.
    fn version(&self) -> Result<&'static str, Refused> {
        let mut version = self.version.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(version) = *version {
            return Ok(version);
        }
        let group = json(self.server.get(GROUP, TIMEOUT)?)?;
        let served = group["versions"].as_array().into_iter().flatten();
        let served: Vec<&str> = served.filter_map(|one| one["version"].as_str()).collect();
        let found = VERSIONS.into_iter().find(|known| served.contains(known)).ok_or_else(|| {
            failed(format!(
                "the API server has resource.k8s.io in {served:?}, and the driver needs one of {VERSIONS:?}"
            ))
        })?;
        tracing::info!("the API server has resource.k8s.io/{found}");
        *version = Some(found);
        Ok(found)
    }

    /// The node of this name.
    pub(crate) fn node(&self, name: &str) -> Result<Node, Refused> {
        let answer = json(self.server.get(&format!("/api/v1/nodes/{}", checked(name)?), TIMEOUT)?)?;
        let uid = answer["metadata"]["uid"].as_str().ok_or_else(|| failed(format!("the node {name} has no UID")))?;
        Ok(Node { name: name.into(), uid: uid.into() })
    }

    /// A claim.
    pub(crate) fn claim(&self, namespace: &str, name: &str) -> Result<Value, Refused> {
        let (namespace, name) = (checked(namespace)?, checked(name)?);
        let path = format!("{GROUP}/{}/namespaces/{namespace}/resourceclaims/{name}", self.version()?);
        json(self.server.get(&path, TIMEOUT)?)
    }

    /// The slices of this driver and a node.
    pub(crate) fn slices(&self, node: &str) -> Result<Vec<Value>, Refused> {
        let selector = escaped(&format!("spec.driver={DRIVER},spec.nodeName={node}"));
        let path = format!("{GROUP}/{}/resourceslices?fieldSelector={selector}&limit={PAGE}", self.version()?);
        let (mut all, mut page) = (Vec::new(), String::new());
        loop {
            let mut answer = json(self.server.get(&format!("{path}{page}"), TIMEOUT)?)?;
            let Value::Array(items) = answer["items"].take() else {
                return Err(failed(format!("the answer to {path} is not a list")));
            };
            all.extend(items);
            match answer["metadata"]["continue"].as_str().filter(|next| !next.is_empty()) {
                Some(next) => page = format!("&continue={}", escaped(next)),
                None => return Ok(all),
            }
        }
    }

    /// What the API server would store for a new slice. It leaves out fields of features that it does
    /// not have.
    pub(crate) fn tried(&self, slice: &Slice) -> Result<Value, Refused> {
        let mut spec = slice.spec.clone();
        spec["pool"]["generation"] = 1.into();
        // Slices of this name may be there.
        let metadata = json!({ "name": format!("{}-tried", slice.name) });
        let body = self.resource(json!({ "kind": "ResourceSlice", "metadata": metadata, "spec": spec }))?;
        self.server.send(Method::Post, &format!("{}?dryRun=All", self.collection()?), &body)
    }

    /// Carries out a write. A slice that is to be deleted may be gone.
    pub(crate) fn write(&self, write: Write) -> Result<(), Refused> {
        let collection = self.collection()?;
        match write {
            Write::Create(slice) => self.server.send(Method::Post, &collection, &self.resource(slice)?)?,
            Write::Replace(name, slice) => {
                let path = format!("{collection}/{}", checked(&name)?);
                self.server.send(Method::Put, &path, &self.resource(slice)?)?
            }
            Write::Delete(name) => {
                let options = json!({ "apiVersion": "v1", "kind": "DeleteOptions" });
                match self.server.send(Method::Delete, &format!("{collection}/{}", checked(&name)?), &options) {
                    Err(Refused { status: Some(404), .. }) => Value::Null,
                    answer => answer?,
                }
            }
        };
        Ok(())
    }

    fn collection(&self) -> Result<String, Refused> {
        Ok(format!("{GROUP}/{}/resourceslices", self.version()?))
    }

    /// A resource with the version of the group.
    fn resource(&self, mut resource: Value) -> Result<Value, Refused> {
        resource["apiVersion"] = format!("resource.k8s.io/{}", self.version()?).into();
        Ok(resource)
    }
}
