//! The resources that the controller reads, as the API server sends them.
//!
//! Specifications are checked again, although the API server checks them: a resource that was
//! stored before its definition had the check must not become a request to a daemon.

use atoll_client::{Class, LeaseSpec};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Namespace and name.
pub(crate) type Key = (String, String);

/// The kinds of resources that the controller watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// `AtollFunction`.
    Function,
    /// `AtollInstance`.
    Instance,
    /// Nodes of the cluster.
    Node,
    /// Pods of daemons.
    Pod,
}

/// All kinds.
pub(crate) const KINDS: [Kind; 4] = [Kind::Function, Kind::Instance, Kind::Node, Kind::Pod];

/// The metadata of a resource.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Meta {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) generation: i64,
    pub(crate) deletion_timestamp: Option<String>,
    pub(crate) finalizers: Vec<String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) owner_references: Vec<Owner>,
}

impl Meta {
    pub(crate) fn key(&self) -> Key {
        (self.namespace.clone(), self.name.clone())
    }

    /// Whether the resource is being deleted.
    pub(crate) fn leaves(&self) -> bool {
        self.deletion_timestamp.is_some()
    }
}

/// The resource that another one belongs to.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Owner {
    pub(crate) uid: String,
    pub(crate) kind: String,
}

/// A resource. The fields whose form depends on the kind are as received.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Resource {
    pub(crate) metadata: Meta,
    pub(crate) spec: Value,
    pub(crate) status: Value,
}

/// The specification of an `AtollFunction`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FunctionSpec {
    pub(crate) function: String,
    pub(crate) bundle: Option<Value>,
    #[serde(default = "one")]
    pub(crate) replicas: i64,
    #[serde(default)]
    pub(crate) spread: Spread,
    #[serde(default)]
    pub(crate) node_selector: BTreeMap<String, String>,
    pub(crate) share: Value,
}

/// The specification of an `AtollInstance`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InstanceSpec {
    pub(crate) function: String,
    pub(crate) node_name: String,
    pub(crate) share: Value,
}

/// Whether instances go to as many nodes as possible, or to as few.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum Spread {
    /// As many as possible.
    #[default]
    Nodes,
    /// As few as possible.
    Pack,
}

/// Most replicas of a function, as in its definition.
const REPLICAS_MAX: i64 = 1000;

fn one() -> i64 {
    1
}

impl FunctionSpec {
    /// Reads a specification.
    ///
    /// # Errors
    /// Names the invalid field, with its value.
    pub(crate) fn read(spec: &Value) -> Result<FunctionSpec, String> {
        let read: FunctionSpec = serde_json::from_value(spec.clone()).map_err(|error| error.to_string())?;
        if !(0..=REPLICAS_MAX).contains(&read.replicas) {
            return Err(format!("replicas is {}; it must be 0 to {REPLICAS_MAX}", read.replicas));
        }
        Ok(read)
    }
}

/// The share of an instance, checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Share {
    pub(crate) class: Option<Class>,
    /// Compute units in percent.
    pub(crate) sm_partition: f64,
    pub(crate) quota_request: f64,
    pub(crate) quota_limit: f64,
    pub(crate) memory_bytes: i64,
    pub(crate) real_time_slots: Option<i64>,
    pub(crate) ttl_s: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawShare {
    class: Option<Class>,
    #[serde(default = "hundred")]
    sm_partition: f64,
    quota: Quota,
    gpu_mem: Value,
    real_time_slots: Option<i64>,
    #[serde(default = "ttl")]
    ttl_seconds: i64,
}

#[derive(Deserialize)]
struct Quota {
    request: f64,
    #[serde(default = "whole")]
    limit: f64,
}

fn hundred() -> f64 {
    100.0
}

fn whole() -> f64 {
    1.0
}

fn ttl() -> i64 {
    atoll_client::LEASE_TTL_S
}

