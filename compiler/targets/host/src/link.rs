//! Links the objects of a module's kernels to one self-contained shared object.
//!
//! Supports exactly what LLVM generates for our IR: code, constants, variables, debug information
//! and a few kinds of relocations; everything else is an error. It exists because starting a linker
//! process takes longer than compiling most kernels.
//!
//! Steps: concatenate the sections of all objects by kind; collect the symbols; resolve the
//! relocations to places; lay out the image (`image`), which assigns addresses; apply the
//! relocations.

mod image;

use crate::error::HostError;
use object::elf::{self, RelocationType};
use object::{
    Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget, SectionFlags, SectionIndex, SymbolFlags,
    SymbolKind,
};
use std::collections::HashMap;

/// The kind of an image section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Constants,
    Code,
    Variables,
    /// Variables that start as 0 and take no space in the file.
    Zeros,
    /// Debug information, which is not loaded.
    Debug,
}

/// The loaded sections, in the order of their addresses.
const LOADED: [(&str, Kind); 4] =
    [(".rodata", Kind::Constants), (".text", Kind::Code), (".data", Kind::Variables), (".bss", Kind::Zeros)];

/// A section of the image.
#[derive(Debug)]
struct Section {
    name: String,
    kind: Kind,
    /// Empty for [`Kind::Zeros`].
    bytes: Vec<u8>,
    size: u64,
    align: u64,
    /// Its load address; 0 if it is not loaded.
    address: u64,
}

/// A place in a section of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    section: usize,
    offset: u64,
}

/// A symbol that an object defines.
#[derive(Debug)]
struct Symbol {
    name: String,
    place: Place,
    size: u64,
    is_function: bool,
    /// Visible to other objects.
    is_global: bool,
    /// Visible to the loader of the image.
    is_exported: bool,
}

/// A relocation, to be applied once addresses are known.
#[derive(Debug)]
struct Fixup {
    at: Place,
    how: RelocationType,
    target: Place,
    addend: i64,
}

/// The places of an object's sections in the image.
type Placed = HashMap<SectionIndex, Place>;

/// Links the objects of kernels and shared definitions to one shared object.
pub(crate) fn link(objects: &[Vec<u8>]) -> Result<Vec<u8>, HostError> {
    let files: Vec<object::File<'_>> =
        objects.iter().map(|bytes| object::File::parse(bytes.as_slice()).map_err(failure)).collect::<Result<_, _>>()?;
    let mut linker = Linker::new();
    let placed: Vec<Placed> = files.iter().map(|file| linker.take_sections(file)).collect::<Result<_, _>>()?;
    for (file, placed) in files.iter().zip(&placed) {
        linker.take_symbols(file, placed)?;
    }
    let mut fixups = Vec::new();
    for (file, placed) in files.iter().zip(&placed) {
        linker.resolve(file, placed, &mut fixups)?;
    }
    let Linker { mut sections, symbols, .. } = linker;
    let is_relative = |fixup: &&Fixup| fixup.how == elf::R_X86_64_64 && sections[fixup.at.section].kind != Kind::Debug;
    let image = image::Image::lay_out(&symbols, fixups.iter().filter(is_relative).count(), &mut sections);
    let mut relative = Vec::new();
    for fixup in &fixups {
        relative.extend(fixup.apply(&mut sections)?);
    }
    Ok(image.write(&sections, &symbols, &relative))
}

fn failure(error: impl ToString) -> HostError {
    HostError::Link(error.to_string())
}

#[derive(Debug)]
struct Linker {
    sections: Vec<Section>,
    symbols: Vec<Symbol>,
    /// Symbols visible to other objects, by name.
    globals: HashMap<String, Place>,
}

impl Linker {
    fn new() -> Linker {
        let empty = |(name, kind): (&str, Kind)| Section {
            name: name.to_owned(),
            kind,
            bytes: Vec::new(),
            size: 0,
            align: 1,
            address: 0,
        };
        Linker { sections: LOADED.map(empty).into(), symbols: Vec::new(), globals: HashMap::new() }
    }

    fn take_sections(&mut self, file: &object::File<'_>) -> Result<Placed, HostError> {
        let mut placed = Placed::new();
        for section in file.sections() {
            let name = section.name().map_err(failure)?;
            let Some(to) = self.destination(name, section.flags())? else { continue };
            let into = &mut self.sections[to];
            into.align = into.align.max(section.align());
            let offset = into.size.next_multiple_of(section.align().max(1));
            into.size = offset + section.size();
            if into.kind != Kind::Zeros {
                // The gaps between functions are filled with instructions that trap.
                into.bytes.resize(offset as usize, if into.kind == Kind::Code { 0xCC } else { 0 });
                into.bytes.extend_from_slice(section.data().map_err(failure)?);
            }
            placed.insert(section.index(), Place { section: to, offset });
        }
        Ok(placed)
    }

