//! Domains: groups of functions that trust each other. A device may run each in a process of its
//! own, with its own memory, that can be lost and replaced without the others.

use crate::error::DeviceError;
use crate::telemetry::ExecutorStatistics;
use atoll_core::DeviceOffset;

/// The largest page that the operating system may use for device memory, in bytes. Touching one
/// byte may take this much memory.
pub const PAGE_BYTES_MAX: u64 = 2 << 20;

/// The state of a domain's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DomainState {
    /// Modules can be launched.
    Ready,
    /// Modules cannot be launched yet: the process is being started or replaced.
    Restarting,
    /// Modules cannot be launched for a while, because the process died repeatedly; the text is the
    /// last cause.
    Unavailable(String),
}

/// Keeps domains apart. A device that runs everything in one process uses the defaults.
pub trait Domains {
    /// The base of the domain's memory: added to an offset in memory, it names that offset in this
    /// domain. Offsets of constants are the same for all domains. The base changes when the domain
    /// loses its memory; launches and transfers with the old base are refused from then on.
    fn domain(&mut self, _name: &str) -> Result<DeviceOffset, DeviceError> {
        Ok(DeviceOffset(0))
    }

    /// Sets how many bytes of its memory a domain may touch: the memory of its invocations and
    /// sessions, with [`PAGE_BYTES_MAX`] added at both ends of each part. A process that touches
    /// more is killed. Called before memory is used, and after it was given back.
    fn allow_memory(&mut self, _name: &str, _bytes: u64) {}

    /// Limits the memory that the kernels of a domain can touch, to what parts of `bytes` bytes in
    /// total need. Has no effect if another limit applies, or if the domain already has memory.
    fn bound_memory(&mut self, _name: &str, _bytes: u64) {}

    /// The start of a domain's memory, for the fences of kernels. It differs from
    /// [`Domains::domain`] if the memory of the domain is limited.
    fn memory_start(&mut self, name: &str) -> Result<DeviceOffset, DeviceError> {
        self.domain(name)
    }

    /// The size of a domain's memory minus one, for the fences of kernels; the size is a power of two.
    /// `None` if it is that of [`DeviceInfo::memory_range`](crate::DeviceInfo::memory_range).
    fn memory_mask(&self, _name: &str) -> Option<u64> {
        None
    }

    /// The address of an offset as kernels of its domain see it. `None` if the device does not know
    /// it.
    fn kernel_address(&self, _at: DeviceOffset) -> Option<u64> {
        None
    }

    /// Gives a part of memory to a domain. `at` is its offset relative to [`Domains::domain`].
    /// Called once for each part, before the part is used. Parts do not overlap.
    ///
    /// # Errors
    /// If the memory of the domain is limited and has no free piece that is large enough.
    fn place_part(&mut self, _name: &str, _at: DeviceOffset, _bytes: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    /// As [`Domains::place_part`], for a part whose address kernels keep: at this address, or at a new
    /// one if it is `None`. Devices begin to look for new addresses at different places, so that a
    /// part rarely finds its address in use when it moves to another device.
    ///
    /// # Errors
    /// If the part cannot have this address, or there is no room for it in one piece.
    fn place_part_at(
        &mut self,
        name: &str,
        at: DeviceOffset,
        bytes: u64,
        _address: Option<u64>,
    ) -> Result<(), DeviceError> {
        self.place_part(name, at, bytes)
    }

    /// The offset that a part must have for kernels to see it at this address, relative to
    /// [`Domains::domain`]. `None` if any offset will do.
    fn offset_of(&self, _name: &str, _address: u64) -> Option<DeviceOffset> {
        None
    }

    /// Leaves these addresses to a part that was taken back and will return, as long as new parts
    /// have room elsewhere.
    fn reserve_address(&mut self, _name: &str, _address: u64, _bytes: u64) {}

    /// Undoes [`Domains::reserve_address`] for a part that does not return. Placing the part does
    /// so, too.
    fn release_address(&mut self, _name: &str, _address: u64) {}

    /// Takes back a part of memory that is no longer used.
    fn remove_part(&mut self, _name: &str, _at: DeviceOffset) {}

    /// The state of a domain. The completion descriptor becomes readable when it changes.
    fn domain_state(&self, _name: &str) -> DomainState {
        DomainState::Ready
    }

    /// Whether the whole device is being replaced and cannot be written now. The completion
    /// descriptor becomes readable when this changes.
    fn is_unready(&self) -> bool {
        false
    }

    /// Counts of the device's processes.
    fn executors(&self) -> ExecutorStatistics {
        ExecutorStatistics::default()
    }
}
