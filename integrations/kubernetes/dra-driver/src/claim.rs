//! A `ResourceClaim` as the API server has it: the devices that the scheduler allocated, and what
//! becomes of each.

use crate::config::LeaseConfig;
use crate::names::{DRIVER, is_uid};
use crate::share::{Share, share};
use atoll_client::{Class, GivenShare, LeaseSpec};
use atoll_kubernetes::capacity::Device;
use atoll_kubernetes::gift::{
    Gift, HOLDER_VARIABLE, MEMORY_VARIABLE, REQUEST_VARIABLE, SHARE_VARIABLE, SLOTS_VARIABLE, URL_VARIABLE,
};
use atoll_kubernetes::hold::Lease;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// The file that names the lease, in the container.
const FILE_VARIABLE: &str = "ATOLL_LEASE_FILE";

/// Folder of claims in containers.
const CLAIMS: &str = "/run/atoll/claims";

/// A claim that is prepared, or is being prepared or released, as the driver stores it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// Whether its leases are being released.
    pub(crate) leaves: bool,
    /// Its devices, in the order of the allocation.
    pub(crate) parts: Vec<Part>,
}

/// A device of a claim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// The request of the claim.
    pub(crate) request: String,
    pub(crate) pool: String,
    pub(crate) device: String,
    pub(crate) share_id: Option<String>,
    /// Name of its file among those of the claim.
    pub(crate) file: String,
    /// Variables of containers.
    pub(crate) variables: Vec<(String, String)>,
    /// The lease to ask for; `None` if the container takes it.
    pub(crate) spec: Option<LeaseSpec>,
    /// How many leases before this one have ended.
    pub(crate) ended: u32,
    /// The lease that the daemon granted.
    pub(crate) lease: Option<Lease>,
}

