//! Why memory decisions refuse an invocation, a function, or a suspension.

/// Why an invocation is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It would not fit even if nothing else were on the device.
    OutOfMemory {
        /// Bytes needed, constants included.
        wanted: u64,
        /// Bytes of its constants.
        constants: u64,
        /// Free bytes.
        free: u64,
        /// Bytes that are free or could be reclaimed.
        obtainable: u64,
        /// Bytes of the device.
        total: u64,
    },
    /// It would not fit its tenant's quota even if nothing else of the tenant were on the device.
    OverQuota {
        /// Bytes needed, constants included.
        wanted: u64,
        /// Bytes of its constants.
        constants: u64,
        /// Free bytes of the quota.
        free: u64,
        /// The tenant's quota for this class.
        quota: u64,
    },
}

/// Why a function is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadRefusal {
    /// Its constants exceed the device's memory.
    OutOfMemory {
        /// Bytes needed.
        wanted: u64,
        /// Free bytes.
        free: u64,
        /// Bytes of the device.
        total: u64,
    },
    /// The constants of all functions exceed the overcommit limit.
    OverCommitted {
        /// Bytes that only this function needs.
        wanted: u64,
        /// Bytes of the constants of all functions.
        all: u64,
        /// Bytes allowed.
        limit: u64,
        /// Bytes of the device.
        total: u64,
    },
    /// The function does not fit its tenant's quota, alone or together with the tenant's other
    /// functions.
    OverQuota {
        /// Bytes needed.
        wanted: u64,
        /// Free bytes of the quota.
        free: u64,
        /// The tenant's quota.
        quota: u64,
        /// Bytes of the constants of the tenant's functions.
        all: u64,
        /// The limit for those bytes, with overcommit.
        limit: u64,
    },
}
