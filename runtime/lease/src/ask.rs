//! The request for a lease, checked.

use crate::ids::{Holder, RequestKey};
use crate::limits::{SLOTS_MAX, TTL_MAX, TTL_MIN};
use atoll_core::packing::{Demand, PackError};
use atoll_core::{DeviceId, Nanos};

/// The resources that a request for a lease asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// The device; `None` for any.
    pub device: Option<DeviceId>,
    /// Part of the device's compute units, in percent: 1 to 100.
    pub partition: u32,
    /// Part of the device's time that is guaranteed, in percent: 1 to 100.
    pub quota: u32,
    /// Upper limit of the device's time, in percent: `quota` to 100.
    pub quota_limit: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Real-time slots of the device that the lease takes. A device has a number of them, which
    /// bounds its real-time leases; they do not limit the requests of a lease.
    pub real_time_slots: u32,
    /// Time to live without renewal.
    pub ttl: Nanos,
}

/// A request for a lease, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    pub(crate) key: RequestKey,
    pub(crate) holder: Holder,
    pub(crate) want: Want,
    pub(crate) demand: Demand,
}

/// Why a request is not valid. The client is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAsk {
    /// A percentage is out of range.
    #[error("{0}")]
    Demand(PackError),
    /// The limit of the quota is below the quota, or above 100 %.
    #[error("the quota limit is {limit} %; from the quota, {quota} %, to 100 % is possible")]
    QuotaLimit {
        /// The quota.
        quota: u32,
        /// The limit.
        limit: u32,
    },
    /// Too many real-time slots.
    #[error("{0} real-time slots; at most {SLOTS_MAX} are possible")]
    Slots(u32),
    /// The time to live is out of range.
    #[error("a time to live of {} ns; {} to {} ns are possible", .0.0, TTL_MIN.0, TTL_MAX.0)]
    Ttl(Nanos),
}

impl Ask {
    /// Checks a request.
    ///
    /// # Errors
    /// See [`BadAsk`].
    pub fn new(key: RequestKey, holder: Holder, want: Want) -> Result<Ask, BadAsk> {
        let demand = Demand::new(want.quota, want.partition, want.memory_bytes).map_err(BadAsk::Demand)?;
        if !(want.quota..=100).contains(&want.quota_limit) {
            return Err(BadAsk::QuotaLimit { quota: want.quota, limit: want.quota_limit });
        }
        if want.real_time_slots > SLOTS_MAX {
            return Err(BadAsk::Slots(want.real_time_slots));
        }
        if want.ttl < TTL_MIN || want.ttl > TTL_MAX {
            return Err(BadAsk::Ttl(want.ttl));
        }
        Ok(Ask { key, holder, want, demand })
    }

    /// The key of the request.
    pub fn key(&self) -> RequestKey {
        self.key
    }

    /// The holder.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// The resources that it asks for.
    pub fn want(&self) -> &Want {
        &self.want
    }
}