    /// The image section that a section is appended to; `None` for a section that only linkers
    /// read.
    fn destination(&mut self, name: &str, flags: SectionFlags) -> Result<Option<usize>, HostError> {
        let SectionFlags::Elf { sh_type, sh_flags } = flags else { return Err(failure("an object is not ELF")) };
        let has = |flag: elf::SectionFlags| sh_flags.0 & flag.0 != 0;
        if has(elf::SHF_TLS) {
            return Err(failure(format!("section `{name}` has variables of a thread")));
        }
        let kind = match has(elf::SHF_ALLOC) {
            false if name.starts_with(".debug_") => Kind::Debug,
            false => return Ok(None),
            true if has(elf::SHF_EXECINSTR) => Kind::Code,
            true if sh_type == elf::SHT_NOBITS => Kind::Zeros,
            true if has(elf::SHF_WRITE) => Kind::Variables,
            true => Kind::Constants,
        };
        let is_it = |s: &Section| s.kind == kind && (kind != Kind::Debug || s.name == name);
        let found = self.sections.iter().position(is_it);
        Ok(Some(found.unwrap_or_else(|| {
            self.sections.push(Section {
                name: name.to_owned(),
                kind,
                bytes: Vec::new(),
                size: 0,
                align: 1,
                address: 0,
            });
            self.sections.len() - 1
        })))
    }

    fn take_symbols(&mut self, file: &object::File<'_>, placed: &Placed) -> Result<(), HostError> {
        for symbol in file.symbols().filter(|s| matches!(s.kind(), SymbolKind::Text | SymbolKind::Data)) {
            let name = symbol.name().map_err(failure)?.to_owned();
            let Some(place) = symbol.section_index().and_then(|index| placed.get(&index)) else { continue };
            let place = Place { offset: place.offset + symbol.address(), ..*place };
            let is_visible = match symbol.flags() {
                SymbolFlags::Elf { st_other, .. } => st_other.visibility() == elf::STV_DEFAULT,
                _ => false,
            };
            let is_global = symbol.is_global();
            if is_global && self.globals.insert(name.clone(), place).is_some() {
                return Err(failure(format!("`{name}` is defined twice")));
            }
            let is_function = symbol.kind() == SymbolKind::Text;
            self.symbols.push(Symbol {
                name,
                place,
                size: symbol.size(),
                is_function,
                is_global,
                is_exported: is_global && is_visible,
            });
        }
        // ELF requires local symbols first.
        self.symbols.sort_by_key(|symbol| symbol.is_global);
        Ok(())
    }

    fn resolve(&self, file: &object::File<'_>, placed: &Placed, into: &mut Vec<Fixup>) -> Result<(), HostError> {
        for section in file.sections() {
            let Some(place) = placed.get(&section.index()) else { continue };
            for (offset, relocation) in section.relocations() {
                let RelocationFlags::Elf { r_type: how } = relocation.flags() else {
                    return Err(failure("an object is not ELF"));
                };
                let target = self.target(file, placed, relocation.target())?;
                into.push(Fixup {
                    at: Place { offset: place.offset + offset, ..*place },
                    how,
                    target,
                    addend: relocation.addend(),
                });
            }
        }
        Ok(())
    }

    fn target(&self, file: &object::File<'_>, placed: &Placed, target: RelocationTarget) -> Result<Place, HostError> {
        let RelocationTarget::Symbol(index) = target else { return Err(failure("a relocation has no symbol")) };
        let symbol = file.symbol_by_index(index).map_err(failure)?;
        let name = symbol.name().map_err(failure)?;
        let own = symbol.section_index().and_then(|section| placed.get(&section));
        let own = own.map(|place| Place { offset: place.offset + symbol.address(), ..*place });
        own.or_else(|| self.globals.get(name).copied()).ok_or_else(|| failure(format!("`{name}` is not defined")))
    }
}

/// A word of the image to which the loader adds the image's base address.
#[derive(Debug)]
struct Relative {
    address: u64,
    value: i64,
}

impl Fixup {
    /// Applies the relocation; returns the part that is left to the loader.
    fn apply(&self, sections: &mut [Section]) -> Result<Option<Relative>, HostError> {
        let target = sections[self.target.section].address.wrapping_add(self.target.offset) as i64;
        let value = target.wrapping_add(self.addend);
        let section = &mut sections[self.at.section];
        let at = section.address + self.at.offset;
        let value = match self.how {
            elf::R_X86_64_64 if section.kind != Kind::Debug => return Ok(Some(Relative { address: at, value })),
            elf::R_X86_64_64 => return section.put(self.at.offset, &value.to_le_bytes()),
            // The distance within the image is the same after loading.
            elf::R_X86_64_PC32 | elf::R_X86_64_PLT32 => value.wrapping_sub(at as i64),
            elf::R_X86_64_32 if section.kind == Kind::Debug => value,
            other => return Err(failure(format!("`{}` has a relocation of type {}", section.name, other.0))),
        };
        let too_far = |_| failure(format!("`{}` is too large", section.name));
        let word = if self.how == elf::R_X86_64_32 {
            u32::try_from(value).map_err(too_far)?.to_le_bytes()
        } else {
            i32::try_from(value).map_err(too_far)?.to_le_bytes()
        };
        section.put(self.at.offset, &word)
    }
}

impl Section {
    /// Writes into the section's bytes; needs no work of the loader.
    fn put(&mut self, offset: u64, word: &[u8]) -> Result<Option<Relative>, HostError> {
        let at = offset as usize;
        let to = self
            .bytes
            .get_mut(at..at.saturating_add(word.len()))
            .ok_or_else(|| failure("a relocation lies outside of its section"))?;
        to.copy_from_slice(word);
        Ok(None)
    }
}
