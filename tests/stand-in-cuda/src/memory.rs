//! The table of allocations. A device pointer is an address of this process, and memory shared by
//! host and device has the same address for both.

use crate::ipc::Export;
use crate::raw::{PAGE_BYTES, Pattern, Reservation, Span};
use crate::status::Status;
use crate::table::Handle;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Addresses reserved for memory of all devices; unused addresses cost nothing.
const RESERVED_BYTES: u64 = 1 << 38;

/// New GPU memory has arbitrary contents. The stand-in fills its first [`FILL_BYTES_MAX`] bytes
/// with this byte; the rest stays zero, so that untouched pages use no memory.
const FILL_BYTE: u8 = 0xcb;
const FILL_BYTES_MAX: u64 = 64 << 10;

/// The kind of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Device memory; it counts against the size of the device.
    Device,
    /// Pinned host memory that the driver allocated.
    Pinned,
    /// Memory of the program that was registered.
    Registered,
    /// Device memory of another process.
    Imported,
}

/// An allocation that the driver knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) at: u64,
    /// The requested size.
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
    pub(crate) context: Handle,
    /// The device of its context.
    pub(crate) device: u32,
    /// The file with the memory, if other processes may map it.
    pub(crate) file: Option<Export>,
    /// How often imported memory was opened without being closed.
    opened: u32,
}

/// All allocations.
#[derive(Debug)]
pub(crate) struct Memory {
    reservation: Reservation,
    device_bytes_max: u64,
    taken: Mutex<BTreeMap<u64, Allocation>>,
    /// End of the last allocation. The search for free addresses continues from here, so that freed
    /// memory faults until all other addresses have been used: reusing it at once would hide a use
    /// after free.
    searched_to: AtomicU64,
}

impl Memory {
    pub(crate) fn new(device_bytes_max: u64) -> Result<Memory, Status> {
        let reservation = Reservation::new(RESERVED_BYTES)?;
        let searched_to = AtomicU64::new(reservation.base());
        Ok(Memory { reservation, device_bytes_max, taken: Mutex::default(), searched_to })
    }

    /// Allocates whole pages. One page after them stays unmapped, so that a large enough overrun
    /// faults.
    pub(crate) fn take(
        &self,
        bytes: u64,
        align: u64,
        kind: Kind,
        (context, device): (Handle, u32),
    ) -> Result<u64, Status> {
        if bytes == 0 {
            return Err(Status::InvalidValue);
        }
        let mut taken = self.lock();
        if kind == Kind::Device && used(&taken, device).saturating_add(pages(bytes)) > self.device_bytes_max {
            return Err(Status::OutOfMemory);
        }
        let at = self.place(&taken, bytes, align)?;
        self.reservation.take(at, pages(bytes))?;
        self.searched_to.store(at + pages(bytes), Ordering::Relaxed);
        taken.insert(at, Allocation { at, bytes, kind, context, device, file: None, opened: 0 });
        if kind == Kind::Device {
            // SAFETY: just allocated, and nothing else refers to it.
            unsafe { Span::new(at, bytes.min(FILL_BYTES_MAX)) }.fill(Pattern::Byte(FILL_BYTE));
        }
        Ok(at)
    }

    /// Registers memory of the program.
    pub(crate) fn register(&self, at: u64, bytes: u64, context: (Handle, u32)) -> Result<(), Status> {
        let mut taken = self.lock();
        let end = at.checked_add(bytes).filter(|_| at != 0 && bytes > 0).ok_or(Status::InvalidValue)?;
        if taken.range(..end).next_back().is_some_and(|(_, before)| before.at + before.bytes > at) {
            return Err(Status::HostMemoryAlreadyRegistered);
        }
        let (context, device) = context;
        taken.insert(at, Allocation { at, bytes, kind: Kind::Registered, context, device, file: None, opened: 0 });
        Ok(())
    }

    /// Moves device memory to a file that other processes can map, unless it is in one. Nothing may
    /// use the memory meanwhile.
    pub(crate) fn export(&self, at: u64) -> Result<Export, Status> {
        let mut taken = self.lock();
        let allocation = taken.get_mut(&at).filter(|allocation| allocation.kind == Kind::Device);
        let allocation = allocation.ok_or(Status::InvalidValue)?;
        if let Some(export) = allocation.file {
            return Ok(export);
        }
        // SAFETY: an allocation, which stays while the table is locked.
        let contents = unsafe { Span::new(at, allocation.bytes) }.to_vec();
        let (export, file) = Export::create(allocation.device, &contents)?;
        self.reservation.show(at, pages(allocation.bytes), &file).inspect_err(|_| export.remove())?;
        allocation.file = Some(export);
        Ok(export)
    }

