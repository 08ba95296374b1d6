//! What a container with units of a resource is given.

use crate::proto::{ContainerAllocateResponse, Mount};
use crate::resource::{Resource, Unit, UnitId};
use atoll_kubernetes::capacity::{Capacity, Device};
use atoll_kubernetes::gift::{Gift, MEMORY_VARIABLE, REQUEST_VARIABLE, SHARE_VARIABLE, SLOTS_VARIABLE, URL_VARIABLE};
use std::collections::BTreeSet;

/// What a container is given for units of a resource. `request_id` is random.
///
/// # Errors
/// Fails if an id is not that of a unit, with the id.
pub(crate) fn allocate(
    gift: &Gift,
    resource: &Resource,
    capacity: &Capacity,
    ids: &[String],
    request_id: &str,
) -> Result<ContainerAllocateResponse, String> {
    let units = ids.iter().map(|id| unit(resource, capacity, id)).collect::<Result<BTreeSet<_>, _>>()?;
    let count = units.len() as u64;
    let mut envs: Vec<(String, String)> = gift.variables.clone();
    envs.push((URL_VARIABLE.into(), gift.url.clone()));
    match resource.unit {
        Unit::Share => {
            envs.push((SHARE_VARIABLE.into(), count.to_string()));
            envs.push((REQUEST_VARIABLE.into(), request_id.into()));
        }
        Unit::Memory(bytes) => envs.push((MEMORY_VARIABLE.into(), count.saturating_mul(bytes).to_string())),
        Unit::MemoryPercent => {
            let memory = |unit: &UnitId<'_>| capacity.device(unit.device).map_or(0, |device| device.memory_bytes);
            let bytes: u128 = units.iter().map(|unit| u128::from(memory(unit))).sum();
            envs.push((MEMORY_VARIABLE.into(), (bytes / 100).to_string()));
        }
        Unit::RealTimeSlot => envs.push((SLOTS_VARIABLE.into(), count.to_string())),
        Unit::Place => {}
    }
    let mount = |(host, container): &(String, String)| Mount {
        container_path: container.clone(),
        host_path: host.clone(),
        read_only: true,
    };
    Ok(ContainerAllocateResponse {
        envs: envs.into_iter().collect(),
        mounts: gift.mounts.iter().map(mount).collect(),
        ..ContainerAllocateResponse::default()
    })
}

/// A unit that the daemon has.
fn unit<'a>(resource: &Resource, capacity: &Capacity, id: &'a str) -> Result<UnitId<'a>, String> {
    let is_there = |unit: &UnitId<'_>, device: &Device| unit.number < resource.unit.count(device);
    UnitId::parse(id)
        .filter(|unit| capacity.device(unit.device).is_some_and(|device| is_there(unit, device)))
        .ok_or_else(|| {
            let id: String = id.chars().take(128).flat_map(char::escape_debug).collect();
            format!("`{id}` is not a unit of {}: the daemon of this node has no such device or amount", resource.name)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capacity() -> Capacity {
        let device =
            |name: &str, memory_bytes| Device { name: name.into(), is_healthy: true, memory_bytes, real_time_slots: 4 };
        Capacity { devices: vec![device("cuda:0", 1000 << 20), device("cuda:1", 500 << 20)] }
    }

    fn variables(unit: Unit, ids: &[&str]) -> Result<Vec<(String, String)>, String> {
        let gift = Gift {
            url: "http://daemon:8000".into(),
            variables: vec![("A".into(), "b".into())],
            mounts: vec![("/run/atoll".into(), "/run/a".into())],
        };
        let resource = Resource { name: "r".into(), unit };
        let ids: Vec<String> = ids.iter().map(|id| (*id).into()).collect();
        let given = allocate(&gift, &resource, &capacity(), &ids, "7f3a")?;
        assert_eq!(given.mounts.len(), 1);
        let mount = &given.mounts[0];
        assert_eq!((mount.host_path.as_str(), mount.container_path.as_str()), ("/run/atoll", "/run/a"));
        assert!(mount.read_only);
        let mut envs: Vec<_> = given.envs.into_iter().collect();
        envs.sort();
        assert_eq!(envs[0], ("A".into(), "b".into()));
        Ok(envs.split_off(1))
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let mut all: Vec<_> = pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        all.push(("ATOLL_URL".into(), "http://daemon:8000".into()));
        all.sort();
        all
    }

    #[test]
    fn units_become_the_size_of_a_lease() {
        let share = variables(Unit::Share, &["cuda:0-0", "cuda:0-99", "cuda:1-5"]).unwrap();
        assert_eq!(share, pairs(&[("ATOLL_SM_PCT", "3"), ("ATOLL_LEASE_REQUEST_ID", "7f3a")]));
        let memory = variables(Unit::Memory(64 << 20), &["cuda:0-0", "cuda:0-14"]).unwrap();
        assert_eq!(memory, pairs(&[("ATOLL_GPU_MEM", &(128_u64 << 20).to_string())]));
        // One percent of each device.
        let percent = variables(Unit::MemoryPercent, &["cuda:0-0", "cuda:1-0"]).unwrap();
        assert_eq!(percent, pairs(&[("ATOLL_GPU_MEM", &(15_u64 << 20).to_string())]));
        assert_eq!(variables(Unit::RealTimeSlot, &["cuda:1-3"]).unwrap(), pairs(&[("ATOLL_REAL_TIME_SLOTS", "1")]));
        assert_eq!(variables(Unit::Place, &["cuda:0-0"]).unwrap(), pairs(&[]));
        // A unit that is named twice is one.
        assert_eq!(
            variables(Unit::RealTimeSlot, &["cuda:1-3", "cuda:1-3"]).unwrap(),
            pairs(&[("ATOLL_REAL_TIME_SLOTS", "1")])
        );
    }

    #[test]
    fn units_that_are_not_there_are_refused() {
        for (unit, id) in [
            (Unit::Share, "cuda:0-100"),
            (Unit::Share, "cuda:2-0"),
            (Unit::Share, "cuda:0"),
            (Unit::Share, "\n"),
            (Unit::Memory(64 << 20), "cuda:0-15"),
            (Unit::RealTimeSlot, "cuda:0-4"),
            (Unit::Place, "cuda:0-10"),
        ] {
            let error = variables(unit, &["cuda:0-0", id]).unwrap_err();
            assert!(error.contains("is not a unit of r") && !error.contains('\n'), "{error}");
        }
    }
}
