//! Regions of system shared memory: named parts of files in `/dev/shm` that clients register.
//! Requests read inputs from regions and write outputs to them.
//!
//! The daemon never maps a region. It copies with `pread` and `pwrite`. If a client shrinks its
//! file while a request runs, the copy returns an error; with a mapping, `SIGBUS` would end the
//! daemon. Bytes are copied once, before they are checked, so a client cannot change them after the
//! check.

mod file;
mod region;

use region::Region;
pub(crate) use region::Window;

use crate::identity::{Access, Principal};
use crate::limits::{
    SHARED_BYTES_PER_TENANT_MAX, SHARED_REGION_NAME_BYTES_MAX, SHARED_REGIONS_MAX, SHARED_REGIONS_PER_TENANT_MAX,
};
use crate::requests::error::{Kind, RequestError};
use atoll_engine::Tenant;
use atoll_protocol::{RegionStatus, RegisterRequest, SharedRange};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Regions by tenant and name.
type All = BTreeMap<(Tenant, String), Arc<Region>>;

/// The registered regions of all tenants, and counts of copied bytes.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    /// A tenant can only use its own regions.
    regions: Mutex<All>,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
}

/// Number and bytes of a tenant's regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Registered {
    pub(crate) regions: usize,
    pub(crate) bytes: u64,
}

impl Regions {
    fn all(&self) -> MutexGuard<'_, All> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a region of a principal. Blocks briefly to open a file.
    pub(crate) fn register(
        &self,
        access: &Access,
        caller: &Principal,
        name: &str,
        request: &RegisterRequest,
    ) -> Result<(), RequestError> {
        caller.may_share_memory()?;
        if name.is_empty() || name.len() > SHARED_REGION_NAME_BYTES_MAX {
            let text = format!("the name of a shared memory region has 1 to {SHARED_REGION_NAME_BYTES_MAX} bytes");
            return Err(RequestError::bad_request(text));
        }
        let admit = |all: &All| admit(all, caller, name, request.byte_size);
        let open = || {
            let file = file::name(caller, &request.key)?;
            admit(&self.all())?;
            let region = Region::open(access, caller, file, request)?;
            let mut all = self.all();
            // Checks again: another request may have registered a region meanwhile.
            admit(&all)?;
            all.insert((caller.tenant.clone(), name.to_owned()), Arc::new(region));
            Ok(())
        };
        open().map_err(|error: RequestError| {
            let message = format!("cannot register shared memory region {name:?}: {}", error.message);
            RequestError { message, ..error }
        })
    }

    /// Unregisters a region of the principal, or all of them if `name` is empty. Requests that use
    /// a region keep it until they end. As in Triton, an unknown name is not an error.
    pub(crate) fn unregister(&self, caller: &Principal, name: &str) {
        let mut all = self.all();
        match name {
            "" => all.retain(|(tenant, _), _| *tenant != caller.tenant),
            name => drop(all.remove(&(caller.tenant.clone(), name.to_owned()))),
        }
    }

    /// The status of one region of the principal, or of all if `name` is empty.
    pub(crate) fn status(&self, caller: &Principal, name: &str) -> Result<Vec<RegionStatus>, RequestError> {
        let found = self.found(caller, name);
        if found.is_empty() && !name.is_empty() {
            return Err(unknown(name));
        }
        Ok(found.iter().map(|(name, region)| region.status(name)).collect())
    }

    /// The regions that [`Regions::status`] reports. It reports them after the lock is released.
    fn found(&self, caller: &Principal, name: &str) -> Vec<(String, Arc<Region>)> {
        let all = self.all();
        let own = all.iter().filter(|((tenant, of), _)| *tenant == caller.tenant && (name.is_empty() || of == name));
        own.map(|((_, name), region)| (name.clone(), region.clone())).collect()
    }

    /// A part of a region of the principal.
    pub(crate) fn window(&self, caller: &Principal, range: &SharedRange) -> Result<Window, RequestError> {
        let found = self.all().get(&(caller.tenant.clone(), range.region.clone())).cloned();
        found.ok_or_else(|| unknown(&range.region))?.window(range)
    }

    /// Copies the bytes of a window.
    pub(crate) fn read(&self, window: &Window) -> Result<Vec<u8>, RequestError> {
        let bytes = window.read()?;
        self.read_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes)
    }

    /// Writes bytes to the beginning of a window while `is_awaited` returns true.
    pub(crate) fn write(
        &self,
        window: &Window,
        bytes: &[u8],
        is_awaited: &dyn Fn() -> bool,
    ) -> Result<(), RequestError> {
        window.write(bytes, is_awaited)?;
        self.written_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Number and bytes of each tenant's regions, for metrics.
    pub(crate) fn registered(&self) -> BTreeMap<Tenant, Registered> {
        // `local` is always included, so that the metrics exist before the first registration.
        let mut tenants = BTreeMap::from([(Tenant::default(), Registered::default())]);
        for ((tenant, _), region) in &*self.all() {
            let registered = tenants.entry(tenant.clone()).or_default();
            registered.regions += 1;
            registered.bytes += region.bytes();
        }
        tenants
    }
}

/// Refuses a region whose name is already registered, or that exceeds the limits.
fn admit(all: &All, caller: &Principal, name: &str, bytes: u64) -> Result<(), RequestError> {
    let own = || all.iter().filter(|((tenant, _), _)| *tenant == caller.tenant);
    if own().any(|((_, of), _)| of == name) {
        return Err(RequestError::bad_request(format!("shared memory region {name:?} is registered already")));
    }
    let full = |message: String| Err(RequestError::new(Kind::Exhausted, message));
    if own().count() >= SHARED_REGIONS_PER_TENANT_MAX {
        let tenant = &caller.tenant;
        return full(format!(
            "tenant `{tenant}` has {SHARED_REGIONS_PER_TENANT_MAX} regions, which is the limit; unregister one first"
        ));
    }
    if all.len() >= SHARED_REGIONS_MAX {
        return full(format!("all tenants together have {SHARED_REGIONS_MAX} regions, which is the limit"));
    }
    let sum = own().map(|(_, region)| region.bytes()).fold(bytes, u64::saturating_add);
    if sum > SHARED_BYTES_PER_TENANT_MAX {
        let most = SHARED_BYTES_PER_TENANT_MAX;
        return full(format!("with it, the tenant's regions have {sum} bytes; the limit is {most}"));
    }
    Ok(())
}

fn unknown(region: &str) -> RequestError {
    let region: String = region.chars().take(SHARED_REGION_NAME_BYTES_MAX).collect();
    RequestError::bad_request(format!("unable to find system shared memory region {region:?}; register it first"))
}
