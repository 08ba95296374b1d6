//! A shared object in memory, put there by ourselves.
//!
//! The system's loader finds objects by path, and an executor may open none (`executor::jail`); it
//! also runs what an object asks it to before anybody looked at it. Ours need little: segments, and
//! words that hold addresses of their own. Everything else is refused by name.

use super::elf::{Segment, check_shared_object};
use object::elf as abi;
use object::{Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use std::collections::HashMap;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;

/// Most address space of an object; variables that start as 0 take some without being in the file.
const SPAN_BYTES_MAX: u64 = 4 << 30;

/// An object that is mapped.
#[derive(Debug)]
pub(crate) struct Image {
    start: NonNull<c_void>,
    bytes: usize,
    /// Where its instructions are, and all of it.
    code: Range<u64>,
    /// Symbols that it defines for others, by name.
    symbols: HashMap<String, u64>,
}

// SAFETY: the mapping belongs to the image until it is dropped, and is not tied to a thread.
unsafe impl Send for Image {}
// SAFETY: nothing changes it after `load`; what its code does to its variables is the business of
// kernels.
unsafe impl Sync for Image {}

impl Image {
    /// Maps an object and fills in its addresses. An error says what is wrong with it.
    pub(crate) fn load(code: &[u8]) -> Result<Image, String> {
        let segments = check_shared_object(code)?;
        let file = object::File::parse(code).map_err(|error| format!("its tables cannot be read: {error}"))?;
        refuse_what_is_not_done(&file)?;
        let bytes = segments.iter().map(|segment| segment.memory.end).max().unwrap_or(0).next_multiple_of(page());
        if bytes > SPAN_BYTES_MAX {
            return Err(format!("it wants {bytes} bytes of address space, {SPAN_BYTES_MAX} is the limit"));
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

    /// Where its first byte is mapped.
    pub(crate) fn base(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// Addresses of its instructions.
    pub(crate) fn code(&self) -> &Range<u64> {
        &self.code
    }

    /// The address of a function that it exports.
    pub(crate) fn function(&self, name: &str) -> Option<u64> {
        self.symbols.get(name).map(|at| self.base() + at).filter(|address| self.code.contains(address))
    }

    /// A number that it exports.
    pub(crate) fn number(&self, name: &str) -> Option<u32> {
        let at = *self.symbols.get(name)?;
        // SAFETY: `find_symbols` has seen that it lies in a segment, which can be read.
        Some(unsafe { self.start.byte_add(at as usize).cast::<u32>().read_unaligned() })
    }

    fn reserve(bytes: usize) -> Result<Image, String> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), flags) };
        let start =
            start.ok().and_then(NonNull::new).ok_or_else(|| format!("there is no memory for its {bytes} bytes"))?;
        Ok(Image { start, bytes, code: 0..0, symbols: HashMap::new() })
    }

    fn fill(&mut self, segment: &Segment, code: &[u8]) -> Result<(), String> {
        self.allow(segment, MprotectFlags::READ | MprotectFlags::WRITE)?;
        let from = code
            .get(segment.file.start as usize..segment.file.end as usize)
            .ok_or("a segment lies outside the file")?;
        // SAFETY: `check_shared_object` has seen that a segment takes at least as much memory as it has in
        // the file, and the reservation is as large as the last one's end.
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
                // The first entry of the table, and what weak references leave behind.
                if name.is_empty() || symbol.is_weak() {
                    continue;
                }
                return Err(format!("it needs `{name}` from outside"));
            }
            // With room for the number that it may stand for. Linkers also mark ends, which are of no use to
            // us.
            if segments.iter().any(|segment| segment.holds(symbol.address(), 4)) {
                self.symbols.insert(name.to_owned(), symbol.address());
            }
        }
        Ok(())
    }

    /// Writes the addresses that depend on where it lies.
    fn relocate(&self, file: &object::File<'_>, segments: &[Segment]) -> Result<(), String> {
        let Some(relocations) = file.dynamic_relocations() else { return Ok(()) };
        for (at, relocation) in relocations {
            let RelocationFlags::Elf { r_type } = relocation.flags() else {
                return Err("a relocation of another kind of file".to_owned());
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
                other => return Err(format!("it has relocations of type {}, which are not done", other.0)),
            };
            let segment = segments
                .iter()
                .find(|segment| segment.holds(at, 8))
                .ok_or("a relocation lies outside of its segments")?;
            if segment.is_executable {
                return Err("it has relocations in its code".to_owned());
            }
            // SAFETY: inside a segment, which lies inside the mapping and can be written until `protect`.
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
        answer.map_err(|error| format!("a segment cannot be protected: {error}"))
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours; whoever calls its functions keeps it alive.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.bytes) };
    }
}

/// Everything that a loader would have to do beyond mapping and filling in addresses.
fn refuse_what_is_not_done(file: &object::File<'_>) -> Result<(), String> {
    for section in file.sections() {
        let object::SectionFlags::Elf { sh_flags, .. } = section.flags() else { continue };
        let name = section.name().unwrap_or("without a name");
        if sh_flags.0 & abi::SHF_TLS.0 != 0 {
            return Err(format!("its section {name} is for variables of a thread, which are not done"));
        }
        if matches!(name, ".init" | ".fini" | ".init_array" | ".fini_array" | ".preinit_array" | ".relr.dyn")
            && section.size() > 0
        {
            return Err(format!("its section {name} is not done"));
        }
    }
    Ok(())
}

fn page() -> u64 {
    rustix::param::page_size() as u64
}
