//! Groups of processes of tenants that are no executors.

use super::ControlGroups;
use super::group::{Grant, Group, Overhead};
use atoll_core::Tenant;
use atoll_device::{GroupLimit, GroupUse, ProcessGroup, ProcessGroups};
use std::io;
use std::time::Instant;

impl ProcessGroups for ControlGroups {
    fn admit_process(&self, tenant: &str, bytes: u64, pid: u32) -> io::Result<Box<dyn ProcessGroup>> {
        let grant = Grant { device_bytes: 0, device_bytes_max: 0, overhead: Overhead::Fixed(bytes), compute_units: 0 };
        let is_own = tenant.parse().is_ok_and(|tenant: Tenant| tenant.is_local());
        let group = self.limited(grant, self.quota(tenant), is_own)?;
        group.add(pid)?;
        Ok(Box::new(group))
    }
}

impl ProcessGroup for Group {
    fn observe(&self, now: Instant) -> Option<GroupLimit> {
        Group::observe(self, now)
    }

    fn usage(&self) -> GroupUse {
        Group::usage(self)
    }
}
