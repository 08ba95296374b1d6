//! Regions: the memory of tenants on a device with memory of its own.
//!
//! All domains of such a device share one process and one allocation. A part of the allocation, the
//! *zone*, is reserved for tenants. A domain of a tenant has a *region* in it, and the fences of its
//! kernels enclose the region. A region's size is a power of two, from the tenant's memory quota if
//! it has one. The parts of memory that the engine gives to the domain get places in the region
//! ([`super::parts`]), and so do copies of the constants that the domain may read: no kernel of a
//! tenant reads memory outside of its region.
//!
//! A domain gets its region when it is first needed, and returns it when it has neither modules nor
//! parts. A region is cleared before a domain gets it.

use super::parts::Parts;
use atoll_core::DeviceOffset;
use atoll_device::{DeviceError, ModuleId, PAGE_BYTES_MAX};
use std::collections::{BTreeMap, BTreeSet};

/// The smallest region.
const REGION_BYTES_MIN: u64 = PAGE_BYTES_MAX;

/// The region of a domain without a bound is this part of the zone, or a little less.
const DEFAULT_PART: u64 = 8;

/// The regions of a device.
#[derive(Debug)]
pub(super) struct Regions {
    /// Where the zone begins in the memory of the device.
    start: u64,
    /// Size of the zone.
    bytes: u64,
    /// How much memory the parts of a domain need together, for domains with a bound.
    bounds: BTreeMap<String, u64>,
    regions: BTreeMap<String, TenantRegion>,
    /// The constants on the device: their sizes by their offsets.
    constants: BTreeMap<u64, u64>,
}

/// The region of a domain.
#[derive(Debug)]
pub(super) struct TenantRegion {
    /// Its offset in the memory of the device.
    at: u64,
    bytes: u64,
    /// The number in the upper bits of the domain's offsets; `None` before the domain uses its
    /// memory, and after the memory was lost.
    pub(super) number: Option<u64>,
    pub(super) parts: Parts,
    modules: BTreeSet<ModuleId>,
    /// Constants with a copy in the region, which is a part at the offset of the constant; their
    /// sizes.
    shown: BTreeMap<u64, u64>,
    /// Constants for which there was no room.
    without_room: BTreeSet<u64>,
}

/// A copy of a constant in a region, which has no content yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NewCopy {
    pub(super) from: DeviceOffset,
    pub(super) to: DeviceOffset,
    pub(super) bytes: u64,
}

impl Regions {
    /// Regions in the last `bytes` bytes of a device's memory.
    ///
    /// # Errors
    /// If the device has no room for them beside other work.
    pub(super) fn new(bytes: u64, memory_bytes: u64) -> Result<Regions, DeviceError> {
        let zone = bytes - bytes % REGION_BYTES_MIN;
        let start = memory_bytes.checked_sub(zone).map(|start| start - start % REGION_BYTES_MIN);
        match start.filter(|start| *start > 0 && zone > 0) {
            Some(start) => Ok(Regions {
                start,
                bytes: zone,
                bounds: BTreeMap::new(),
                regions: BTreeMap::new(),
                constants: BTreeMap::new(),
            }),
            None => Err(DeviceError::Unavailable(format!(
                "{bytes} bytes cannot be reserved for tenants (--tenant-memory): the device has {memory_bytes} bytes \
                 of memory, and a region of a tenant at least {REGION_BYTES_MIN}"
            ))),
        }
    }

    /// Bytes of memory before the zone.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Sets how much memory the parts of a domain need together. Has no effect on a region that the
    /// domain already has.
    pub(super) fn bound(&mut self, name: &str, bytes: u64) {
        self.bounds.insert(name.to_owned(), bytes);
    }

    /// The size of the region that a domain has or would get; `None` if no region is that large. Parts
    /// of different sizes leave gaps, so a region has room for a quarter more than the bound.
    fn bytes_for(&self, name: &str) -> Option<u64> {
        if let Some(region) = self.regions.get(name) {
            return Some(region.bytes);
        }
        let wanted = match self.bounds.get(name) {
            Some(bound) => bound.checked_add(bound / 4)?.checked_next_power_of_two()?,
            None => 1 << (self.bytes / DEFAULT_PART).max(1).ilog2(),
        };
        Some(wanted.max(REGION_BYTES_MIN))
    }

