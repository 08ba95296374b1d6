//! Checks requests for leases.

use super::error::LeaseError;
use super::record::Detail;
use crate::instances::{Instance, Leased};
use crate::limits::LEASE_TEXT_BYTES_MAX;
use atoll_control::LeaseSpec;
use atoll_core::Nanos;
use atoll_engine::{Class, DeviceId, Tenant};
use atoll_lease::limits::{SLOTS_MAX, TTL_MAX, TTL_MIN};
use atoll_lease::{Ask, Holder, RequestKey, Want};
use atoll_sealed::Digest;

const SECOND: i64 = 1_000_000_000;

/// The function of a lease, as the daemon has found it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// The tenant of the function, and so of the lease.
    pub(crate) tenant: Tenant,
    /// The name of the function.
    pub(crate) function: String,
    /// The class of requests that state no class.
    pub(crate) class: Class,
    /// Its device.
    pub(crate) device: DeviceId,
}

/// Checks a request. The error names the field and its value.
pub(super) fn check(spec: &LeaseSpec, target: &Target) -> Result<(Ask, Detail), LeaseError> {
    let key = key(&target.tenant, &spec.request_id)?;
    let holder = holder(&target.tenant, &spec.holder)?;
    let memory_bytes = positive("gpu_mem", spec.gpu_mem, i64::MAX, "bytes")?;
    let ttl_s = between("ttl_s", spec.ttl_s, TTL_MIN.0 as i64 / SECOND, TTL_MAX.0 as i64 / SECOND, "seconds")?;
    let real_time_slots = slots(spec, target)?;
    let instance = Instance {
        function: target.function.clone(),
        class: spec.class,
        sm_partition: spec.sm_partition,
        quota_request: spec.quota_request,
        quota_limit: spec.quota_limit,
        gpu_mem: Some(memory_bytes),
        latency_ms: None,
        autoscaled: None,
        device: None,
        lease: Some(Leased { real_time_slots }),
    };
    instance.share(&target.tenant).map_err(|error| LeaseError::Bad(error.to_string()))?;
    let quota = whole(spec.quota_request * 100.0);
    let want = Want {
        device: Some(target.device),
        partition: whole(spec.sm_partition),
        quota,
        quota_limit: whole(spec.quota_limit * 100.0).max(quota),
        memory_bytes,
        real_time_slots,
        ttl: Nanos(ttl_s * SECOND as u64),
    };
    let ask = Ask::new(key, holder, want)?;
    Ok((ask, Detail { tenant: target.tenant.clone(), key, instance }))
}

/// Real-time slots of a lease. A lease of class real-time needs at least one.
fn slots(spec: &LeaseSpec, target: &Target) -> Result<u32, LeaseError> {
    let is_real_time = spec.class.unwrap_or(target.class) == Class::RealTime;
    match spec.real_time_slots {
        None => Ok(u32::from(is_real_time)),
        Some(0) if is_real_time => Err(LeaseError::Bad(
            "real_time_slots is 0, but the class is real-time; ask for at least one, or for class best-effort".into(),
        )),
        Some(slots) => Ok(between("real_time_slots", slots, 0, i64::from(SLOTS_MAX), "slots")? as u32),
    }
}

/// The key of a request. The tenant is part of the hash, so that requests of different tenants have
/// different keys.
fn key(tenant: &Tenant, request_id: &str) -> Result<RequestKey, LeaseError> {
    check_text("request_id", request_id)?;
    let digest = Digest::of(format!("{tenant}\n{request_id}").as_bytes());
    let mut key = [0; 16];
    key.copy_from_slice(&digest.as_bytes()[..16]);
    Ok(RequestKey(key))
}

/// The holder of a lease as the ledger has it, `TENANT:NAME`.
pub(super) fn holder(tenant: &Tenant, name: &str) -> Result<Holder, LeaseError> {
    check_text("holder", name)?;
    Holder::new(&format!("{tenant}:{name}")).ok_or_else(|| LeaseError::Bad(format!("holder `{name}` is too long")))
}

/// The name of a holder without its tenant.
pub(super) fn name_of(holder: &Holder) -> String {
    holder.as_str().split_once(':').map_or("", |(_, name)| name).to_owned()
}

