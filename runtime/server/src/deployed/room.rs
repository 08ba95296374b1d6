//! The quota of bundle bytes on disk.

use super::{DeployError, DeployedFunction};
use crate::identity::TenantLimits;
use atoll_engine::Tenant;
use atoll_sealed::Digest;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The distinct bundles of a tenant's functions, and the tenant's limit of their bytes. Equal bundles
/// of a tenant are stored once and count once.
pub(super) struct Room {
    tenant: Tenant,
    limit: u64,
    stored: BTreeMap<Digest, u64>,
}

impl Room {
    /// The room beside these functions.
    pub(super) fn beside<'a>(
        functions: impl Iterator<Item = &'a Arc<DeployedFunction>>,
        tenant: &Tenant,
        limits: &TenantLimits,
    ) -> Room {
        Room { tenant: tenant.clone(), limit: limits.bundle_bytes, stored: bundles(functions) }
    }

    /// Refuses a size beyond the whole quota, whatever the bundle replaces.
    pub(super) fn check_largest(&self, wanted: u64) -> Result<(), DeployError> {
        if wanted > self.limit && !self.may_be_stored(wanted) { Err(self.refusal(wanted)) } else { Ok(()) }
    }

    /// Refuses a size for which there is no room.
    pub(super) fn check_size(&self, wanted: u64) -> Result<(), DeployError> {
        if self.fits(wanted) || self.may_be_stored(wanted) { Ok(()) } else { Err(self.refusal(wanted)) }
    }

    /// Refuses a bundle for which there is no room.
    pub(super) fn check(&self, wanted: u64, digest: &Digest) -> Result<(), DeployError> {
        if self.fits(wanted) || self.stored.contains_key(digest) { Ok(()) } else { Err(self.refusal(wanted)) }
    }

    /// Whether a bundle of this size is stored. Only the digest tells whether it is the same one.
    fn may_be_stored(&self, wanted: u64) -> bool {
        self.stored.values().any(|bytes| *bytes == wanted)
    }

    fn fits(&self, wanted: u64) -> bool {
        self.used().saturating_add(wanted) <= self.limit
    }

    fn used(&self) -> u64 {
        self.stored.values().copied().fold(0, u64::saturating_add)
    }

    fn refusal(&self, wanted: u64) -> DeployError {
        DeployError::NoRoom { tenant: self.tenant.clone(), wanted, used: self.used(), limit: self.limit }
    }
}

/// The distinct bundles of functions, with their sizes in bytes.
pub(super) fn bundles<'a>(functions: impl Iterator<Item = &'a Arc<DeployedFunction>>) -> BTreeMap<Digest, u64> {
    functions.map(|function| (function.deployment.bundle, function.deployment.bundle_bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_refused_before_the_digest_is_known_unless_the_bundle_may_be_stored() {
        let digest = |text: &str| Digest::of(text.as_bytes());
        let room = |limit, stored: &[(&str, u64)]| Room {
            tenant: "a".parse().unwrap(),
            limit,
            stored: stored.iter().map(|(text, bytes)| (digest(text), *bytes)).collect(),
        };
        let room_of_60 = room(100, &[("x", 40)]);
        for (wanted, largest, size, whole) in
            [(60, true, true, true), (61, true, false, false), (100, true, false, false), (101, false, false, false)]
        {
            let found = [
                room_of_60.check_largest(wanted).is_ok(),
                room_of_60.check_size(wanted).is_ok(),
                room_of_60.check(wanted, &digest("y")).is_ok(),
            ];
            assert_eq!(found, [largest, size, whole], "{wanted} bytes");
        }
        // The limit was lowered below what is stored.
        let lowered = room(10, &[("x", 40), ("y", 2)]);
        assert!(lowered.check_largest(40).is_ok() && lowered.check_size(40).is_ok());
        assert!(lowered.check(40, &digest("x")).is_ok() && lowered.check(40, &digest("z")).is_err());
        let refused = lowered.check_largest(41).unwrap_err();
        assert!(matches!(refused, DeployError::NoRoom { wanted: 41, used: 42, limit: 10, .. }), "{refused}");
    }
}
