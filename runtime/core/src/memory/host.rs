//! Host memory of suspended sessions, over all devices: who may take how much of it.

use crate::tenant::Tenant;
use std::collections::BTreeMap;
use std::fmt;

/// Limits of the host memory that suspended sessions take, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLimits {
    /// For all tenants together.
    pub all: u64,
    /// For each tenant.
    pub tenant: u64,
}

impl HostLimits {
    /// No limits.
    pub const UNLIMITED: HostLimits = HostLimits { all: u64::MAX, tenant: u64::MAX };
}

/// The host memory that suspended sessions take.
#[derive(Debug)]
pub struct HostMemory {
    limits: HostLimits,
    used: u64,
    /// Tenants that use some.
    tenants: BTreeMap<Tenant, u64>,
}

/// Why there is no host memory for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostRefusal {
    /// All suspended sessions together would exceed the limit.
    All {
        /// Bytes that the session needs.
        wanted: u64,
        /// Bytes of all suspended sessions.
        used: u64,
        /// The limit.
        limit: u64,
    },
    /// The tenant's suspended sessions would exceed the tenant's limit.
    Tenant {
        /// The tenant.
        tenant: Tenant,
        /// Bytes that the session needs.
        wanted: u64,
        /// Bytes of the tenant's suspended sessions.
        used: u64,
        /// The limit.
        limit: u64,
    },
}

impl fmt::Display for HostRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (of, wanted, used, limit) = match self {
            HostRefusal::All { wanted, used, limit } => (String::new(), wanted, used, limit),
            HostRefusal::Tenant { tenant, wanted, used, limit } => {
                (format!(" of tenant `{tenant}`"), wanted, used, limit)
            }
        };
        write!(
            f,
            "it needs {wanted} bytes of host memory, and the suspended sessions{of} have {used} of at most {limit} \
             bytes"
        )
    }
}

impl std::error::Error for HostRefusal {}

impl HostMemory {
    /// Unused memory with these limits.
    pub fn new(limits: HostLimits) -> HostMemory {
        HostMemory { limits, used: 0, tenants: BTreeMap::new() }
    }

    /// Takes memory for a session of a tenant.
    ///
    /// # Errors
    /// If a limit would be exceeded. Nothing is taken then.
    pub fn take(&mut self, tenant: &Tenant, bytes: u64) -> Result<(), HostRefusal> {
        let HostLimits { all, tenant: each } = self.limits;
        let (wanted, own) = (bytes, self.used_by(tenant));
        if own.checked_add(bytes).is_none_or(|sum| sum > each) {
            return Err(HostRefusal::Tenant { tenant: tenant.clone(), wanted, used: own, limit: each });
        }
        if self.used.checked_add(bytes).is_none_or(|sum| sum > all) {
            return Err(HostRefusal::All { wanted, used: self.used, limit: all });
        }
        self.used += bytes;
        *self.tenants.entry(tenant.clone()).or_default() += bytes;
        Ok(())
    }

    /// Gives memory back that was taken for the tenant.
    pub fn give_back(&mut self, tenant: &Tenant, bytes: u64) {
        let own = self.used_by(tenant).checked_sub(bytes).expect("what is given back was taken");
        self.used -= bytes;
        match own {
            0 => self.tenants.remove(tenant),
            own => self.tenants.insert(tenant.clone(), own),
        };
    }

    /// Bytes of all suspended sessions.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Bytes of a tenant's suspended sessions.
    pub fn used_by(&self, tenant: &Tenant) -> u64 {
        self.tenants.get(tenant).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_a_tenant_nor_all_together_exceed_their_limit() {
        let (a, b): (Tenant, Tenant) = ("a".parse().unwrap(), "b".parse().unwrap());
        let mut host = HostMemory::new(HostLimits { all: 10, tenant: 7 });
        assert_eq!(host.take(&a, 7), Ok(()));
        let refused = HostRefusal::Tenant { tenant: a.clone(), wanted: 1, used: 7, limit: 7 };
        assert_eq!(refused.to_string().matches("tenant `a`").count(), 1);
        assert_eq!(host.take(&a, 1), Err(refused));
        assert_eq!(host.take(&b, 4), Err(HostRefusal::All { wanted: 4, used: 7, limit: 10 }));
        assert!(host.take(&b, u64::MAX).is_err());
        assert_eq!((host.take(&b, 3), host.used(), host.used_by(&b)), (Ok(()), 10, 3));
        host.give_back(&a, 7);
        assert_eq!((host.used(), host.used_by(&a), host.take(&b, 4)), (3, 0, Ok(())));
        host.give_back(&b, 7);
        assert!(host.used() == 0 && host.tenants.is_empty());
    }

    #[test]
    fn without_limits_only_an_overflow_is_refused() {
        let tenant = Tenant::default();
        let mut host = HostMemory::new(HostLimits::UNLIMITED);
        assert_eq!(host.take(&tenant, u64::MAX), Ok(()));
        assert!(host.take(&tenant, 1).is_err());
        host.give_back(&tenant, u64::MAX);
        assert_eq!(host.used(), 0);
    }
}
