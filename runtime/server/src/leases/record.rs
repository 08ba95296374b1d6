//! The record of a lease in the store.

use crate::instances::{Instance, LEASE_PREFIX, Leased};
use atoll_engine::{DeviceId, FunctionKey, Tenant};
use atoll_lease::{Ask, Epoch, Holder, Kept, LeaseId, RequestKey, Want};
use serde::{Deserialize, Serialize};

/// The properties of a lease that the ledger does not have.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Detail {
    pub(super) tenant: Tenant,
    pub(super) key: RequestKey,
    pub(super) instance: Instance,
}

impl Detail {
    /// The key of the lease's instance.
    pub(super) fn instance_key(&self, lease: LeaseId) -> FunctionKey {
        FunctionKey { tenant: self.tenant.clone(), name: format!("{LEASE_PREFIX}{lease}") }
    }

    /// The key of the lease's function.
    pub(super) fn function(&self) -> FunctionKey {
        FunctionKey { tenant: self.tenant.clone(), name: self.instance.function.clone() }
    }
}

#[derive(Serialize, Deserialize)]
struct Record {
    lease: u64,
    epoch: u64,
    tenant: Tenant,
    key: [u8; 16],
    holder: String,
    asked_by: String,
    /// The name of the device: its number may differ after a restart.
    device: String,
    partition: u32,
    quota: u32,
    quota_limit: u32,
    memory_bytes: u64,
    real_time_slots: u32,
    ttl_ns: u64,
    instance: Instance,
}

/// Encodes the record of a lease.
pub(super) fn write(kept: &Kept, detail: &Detail, devices: &[String]) -> String {
    let want = kept.ask.want();
    let record = Record {
        lease: kept.lease.0,
        epoch: kept.epoch.0,
        tenant: detail.tenant.clone(),
        key: kept.ask.key().0,
        holder: kept.ask.holder().as_str().to_owned(),
        asked_by: kept.asked_by.as_str().to_owned(),
        device: devices.get(usize::from(kept.device.0)).cloned().unwrap_or_default(),
        partition: want.partition,
        quota: want.quota,
        quota_limit: want.quota_limit,
        memory_bytes: want.memory_bytes,
        real_time_slots: want.real_time_slots,
        ttl_ns: want.ttl.0,
        instance: detail.instance.clone(),
    };
    serde_json::to_string(&record).expect("checked numbers and texts can be serialized")
}

/// Decodes a record. If the device does not exist any more, the result has a number that no device
/// has.
pub(super) fn read(text: &str, devices: &[String]) -> Result<(Kept, Detail), String> {
    let record: Record = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let holder = |name: &str| Holder::new(name).ok_or_else(|| format!("`{name}` is not a holder"));
    let device = devices.iter().position(|name| *name == record.device).map_or(u16::MAX, |at| at as u16);
    let want = Want {
        device: Some(DeviceId(device)),
        partition: record.partition,
        quota: record.quota,
        quota_limit: record.quota_limit,
        memory_bytes: record.memory_bytes,
        real_time_slots: record.real_time_slots,
        ttl: atoll_core::Nanos(record.ttl_ns),
    };
    let key = RequestKey(record.key);
    let ask = Ask::new(key, holder(&record.holder)?, want).map_err(|error| error.to_string())?;
    let kept = Kept {
        lease: LeaseId(record.lease),
        epoch: Epoch(record.epoch),
        asked_by: holder(&record.asked_by)?,
        device: DeviceId(device),
        ask,
    };
    let leased = Leased { real_time_slots: record.real_time_slots };
    let instance = Instance { lease: Some(leased), ..record.instance };
    Ok((kept, Detail { tenant: record.tenant, key, instance }))
}
