//! The offset space: the upper bits of an offset hold the number of the domain that owns the
//! memory; constants have no number.

use super::ExecutorPool;
use crate::domain::{Domain, Memory, State};
use crate::pair::Pair;
use crate::parts::Parts;
use crate::regions::TenantRegion;
use atoll_core::DeviceOffset;
use atoll_device::space::{MEMORY_BYTES_MAX, Place, memory_region};
use atoll_device::{DeviceError, LaunchRecord, translate_offsets};

/// The lowest bit of a domain's number in an offset; above memory and constants.
pub(super) const DOMAIN_SHIFT: u32 = 47;

/// Numbers of domains; each loss of an executor uses one.
pub(crate) const NUMBERS_MAX: u64 = 1 << (64 - DOMAIN_SHIFT);

const _: () = assert!(MEMORY_BYTES_MAX <= 1 << 45, "memory and constants lie below the numbers of domains");

impl ExecutorPool {
    /// The memory of a domain. If it has none, allocates unused memory under an unused number.
    pub(super) fn memory(&mut self, index: usize) -> Result<&Memory, DeviceError> {
        if self.constants_lost {
            return Err(gone());
        }
        if self.domains[index].memory.is_none() {
            self.numbers += 1;
            if self.numbers >= NUMBERS_MAX {
                return Err(DeviceError::Lost("executors were replaced too often; restart the daemon".to_owned()));
            }
            let bytes = self.domains[index].parts.as_ref().map_or(self.info.memory_bytes, Parts::bytes);
            let region = if self.is_remote() { None } else { Some(memory_region(bytes)?) };
            self.domains[index].memory = Some(Memory { number: self.numbers, region });
        }
        Ok(self.domains[index].memory.as_ref().expect("it was set above"))
    }

    /// Resolves an offset in the memory of a domain or among the constants.
    pub(super) fn place(&self, at: DeviceOffset) -> Result<Place<'_>, DeviceError> {
        let (number, within) = split(at);
        let mut memories = self.domains.iter().filter_map(|domain| Some((domain, domain.memory.as_ref()?)));
        let found = memories.find(|(_, memory)| memory.number == number);
        match found.map(|(domain, memory)| (domain, memory.region.as_ref())) {
            Some((domain, Some(region))) => {
                let outside = || DeviceError::OutOfRange { at: at.0, bytes: 0, memory_bytes: region.bytes() };
                Ok(Place::of_memory(region, at, domain.local(within).ok_or_else(outside)?.0))
            }
            None if number == 0 => self.constants.place(at).ok_or_else(gone),
            _ => Err(gone()),
        }
    }

    /// The executors that can access an offset, and the offset as they know it, if the memory is
    /// not mapped here.
    pub(super) fn remote(&mut self, at: DeviceOffset) -> Result<Option<(&mut Pair, DeviceOffset)>, DeviceError> {
        if !self.is_remote() {
            return Ok(None);
        }
        let (number, within) = split(at);
        let region = self.regions.as_ref().and_then(|regions| regions.find(number));
        let there = match (self.domains.first(), region) {
            (_, Some(region)) => {
                let outside = || DeviceError::OutOfRange { at: at.0, bytes: 0, memory_bytes: region.mask() + 1 };
                region.place(within).ok_or_else(outside)?
            }
            // Offsets of constants have no number: they stay valid, since the engine writes
            // constants again after a loss.
            (Some(domain), None) if number == 0 || number == domain.number() => within,
            _ => return Err(gone()),
        };
        match self.domains.first_mut().map(|domain| &mut domain.state) {
            Some(State::Running(device)) if device.lost().is_none() => Ok(Some((device, there))),
            _ => Err(gone()),
        }
    }
}

/// Splits an offset into the number of a domain, and the offset in its memory or in the constants.
pub(super) fn split(at: DeviceOffset) -> (u64, DeviceOffset) {
    (at.0 >> DOMAIN_SHIFT, DeviceOffset(at.0 & ((1 << DOMAIN_SHIFT) - 1)))
}

/// The memory that launches of a module may name.
#[derive(Clone, Copy, Debug)]
pub(super) enum OwnMemory<'a> {
    /// That of a domain, and constants from an offset on. Without a domain, only constants.
    Domain(Option<&'a Domain>, DeviceOffset),
    /// The region of a tenant, with its copies of constants.
    Region(&'a TenantRegion),
}

impl OwnMemory<'_> {
    /// The offset of a place as the executor knows it; `None` if launches may not name it.
    fn find(self, at: DeviceOffset) -> Option<DeviceOffset> {
        let (number, within) = split(at);
        let found = match self {
            OwnMemory::Domain(domain, constants) => match domain {
                Some(domain) if number == domain.number() => domain.local(within),
                _ => Some(within).filter(|within| number == 0 && *within >= constants),
            },
            OwnMemory::Region(region) if region.number == Some(number) => region.place(within),
            OwnMemory::Region(region) => region.constant(within).filter(|_| number == 0),
        };
        // Unused fields are 0.
        found.or(Some(at).filter(|at| at.0 == 0))
    }
}

/// Translates a launch for its executor, with its parameters in `block`. `None` if it names memory
/// of another domain, or outside the parts of its own.
pub(super) fn translate(
    record: &LaunchRecord,
    params: &[u8],
    memory: OwnMemory<'_>,
    block: &mut Vec<u8>,
) -> Option<LaunchRecord> {
    let own = |at: DeviceOffset| memory.find(at);
    block.clear();
    block.extend_from_slice(params);
    // Absolute addresses are those of the executor, in which another domain's memory is not mapped.
    if !record.address_slots.are_absolute() {
        translate_offsets(block, &record.address_slots, own)?;
    }
    Some(LaunchRecord { evicted_word: own(record.evicted_word)?, epoch_word: own(record.epoch_word)?, ..*record })
}

pub(super) fn gone() -> DeviceError {
    DeviceError::DomainLost("the executor that had this memory is gone".to_owned())
}
