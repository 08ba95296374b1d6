//! Words in device memory that the host writes through the GPU's BAR, a window on the bus into
//! device memory, which GDRCopy's kernel module maps into the process.
//!
//! GDRCopy (<https://github.com/NVIDIA/gdrcopy>) is loaded at run time; most machines do not have
//! it.

use crate::context::Context;
use crate::driver::loader_message;
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

/// Names of the installed library.
const LIBRARY_NAMES: [&str; 2] = ["libgdrapi.so.2", "libgdrapi.so"];

/// Mappings begin and end at GPU page boundaries.
const PAGE_BYTES: u64 = 64 << 10;

/// Why BAR words are not available.
#[derive(Debug, thiserror::Error)]
pub enum BarError {
    /// GDRCopy's library is not installed.
    #[error("GDRCopy is not installed ({0})")]
    NoLibrary(String),
    /// A call of GDRCopy failed, for example because its kernel module is not loaded.
    #[error("GDRCopy failed: `{0}`")]
    Refused(&'static str),
    /// The driver failed to allocate memory.
    #[error(transparent)]
    Driver(#[from] CudaError),
}

type Gdr = *mut c_void;

/// `gdr_mh_t`: the handle of a pinned buffer.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Pinned(c_ulong);

/// GDRCopy's functions, as declared in `gdrapi.h`.
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
            // SAFETY: GDRCopy's library has no preconditions for loading.
            match unsafe { Library::new(name) } {
                Ok(library) => {
                    return Functions::of(library).map_err(|error| BarError::NoLibrary(loader_message(&error)));
                }
                Err(error) => why = loader_message(&error),
            }
        }
        Err(BarError::NoLibrary(why))
    }

    fn of(library: Library) -> Result<Functions, libloading::Error> {
        // SAFETY: the types are those of the functions in GDRCopy's header; the pointers are not
        // kept longer than the library, which is stored with them.
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

/// Words in device memory that are mapped into this process.
pub struct BarWords {
    functions: Functions,
    gdr: Gdr,
    pinned: Pinned,
    /// The mapping and its size in bytes; null if there is none yet.
    mapping: *mut c_void,
    bytes: usize,
    /// The first word in the mapping.
    words: *mut AtomicU32,
    count: usize,
    /// Declared last, so it is freed after the mapping.
    memory: DeviceMemory,
}

// SAFETY: the memory is accessed by atomics only, and GDRCopy's functions are thread-safe.
unsafe impl Send for BarWords {}
// SAFETY: as above.
unsafe impl Sync for BarWords {}

impl BarWords {
    /// Allocates `count` zeroed words. `library` is the path of GDRCopy's library; the installed
    /// one if `None`.
    pub fn new(
        context: &Arc<Context>,
        stream: &Stream,
        count: usize,
        library: Option<&Path>,
    ) -> Result<BarWords, BarError> {
        let functions = Functions::load(library)?;
        let memory = DeviceMemory::new(context, count as u64 * 4)?;
        stream.fill(&memory, 0, 0, count as u64 * 4).map_err(|_| BarError::Refused("cuMemsetD8Async"))?;
        // SAFETY: takes no arguments.
        let gdr = unsafe { (functions.open)() };
        if gdr.is_null() {
            return Err(BarError::Refused("gdr_open"));
        }
        let into_page = memory.address() % PAGE_BYTES;
        let bytes = (into_page + count as u64 * 4) as usize;
        let (mapping, words, pinned) = (ptr::null_mut(), ptr::null_mut(), Pinned(0));
        // Dropping it undoes the steps done so far.
        let mut bar = BarWords { functions, gdr, pinned, mapping, bytes, words, count, memory };
        let mut pinned = Pinned(0);
        // SAFETY: the memory is ours and outlives the pin; the call writes one handle to the given
        // address.
        let refused =
            unsafe { (bar.functions.pin)(gdr, bar.memory.address() as c_ulong, count * 4, 0, 0, &mut pinned) };
        if refused != 0 {
            return Err(BarError::Refused("gdr_pin_buffer"));
        }
        bar.pinned = pinned;
        let mut mapping = ptr::null_mut();
        // SAFETY: the buffer was just pinned; the call writes one address to the given address.
        if unsafe { (bar.functions.map)(gdr, pinned, &mut mapping, bytes) } != 0 || mapping.is_null() {
            // SAFETY: it is pinned and not mapped.
            unsafe { (bar.functions.unpin)(gdr, pinned) };
            return Err(BarError::Refused("gdr_map"));
        }
        bar.mapping = mapping;
        // The mapping begins with the page in which the memory begins.
        bar.words = mapping.wrapping_byte_add(into_page as usize).cast();
        Ok(bar)
    }

    /// The address of the first word for kernels; the others follow.
    pub fn address(&self) -> DevicePtr {
        self.memory.address()
    }

    /// Writes a word; running kernels see it a short time later.
    ///
    /// # Panics
    /// If the index is out of range.
    pub fn store(&self, index: usize, value: u32) {
        self.word(index).store(value, Release);
        // The mapping is write-combining; this sends the write.
        flush_writes();
    }

    /// Reads a word over the bus, which takes about a microsecond.
    ///
    /// # Panics
    /// If the index is out of range.
    pub fn load(&self, index: usize) -> u32 {
        self.word(index).load(Acquire)
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        assert!(index < self.count, "word {index} of {}", self.count);
        // SAFETY: the index is inside the mapping, which lives as long as `self` and is only
        // accessed by atomics here and by strong accesses of kernels.
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
        // SAFETY: each object is ours and not used again. The mapping is removed before the pin,
        // and the pin before the library's handle.
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
    // SAFETY: every x86-64 processor has this instruction; it accesses no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}
