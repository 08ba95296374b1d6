//! What is known of an object, and what a tenant may have of them.

use crate::error::StoreError;
use atoll_core::Class;
use atoll_protocol::DataType;
use atoll_sealed::Digest;
use serde::{Deserialize, Serialize};

/// How an object's bytes are to be read, where whoever put it said so. It is no part of the
/// object's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Form {
    /// Type of the elements.
    pub datatype: DataType,
    /// Dimensions, outermost first.
    pub shape: Vec<i64>,
}

/// A tenant's right to an object.
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
    /// Its name.
    pub digest: Digest,
    /// Its size.
    pub bytes: u64,
    /// For which class it is kept: those of real-time leave memory last.
    pub class: Class,
    /// How to read it.
    pub form: Option<Form>,
    /// When the tenant put it, in seconds since 1970.
    pub created_s: u64,
    /// When the tenant last used it, in seconds since 1970.
    pub used_s: u64,
    /// Whether it is in memory, and not only on the disk.
    pub in_memory: bool,
}

/// What a tenant may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Of all objects.
    pub all: Limit,
    /// Of those kept for best-effort work.
    pub best_effort: Limit,
}

/// A bound of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Bytes.
    pub bytes: u64,
    /// Objects.
    pub count: u64,
}

/// What a tenant has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of all objects.
    pub bytes: u64,
    /// All objects.
    pub count: u64,
    /// Bytes of those kept for best-effort work.
    pub best_effort_bytes: u64,
    /// Those kept for best-effort work.
    pub best_effort_count: u64,
}

impl Limit {
    /// No bound.
    pub const NONE: Limit = Limit { bytes: u64::MAX, count: u64::MAX };
}

impl Quota {
    /// No bound.
    pub const NONE: Quota = Quota { all: Limit::NONE, best_effort: Limit::NONE };

    /// Whether an object fits beside what there is.
    pub(crate) fn admits(&self, usage: &Usage, class: Class, bytes: u64) -> Result<(), StoreError> {
        let check = |what, used: u64, more: u64, limit: u64| {
            let fits = used.checked_add(more).is_some_and(|sum| sum <= limit);
            if fits { Ok(()) } else { Err(StoreError::Quota { wanted_bytes: bytes, what, used, limit }) }
        };
        check("object bytes", usage.bytes, bytes, self.all.bytes)?;
        check("objects", usage.count, 1, self.all.count)?;
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

    pub(crate) fn subtract(&mut self, class: Class, bytes: u64) {
        self.bytes -= bytes;
        self.count -= 1;
        if class == Class::BestEffort {
            self.best_effort_bytes -= bytes;
            self.best_effort_count -= 1;
        }
    }
}
