//! Words in device memory that the host writes through the GPU's BAR: a window of the bus into its
//! memory, which GDRCopy's kernel module maps into a process.
//!
//! GDRCopy (<https://github.com/NVIDIA/gdrcopy>) is looked for when a program runs, and most machines do not have it.

use crate::context::Context;
use crate::driver::loader_says;
use crate::error::CudaError;
use crate::memory::{DeviceMemory, DevicePtr};
use crate::stream::Stream;
use libloading::Library;
use std::ffi::{c_int, c_ulong, c_void};
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::atomic::{AtomicU32, fence};

/// Names under which the library is installed.
const LIBRARY_NAMES: [&str; 2] = ["libgdrapi.so.2", "libgdrapi.so"];

/// What is mapped begins and ends with a page of the GPU.
const PAGE_BYTES: u64 = 64 << 10;

/// Why there are no such words.
#[derive(Debug, thiserror::Error)]
pub enum BarError {
    /// GDRCopy's library is not here.
    #[error("GDRCopy is not here ({0})")]
    NoLibrary(String),
    /// It refuses, or its kernel module is not loaded.
    #[error("GDRCopy refuses: `{0}` failed")]
    Refused(&'static str),
    /// The driver refuses memory.
    #[error(transparent)]
    Driver(#[from] CudaError),
}

type Gdr = *mut c_void;

/// `gdr_mh_t`: a pinned buffer.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Pinned(c_ulong);

/// GDRCopy's functions, as in its header `gdrapi.h`.
struct Functions {
    open: unsafe extern "C" fn() -> Gdr,
    close: unsafe extern "C" fn(Gdr) -> c_int,
    pin: unsafe extern "C" fn(Gdr, c_ulong, usize, u64, u32, *mut Pinned) -> c_int,
    unpin: unsafe extern "C" fn(Gdr, Pinned) -> c_int,
    map: unsafe extern "C" fn(Gdr, Pinned, *mut *mut c_void, usize) -> c_int,
    unmap: unsafe extern "C" fn(Gdr, Pinned, *mut c_void, usize) -> c_int,
    _library: Library,
}

impl Functions {
    fn load(library: Option<&Path>) -> Result<Functions, BarError> {
        let names = library.map_or_else(|| LIBRARY_NAMES.map(Path::new).to_vec(), |path| vec![path]);
        let mut why = String::new();
        for name in names {
            // SAFETY: what runs when GDRCopy's library is loaded is its own.
            match unsafe { Library::new(name) } {
                Ok(library) => return Functions::of(library).map_err(|error| BarError::NoLibrary(loader_says(&error))),
                Err(error) => why = loader_says(&error),
            }
        }
        Err(BarError::NoLibrary(why))
    }

    fn of(library: Library) -> Result<Functions, libloading::Error> {
        // SAFETY: the types are those of the functions in GDRCopy's header under these names; the pointers
        // are kept no longer than the library, which lies beside them.
        unsafe {
            Ok(Functions {
                open: *library.get(b"gdr_open")?,
                close: *library.get(b"gdr_close")?,
                pin: *library.get(b"gdr_pin_buffer")?,
                unpin: *library.get(b"gdr_unpin_buffer")?,
                map: *library.get(b"gdr_map")?,
                unmap: *library.get(b"gdr_unmap")?,
                _library: library,
            })
        }
    }
}

/// Words in device memory that this process sees.
pub struct BarWords {
    functions: Functions,
    gdr: Gdr,
    pinned: Pinned,
    /// The mapping, and how long it is; null where there is none yet.
    mapping: *mut c_void,
    bytes: usize,
    /// Where the first word is in it.
    words: *mut AtomicU32,
    count: usize,
    /// Freed behind the mapping.
    memory: DeviceMemory,
}

// SAFETY: the memory is touched by atomics only, and GDRCopy's functions lock what they have to.
unsafe impl Send for BarWords {}
// SAFETY: as above.
unsafe impl Sync for BarWords {}

impl BarWords {
    /// So many words, all zero; `library` is GDRCopy's, the installed one where none is named.
    pub fn new(
        context: &Arc<Context>,
        stream: &Stream,
        count: usize,
        library: Option<&Path>,
    ) -> Result<BarWords, BarError> {
        let functions = Functions::load(library)?;
        let memory = DeviceMemory::new(context, count as u64 * 4)?;
        stream.fill(&memory, 0, 0, count as u64 * 4).map_err(|_| BarError::Refused("cuMemsetD8Async"))?;
        // SAFETY: takes nothing.
        let gdr = unsafe { (functions.open)() };
        if gdr.is_null() {
            return Err(BarError::Refused("gdr_open"));
        }
        let into_page = memory.address() % PAGE_BYTES;
        let bytes = (into_page + count as u64 * 4) as usize;
        let (mapping, words, pinned) = (ptr::null_mut(), ptr::null_mut(), Pinned(0));
        // What was begun is undone by dropping it.
        let mut bar = BarWords { functions, gdr, pinned, mapping, bytes, words, count, memory };
        let mut pinned = Pinned(0);
        // SAFETY: the memory is ours and lives longer; writes one handle to the address given.
        let refused =
            unsafe { (bar.functions.pin)(gdr, bar.memory.address() as c_ulong, count * 4, 0, 0, &mut pinned) };
        if refused != 0 {
            return Err(BarError::Refused("gdr_pin_buffer"));
        }
        bar.pinned = pinned;
        let mut mapping = ptr::null_mut();
        // SAFETY: what is mapped was just pinned; writes one address to the address given.
        if unsafe { (bar.functions.map)(gdr, pinned, &mut mapping, bytes) } != 0 || mapping.is_null() {
            // SAFETY: it was pinned and is not mapped.
            unsafe { (bar.functions.unpin)(gdr, pinned) };
            return Err(BarError::Refused("gdr_map"));
        }
        bar.mapping = mapping;
        // The mapping begins with the page that the memory begins in.
        bar.words = mapping.wrapping_byte_add(into_page as usize).cast();
        Ok(bar)
    }

    /// The address of the first as kernels see it; the others follow.
    pub fn address(&self) -> DevicePtr {
        self.memory.address()
    }

    /// Writes a word; kernels that run see it some time later.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn store(&self, index: usize, value: u32) {
        self.word(index).store(value, Release);
        // The mapping combines writes: this sends it off.
        flush_writes();
    }

    /// Reads a word over the bus, which takes about a microsecond.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn load(&self, index: usize) -> u32 {
        self.word(index).load(Acquire)
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        assert!(index < self.count, "word {index} of {}", self.count);
        // SAFETY: the index is within what is mapped as long as `self` lives, which is only touched by
        // atomics here and by strong accesses of kernels.
        unsafe { &*self.words.add(index) }
    }
}

impl std::fmt::Debug for BarWords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BarWords").field("memory", &self.memory).field("count", &self.count).finish_non_exhaustive()
    }
}

impl Drop for BarWords {
    fn drop(&mut self) {
        // SAFETY: each is ours and not used again: the mapping goes before what is pinned, and that before
        // the library's handle.
        unsafe {
            if !self.mapping.is_null() {
                (self.functions.unmap)(self.gdr, self.pinned, self.mapping, self.bytes);
                (self.functions.unpin)(self.gdr, self.pinned);
            }
            (self.functions.close)(self.gdr);
        }
    }
}

fn flush_writes() {
    fence(SeqCst);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction; it touches nothing.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}