    /// Gives a region to a domain that has none. Returns its range in the memory of the device, which
    /// the caller clears; `None` if the domain has a region.
    ///
    /// # Errors
    /// If no region of the size is free.
    pub(super) fn give(&mut self, name: &str) -> Result<Option<(DeviceOffset, u64)>, DeviceError> {
        if self.regions.contains_key(name) {
            return Ok(None);
        }
        let bytes = self.bytes_for(name);
        let place = bytes.and_then(|bytes| Some((self.free_place(bytes)?, bytes)));
        let (at, bytes) = place.ok_or_else(|| self.no_room(name, bytes))?;
        let region = TenantRegion {
            at,
            bytes,
            number: None,
            parts: Parts::in_region(bytes),
            modules: BTreeSet::new(),
            shown: BTreeMap::new(),
            without_room: BTreeSet::new(),
        };
        self.regions.insert(name.to_owned(), region);
        Ok(Some((DeviceOffset(at), bytes)))
    }

    /// The first place for a region of this size, at a multiple of the size in the zone.
    fn free_place(&self, bytes: u64) -> Option<u64> {
        let is_free = |at: &u64| self.regions.values().all(|other| at + bytes <= other.at || other.end() <= *at);
        (0..self.bytes / bytes).map(|index| self.start + index * bytes).find(is_free)
    }