fn check_text(field: &str, text: &str) -> Result<(), LeaseError> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    match text.len() {
        0 => Err(LeaseError::Bad(format!("{field} is missing"))),
        1..=LEASE_TEXT_BYTES_MAX if is_plain => Ok(()),
        1..=LEASE_TEXT_BYTES_MAX => {
            Err(LeaseError::Bad(format!("{field} is {text:?}, but only visible ASCII characters are possible")))
        }
        bytes => Err(LeaseError::Bad(format!("{field} has {bytes} bytes; {LEASE_TEXT_BYTES_MAX} are possible"))),
    }
}

fn positive(field: &str, value: i64, max: i64, unit: &str) -> Result<u64, LeaseError> {
    between(field, value, 1, max, unit)
}

fn between(field: &str, value: i64, min: i64, max: i64, unit: &str) -> Result<u64, LeaseError> {
    if (min..=max).contains(&value) {
        return Ok(value.unsigned_abs());
    }
    Err(LeaseError::Bad(format!("{field} is {value}; {min} to {max} {unit} are possible")))
}

/// Rounds a percentage up to a whole percent, the unit of the ledger. A tiny excess from the
/// rounding of a multiplication is ignored.
fn whole(percent: f64) -> u32 {
    (percent - 1e-9).ceil() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> LeaseSpec {
        LeaseSpec {
            request_id: "r".into(),
            holder: "h".into(),
            function: "f".into(),
            sm_partition: 30.0,
            quota_request: 0.07,
            quota_limit: 0.29,
            gpu_mem: 5,
            ttl_s: 10,
            ..LeaseSpec::default()
        }
    }

    fn target(class: Class) -> Target {
        Target { tenant: "vision".parse().unwrap(), function: "f".into(), class, device: DeviceId(1) }
    }

    #[test]
    fn percents_are_rounded_up_and_slots_follow_the_class() {
        let (ask, detail) = check(&spec(), &target(Class::BestEffort)).unwrap();
        let want = ask.want();
        assert_eq!((want.partition, want.quota, want.quota_limit, want.real_time_slots), (30, 7, 29, 0));
        assert_eq!((want.memory_bytes, want.ttl, want.device), (5, Nanos(10_000_000_000), Some(DeviceId(1))));
        assert_eq!((ask.holder().as_str(), name_of(ask.holder()).as_str()), ("vision:h", "h"));
        assert_eq!(detail.instance_key(atoll_lease::LeaseId(7)).to_string(), "vision:lease-7");
        assert_eq!(check(&spec(), &target(Class::RealTime)).unwrap().0.want().real_time_slots, 1);
        assert_eq!(whole(0.5), 1);
        let other = Target { tenant: "speech".parse().unwrap(), ..target(Class::BestEffort) };
        assert_ne!(check(&spec(), &other).unwrap().0.key(), ask.key(), "a tenant cannot use up another one's ids");
    }

    #[test]
    fn what_is_not_possible_is_named_with_its_value() {
        type Change = fn(&mut LeaseSpec);
        let why = |change: Change| {
            let mut spec = spec();
            change(&mut spec);
            check(&spec, &target(Class::RealTime)).unwrap_err().to_string()
        };
        let cases: [(&str, Change); 14] = [
            ("130", |spec| spec.sm_partition = 130.0),
            ("-1", |spec| spec.sm_partition = -1.0),
            ("NaN", |spec| spec.sm_partition = f64::NAN),
            ("1.5", |spec| spec.quota_request = 1.5),
            ("0.05", |spec| spec.quota_limit = 0.05),
            ("gpu_mem is -2048;", |spec| spec.gpu_mem = -2048),
            ("gpu_mem is 0;", |spec| spec.gpu_mem = 0),
            ("ttl_s is 4; 5 to 600 seconds", |spec| spec.ttl_s = 4),
            ("ttl_s is 601;", |spec| spec.ttl_s = 601),
            ("real_time_slots is -1;", |spec| spec.real_time_slots = Some(-1)),
            ("real_time_slots is 0, but the class is real-time", |spec| spec.real_time_slots = Some(0)),
            ("request_id is missing", |spec| spec.request_id.clear()),
            ("holder has 129 bytes", |spec| spec.holder = "h".repeat(129)),
            ("holder is \"a\\nb\"", |spec| spec.holder = "a\nb".into()),
        ];
        for (says, change) in cases {
            assert!(why(change).contains(says), "{says}: {}", why(change));
        }
    }
}
