//! Memory by address: memory of devices, pinned memory, registered memory of the program, and
//! memory of other processes. Host and device use the same addresses.
//!
//! The memory of a device is an anonymous file, so that another process can open it.

use crate::ipc;
use crate::status::Status;
use atoll_amd_interp::AddressSpace;
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Allocations begin at multiples of this many bytes.
const PAGE_BYTES: u64 = 4096;

/// New memory has arbitrary contents on a GPU. Here its first bytes are set to this.
const FILL_BYTE: u8 = 0xcb;
const FILL_BYTES_MAX: u64 = 64 << 10;

/// The first word of a memory handle.
const MAGIC: u64 = 0x6b_6e_61_68_2d_70_69_68;

/// The kind of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Memory of a device, by its ordinal.
    Device(u32),
    /// Pinned host memory that the library allocated.
    Pinned,
    /// Memory of the program that was registered.
    Registered,
    /// Memory of another process's device.
    Foreign,
}

/// A range of memory that the library knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Allocation {
    bytes: u64,
    kind: Kind,
}

/// The memory of one device.
#[derive(Debug)]
struct Store {
    file: OwnedFd,
    base: u64,
    bytes: u64,
}

/// All memory that kernels and copies may access.
#[derive(Debug)]
pub(crate) struct Space {
    stores: Vec<Store>,
    /// Whether other processes can ask for the files of the stores, which begins with the first
    /// handle.
    served: OnceLock<Result<(), Status>>,
    taken: RwLock<BTreeMap<u64, Allocation>>,
}

impl Space {
    /// Memory for `devices` devices of `bytes` bytes each.
    pub(crate) fn new(devices: u32, bytes: u64) -> Result<Space, Status> {
        let stores = (0..devices).map(|_| Store::new(bytes)).collect::<Result<_, Status>>()?;
        Ok(Space { stores, served: OnceLock::new(), taken: RwLock::default() })
    }