    fn no_room(&self, name: &str, bytes: Option<u64>) -> DeviceError {
        let used: u64 = self.regions.values().map(|region| region.bytes).sum();
        let wanted = bytes.map_or_else(|| "its size".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
        DeviceError::Unavailable(format!(
            "no region of {wanted} is free for the memory of tenant `{name}`: {} MiB are reserved for tenants \
             (--tenant-memory), of which {} are in use; reserve more, lower the quota of the tenant (device_bytes), \
             or remove functions of other tenants",
            self.bytes >> 20,
            used >> 20
        ))
    }

    /// Removes a part of a domain, which returns its region if it was the last use.
    pub(super) fn remove_part(&mut self, name: &str, at: DeviceOffset) {
        if let Some(region) = self.regions.get_mut(name) {
            region.parts.remove(at.0);
        }
        self.take_back_unused(name);
    }

    /// Takes a region back if the domain does not use it.
    pub(super) fn take_back_unused(&mut self, name: &str) {
        if self.regions.get(name).is_some_and(TenantRegion::is_unused) {
            self.take_back(name);
        }
    }

    /// Takes a region back.
    pub(super) fn take_back(&mut self, name: &str) {
        self.regions.remove(name);
        self.bounds.remove(name);
    }

    pub(super) fn get(&self, name: &str) -> Option<&TenantRegion> {
        self.regions.get(name)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut TenantRegion> {
        self.regions.get_mut(name)
    }

    /// The region whose offsets have this number.
    pub(super) fn find(&self, number: u64) -> Option<&TenantRegion> {
        self.regions.values().find(|region| region.number == Some(number))
    }

    /// The region of the domain to which a module belongs.
    pub(super) fn of_module(&self, module: ModuleId) -> Option<&TenantRegion> {
        self.regions.values().find(|region| region.modules.contains(&module))
    }

    /// Removes a module from its domain, which returns its region if it was the last use.
    pub(super) fn remove_module(&mut self, module: ModuleId) {
        let owner = self.regions.iter_mut().find_map(|(name, region)| {
            let had = region.modules.remove(&module);
            had.then(|| name.clone())
        });
        if let Some(name) = owner {
            self.take_back_unused(&name);
        }
    }

    /// Notes that the memory of the device was lost. Parts keep their places.
    pub(super) fn lose_memory(&mut self) {
        self.regions.values_mut().for_each(|region| region.number = None);
    }

    /// Notes a constant that is about to be written.
    pub(super) fn add_constant(&mut self, at: DeviceOffset, bytes: u64) {
        self.constants.insert(at.0, bytes);
    }

    /// Removes a constant, and its copies.
    pub(super) fn remove_constant(&mut self, at: DeviceOffset) {
        self.constants.remove(&at.0);
        self.regions.values_mut().for_each(|region| region.hide(at));
    }

    /// Removes copies of constants from the region of a domain.
    pub(super) fn hide(&mut self, name: &str, constants: &[DeviceOffset]) {
        if let Some(region) = self.regions.get_mut(name) {
            constants.iter().for_each(|at| region.hide(*at));
        }
        self.take_back_unused(name);
    }

    /// Gives copies of constants places in the region of a domain. The caller copies their contents.
    pub(super) fn show(&mut self, name: &str, constants: &[DeviceOffset]) -> Vec<NewCopy> {
        let Some(region) = self.regions.get_mut(name) else { return Vec::new() };
        let sizes = &self.constants;
        constants.iter().filter_map(|at| region.show(*at, *sizes.get(&at.0)?)).collect()
    }

    /// The places of a byte of a constant in all regions that have a copy of it.
    pub(super) fn copies(&self, within: DeviceOffset) -> Vec<DeviceOffset> {
        let inside = self.regions.values().filter(|region| {
            let copy = region.shown.range(..=within.0).next_back();
            copy.is_some_and(|(at, bytes)| within.0 - at < *bytes)
        });
        inside.filter_map(|region| region.place(within)).collect()
    }
}

impl TenantRegion {
    /// Its size minus one.
    pub(super) fn mask(&self) -> u64 {
        self.bytes - 1
    }

    /// Its offset in the memory of the device.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    fn end(&self) -> u64 {
        self.at + self.bytes
    }

    fn is_unused(&self) -> bool {
        self.modules.is_empty() && self.parts.is_empty()
    }

    pub(super) fn add_module(&mut self, module: ModuleId) {
        self.modules.insert(module);
    }

    /// The place in the memory of the device of an offset in the domain's memory; `None` if it is in
    /// no part.
    pub(super) fn place(&self, within: DeviceOffset) -> Option<DeviceOffset> {
        self.parts.local(within.0).map(|local| DeviceOffset(self.at + local))
    }

    /// The place of an offset of a constant, if the region has a copy of it. The end of a constant
    /// belongs to it.
    pub(super) fn constant(&self, within: DeviceOffset) -> Option<DeviceOffset> {
        let (at, bytes) = self.shown.range(..=within.0).next_back()?;
        self.place(within).filter(|_| within.0 - at <= *bytes)
    }

    fn show(&mut self, at: DeviceOffset, bytes: u64) -> Option<NewCopy> {
        if self.shown.contains_key(&at.0) {
            return None;
        }
        if !self.parts.place(at.0, bytes) {
            self.without_room.insert(at.0);
            return None;
        }
        self.without_room.remove(&at.0);
        self.shown.insert(at.0, bytes);
        Some(NewCopy { from: at, to: self.place(at)?, bytes })
    }

    /// Removes the copy of a constant.
    pub(super) fn hide(&mut self, at: DeviceOffset) {
        self.without_room.remove(&at.0);
        if self.shown.remove(&at.0).is_some() {
            self.parts.remove(at.0);
        }
    }

    /// Why launches of the domain cannot run: there was no room for a constant.
    pub(super) fn refusal(&self) -> Option<String> {
        let reason = || {
            format!(
                "the tenant has {} MiB of memory on the device, and no free piece of it has room for a constant of \
                 the function; give the tenant a larger quota of device memory (device_bytes), or remove functions \
                of it",
                self.bytes >> 20
            )
        };
        (!self.without_room.is_empty()).then(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn range(regions: &mut Regions, name: &str) -> Option<(u64, u64)> {
        regions.give(name).unwrap_or_default().map(|(at, bytes)| (at.0 / MIB, bytes / MIB))
    }

    #[test]
    fn a_region_has_room_for_the_bound_and_a_quarter_more() {
        let mut regions = Regions::new(64 * MIB, 100 * MIB + 1).unwrap();
        assert_eq!(regions.start(), 36 * MIB);
        for (name, bound) in [("a", 12), ("b", 13), ("c", 0)] {
            regions.bound(name, bound * MIB);
        }
        assert_eq!(range(&mut regions, "a"), Some((36, 16)), "15 MiB");
        assert_eq!(range(&mut regions, "b"), Some((68, 32)), "at a multiple of its size in the zone");
        assert_eq!(range(&mut regions, "c"), Some((52, 2)), "the smallest");
        assert_eq!(range(&mut regions, "d"), Some((60, 8)), "an eighth of the zone, without a bound");
        assert_eq!(range(&mut regions, "d"), None, "it has one");
        let full = regions.give("e").unwrap_err().to_string();
        assert!(full.contains("no region of 8 MiB is free for the memory of tenant `e`"), "{full}");
        assert!(full.contains("64 MiB are reserved for tenants (--tenant-memory), of which 58 are in use"), "{full}");
        regions.take_back("a");
        assert_eq!(range(&mut regions, "e"), Some((36, 8)));
        regions.bound("f", u64::MAX);
        assert!(regions.give("f").unwrap_err().to_string().contains("no region of its size"));
    }

    #[test]
    fn the_zone_leaves_memory_for_other_work() {
        for (zone, memory) in [(MIB, 64 * MIB), (64 * MIB, 64 * MIB), (63 * MIB, 64 * MIB), (u64::MAX, 64 * MIB)] {
            let refused = Regions::new(zone, memory).map(|regions| regions.start());
            if zone == 63 * MIB {
                assert_eq!(refused.unwrap(), 2 * MIB);
            } else {
                assert!(refused.unwrap_err().to_string().contains("--tenant-memory"), "{zone}");
            }
        }
    }

    #[test]
    fn a_region_is_in_use_while_its_domain_has_modules_or_parts() {
        let mut regions = Regions::new(32 * MIB, 64 * MIB).unwrap();
        regions.give("a").unwrap();
        let region = regions.get_mut("a").unwrap();
        region.add_module(ModuleId(1));
        region.number = Some(5);
        assert!(region.parts.place(4096, 256));
        assert_eq!(region.place(DeviceOffset(4100)), Some(DeviceOffset(32 * MIB + 4)));
        regions.remove_module(ModuleId(1));
        assert!(regions.find(5).is_some() && regions.of_module(ModuleId(1)).is_none());
        regions.lose_memory();
        assert!(regions.find(5).is_none());
        regions.get_mut("a").unwrap().parts.remove(4096);
        regions.take_back_unused("a");
        assert!(regions.get("a").is_none());
    }

    #[test]
    fn constants_have_a_copy_in_each_region_that_may_read_them() {
        let mut regions = Regions::new(32 * MIB, 64 * MIB).unwrap();
        let [first, second, large] = [0, 512, 768].map(DeviceOffset);
        for (at, bytes) in [(first, 512), (second, 256), (large, 16 * MIB)] {
            regions.add_constant(at, bytes);
        }
        assert_eq!(regions.show("a", &[first]), [], "it has no region");
        for name in ["a", "b"] {
            regions.give(name).unwrap();
        }
        let copy = |from, to, bytes| NewCopy { from, to: DeviceOffset(to), bytes };
        assert_eq!(
            regions.show("a", &[first, second]),
            [copy(first, 32 * MIB, 512), copy(second, 32 * MIB + 512, 256)]
        );
        assert_eq!(regions.show("a", &[first]), []);
        assert_eq!(regions.show("b", &[second]), [copy(second, 36 * MIB, 256)]);
        assert_eq!(regions.copies(DeviceOffset(520)), [32 * MIB + 520, 36 * MIB + 8].map(DeviceOffset));
        assert_eq!(regions.get("b").unwrap().constant(first), None, "another tenant's constant");
        assert_eq!(regions.copies(large), [], "it begins where another one ends");
        assert_eq!(regions.get("a").unwrap().refusal(), None);
        assert_eq!(regions.show("a", &[large]), []);
        assert!(regions.get("a").unwrap().refusal().is_some_and(|why| why.contains("4 MiB of memory on the device")));
        regions.remove_constant(large);
        regions.remove_constant(second);
        assert_eq!(regions.get("a").unwrap().refusal(), None);
        assert_eq!(regions.copies(DeviceOffset(520)), []);
        assert_eq!(regions.get("a").unwrap().constant(first), Some(DeviceOffset(32 * MIB)));
    }
}
