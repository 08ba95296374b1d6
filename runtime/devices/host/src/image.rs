//! A shared object in memory, mapped by this crate instead of the system's loader.
//!
//! The system's loader opens objects by path, which an executor cannot (`executor::jail`), and runs
//! an object's initializers before anything is checked. Atoll's objects need little: segments, and
//! words that hold addresses of their own. An object that needs anything else is refused; the error
//! names it.

use super::elf::{Segment, check_shared_object};
use object::elf as abi;
use object::{Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use std::collections::HashMap;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;

/// Most address space of an object in bytes; zero-initialized variables take address space without
/// file contents.
const SPAN_BYTES_MAX: u64 = 4 << 30;

/// An object that is mapped.
#[derive(Debug)]
pub(crate) struct Image {
    start: NonNull<c_void>,
    bytes: usize,
    /// The range of its instructions, as addresses.
    code: Range<u64>,
    /// Symbols that it exports, by name.
    symbols: HashMap<String, u64>,
}

// SAFETY: the mapping belongs to the image until it is dropped and is not tied to a thread.
unsafe impl Send for Image {}
// SAFETY: nothing changes it after `load`, except kernels, which synchronize accesses to their
// variables themselves.
unsafe impl Sync for Image {}

impl Image {
    /// Maps an object and applies its relocations. The error names what is wrong with it.
    pub(crate) fn load(code: &[u8]) -> Result<Image, String> {
        let segments = check_shared_object(code)?;
        let file = object::File::parse(code).map_err(|error| format!("cannot parse its tables: {error}"))?;
        refuse_unsupported_sections(&file)?;
        let bytes = segments.iter().map(|segment| segment.memory.end).max().unwrap_or(0).next_multiple_of(page());
        if bytes > SPAN_BYTES_MAX {
            return Err(format!("it needs {bytes} bytes of address space, {SPAN_BYTES_MAX} is the limit"));
        }
        let mut image = Image::reserve(bytes as usize)?;
        for segment in &segments {
            image.fill(segment, code)?;
        }
        image.find_symbols(&file, &segments)?;
        image.relocate(&file, &segments)?;
        for segment in &segments {
            image.protect(segment)?;
        }
        Ok(image)
    }

    /// The address of its first byte.
    pub(crate) fn base(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// The range of its instructions, as addresses.
    pub(crate) fn code(&self) -> &Range<u64> {
        &self.code
    }

    /// The address of an exported function.
    pub(crate) fn function(&self, name: &str) -> Option<u64> {
        self.symbols.get(name).map(|at| self.base() + at).filter(|address| self.code.contains(address))
    }

    /// The value of an exported 32-bit number.
    pub(crate) fn number(&self, name: &str) -> Option<u32> {
        let at = *self.symbols.get(name)?;
        // SAFETY: `find_symbols` checked that it lies in a segment, and segments are readable.
        Some(unsafe { self.start.byte_add(at as usize).cast::<u32>().read_unaligned() })
    }

    fn reserve(bytes: usize) -> Result<Image, String> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address that the kernel chooses.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), flags) };
        let start = start.ok().and_then(NonNull::new).ok_or_else(|| format!("cannot map {bytes} bytes for it"))?;
        Ok(Image { start, bytes, code: 0..0, symbols: HashMap::new() })
    }

    fn fill(&mut self, segment: &Segment, code: &[u8]) -> Result<(), String> {
        self.allow(segment, MprotectFlags::READ | MprotectFlags::WRITE)?;
        let from = code
            .get(segment.file.start as usize..segment.file.end as usize)
            .ok_or("a segment lies outside the file")?;
        // SAFETY: `check_shared_object` checked that a segment takes at least as much memory as it
        // has in the file, and the reservation reaches to the end of the last segment.
        unsafe {
            let to = self.start.byte_add(segment.memory.start as usize).cast::<u8>();
            std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len());
        }
        if segment.is_executable {
            let (begin, end) = (self.base() + segment.memory.start, self.base() + segment.memory.end);
            self.code =
                if self.code.is_empty() { begin..end } else { self.code.start.min(begin)..self.code.end.max(end) };
        }
        Ok(())
    }

    fn find_symbols(&mut self, file: &object::File<'_>, segments: &[Segment]) -> Result<(), String> {
        for symbol in file.dynamic_symbols() {
            let name = symbol.name().map_err(|error| format!("a symbol has no name: {error}"))?;
            if symbol.is_undefined() {
                // The first entry of the table, and the remains of weak references.
                if name.is_empty() || symbol.is_weak() {
                    continue;
                }
                return Err(format!("it needs the external symbol `{name}`"));
            }
            // With room for a 32-bit number. Linkers also mark the ends of segments, which are not
            // needed.
            if segments.iter().any(|segment| segment.holds(symbol.address(), 4)) {
                self.symbols.insert(name.to_owned(), symbol.address());
            }
        }
        Ok(())
    }

    /// Applies relocations, which depend on the base address.
    fn relocate(&self, file: &object::File<'_>, segments: &[Segment]) -> Result<(), String> {
        let Some(relocations) = file.dynamic_relocations() else { return Ok(()) };
        for (at, relocation) in relocations {
            let RelocationFlags::Elf { r_type } = relocation.flags() else {
                return Err("a relocation is not an ELF relocation".to_owned());
            };
            let value = match r_type {
                abi::R_X86_64_RELATIVE => self.base().wrapping_add_signed(relocation.addend()),
                abi::R_X86_64_64 | abi::R_X86_64_GLOB_DAT | abi::R_X86_64_JUMP_SLOT => {
                    let RelocationTarget::Symbol(index) = relocation.target() else {
                        return Err("a relocation without a symbol".to_owned());
                    };
                    let symbol = file
                        .dynamic_symbol_table()
                        .and_then(|table| object::ObjectSymbolTable::symbol_by_index(&table, index).ok());
                    let symbol = symbol.ok_or("a relocation without a symbol")?;
                    if symbol.is_undefined() {
                        0
                    } else {
                        self.base().wrapping_add(symbol.address()).wrapping_add_signed(relocation.addend())
                    }
                }
                other => return Err(format!("it has relocations of type {}, which are not supported", other.0)),
            };
            let segment = segments
                .iter()
                .find(|segment| segment.holds(at, 8))
                .ok_or("a relocation lies outside of its segments")?;
            if segment.is_executable {
                return Err("it has relocations in its code".to_owned());
            }
            // SAFETY: inside a segment, which lies inside the mapping and is writable until
            // `protect`.
            unsafe { self.start.byte_add(at as usize).cast::<u64>().write_unaligned(value) };
        }
        Ok(())
    }

    fn protect(&self, segment: &Segment) -> Result<(), String> {
        let mut flags = MprotectFlags::READ;
        flags.set(MprotectFlags::WRITE, segment.is_writable);
        flags.set(MprotectFlags::EXEC, segment.is_executable);
        self.allow(segment, flags)
    }

    fn allow(&self, segment: &Segment, flags: MprotectFlags) -> Result<(), String> {
        let pages = segment.pages(page());
        // SAFETY: pages of our own mapping that belong to one segment.
        let answer = unsafe {
            rustix::mm::mprotect(
                self.start.byte_add(pages.start as usize).as_ptr(),
                (pages.end - pages.start) as usize,
                flags,
            )
        };
        answer.map_err(|error| format!("cannot protect a segment: {error}"))
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: we own the mapping; callers of its functions keep the image alive.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.bytes) };
    }
}

/// Refuses an object that needs more from a loader than mapping and relocations.
fn refuse_unsupported_sections(file: &object::File<'_>) -> Result<(), String> {
    for section in file.sections() {
        let object::SectionFlags::Elf { sh_flags, .. } = section.flags() else { continue };
        let name = section.name().unwrap_or("without a name");
        if sh_flags.0 & abi::SHF_TLS.0 != 0 {
            return Err(format!("its section {name} has thread-local variables, which are not supported"));
        }
        if matches!(name, ".init" | ".fini" | ".init_array" | ".fini_array" | ".preinit_array" | ".relr.dyn")
            && section.size() > 0
        {
            return Err(format!("its section {name} is not supported"));
        }
    }
    Ok(())
}

fn page() -> u64 {
    rustix::param::page_size() as u64
}
