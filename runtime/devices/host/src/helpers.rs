//! The functions that native code may call ([`HostHelpers`]), and the record they leave for the
//! compute unit.
//!
//! A helper runs on the thread of the kernel that called it. Reading through a kernel's pointer may
//! fault. The frames of the helper and of the kernel are then dropped without running destructors.
//! So a helper holds no lock while it reads through such a pointer; at worst, each fault leaks
//! memory once.

use super::bounds::{self, Bounds};
use super::launch::Launch;
use atoll_device::printf;
use atoll_kgraph::host_abi::{Access, AccessKind, AccessSpace, HostContext, HostHelpers, NO_THREAD, TrapCode};
use std::ffi::CString;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Longest format and longest string argument, in bytes; the rest is ignored.
const STRING_BYTES_MAX: usize = 4 << 10;

/// The context that a compute unit passes to a kernel, followed by the records that helpers write.
/// One per call.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct UnitContext<'a> {
    pub(crate) host: HostContext,
    pub(crate) launch: &'a Launch,
    /// The block that is running.
    pub(crate) block: AtomicU64,
    /// A [`TrapCode`]; 0 if there was no trap.
    code: AtomicU32,
    line: AtomicU32,
    thread: AtomicU32,
    access: AtomicU32,
    address: AtomicU64,
    local_bytes: AtomicU32,
}

/// A trap that native code reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrapNote {
    pub(crate) code: TrapCode,
    pub(crate) line: u32,
    pub(crate) thread: u32,
    pub(crate) access: Option<Access>,
    pub(crate) address: u64,
    /// Bytes of local memory that a thread has, if the access was to local memory.
    pub(crate) local_bytes: u32,
}