impl Part {
    /// The request for the lease. Its id is that of the claim and of the part, and of the lease, if
    /// others before have ended: an id is used up when its lease has ended.
    pub(crate) fn request(&self) -> Option<LeaseSpec> {
        let mut spec = self.spec.clone()?;
        if self.ended > 0 {
            spec.request_id = format!("{}-{}", spec.request_id, self.ended);
        }
        Some(spec)
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Claim {
    metadata: Meta,
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Meta {
    uid: String,
    name: String,
    namespace: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    allocation: Option<Allocation>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Allocation {
    devices: Devices,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Devices {
    results: Vec<Allocated>,
    config: Vec<Configuration>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Allocated {
    request: String,
    driver: String,
    pool: String,
    device: String,
    admin_access: Option<bool>,
    #[serde(rename = "shareID")]
    share_id: Option<String>,
    consumed_capacity: BTreeMap<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Configuration {
    requests: Vec<String>,
    opaque: Option<Opaque>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Opaque {
    driver: String,
    parameters: Value,
}

impl Configuration {
    /// Whether it is for a request, as in `gpu` or `gpu/large`: it may name the request without the
    /// alternative that was chosen, or none for all requests.
    fn is_for(&self, request: &str) -> bool {
        let main = main_request(request);
        self.requests.is_empty() || self.requests.iter().any(|name| name == request || name == main)
    }
}

/// A request without the alternative that was chosen, as containers and the kubelet name it: `gpu` for
/// `gpu/large`.
pub(crate) fn main_request(request: &str) -> &str {
    request.split('/').next().unwrap_or_default()
}

/// What the driver does for a claim: one part for each of its devices. `devices` are those of the
/// daemon of this node.
///
/// # Errors
/// Fails if the resource is not the claim that the kubelet names, is not allocated, or has impossible
/// parameters.
pub(crate) fn plan(resource: Value, uid: &str, node: &str, devices: &[Device], gift: &Gift) -> Result<Record, String> {
    let Claim { metadata, status } = serde_json::from_value(resource).map_err(|error| format!("the claim: {error}"))?;
    if metadata.uid != uid || !is_uid(uid) {
        return Err(format!("the claim of this name has the UID {}, not {uid}", metadata.uid));
    }
    let Some(Allocation { devices: allocated }) = status.allocation else {
        return Err("the claim has no allocation".into());
    };
    let mut parts: Vec<Part> = Vec::new();
    for result in allocated.results.iter().filter(|result| result.driver == DRIVER) {
        let request = &result.request;
        let part = part(result, &allocated.config, parts.len(), (&metadata, node, devices, gift));
        let mut part = part.map_err(|error| format!("request {request}: {error}"))?;
        let same = parts.iter().filter(|other| other.request == *request).count();
        // A name of a request has no dot.
        part.file = match same {
            0 => format!("{}.json", request.replace('/', "_")),
            more => format!("{}.{more}.json", request.replace('/', "_")),
        };
        if part.spec.is_some() {
            part.variables.push((FILE_VARIABLE.into(), format!("{}/{}", folder(&metadata.name), part.file)));
        }
        parts.push(part);
    }
    let Meta { uid, name, namespace } = metadata;
    Ok(Record { namespace, name, uid, leaves: false, parts })
}

/// The folder of a claim in containers.
pub(crate) fn folder(claim: &str) -> String {
    format!("{CLAIMS}/{claim}")
}

fn part(
    result: &Allocated,
    configs: &[Configuration],
    number: usize,
    (claim, node, devices, gift): (&Meta, &str, &[Device], &Gift),
) -> Result<Part, String> {
    if result.admin_access == Some(true) {
        return Err("the driver has no access for administrators".into());
    }
    // Those of the class stand before those of the claim.
    let own = |opaque: &&Opaque| opaque.driver == DRIVER;
    let of_request = configs.iter().filter(|config| config.is_for(&result.request));
    let config = match of_request.filter_map(|config| config.opaque.as_ref()).rfind(own) {
        Some(opaque) => Some(LeaseConfig::read(&opaque.parameters)?),
        None => None,
    };
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let consumed = result.consumed_capacity.iter().map(|(name, value)| (name.clone(), text(value))).collect();
    let share = share(node, devices, (&result.pool, &result.device), &consumed)?;
    let id = format!("{}-{number}", claim.uid);
    let holder = format!("kubernetes-{id}");
    let mut variables = gift.variables.clone();
    variables.push((URL_VARIABLE.into(), gift.url.clone()));
    let spec = match config {
        Some(config) => Some(spec(config, share, id, holder)?),
        None => {
            variables.extend([
                (SHARE_VARIABLE.into(), share.sm_pct.to_string()),
                (MEMORY_VARIABLE.into(), share.memory_bytes.to_string()),
                (SLOTS_VARIABLE.into(), share.slots.to_string()),
                (REQUEST_VARIABLE.into(), id),
                (HOLDER_VARIABLE.into(), holder),
            ]);
            None
        }
    };
    Ok(Part {
        request: result.request.clone(),
        pool: result.pool.clone(),
        device: result.device.clone(),
        share_id: result.share_id.clone(),
        file: String::new(),
        variables,
        spec,
        ended: 0,
        lease: None,
    })
}

/// The lease of a device of a claim.
///
/// # Errors
/// Fails if the parameters ask for more than the claim has.
fn spec(config: LeaseConfig, share: Share, request_id: String, holder: String) -> Result<LeaseSpec, String> {
    let given = GivenShare { sm_pct: Some(share.sm_pct as f64), gpu_mem: Some(share.memory_bytes) };
    let figures = config.share.figures(given).map_err(|error| error.to_string())?;
    let slots = config.real_time_slots.map_or(share.slots, u64::from);
    if slots > share.slots {
        return Err(format!("realTimeSlots is {slots}, and the claim has {} of this capacity", share.slots));
    }
    if config.class == Some(Class::RealTime) && slots == 0 {
        return Err(
            "class real-time needs a real-time slot, and the claim has none of the capacity realTimeSlots".into()
        );
    }
    Ok(LeaseSpec {
        request_id,
        holder,
        function: config.function,
        class: config.class,
        sm_partition: figures.sm_partition,
        quota_request: figures.quota_request,
        quota_limit: figures.quota_limit,
        gpu_mem: i64::try_from(figures.gpu_mem).unwrap_or(i64::MAX),
        real_time_slots: Some(i64::try_from(slots).unwrap_or(i64::MAX)),
        ttl_s: config.ttl_s,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const UID: &str = "0f5a-1";

    fn result(request: &str, consumed: Value) -> Value {
        json!({
            "request": request, "driver": DRIVER, "pool": "gpu-1/host-0", "device": "host-0", "shareID": "s",
            "consumedCapacity": consumed,
        })
    }

    fn config(requests: &[&str], fields: Value) -> Value {
        let mut parameters = json!({ "apiVersion": "gpu.atoll.dev/v1alpha1", "kind": "AtollLeaseConfig" });
        parameters.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({ "source": "FromClaim", "requests": requests, "opaque": { "driver": DRIVER, "parameters": parameters } })
    }

    fn planned(results: Value, configs: Value) -> Result<Record, String> {
        let claim = json!({
            "metadata": { "name": "c", "namespace": "apps", "uid": UID },
            "status": { "allocation": { "devices": { "results": results, "config": configs } } },
        });
        let device = Device { name: "host:0".into(), is_healthy: true, memory_bytes: 1 << 30, real_time_slots: 2 };
        let gift = Gift { url: "http://d:8000".into(), variables: vec![("A".into(), "b".into())], mounts: Vec::new() };
        plan(claim, UID, "gpu-1", &[device], &gift)
    }

    fn variable<'a>(part: &'a Part, name: &str) -> Option<&'a str> {
        part.variables.iter().find(|(of, _)| of == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn the_driver_takes_the_lease_of_a_function() {
        let consumed = json!({ "sm": "15", "memory": "256Mi", "realTimeSlots": "1" });
        let other = json!({ "request": "nic", "driver": "nic.example.com", "pool": "p", "device": "d" });
        // What the class says is overridden by the claim, and what is for others does not count.
        let configs = json!([
            config(&[], json!({ "function": "f", "smPartition": 60 })),
            config(&["gpu"], json!({ "function": "g", "class": "real-time", "quota": { "request": 0.5 } })),
            config(&["nic"], json!({ "function": "h" })),
            { "opaque": { "driver": "nic.example.com", "parameters": { "mtu": 9000 } } },
        ]);
        let record = planned(json!([other, result("gpu/small", consumed)]), configs).unwrap();
        let [part] = record.parts.as_slice() else { panic!("{record:?}") };
        let spec = part.request().unwrap();
        let expected = LeaseSpec {
            request_id: format!("{UID}-0"),
            holder: format!("kubernetes-{UID}-0"),
            function: "g".into(),
            class: Some(Class::RealTime),
            sm_partition: 30.0,
            quota_request: 0.5,
            quota_limit: 1.0,
            gpu_mem: 256 << 20,
            real_time_slots: Some(1),
            ttl_s: 120,
        };
        assert_eq!(spec, expected);
        assert_eq!(variable(part, "ATOLL_LEASE_FILE"), Some("/run/atoll/claims/c/gpu_small.json"));
        assert_eq!((variable(part, "A"), variable(part, "ATOLL_SM_PCT")), (Some("b"), None));
        assert_eq!((part.share_id.as_deref(), main_request(&part.request)), (Some("s"), "gpu"));
        let next = Part { ended: 2, ..part.clone() };
        assert_eq!(next.request().unwrap().request_id, format!("{UID}-0-2"));
    }

    #[test]
    fn without_parameters_the_container_takes_its_lease() {
        let half = result("gpu", json!({ "sm": "50", "memory": 1024 }));
        let record = planned(json!([half, half, result("more", json!({}))]), json!([])).unwrap();
        let files: Vec<&str> = record.parts.iter().map(|part| part.file.as_str()).collect();
        assert_eq!(files, ["gpu.json", "gpu.1.json", "more.json"]);
        let part = &record.parts[1];
        assert_eq!(part.request(), None);
        for (name, value) in [
            ("ATOLL_URL", "http://d:8000"),
            ("ATOLL_SM_PCT", "50"),
            ("ATOLL_GPU_MEM", "1024"),
            ("ATOLL_REAL_TIME_SLOTS", "2"),
            ("ATOLL_LEASE_REQUEST_ID", "0f5a-1-1"),
            ("ATOLL_LEASE_HOLDER", "kubernetes-0f5a-1-1"),
        ] {
            assert_eq!(variable(part, name), Some(value), "{name}");
        }
    }

    #[test]
    fn what_a_claim_cannot_have_is_refused() {
        let quarter = || json!([result("gpu", json!({ "sm": "25", "memory": "256Mi", "realTimeSlots": "0" }))]);
        for (fields, says) in [
            (json!({ "function": "f", "gpuMem": "512Mi" }), "exceed the 268435456 of the container"),
            (json!({ "function": "f", "smPartition": 60, "quota": { "request": 0.5 } }), "30 % of a device"),
            (json!({ "function": "f", "realTimeSlots": 1 }), "the claim has 0 of this capacity"),
            (json!({ "function": "f", "class": "real-time" }), "needs a real-time slot"),
            (json!({ "function": "f", "ttlSeconds": 1 }), "ttlSeconds is 1"),
        ] {
            let error = planned(quarter(), json!([config(&[], fields)])).unwrap_err();
            assert!(error.contains("request gpu: ") && error.contains(says), "{error}, not {says}");
        }
        let admin = json!([{
            "request": "gpu", "driver": DRIVER, "pool": "gpu-1/host-0", "device": "host-0", "adminAccess": true,
        }]);
        assert!(planned(admin, json!([])).unwrap_err().contains("administrators"));
        let gift = Gift::default();
        let claim = json!({ "metadata": { "name": "c", "namespace": "apps", "uid": UID } });
        assert!(plan(claim.clone(), UID, "gpu-1", &[], &gift).unwrap_err().contains("no allocation"));
        assert!(plan(claim, "other", "gpu-1", &[], &gift).unwrap_err().contains("has the UID 0f5a-1, not other"));
        let path = json!({ "metadata": { "uid": "../a" } });
        assert!(plan(path, "../a", "gpu-1", &[], &gift).is_err());
    }
}