    fn read_lock(&self) -> RwLockReadGuard<'_, BTreeMap<u64, Allocation>> {
        self.taken.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_lock(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, Allocation>> {
        self.taken.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates memory of a device.
    pub(crate) fn take(&self, device: u32, bytes: u64) -> Result<u64, Status> {
        let store = self.stores.get(device as usize).ok_or(Status::InvalidDevice)?;
        let wanted = pages(bytes.max(1)).ok_or(Status::OutOfMemory)?;
        let mut taken = self.write_lock();
        let mut at = store.base;
        for (begin, allocation) in taken.range(store.base..store.base + store.bytes) {
            if begin - at >= wanted {
                break;
            }
            // One page stays unmapped, so that an access past the end faults.
            at = begin + pages(allocation.bytes).ok_or(Status::OutOfMemory)? + PAGE_BYTES;
        }
        if at.checked_add(wanted).is_none_or(|end| end > store.base + store.bytes) {
            return Err(Status::OutOfMemory);
        }
        taken.insert(at, Allocation { bytes: bytes.max(1), kind: Kind::Device(device) });
        // SAFETY: the range is in our own mapping, and nothing refers to it yet.
        unsafe { ptr::write_bytes(pointer(at).cast::<u8>(), FILL_BYTE, bytes.min(FILL_BYTES_MAX) as usize) };
        Ok(at)
    }

    /// Allocates pinned host memory, zeroed.
    pub(crate) fn take_pinned(&self, bytes: u64) -> Result<u64, Status> {
        let size = pages(bytes.max(1)).ok_or(Status::OutOfMemory)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the system chooses.
        let at = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), size as usize, access, MapFlags::PRIVATE) };
        let at = at.map_err(|_| Status::OutOfMemory)? as u64;
        self.write_lock().insert(at, Allocation { bytes: bytes.max(1), kind: Kind::Pinned });
        Ok(at)
    }

    /// Registers memory of the program.
    pub(crate) fn register(&self, at: u64, bytes: u64) -> Result<(), Status> {
        let end = at.checked_add(bytes).filter(|_| at != 0 && bytes > 0).ok_or(Status::InvalidValue)?;
        let mut taken = self.write_lock();
        if taken.range(..end).next_back().is_some_and(|(begin, before)| begin + before.bytes > at) {
            return Err(Status::HostMemoryAlreadyRegistered);
        }
        taken.insert(at, Allocation { bytes, kind: Kind::Registered });
        Ok(())
    }

    /// Frees the allocation that begins at an address, if its kind is accepted.
    pub(crate) fn give_back(&self, at: u64, accepts: impl Fn(Kind) -> bool) -> Result<(), Status> {
        let mut taken = self.write_lock();
        let found = taken.get(&at).copied().filter(|allocation| accepts(allocation.kind));
        let Allocation { bytes, kind } = found.ok_or(Status::InvalidValue)?;
        taken.remove(&at);
        if matches!(kind, Kind::Pinned | Kind::Foreign) {
            let size = pages(bytes).ok_or(Status::InvalidValue)?;
            // SAFETY: the library mapped these pages at this address, and the program does not use
            // them any more, as the reference requires.
            unsafe { rustix::mm::munmap(pointer(at), size as usize) }.map_err(|_| Status::OperatingSystem)?;
        }
        Ok(())
    }

    /// The kind of the memory at an address.
    pub(crate) fn kind_at(&self, at: u64) -> Option<Kind> {
        let taken = self.read_lock();
        let (begin, allocation) = taken.range(..=at).next_back()?;
        (at - begin < allocation.bytes).then_some(allocation.kind)
    }

    /// Whether a range is inside one allocation.
    pub(crate) fn has(&self, at: u64, bytes: u64) -> bool {
        let taken = self.read_lock();
        let Some((begin, allocation)) = taken.range(..=at).next_back() else { return false };
        at.checked_add(bytes).is_some_and(|end| end <= begin + allocation.bytes)
    }

    /// Free and total bytes of a device.
    pub(crate) fn free_and_total(&self, device: u32) -> (u64, u64) {
        let total = self.stores.get(device as usize).map_or(0, |store| store.bytes);
        let taken = self.read_lock();
        let of_device = taken.values().filter(|allocation| allocation.kind == Kind::Device(device));
        let used: u64 = of_device.map(|allocation| pages(allocation.bytes).unwrap_or(total) + PAGE_BYTES).sum();
        (total.saturating_sub(used), total)
    }

    /// A handle with which another process can open the device memory that begins at an address.
    pub(crate) fn share(&self, at: u64) -> Result<[u8; 64], Status> {
        let allocation = self.read_lock().get(&at).copied().ok_or(Status::InvalidValue)?;
        let Kind::Device(device) = allocation.kind else { return Err(Status::InvalidValue) };
        let store = self.stores.get(device as usize).ok_or(Status::InvalidValue)?;
        self.served.get_or_init(|| self.serve().map_err(|_| Status::OperatingSystem)).as_ref().map_err(|why| *why)?;
        let words = [
            MAGIC,
            u64::from(std::process::id()),
            u64::from(device),
            at - store.base,
            pages(allocation.bytes).ok_or(Status::InvalidValue)?,
            allocation.bytes,
        ];
        let mut handle = [0; 64];
        for (place, word) in handle.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        Ok(handle)
    }

    fn serve(&self) -> std::io::Result<()> {
        ipc::serve(self.stores.iter().map(|store| store.file.try_clone()).collect::<std::io::Result<_>>()?)
    }

    /// Maps the memory that another process has shared.
    pub(crate) fn open(&self, handle: &[u8; 64]) -> Result<u64, Status> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| handle[at * 8 + byte]));
        let [magic, process, device, offset, size, bytes] = std::array::from_fn(word);
        if magic != MAGIC || size == 0 || bytes > size {
            return Err(Status::InvalidValue);
        }
        if process == u64::from(std::process::id()) {
            return Err(Status::InvalidContext);
        }
        let device = u8::try_from(device).map_err(|_| Status::InvalidValue)?;
        let file = ipc::receive(process, device).map_err(|_| Status::MapFailed)?;
        let at = map(&file, offset, size).map_err(|_| Status::MapFailed)?;
        self.write_lock().insert(at, Allocation { bytes, kind: Kind::Foreign });
        Ok(at)
    }

    /// Copies between ranges of this process. Each is device memory, or memory that the program
    /// keeps valid until the operation is complete.
    pub(crate) fn copy(&self, to: u64, from: u64, bytes: u64) {
        if bytes == 4 && to.is_multiple_of(4) && from.is_multiple_of(4) {
            // One word is copied by an atomic store, since a running kernel may poll it.
            word(to).store(word(from).load(Ordering::Acquire), Ordering::Release);
            return;
        }
        // SAFETY: the entry points checked device memory, and the program guarantees its own;
        // `copy` allows overlaps.
        unsafe { ptr::copy(pointer(from).cast::<u8>(), pointer(to).cast::<u8>(), bytes as usize) };
    }

    /// Sets bytes.
    pub(crate) fn fill(&self, to: u64, value: u8, bytes: u64) {
        // SAFETY: the entry points checked the range.
        unsafe { ptr::write_bytes(pointer(to).cast::<u8>(), value, bytes as usize) };
    }

    /// Sets words at an address that is a multiple of four.
    pub(crate) fn fill_words(&self, to: u64, value: u32, count: u64) {
        (0..count).for_each(|index| word(to + index * 4).store(value, Ordering::Release));
    }
}

