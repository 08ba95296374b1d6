//! `AtollLeaseConfig`: the opaque parameters of a claim or of a device class.

use crate::quantity;
use atoll_client::{AskedShare, Class};
use serde::Deserialize;
use serde_json::Value;

/// Version of the parameters.
const VERSION: &str = "gpu.atoll.dev/v1alpha1";

/// Their kind.
const KIND: &str = "AtollLeaseConfig";

/// Time to live of the driver's leases, if the parameters have none: it may be away for so long.
const TTL_S: i64 = 120;

/// Longest name of a function in bytes.
const FUNCTION_BYTES_MAX: usize = 128;

/// Parameters of a lease, checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeaseConfig {
    /// The function.
    pub(crate) function: String,
    /// Class of requests that name none.
    pub(crate) class: Option<Class>,
    /// Its size, within that of the claim.
    pub(crate) share: AskedShare,
    /// Real-time slots, of those of the claim.
    pub(crate) real_time_slots: Option<u32>,
    /// Time to live in seconds.
    pub(crate) ttl_s: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Raw {
    api_version: String,
    kind: String,
    function: String,
    class: Option<Class>,
    sm_partition: Option<f64>,
    quota: Option<Quota>,
    gpu_mem: Option<Value>,
    real_time_slots: Option<i64>,
    ttl_seconds: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Quota {
    request: Option<f64>,
    limit: Option<f64>,
}

impl LeaseConfig {
    /// Reads parameters.
    ///
    /// # Errors
    /// Names the field that is not possible, with its value.
    pub(crate) fn read(parameters: &Value) -> Result<LeaseConfig, String> {
        let raw: Raw = serde_json::from_value(parameters.clone()).map_err(|error| format!("{KIND}: {error}"))?;
        if (raw.api_version.as_str(), raw.kind.as_str()) != (VERSION, KIND) {
            return Err(format!(
                "the parameters are {} of {}, and {KIND} of {VERSION} is read",
                raw.kind, raw.api_version
            ));
        }
        if !is_function(&raw.function) {
            return Err(format!("function is {:?}; it must be the name of a function", raw.function));
        }
        if let Some(partition) = raw.sm_partition.filter(|percent| !(*percent > 0.0 && *percent <= 100.0)) {
            return Err(format!("smPartition is {partition}; it must be above 0 and at most 100"));
        }
        let Quota { request, limit } = raw.quota.unwrap_or_default();
        let is_fraction = |quota: f64| quota > 0.0 && quota <= 1.0;
        if let Some(quota) = request.into_iter().chain(limit).find(|quota| !is_fraction(*quota)) {
            return Err(format!("quota is {quota}; it must be above 0 and at most 1"));
        }
        if let (Some(request), Some(limit)) = (request, limit)
            && request > limit
        {
            return Err(format!("quota.request is {request}, above its limit, which is {limit}"));
        }
        let gpu_mem = raw.gpu_mem.as_ref().map(memory).transpose()?;
        let real_time_slots = raw.real_time_slots.map(slots).transpose()?;
        if raw.class == Some(Class::RealTime) && real_time_slots == Some(0) {
            return Err("realTimeSlots is 0, but class real-time needs one".into());
        }
        let ttl_s = raw.ttl_seconds.unwrap_or(TTL_S);
        if !(5..=600).contains(&ttl_s) {
            return Err(format!("ttlSeconds is {ttl_s}; it must be 5 to 600"));
        }
        let share = AskedShare { sm_partition: raw.sm_partition, quota_request: request, quota_limit: limit, gpu_mem };
        Ok(LeaseConfig { function: raw.function, class: raw.class, share, real_time_slots, ttl_s })
    }
}

fn is_function(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    name.len() <= FUNCTION_BYTES_MAX
        && name.bytes().all(is_plain)
        && name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
}

fn memory(value: &Value) -> Result<u64, String> {
    let number = value.as_u64().or_else(|| value.as_str().and_then(quantity::parse));
    number
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| format!("gpuMem is {value}; it must be a number of bytes above 0, as in 2Gi"))
}

fn slots(number: i64) -> Result<u32, String> {
    let slots = u32::try_from(number).ok().filter(|slots| *slots <= 64);
    slots.ok_or_else(|| format!("realTimeSlots is {number}; it must be 0 to 64"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(fields: Value) -> Result<LeaseConfig, String> {
        let mut parameters = json!({ "apiVersion": VERSION, "kind": KIND, "function": "f" });
        parameters.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        LeaseConfig::read(&parameters)
    }

    #[test]
    fn parameters_are_read() {
        let share = AskedShare::default();
        let least = LeaseConfig { function: "f".into(), class: None, share, real_time_slots: None, ttl_s: TTL_S };
        assert_eq!(read(json!({})), Ok(least));
        let all = json!({
            "function": "resnet50", "class": "real-time", "smPartition": 30, "quota": { "request": 0.5, "limit": 0.8 },
            "gpuMem": "2Gi", "realTimeSlots": 1, "ttlSeconds": 60,
        });
        let share = AskedShare {
            sm_partition: Some(30.0),
            quota_request: Some(0.5),
            quota_limit: Some(0.8),
            gpu_mem: Some(2 << 30),
        };
        let (function, class) = ("resnet50".into(), Some(Class::RealTime));
        assert_eq!(read(all), Ok(LeaseConfig { function, class, share, real_time_slots: Some(1), ttl_s: 60 }));
        assert_eq!(read(json!({ "gpuMem": 5 })).unwrap().share.gpu_mem, Some(5));
    }

    #[test]
    fn impossible_parameters_are_refused_with_their_name_and_value() {
        for (fields, says) in [
            (json!({ "kind": "GpuConfig" }), "the parameters are GpuConfig"),
            (json!({ "apiVersion": "gpu.nvidia.com/v1" }), "of gpu.nvidia.com/v1"),
            (json!({ "sm": 30 }), "unknown field `sm`"),
            (json!({ "function": "" }), "function is \"\""),
            (json!({ "function": "../a" }), "function is \"../a\""),
            (json!({ "class": "fast" }), "fast"),
            (json!({ "smPartition": 130 }), "smPartition is 130"),
            (json!({ "smPartition": 0 }), "smPartition is 0"),
            (json!({ "quota": { "request": 0 } }), "quota is 0"),
            (json!({ "quota": { "limit": 1.5 } }), "quota is 1.5"),
            (json!({ "quota": { "request": 0.8, "limit": 0.4 } }), "quota.request is 0.8, above"),
            (json!({ "quota": { "share": 1 } }), "unknown field `share`"),
            (json!({ "gpuMem": "-2Gi" }), "gpuMem is \"-2Gi\""),
            (json!({ "gpuMem": -5 }), "gpuMem is -5"),
            (json!({ "gpuMem": "0" }), "gpuMem is \"0\""),
            (json!({ "realTimeSlots": -1 }), "realTimeSlots is -1"),
            (json!({ "realTimeSlots": 65 }), "realTimeSlots is 65"),
            (json!({ "class": "real-time", "realTimeSlots": 0 }), "class real-time needs one"),
            (json!({ "ttlSeconds": 4 }), "ttlSeconds is 4"),
        ] {
            let error = read(fields).unwrap_err();
            assert!(error.contains(says), "{error}, not {says}");
        }
        let none = json!({ "apiVersion": VERSION, "kind": KIND });
        assert!(LeaseConfig::read(&none).unwrap_err().contains("missing field `function`"));
        assert!(LeaseConfig::read(&json!([])).is_err());
    }
}
