//! The memory of tenants on a device with memory of its own: their regions, and the addresses of
//! parts ([`crate::regions`]).

use super::addresses::{gone, split};
use super::lifecycle::is_kept;
use super::{ExecutorPool, NUMBERS_MAX};
use crate::domain::State;
use crate::pair::Pair;
use crate::parts::Parts;
use crate::regions::{NewCopy, TenantRegion};
use atoll_core::DeviceOffset;
use atoll_device::space::MEMORY_ADDRESS;
use atoll_device::{DeviceError, ModuleId};

impl ExecutorPool {
    /// Whether a domain has a region, or gets one when it is needed.
    pub(super) fn has_region(&self, name: &str) -> bool {
        self.regions.is_some() && !is_kept(name)
    }

    /// The region of a domain that [has one](Self::has_region). If it was not given one before, it
    /// gets one now, which is cleared.
    fn some_region(&mut self, name: &str) -> Result<&mut TenantRegion, DeviceError> {
        let regions = self.regions.as_mut().ok_or_else(gone)?;
        if let Some((at, bytes)) = regions.give(name)? {
            let cleared = match self.domains.first_mut().map(|domain| &mut domain.state) {
                Some(State::Running(device)) if device.lost().is_none() => device.fill(at, 0, bytes),
                // A new process clears all memory.
                _ => Ok(()),
            };
            cleared.inspect_err(|_| regions.take_back(name))?;
            tracing::info!(device = %self.info.name, domain = name, bytes, "region for the memory of a tenant");
        }
        regions.get_mut(name).ok_or_else(gone)
    }

    /// As [`Self::some_region`], with a number for its offsets.
    pub(super) fn region(&mut self, name: &str) -> Result<&mut TenantRegion, DeviceError> {
        if self.constants_lost {
            return Err(gone());
        }
        self.some_region(name)?;
        let region = self.regions.as_mut().and_then(|regions| regions.get_mut(name)).ok_or_else(gone)?;
        if region.number.is_none() {
            self.numbers += 1;
            if self.numbers >= NUMBERS_MAX {
                return Err(DeviceError::Lost("executors were replaced too often; restart the daemon".to_owned()));
            }
            region.number = Some(self.numbers);
        }
        Ok(region)
    }

    /// Gives a module to a domain, which gets a region if it has none.
    pub(super) fn give_module(&mut self, name: &str, module: ModuleId) -> Result<(), DeviceError> {
        if self.has_region(name) {
            self.some_region(name)?.add_module(module);
        }
        Ok(())
    }

    /// The executor that can access an offset in a region, and the place of the offset in the memory
    /// of the device.
    pub(super) fn place_in_region(&self, at: DeviceOffset) -> Option<(&Pair, DeviceOffset)> {
        let (number, within) = split(at);
        let place = self.regions.as_ref()?.find(number)?.place(within)?;
        Some((self.domains.first()?.executor()?, place))
    }

    /// Gives copies of constants to the region of a domain. If a copy has no room, launches that name
    /// it are refused.
    pub(super) fn copy_constants(&mut self, name: &str, constants: &[DeviceOffset]) {
        if let Err(error) = self.some_region(name) {
            return tracing::warn!(device = %self.info.name, domain = name, %error, "a tenant gets no constants");
        }
        let copies = self.regions.as_mut().map(|regions| regions.show(name, constants)).unwrap_or_default();
        for NewCopy { from, to, bytes } in copies {
            if let Some(State::Running(device)) = self.domains.first_mut().map(|domain| &mut domain.state) {
                // If the executor is lost, constants are written again.
                let _ = device.copy(from, to, bytes);
            }
        }
    }

    /// Writes bytes of a constant to its copies as well.
    pub(super) fn write_copies(&mut self, at: DeviceOffset, bytes: &[u8]) -> Result<(), DeviceError> {
        let (number, within) = split(at);
        let copies = self.regions.as_ref().filter(|_| number == 0).map(|regions| regions.copies(within));
        for copy in copies.unwrap_or_default() {
            if let Some(State::Running(device)) = self.domains.first_mut().map(|domain| &mut domain.state) {
                device.write(copy, bytes)?;
            }
        }
        Ok(())
    }

    /// The address of the device's memory as kernels see it, if an executor owns the memory.
    fn device_address(&self) -> Option<u64> {
        Some(self.domains.first()?.executor()?.first().facts()?.memory_address)
    }

    /// The address of an offset in the memory that has no regions. `None` on a device without regions,
    /// where kernels are not fenced.
    pub(super) fn shared_address(&self, at: DeviceOffset) -> Option<u64> {
        self.regions.as_ref()?;
        let (number, within) = split(at);
        let domain = self.domains.first().filter(|domain| domain.number() == number)?;
        Some(self.device_address()? + domain.local(within)?.0)
    }

    /// The address of the memory of domains without parts.
    pub(super) fn start_address(&self) -> u64 {
        // Without an executor, there is no address to which memory could return.
        if self.is_remote() { self.device_address().unwrap_or_default() } else { MEMORY_ADDRESS }
    }

    /// The parts of a domain with the address of the place 0; `None` if the domain has all memory.
    pub(super) fn parts(&mut self, name: &str) -> Result<Option<(&mut Parts, u64)>, DeviceError> {
        if self.has_region(name) {
            // Without an executor, there is no address to which a part could return.
            let base = self.device_address().unwrap_or_default();
            let region = self.some_region(name)?;
            let address = base + region.at();
            return Ok(Some((&mut region.parts, address)));
        }
        let index = self.domain_index(name);
        Ok(self.domains[index].parts.as_mut().map(|parts| (parts, MEMORY_ADDRESS)))
    }

    /// Whether the parts of a domain have places that differ from their offsets.
    pub(super) fn has_parts(&self, name: &str) -> bool {
        self.has_region(name) || self.known(name).is_some_and(|domain| domain.parts.is_some())
    }

    /// The address of an offset in a region.
    pub(super) fn region_address(&self, at: DeviceOffset) -> Option<u64> {
        let (_, place) = self.place_in_region(at)?;
        Some(self.device_address()? + place.0)
    }
}
