//! Regions of shared memory: memory of clients that they register under names. Requests read inputs
//! from regions and write outputs to them. A region is a part of a file in `/dev/shm` (`system`), or
//! device memory that a client has exported by CUDA IPC (`cuda`).
//!
//! The daemon never maps a region. It copies from files with `pread` and `pwrite`. If a client
//! shrinks its file while a request runs, the copy returns an error; with a mapping, `SIGBUS` would
//! end the daemon. Device memory is opened by the process that has the device's context. Bytes are
//! copied once, before they are checked, so a client cannot change them after the check.

mod cuda;
mod file;
mod region;
mod system;

use cuda::CudaMemory;
pub(crate) use cuda::CudaRegister;
use region::{Memory, Region};
pub(crate) use region::{Sharing, Window};
use system::SystemMemory;

use crate::identity::{Access, Principal};
use crate::limits::{
    SHARED_BYTES_PER_TENANT_MAX, SHARED_REGION_NAME_BYTES_MAX, SHARED_REGIONS_MAX, SHARED_REGIONS_PER_TENANT_MAX,
};
use crate::requests::error::{Kind, RequestError};
use atoll_engine::{ImportId, Imports, Tenant};
use atoll_protocol::{CudaRegionStatus, RegionStatus, RegisterRequest, SharedRange};
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
    system: Copied,
    cuda: Copied,
    /// The next [`ImportId`].
    imports: AtomicU64,
}

/// Bytes that were copied from and to regions.
#[derive(Debug, Default)]
pub(crate) struct Copied {
    pub(crate) read: AtomicU64,
    pub(crate) written: AtomicU64,
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

    /// Registers a part of a file for a principal. Blocks briefly to open the file.
    pub(crate) fn register(
        &self,
        access: &Access,
        caller: &Principal,
        name: &str,
        request: &RegisterRequest,
    ) -> Result<(), RequestError> {
        caller.may_share_memory()?;
        check_name(name)?;
        let add = || {
            let file = file::name(caller, &request.key)?;
            let open = || SystemMemory::open(access, caller, file, request).map(Memory::System);
            self.add(caller, name, request.byte_size, open)
        };
        add().map_err(|error| cannot_register(name, error))
    }

    /// Registers device memory for a principal. `devices` are those that can open it. Blocks until
    /// the driver has opened it.
    pub(crate) fn register_cuda(
        &self,
        devices: &[Arc<dyn Imports>],
        caller: &Principal,
        name: &str,
        request: &CudaRegister,
    ) -> Result<(), RequestError> {
        caller.may_share_cuda_memory()?;
        check_name(name)?;
        let id = ImportId(self.imports.fetch_add(1, Ordering::Relaxed));
        let open = || CudaMemory::open(devices, id, request).map(Memory::Cuda);
        self.add(caller, name, request.byte_size, open).map_err(|error| cannot_register(name, error))
    }

    /// Adds a region whose memory `open` opens.
    fn add(
        &self,
        caller: &Principal,
        name: &str,
        byte_size: u64,
        open: impl FnOnce() -> Result<Memory, RequestError>,
    ) -> Result<(), RequestError> {
        admit(&self.all(), caller, name, byte_size)?;
        let region = Region::new(open()?, byte_size);
        let mut all = self.all();
        // Checks again: another request may have registered a region meanwhile.
        admit(&all, caller, name, byte_size)?;
        all.insert((caller.tenant.clone(), name.to_owned()), Arc::new(region));
        Ok(())
    }

    /// Unregisters a region of the principal, or all of them if `name` is empty. Requests that use
    /// a region keep it until they end. As in Triton, an unknown name is not an error; neither is
    /// the name of a region that is shared in another way.
    pub(crate) fn unregister(&self, caller: &Principal, name: &str, sharing: Sharing) {
        let is_meant = |(tenant, of): &(Tenant, String), region: &Region| {
            *tenant == caller.tenant && (name.is_empty() || of == name) && region.sharing() == sharing
        };
        let mut removed = Vec::new();
        self.all().retain(|key, region| {
            let is_kept = !is_meant(key, region);
            if !is_kept {
                removed.push(region.clone());
            }
            is_kept
        });
        // Memory is closed here, after the lock was released.
        drop(removed);
    }