impl AddressSpace for Space {
    fn read(&self, address: u64, out: &mut [u8]) -> bool {
        if !self.has(address, out.len() as u64) {
            return false;
        }
        match out.len() {
            1 => out[0] = byte(address).load(Ordering::Relaxed),
            2 if address.is_multiple_of(2) => out.copy_from_slice(&half(address).load(Ordering::Acquire).to_le_bytes()),
            8 if address.is_multiple_of(8) => out.copy_from_slice(&long(address).load(Ordering::Acquire).to_le_bytes()),
            count if count.is_multiple_of(4) && address.is_multiple_of(4) => {
                for (at, chunk) in (address..).step_by(4).zip(out.chunks_exact_mut(4)) {
                    chunk.copy_from_slice(&word(at).load(Ordering::Acquire).to_le_bytes());
                }
            }
            _ => {
                for (at, to) in (address..).zip(out) {
                    *to = byte(at).load(Ordering::Relaxed);
                }
            }
        }
        true
    }

    fn write(&self, address: u64, bytes: &[u8]) -> bool {
        if !self.has(address, bytes.len() as u64) {
            return false;
        }
        match bytes.len() {
            2 if address.is_multiple_of(2) => {
                half(address).store(u16::from_le_bytes([bytes[0], bytes[1]]), Ordering::Release);
            }
            8 if address.is_multiple_of(8) => {
                long(address).store(u64::from_le_bytes(std::array::from_fn(|at| bytes[at])), Ordering::Release);
            }
            count if count.is_multiple_of(4) && address.is_multiple_of(4) => {
                for (at, chunk) in (address..).step_by(4).zip(bytes.chunks_exact(4)) {
                    word(at).store(u32::from_le_bytes(std::array::from_fn(|byte| chunk[byte])), Ordering::Release);
                }
            }
            _ => {
                for (at, from) in (address..).zip(bytes) {
                    byte(at).store(*from, Ordering::Relaxed);
                }
            }
        }
        true
    }
}

impl Store {
    fn new(bytes: u64) -> Result<Store, Status> {
        let file = rustix::fs::memfd_create("stand-in-hip", MemfdFlags::CLOEXEC).map_err(|_| Status::OutOfMemory)?;
        rustix::fs::ftruncate(&file, bytes).map_err(|_| Status::OutOfMemory)?;
        let base = map(&file, 0, bytes).map_err(|_| Status::OutOfMemory)?;
        Ok(Store { file, base, bytes })
    }
}

/// Maps a part of a file at an address that the system chooses.
fn map(file: impl AsFd, offset: u64, bytes: u64) -> rustix::io::Result<u64> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the system chooses.
    let at = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes as usize, access, MapFlags::SHARED, file, offset) };
    at.map(|at| at as u64)
}

fn pages(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(PAGE_BYTES)
}

fn pointer(at: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(at as usize)
}

/// The byte at an address in memory that the library knows or that the program keeps valid.
fn byte(at: u64) -> &'static AtomicU8 {
    // SAFETY: as said; others access it by atomics or not at all.
    unsafe { AtomicU8::from_ptr(pointer(at).cast()) }
}

/// The same for two bytes at a multiple of two.
fn half(at: u64) -> &'static AtomicU16 {
    // SAFETY: as above.
    unsafe { AtomicU16::from_ptr(pointer(at).cast()) }
}

/// The same for four bytes at a multiple of four.
fn word(at: u64) -> &'static AtomicU32 {
    // SAFETY: as above.
    unsafe { AtomicU32::from_ptr(pointer(at).cast()) }
}

/// The same for eight bytes at a multiple of eight.
fn long(at: u64) -> &'static AtomicU64 {
    // SAFETY: as above.
    unsafe { AtomicU64::from_ptr(pointer(at).cast()) }
}