    /// Maps memory of another process. If the context has mapped it already, returns the same
    /// address.
    pub(crate) fn import(&self, export: Export, (context, device): (Handle, u32)) -> Result<u64, Status> {
        let mut taken = self.lock();
        let is_same = |other: &&mut Allocation| {
            other.kind == Kind::Imported && other.context == context && other.file == Some(export)
        };
        if let Some(known) = taken.values_mut().find(is_same) {
            known.opened += 1;
            return Ok(known.at);
        }
        let file = export.open()?;
        let (bytes, at) = (export.bytes, self.place(&taken, export.bytes, PAGE_BYTES)?);
        self.reservation.show(at, pages(bytes), &file)?;
        self.searched_to.store(at + pages(bytes), Ordering::Relaxed);
        let file = Some(export);
        taken.insert(at, Allocation { at, bytes, kind: Kind::Imported, context, device, file, opened: 1 });
        Ok(at)
    }

    /// Unmaps memory of another process once it has been closed as often as it was opened.
    pub(crate) fn close(&self, at: u64) -> Result<(), Status> {
        let mut taken = self.lock();
        let allocation = taken.get_mut(&at).filter(|allocation| allocation.kind == Kind::Imported);
        let allocation = allocation.ok_or(Status::InvalidValue)?;
        allocation.opened -= 1;
        if allocation.opened == 0 {
            let closed = *allocation;
            self.release(closed)?;
            taken.remove(&at);
        }
        Ok(())
    }

    /// Frees an allocation by its first address.
    pub(crate) fn give_back(&self, at: u64, kind: Kind) -> Result<(), Status> {
        let mut taken = self.lock();
        let allocation = taken.get(&at).copied().filter(|allocation| allocation.kind == kind);
        let allocation = allocation.ok_or(if kind == Kind::Registered {
            Status::HostMemoryNotRegistered
        } else {
            Status::InvalidValue
        })?;
        self.release(allocation)?;
        taken.remove(&at);
        Ok(())
    }

    /// Frees all allocations of a context.
    pub(crate) fn give_back_all(&self, context: Handle) {
        let mut taken = self.lock();
        taken.retain(|_, allocation| allocation.context != context || self.release(*allocation).is_err());
    }

    /// The allocation at an address.
    pub(crate) fn find(&self, at: u64) -> Option<Allocation> {
        let taken = self.lock();
        let (_, &allocation) = taken.range(..=at).next_back()?;
        (at < allocation.at + allocation.bytes).then_some(allocation)
    }

    /// A range that the device may access in a copy or a fill: inside one allocation.
    pub(crate) fn span(&self, at: u64, bytes: u64) -> Result<Span, Status> {
        let allocation = self.find(at).ok_or(Status::InvalidValue)?;
        if bytes > allocation.at + allocation.bytes - at {
            return Err(Status::InvalidValue);
        }
        // SAFETY: it is inside an allocation, which is only freed while its context is idle.
        let span = unsafe { Span::new(at, bytes) };
        let is_private = allocation.kind != Kind::Registered && allocation.file.is_none();
        // SAFETY: memory that is not the program's is in the reservation.
        Ok(if is_private { unsafe { span.of_reservation() } } else { span })
    }

    /// Free and total bytes of a device.
    pub(crate) fn free_and_total(&self, device: u32) -> (u64, u64) {
        (self.device_bytes_max.saturating_sub(used(&self.lock(), device)), self.device_bytes_max)
    }

    /// The address for a new allocation.
    fn place(&self, taken: &BTreeMap<u64, Allocation>, bytes: u64, align: u64) -> Result<u64, Status> {
        let align = align.max(PAGE_BYTES);
        let ahead = self.gap(taken, self.searched_to.load(Ordering::Relaxed), bytes, align);
        ahead.or_else(|| self.gap(taken, self.reservation.base(), bytes, align)).ok_or(Status::OutOfMemory)
    }

    /// The first gap at or above an address that is large enough, with a free page between it and
    /// other allocations.
    fn gap(&self, taken: &BTreeMap<u64, Allocation>, from: u64, bytes: u64, align: u64) -> Option<u64> {
        let before = taken.range(self.reservation.base()..from).next_back();
        let from =
            before.map_or(from, |(_, allocation)| from.max(allocation.at + pages(allocation.bytes) + PAGE_BYTES));
        let mut at = from.checked_next_multiple_of(align)?;
        let wanted = bytes.checked_next_multiple_of(PAGE_BYTES)?.checked_add(PAGE_BYTES)?;
        for allocation in taken.range(from..self.reservation.end()).map(|(_, allocation)| allocation) {
            if allocation.at >= at.checked_add(wanted)? {
                break;
            }
            at = at.max((allocation.at + pages(allocation.bytes) + PAGE_BYTES).checked_next_multiple_of(align)?);
        }
        (at.checked_add(wanted)? <= self.reservation.end()).then_some(at)
    }

    fn release(&self, allocation: Allocation) -> Result<(), Status> {
        if allocation.kind == Kind::Registered {
            return Ok(());
        }
        if let Some(export) = allocation.file.filter(|_| allocation.kind == Kind::Device) {
            export.remove();
        }
        self.reservation.give_back(allocation.at, pages(allocation.bytes))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Allocation>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pages(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES)
}

fn used(taken: &BTreeMap<u64, Allocation>, device: u32) -> u64 {
    let is_meant = |allocation: &&Allocation| allocation.kind == Kind::Device && allocation.device == device;
    taken.values().filter(is_meant).map(|allocation| pages(allocation.bytes)).sum()
}