impl Share {
    /// Reads a share.
    ///
    /// # Errors
    /// Names the invalid field, with its value.
    pub(crate) fn read(share: &Value) -> Result<Share, String> {
        let raw: RawShare = serde_json::from_value(share.clone()).map_err(|error| format!("share: {error}"))?;
        let RawShare { class, sm_partition, quota, gpu_mem, real_time_slots, ttl_seconds } = raw;
        if !(sm_partition > 0.0 && sm_partition <= 100.0) {
            return Err(format!("smPartition is {sm_partition}; it must be above 0 and at most 100"));
        }
        if !(quota.request > 0.0 && quota.request <= quota.limit && quota.limit <= 1.0) {
            let Quota { request, limit } = quota;
            return Err(format!(
                "quota is {request} to {limit}; both must be above 0 and at most 1, and the limit must not be below \
                 the request"
            ));
        }
        let memory_bytes = bytes(&gpu_mem).ok_or_else(|| {
            format!(
                "gpuMem is {gpu_mem}; it must be a whole number of bytes above 0, or one with the unit Ki, Mi, Gi or Ti"
            )
        })?;
        if real_time_slots.is_some_and(|slots| !(0..=64).contains(&slots)) {
            return Err(format!("realTimeSlots is {}; it must be 0 to 64", real_time_slots.unwrap_or(0)));
        }
        if class == Some(Class::RealTime) && real_time_slots == Some(0) {
            return Err("realTimeSlots is 0, but class real-time needs one".into());
        }
        if !(5..=600).contains(&ttl_seconds) {
            return Err(format!("ttlSeconds is {ttl_seconds}; it must be 5 to 600"));
        }
        let (quota_request, quota_limit, ttl_s) = (quota.request, quota.limit, ttl_seconds);
        Ok(Share { class, sm_partition, quota_request, quota_limit, memory_bytes, real_time_slots, ttl_s })
    }

    /// The request for a lease. The UID of the instance is the id of the request and part of the
    /// holder, so that every controller asks for the same lease.
    pub(crate) fn lease(&self, function: &str, uid: &str) -> LeaseSpec {
        LeaseSpec {
            request_id: uid.into(),
            holder: format!("kubernetes-{uid}"),
            function: function.into(),
            class: self.class,
            sm_partition: self.sm_partition,
            quota_request: self.quota_request,
            quota_limit: self.quota_limit,
            gpu_mem: self.memory_bytes,
            real_time_slots: self.real_time_slots,
            ttl_s: self.ttl_s,
        }
    }

    /// Real-time slots that a lease takes at least.
    pub(crate) fn slots(&self) -> i64 {
        self.real_time_slots.unwrap_or(i64::from(self.class == Some(Class::RealTime)))
    }
}

/// A number of bytes, or a text such as `2Gi`. `None` if it is not possible, or not above 0.
fn bytes(value: &Value) -> Option<i64> {
    if let Some(number) = value.as_i64() {
        return Some(number).filter(|number| *number > 0);
    }
    let text = value.as_str()?;
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let factor: i64 = match &text[digits.len()..] {
        "" => 1,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return None,
    };
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let number: i64 = digits.parse().ok()?;
    number.checked_mul(factor).filter(|bytes| *bytes > 0)
}

/// A node as the controller needs it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Node {
    pub(crate) labels: BTreeMap<String, String>,
    /// Whether it may get new instances: it is not cordoned, and not being deleted.
    pub(crate) is_open: bool,
}

impl Node {
    pub(crate) fn of(resource: &Resource) -> Node {
        let is_cordoned = resource.spec["unschedulable"].as_bool().unwrap_or(false);
        let is_open = !is_cordoned && !resource.metadata.leaves();
        Node { labels: resource.metadata.labels.clone(), is_open }
    }

    /// Whether the node has all of these labels.
    pub(crate) fn has(&self, labels: &BTreeMap<String, String>) -> bool {
        labels.iter().all(|(name, value)| self.labels.get(name) == Some(value))
    }
}

/// A pod with a daemon.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Daemon {
    pub(crate) node: String,
    /// The inference port, as in `http://10.0.0.1:8000`.
    pub(crate) url: String,
}

