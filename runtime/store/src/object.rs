//! Properties of objects, and quotas.

use crate::error::StoreError;
use crate::limits::TENANT_OBJECTS_MAX;
use atoll_core::Class;
use atoll_protocol::DataType;
use atoll_sealed::Digest;
use serde::{Deserialize, Serialize};

/// Type and shape of an object, if its tenant stated them. Not part of the object's digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Form {
    /// Type of the elements.
    pub datatype: DataType,
    /// Dimensions, outermost first.
    pub shape: Vec<i64>,
}

/// A tenant's reference to an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holding {
    pub(crate) class: Class,
    pub(crate) form: Option<Form>,
    /// Seconds since 1970.
    pub(crate) created_s: u64,
    pub(crate) used_s: u64,
}

/// An object as its tenant sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its digest.
    pub digest: Digest,
    /// Its size.
    pub bytes: u64,
    /// The class that it is stored for; real-time objects are evicted from memory last.
    pub class: Class,
    /// Its type and shape.
    pub form: Option<Form>,
    /// When the tenant stored it, in seconds since 1970.
    pub created_s: u64,
    /// When the tenant last used it, in seconds since 1970.
    pub used_s: u64,
    /// Whether it is in memory as well as on disk.
    pub in_memory: bool,
}

/// The object quota of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Limit of all objects.
    pub all: Limit,
    /// Limit of the objects stored for best-effort work.
    pub best_effort: Limit,
}

/// A limit of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Total bytes.
    pub bytes: u64,
    /// Number of objects.
    pub count: u64,
}

/// Objects of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of all objects.
    pub bytes: u64,
    /// Number of all objects.
    pub count: u64,
    /// Bytes of the objects stored for best-effort work.
    pub best_effort_bytes: u64,
    /// Number of the objects stored for best-effort work.
    pub best_effort_count: u64,
}

impl Limit {
    /// No limit.
    pub const NONE: Limit = Limit { bytes: u64::MAX, count: u64::MAX };
}

impl Quota {
    /// No limit.
    pub const NONE: Quota = Quota { all: Limit::NONE, best_effort: Limit::NONE };

    /// Returns an error if a further object would exceed the quota or [`TENANT_OBJECTS_MAX`].
    pub(crate) fn admits(&self, usage: &Usage, class: Class, bytes: u64) -> Result<(), StoreError> {
        let check = |what, used: u64, more: u64, limit: u64| {
            let fits = used.checked_add(more).is_some_and(|sum| sum <= limit);
            if fits { Ok(()) } else { Err(StoreError::Quota { wanted_bytes: bytes, what, used, limit }) }
        };
        check("object bytes", usage.bytes, bytes, self.all.bytes)?;
        check("objects", usage.count, 1, self.all.count.min(TENANT_OBJECTS_MAX))?;
        if class == Class::BestEffort {
            check("best-effort object bytes", usage.best_effort_bytes, bytes, self.best_effort.bytes)?;
            check("best-effort objects", usage.best_effort_count, 1, self.best_effort.count)?;
        }
        Ok(())
    }
}

impl Usage {
    pub(crate) fn add(&mut self, class: Class, bytes: u64) {
        self.bytes += bytes;
        self.count += 1;
        if class == Class::BestEffort {
            self.best_effort_bytes += bytes;
            self.best_effort_count += 1;
        }
    }

    /// The sum of both.
    pub(crate) fn plus(&self, other: &Usage) -> Usage {
        Usage {
            bytes: self.bytes + other.bytes,
            count: self.count + other.count,
            best_effort_bytes: self.best_effort_bytes + other.best_effort_bytes,
            best_effort_count: self.best_effort_count + other.best_effort_count,
        }
    }

    pub(crate) fn subtract(&mut self, class: Class, bytes: u64) {
        self.bytes -= bytes;
        self.count -= 1;
        if class == Class::BestEffort {
            self.best_effort_bytes -= bytes;
            self.best_effort_count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_admits_up_to_its_limits_and_those_of_all_tenants() {
        let limit = |bytes, count| Limit { bytes, count };
        let quota = Quota { all: limit(100, 10), best_effort: limit(50, 5) };
        let usage = |bytes, count, best_effort_bytes, best_effort_count| Usage {
            bytes,
            count,
            best_effort_bytes,
            best_effort_count,
        };
        let (real_time, best_effort) = (Class::RealTime, Class::BestEffort);
        let many = TENANT_OBJECTS_MAX;
        for (quota, usage, class, bytes, expected) in [
            (quota, usage(60, 0, 0, 0), real_time, 40, None),
            (quota, usage(60, 0, 0, 0), real_time, 41, Some(("object bytes", 60, 100))),
            (quota, usage(60, 0, 0, 0), real_time, u64::MAX, Some(("object bytes", 60, 100))),
            (quota, usage(0, 9, 0, 0), real_time, 1, None),
            (quota, usage(0, 10, 0, 0), real_time, 1, Some(("objects", 10, 10))),
            // The quota was lowered.
            (quota, usage(200, 20, 0, 0), real_time, 0, Some(("object bytes", 200, 100))),
            (quota, usage(20, 1, 20, 1), best_effort, 30, None),
            (quota, usage(20, 1, 20, 1), best_effort, 31, Some(("best-effort object bytes", 20, 50))),
            (quota, usage(20, 1, 20, 1), real_time, 31, None),
            (quota, usage(5, 5, 5, 4), best_effort, 1, None),
            (quota, usage(5, 5, 5, 5), best_effort, 1, Some(("best-effort objects", 5, 5))),
            (quota, usage(5, 5, 5, 5), real_time, 1, None),
            (Quota::NONE, usage(0, many - 1, 0, 0), best_effort, 1, None),
            (Quota::NONE, usage(0, many, 0, 0), best_effort, 1, Some(("objects", many, many))),
        ] {
            let found = quota.admits(&usage, class, bytes).err().map(|error| match error {
                StoreError::Quota { wanted_bytes, what, used, limit } if wanted_bytes == bytes => (what, used, limit),
                other => panic!("{other}"),
            });
            assert_eq!(found, expected, "{bytes} bytes beside {usage:?}");
        }
    }

    #[test]
    fn use_goes_up_and_down_by_class() {
        let mut usage = Usage::default();
        usage.add(Class::BestEffort, 5);
        usage.add(Class::RealTime, 7);
        let both = Usage { bytes: 12, count: 2, best_effort_bytes: 5, best_effort_count: 1 };
        assert_eq!(usage, both);
        let twice = Usage { bytes: 24, count: 4, best_effort_bytes: 10, best_effort_count: 2 };
        assert_eq!(usage.plus(&both), twice);
        usage.subtract(Class::RealTime, 7);
        assert_eq!(usage, Usage { bytes: 5, count: 1, ..both });
        usage.subtract(Class::BestEffort, 5);
        assert_eq!(usage, Usage::default());
    }
}