impl<'a> UnitContext<'a> {
    pub(crate) fn new(host: HostContext, launch: &'a Launch) -> UnitContext<'a> {
        let [code, line, thread, access, local_bytes] = [0; 5].map(AtomicU32::new);
        let (block, address) = (AtomicU64::new(host.block_begin), AtomicU64::new(0));
        UnitContext { host, launch, block, code, line, thread, access, address, local_bytes }
    }

    /// The trap that the kernel reported, if any.
    pub(crate) fn trap(&self) -> Option<TrapNote> {
        let code = match self.code.load(Relaxed) {
            0 => return None,
            // An unknown code is a trap as well.
            code => TrapCode::from_u32(code).unwrap_or(TrapCode::Trap),
        };
        let (line, thread, local_bytes) =
            (self.line.load(Relaxed), self.thread.load(Relaxed), self.local_bytes.load(Relaxed));
        let access = Access::from_bits(self.access.load(Relaxed));
        Some(TrapNote { code, line, thread, access, address: self.address.load(Relaxed), local_bytes })
    }

    fn note(&self, code: u32, line: u32, thread: u32, access: u32, address: u64) {
        self.line.store(line, Relaxed);
        self.thread.store(thread, Relaxed);
        self.access.store(access, Relaxed);
        self.address.store(address, Relaxed);
        self.code.store(code.max(1), Relaxed);
    }

    /// The compute unit's own memory that a thread may access in state space `space`.
    fn own_memory(&self, space: AccessSpace, thread: u32, local_bytes: u32) -> impl Iterator<Item = OwnMemory> {
        let host = &self.host;
        let local_bytes = if thread == NO_THREAD { 0 } else { u64::from(local_bytes) };
        let local = host.scratch + u64::from(thread) * local_bytes;
        let params_bytes = u64::from(self.launch.kernel().facts.params_bytes);
        [
            OwnMemory {
                space: AccessSpace::Shared,
                name: "shared memory",
                begin: host.shared,
                bytes: host.shared_bytes.into(),
            },
            OwnMemory { space: AccessSpace::Local, name: "local memory", begin: local, bytes: local_bytes },
            OwnMemory { space: AccessSpace::Param, name: "parameters", begin: host.params, bytes: params_bytes },
        ]
        .into_iter()
        .filter(move |memory| memory.bytes > 0 && (space == AccessSpace::Generic || space == memory.space))
    }

    fn allows(&self, access: Access, thread: u32, address: u64, local_bytes: u32) -> bool {
        let bytes = u64::from(access.bytes);
        let fits = |memory: OwnMemory| {
            let inside = address.checked_sub(memory.begin).is_some_and(|at| at.saturating_add(bytes) <= memory.bytes);
            inside && (memory.space != AccessSpace::Param || access.kind == AccessKind::Read)
        };
        is_device_memory(access.space)
            && self.launch.bounds().iter().any(|bounds| bounds.check(address, bytes, access.kind).is_ok())
            || self.own_memory(access.space, thread, local_bytes).any(fits)
    }

    /// Describes the address of a trap in relation to the memory that its access may touch.
    pub(crate) fn describe(&self, note: &TrapNote) -> Option<String> {
        let access = note.access?;
        let mut ranges: Vec<bounds::Range> =
            self.own_memory(access.space, note.thread, note.local_bytes).map(OwnMemory::range).collect();
        if is_device_memory(access.space) {
            ranges.extend(self.launch.bounds().iter().flat_map(|bounds| bounds.ranges()).cloned());
        }
        Bounds::new(ranges).describe(note.address, access.bytes.into())
    }
}

/// A compute unit's memory that belongs to the running block or thread.
struct OwnMemory {
    space: AccessSpace,
    name: &'static str,
    begin: u64,
    bytes: u64,
}

impl OwnMemory {
    fn range(self) -> bounds::Range {
        bounds::Range {
            name: self.name.to_owned(),
            begin: self.begin,
            end: self.begin + self.bytes,
            read_only: self.space == AccessSpace::Param,
        }
    }
}

/// Whether accesses in a state space may go to buffers and module variables.
fn is_device_memory(space: AccessSpace) -> bool {
    matches!(space, AccessSpace::Global | AccessSpace::Const | AccessSpace::Generic)
}

/// The table of helpers, which all calls share.
pub(crate) fn table() -> HostHelpers {
    HostHelpers { trap: trap as *const () as u64, print: print as *const () as u64, check: check as *const () as u64 }
}

/// The context of the call, with its records.
///
/// # Safety
/// `context` must be the one that the running kernel was called with.
unsafe fn unit<'a>(context: *const HostContext) -> &'a UnitContext<'a> {
    // SAFETY: kernels get the address of the `host` field of a `UnitContext`, its first field, and
    // no other context; its mutable fields are atomic.
    unsafe { &*context.cast::<UnitContext<'a>>() }
}

/// [`HostHelpers::trap`].
///
/// # Safety
/// As for [`unit`].
unsafe extern "C" fn trap(context: *const HostContext, code: u32, line: u32, thread: u32, access: u32, address: u64) {
    // SAFETY: as the caller guarantees.
    unsafe { unit(context) }.note(code, line, thread, access, address);
}

/// [`HostHelpers::check`].
///
/// # Safety
/// As for [`unit`].
unsafe extern "C" fn check(
    context: *const HostContext,
    access: u32,
    line: u32,
    thread: u32,
    address: u64,
    local_bytes: u32,
) -> u32 {
    // SAFETY: as the caller guarantees.
    let unit = unsafe { unit(context) };
    let code = match Access::from_bits(access) {
        Some(access) if access.bytes > 0 && !address.is_multiple_of(access.bytes.into()) => TrapCode::Misaligned,
        Some(access) if unit.allows(access, thread, address, local_bytes) => return 1,
        _ => TrapCode::OutOfBounds,
    };
    unit.local_bytes.store(local_bytes, Relaxed);
    unit.note(code as u32, line, thread, access, address);
    0
}

/// [`HostHelpers::print`].
///
/// # Safety
/// As for [`unit`]; the other pointers may have any value.
unsafe extern "C" fn print(
    context: *const HostContext,
    format: u64,
    arguments: u64,
    arguments_bytes: u32,
    line: u32,
    thread: u32,
) -> i32 {
    // SAFETY: as the caller guarantees.
    let unit = unsafe { unit(context) };
    // SAFETY: reading an invalid address ends the kernel.
    let format = unsafe { string_at(format) };
    let mut packed = Packed { at: arguments, taken: 0, bytes: u64::from(arguments_bytes) };
    let Some((text, taken)) = printf::format(format.as_bytes(), &mut packed) else {
        tracing::warn!(
            kernel = unit.launch.kernel().facts.name,
            line,
            thread,
            "a kernel's printf asks for more arguments than it has"
        );
        return -1;
    };
    unit.launch.draft.print(&text);
    taken
}

/// Arguments in CUDA's layout for `vprintf`.
struct Packed {
    at: u64,
    taken: u64,
    bytes: u64,
}

impl printf::Arguments for Packed {
    fn number(&mut self, bytes: usize) -> Option<u64> {
        let from = self.taken.next_multiple_of(bytes as u64);
        self.taken = from + bytes as u64;
        if self.taken > self.bytes {
            return None;
        }
        let at = self.at.wrapping_add(from);
        // SAFETY: reading an invalid address ends the kernel; any bits are a number.
        Some(unsafe {
            if bytes == 4 {
                u64::from(std::ptr::without_provenance::<u32>(at as usize).read_unaligned())
            } else {
                std::ptr::without_provenance::<u64>(at as usize).read_unaligned()
            }
        })
    }

    fn string(&mut self, address: u64) -> CString {
        if address == 0 {
            return c"(null)".to_owned();
        }
        // SAFETY: reading an invalid address ends the kernel.
        unsafe { string_at(address) }
    }
}

/// The string at an address that a kernel passed.
///
/// # Safety
/// Only call it from a helper: an invalid address ends the kernel that called the helper.
unsafe fn string_at(address: u64) -> CString {
    let mut bytes = Vec::new();
    while bytes.len() < STRING_BYTES_MAX {
        // SAFETY: as the caller guarantees.
        match unsafe { std::ptr::with_exposed_provenance::<u8>(address as usize + bytes.len()).read_volatile() } {
            0 => break,
            byte => bytes.push(byte),
        }
    }
    CString::new(bytes).unwrap_or_default()
}