impl Daemon {
    /// The daemon of a pod that runs, has a node and an address, and is not being deleted. A pod that
    /// has ended may keep its address, which another pod may have. The inference port is the port with
    /// the name `http`.
    pub(crate) fn of(pod: &Resource) -> Option<Daemon> {
        if pod.status["phase"] != "Running" || pod.metadata.leaves() {
            return None;
        }
        let node = pod.spec["nodeName"].as_str().filter(|node| !node.is_empty())?;
        let address = pod.status["podIP"].as_str()?.parse().ok()?;
        let containers = pod.spec["containers"].as_array()?;
        let mut ports = containers.iter().filter_map(|one| one["ports"].as_array()).flatten();
        let port = ports.find(|port| port["name"] == "http")?["containerPort"].as_u64()?;
        let address = std::net::SocketAddr::new(address, u16::try_from(port).ok()?);
        Some(Daemon { node: node.into(), url: format!("http://{address}") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn share() -> Value {
        json!({"class": "real-time", "smPartition": 30, "quota": {"request": 0.4, "limit": 0.8}, "gpuMem": "2Gi"})
    }

    #[test]
    fn a_share_becomes_a_request_for_a_lease() {
        let spec = Share::read(&share()).unwrap().lease("resnet50", "7f3a");
        assert_eq!((spec.request_id.as_str(), spec.holder.as_str()), ("7f3a", "kubernetes-7f3a"));
        assert_eq!((spec.sm_partition, spec.quota_request, spec.quota_limit), (30.0, 0.4, 0.8));
        assert_eq!((spec.gpu_mem, spec.ttl_s, spec.class), (2 << 30, 15, Some(Class::RealTime)));
        let least = Share::read(&json!({"quota": {"request": 0.1}, "gpuMem": 5})).unwrap();
        assert_eq!((least.sm_partition, least.quota_limit, least.slots()), (100.0, 1.0, 0));
    }

    #[test]
    fn impossible_shares_are_named_with_their_value() {
        for (field, value, says) in [
            ("smPartition", json!(130), "smPartition is 130"),
            ("smPartition", json!(-30), "smPartition is -30"),
            ("smPartition", json!("30"), "share: "),
            ("gpuMem", json!("-2Gi"), "gpuMem is \"-2Gi\""),
            ("gpuMem", json!(-2048), "gpuMem is -2048"),
            ("gpuMem", json!("99999999999999Ti"), "gpuMem is"),
            ("gpuMem", json!("2GB"), "gpuMem is"),
            ("gpuMem", json!(1.5), "gpuMem is 1.5"),
            ("quota", json!({"request": 1.3}), "quota is 1.3"),
            ("quota", json!({"request": 0.8, "limit": 0.4}), "quota is 0.8 to 0.4"),
            ("realTimeSlots", json!(-1), "realTimeSlots is -1"),
            ("realTimeSlots", json!(0), "class real-time needs one"),
            ("ttlSeconds", json!(4), "ttlSeconds is 4"),
            ("class", json!("fast"), "share: "),
        ] {
            let mut wrong = share();
            wrong[field] = value;
            let error = Share::read(&wrong).unwrap_err();
            assert!(error.contains(says), "{field}: {error}");
        }
        let spec = json!({"function": "f", "replicas": -1, "share": share()});
        assert!(FunctionSpec::read(&spec).unwrap_err().contains("replicas is -1"));
        assert!(FunctionSpec::read(&Value::Null).is_err());
    }

    #[test]
    fn daemons_are_found_by_their_pods() {
        let pod = json!({
            "metadata": {"name": "atoll-x"},
            "spec": {"nodeName": "gpu-1", "containers": [{"ports": [{"name": "http", "containerPort": 8000}]}]},
            "status": {"podIP": "fd00::1", "phase": "Running"},
        });
        let found = |pod: &Value| Daemon::of(&serde_json::from_value(pod.clone()).unwrap());
        assert_eq!(found(&pod).unwrap(), Daemon { node: "gpu-1".into(), url: "http://[fd00::1]:8000".into() });
        for (pointer, value) in [
            ("/metadata/name", json!(null)),
            ("/spec/nodeName", json!("")),
            ("/status/podIP", json!("")),
            ("/status/phase", json!("Failed")),
            ("/status/phase", json!(null)),
            ("/spec/containers/0/ports/0/name", json!("grpc")),
        ] {
            let mut other = pod.clone();
            *other.pointer_mut(pointer).unwrap() = value;
            if pointer == "/metadata/name" {
                other["metadata"] = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
            }
            assert_eq!(found(&other), None, "{pointer}");
        }
    }
}