    /// The status of one region of system shared memory of the principal, or of all if `name` is
    /// empty.
    pub(crate) fn status(&self, caller: &Principal, name: &str) -> Result<Vec<RegionStatus>, RequestError> {
        self.described(caller, name, Sharing::System, Region::status)
    }

    /// The same for CUDA shared memory.
    pub(crate) fn cuda_status(&self, caller: &Principal, name: &str) -> Result<Vec<CudaRegionStatus>, RequestError> {
        self.described(caller, name, Sharing::Cuda, Region::cuda_status)
    }

    /// Describes regions after the lock is released. `describe` skips regions that are shared in
    /// another way.
    fn described<T>(
        &self,
        caller: &Principal,
        name: &str,
        sharing: Sharing,
        describe: impl Fn(&Region, &str) -> Option<T>,
    ) -> Result<Vec<T>, RequestError> {
        let found = self.found(caller, name);
        let described: Vec<T> = found.iter().filter_map(|(name, region)| describe(region, name)).collect();
        if described.is_empty() && !name.is_empty() {
            return Err(unknown(sharing.label(), name));
        }
        Ok(described)
    }

    /// The regions of the principal with this name, or all if it is empty.
    fn found(&self, caller: &Principal, name: &str) -> Vec<(String, Arc<Region>)> {
        let all = self.all();
        let own = all.iter().filter(|((tenant, of), _)| *tenant == caller.tenant && (name.is_empty() || of == name));
        own.map(|((_, name), region)| (name.clone(), region.clone())).collect()
    }

    /// A part of a region of the principal.
    pub(crate) fn window(&self, caller: &Principal, range: &SharedRange) -> Result<Window, RequestError> {
        let found = self.all().get(&(caller.tenant.clone(), range.region.clone())).cloned();
        found.ok_or_else(|| unknown("system", &range.region))?.window(range)
    }

    /// Copies the bytes of a window.
    pub(crate) fn read(&self, window: &Window) -> Result<Vec<u8>, RequestError> {
        let bytes = window.read()?;
        self.copied(window.sharing()).read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
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
        self.copied(window.sharing()).written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// The counts of copied bytes.
    pub(crate) fn copied(&self, sharing: Sharing) -> &Copied {
        match sharing {
            Sharing::System => &self.system,
            Sharing::Cuda => &self.cuda,
        }
    }

    /// Number and bytes of each tenant's regions that are shared in one way, for metrics.
    pub(crate) fn registered(&self, sharing: Sharing) -> BTreeMap<Tenant, Registered> {
        // `local` is always included, so that the metrics exist before the first registration.
        let mut tenants = BTreeMap::from([(Tenant::default(), Registered::default())]);
        for ((tenant, _), region) in self.all().iter().filter(|(_, region)| region.sharing() == sharing) {
            let registered = tenants.entry(tenant.clone()).or_default();
            registered.regions += 1;
            registered.bytes += region.bytes();
        }
        tenants
    }
}

fn check_name(name: &str) -> Result<(), RequestError> {
    if !name.is_empty() && name.len() <= SHARED_REGION_NAME_BYTES_MAX {
        return Ok(());
    }
    let text = format!("the name of a shared memory region has 1 to {SHARED_REGION_NAME_BYTES_MAX} bytes");
    Err(RequestError::bad_request(text))
}

fn cannot_register(name: &str, error: RequestError) -> RequestError {
    let message = format!("cannot register shared memory region {name:?}: {}", error.message);
    RequestError { message, ..error }
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

fn unknown(sharing: &str, region: &str) -> RequestError {
    let region: String = region.chars().take(SHARED_REGION_NAME_BYTES_MAX).collect();
    RequestError::bad_request(format!("unable to find {sharing} shared memory region {region:?}; register it first"))
}
