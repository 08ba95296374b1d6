//! Writes the file of a shared object.
//!
//! An address equals the offset in the file, so that the loader maps three segments unchanged:
//! headers, loader tables and constants (read-only); code; the dynamic section and variables
//! (writable). Sections that are not loaded follow after them.

use super::{Kind, Place, Relative, Section, Symbol};
use object::elf::{self, DynamicTag, SectionFlags, SectionType};
use object::pod::{Pod, bytes_of};
use object::{I64, LittleEndian as LE, U16, U32, U64};

const PAGE: u64 = 4096;

const FILE_HEADER_BYTES: u64 = size_of::<elf::FileHeader64<LE>>() as u64;
const PROGRAM_HEADER_BYTES: u64 = size_of::<elf::ProgramHeader64<LE>>() as u64;
const SECTION_HEADER_BYTES: u64 = size_of::<elf::SectionHeader64<LE>>() as u64;
const SYMBOL_BYTES: u64 = size_of::<elf::Sym64<LE>>() as u64;
const RELOCATION_BYTES: u64 = size_of::<elf::Rela64<LE>>() as u64;
const DYNAMIC_BYTES: u64 = size_of::<elf::Dyn64<LE>>() as u64;

/// Number of program headers: three segments, the dynamic section, and the non-executable stack.
const PROGRAM_HEADERS: u64 = 5;
/// Number of entries of the dynamic section.
const DYNAMIC_ENTRIES: u64 = 9;

/// Order of the section headers: the null header, the loader tables, the image's sections, the
/// symbol and name tables for tools.
const DYNSYM_HEADER: u32 = 1;
const DYNSTR_HEADER: u32 = 3;
const HEADERS_IN_FRONT: usize = 6;

/// A part of the file.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    at: u64,
    size: u64,
}

impl Part {
    fn end(self) -> u64 {
        self.at + self.size
    }
}

/// The places of all loaded parts; sections know their own.
#[derive(Debug)]
pub(super) struct Image {
    symbols: Part,
    hash: Part,
    names: Part,
    relocations: Part,
    dynamic: Part,
    /// Read-only, executable and writable; the end of the last one is not in the file.
    pieces: [Part; 3],
    zeros: u64,
}

/// Allocates space from the start of the file on.
struct Room(u64);

impl Room {
    fn take(&mut self, align: u64, size: u64) -> Part {
        let at = self.0.next_multiple_of(align.max(1));
        self.0 = at + size;
        Part { at, size }
    }

    fn take_section(&mut self, section: &mut Section) {
        section.address = self.take(section.align, section.size).at;
    }
}

fn exported(symbols: &[Symbol]) -> impl Iterator<Item = &Symbol> + Clone {
    symbols.iter().filter(|symbol| symbol.is_exported)
}

impl Image {
    /// Lays out an image with `relatives` words for the loader to relocate, and assigns addresses
    /// to sections.
    pub(super) fn lay_out(symbols: &[Symbol], relatives: usize, sections: &mut [Section]) -> Image {
        let count = 1 + exported(symbols).count() as u64;
        let names_bytes = 1 + exported(symbols).map(|symbol| symbol.name.len() as u64 + 1).sum::<u64>();
        let mut room = Room(FILE_HEADER_BYTES + PROGRAM_HEADERS * PROGRAM_HEADER_BYTES);
        let symbols = room.take(8, SYMBOL_BYTES * count);
        let hash = room.take(8, 4 * (2 + 2 * count));
        let names = room.take(1, names_bytes);
        let relocations = room.take(8, RELOCATION_BYTES * relatives as u64);
        let mut place = |room: &mut Room, kind: Kind| {
            sections.iter_mut().filter(|s| s.kind == kind).for_each(|s| room.take_section(s))
        };
        place(&mut room, Kind::Constants);
        let read = Part { at: 0, size: room.0 };
        let code = room.take(PAGE, 0).at;
        place(&mut room, Kind::Code);
        let execute = Part { at: code, size: room.0 - code };
        let dynamic = room.take(PAGE, DYNAMIC_BYTES * DYNAMIC_ENTRIES);
        place(&mut room, Kind::Variables);
        let write = Part { at: dynamic.at, size: room.0 - dynamic.at };
        place(&mut room, Kind::Zeros);
        Image {
            symbols,
            hash,
            names,
            relocations,
            dynamic,
            pieces: [read, execute, write],
            zeros: room.0 - write.end(),
        }
    }

    /// Writes the file.
    pub(super) fn write(&self, sections: &[Section], symbols: &[Symbol], relatives: &[Relative]) -> Vec<u8> {
        let mut out = Out { bytes: vec![0; (FILE_HEADER_BYTES + PROGRAM_HEADERS * PROGRAM_HEADER_BYTES) as usize] };
        self.write_tables(&mut out, sections, symbols, relatives);
        for section in sections.iter().filter(|s| matches!(s.kind, Kind::Constants | Kind::Code)) {
            out.place(section.address, &section.bytes);
        }
        out.pad(self.dynamic.at);
        self.write_dynamic(&mut out);
        for section in sections.iter().filter(|s| s.kind == Kind::Variables) {
            out.place(section.address, &section.bytes);
        }
        let headers = self.write_rest(&mut out, sections, symbols);
        self.write_headers(&mut out, headers);
        out.bytes
    }

    /// Writes the tables with which the loader finds symbols and relocations.
    fn write_tables(&self, out: &mut Out, sections: &[Section], symbols: &[Symbol], relatives: &[Relative]) {
        let mut names = Names::new();
        out.pad(self.symbols.at);
        out.push(&no_symbol());
        for symbol in exported(symbols) {
            let name = names.add(&symbol.name);
            out.push(&entry(symbol, name, sections));
        }
        out.pad(self.hash.at);
        let count = 1 + exported(symbols).count();
        let (mut buckets, mut chain) = (vec![0u32; count], vec![0u32; count]);
        for (index, symbol) in (1u32..).zip(exported(symbols)) {
            let bucket = elf::hash(symbol.name.as_bytes()) as usize % count;
            chain[index as usize] = std::mem::replace(&mut buckets[bucket], index);
        }
        let words = [count as u32, count as u32].into_iter().chain(buckets).chain(chain);
        words.for_each(|word| out.bytes.extend(word.to_le_bytes()));
        out.place(self.names.at, &names.bytes);
        out.pad(self.relocations.at);
        for relative in relatives {
            out.push(&elf::Rela64::<LE> {
                r_offset: U64::new(LE, relative.address),
                r_info: U64::new(LE, elf::R_X86_64_RELATIVE.0.into()),
                r_addend: I64::new(LE, relative.value),
            });
        }
    }

    fn write_dynamic(&self, out: &mut Out) {
        let entries: [(DynamicTag, u64); DYNAMIC_ENTRIES as usize] = [
            (elf::DT_HASH, self.hash.at),
            (elf::DT_SYMTAB, self.symbols.at),
            (elf::DT_SYMENT, SYMBOL_BYTES),
            (elf::DT_STRTAB, self.names.at),
            (elf::DT_STRSZ, self.names.size),
            (elf::DT_RELA, self.relocations.at),
            (elf::DT_RELASZ, self.relocations.size),
            (elf::DT_RELAENT, RELOCATION_BYTES),
            (elf::DT_NULL, 0),
        ];
        for (tag, value) in entries {
            out.push(&elf::Dyn64::<LE> { d_tag: I64::new(LE, tag), d_val: U64::new(LE, value) });
        }
    }

    /// Writes debug information, symbols and names for tools, and the section headers; returns the
    /// part with the section headers.
    fn write_rest(&self, out: &mut Out, sections: &[Section], symbols: &[Symbol]) -> Part {
        let mut headers = Headers::new();
        let (alloc, writes) = (elf::SHF_ALLOC, elf::SHF_WRITE);
        headers.add(Header {
            entry: SYMBOL_BYTES,
            link: DYNSTR_HEADER,
            info: 1,
            ..Header::of(".dynsym", elf::SHT_DYNSYM, alloc, self.symbols)
        });
        headers.add(Header { entry: 4, link: DYNSYM_HEADER, ..Header::of(".hash", elf::SHT_HASH, alloc, self.hash) });
        headers.add(Header { align: 1, ..Header::of(".dynstr", elf::SHT_STRTAB, alloc, self.names) });
        headers.add(Header {
            entry: RELOCATION_BYTES,
            link: DYNSYM_HEADER,
            ..Header::of(".rela.dyn", elf::SHT_RELA, alloc, self.relocations)
        });
        let flags = SectionFlags(alloc.0 | writes.0);
        headers.add(Header {
            entry: DYNAMIC_BYTES,
            link: DYNSTR_HEADER,
            ..Header::of(".dynamic", elf::SHT_DYNAMIC, flags, self.dynamic)
        });
        for section in sections {
            let part = match section.kind {
                Kind::Debug => out.append(section.align, &section.bytes),
                _ => Part { at: section.address, size: section.size },
            };
            headers.add(Header {
                align: section.align,
                ..Header::of(&section.name, section.kind.ty(), section.kind.flags(), part)
            });
        }
        let mut names = Names::new();
        let table = out.append(8, bytes_of(&no_symbol()));
        for symbol in symbols {
            let name = names.add(&symbol.name);
            out.push(&entry(symbol, name, sections));
        }
        let (table, link) = (Part { size: out.bytes.len() as u64 - table.at, ..table }, headers.count() + 1);
        let locals = symbols.iter().filter(|symbol| !symbol.is_global).count() as u32;
        let no_flags = SectionFlags(0);
        headers.add(Header {
            entry: SYMBOL_BYTES,
            link,
            info: 1 + locals,
            ..Header::of(".symtab", elf::SHT_SYMTAB, no_flags, table)
        });
        let strings = out.append(1, &names.bytes);
        headers.add(Header { align: 1, ..Header::of(".strtab", elf::SHT_STRTAB, no_flags, strings) });
        headers.write(out)
    }

    fn write_headers(&self, out: &mut Out, sections: Part) {
        let count = (sections.size / SECTION_HEADER_BYTES) as u16;
        let header = elf::FileHeader64::<LE> {
            e_ident: elf::Ident {
                magic: elf::ELFMAG,
                class: elf::ELFCLASS64,
                data: elf::ELFDATA2LSB,
                version: elf::EV_CURRENT,
                os_abi: elf::ELFOSABI_NONE,
                abi_version: 0,
                padding: [0; 7],
            },
            e_type: U16::new(LE, elf::ET_DYN),
            e_machine: U16::new(LE, elf::EM_X86_64),
            e_version: U32::new(LE, elf::EV_CURRENT.0.into()),
            e_entry: U64::new(LE, 0),
            e_phoff: U64::new(LE, FILE_HEADER_BYTES),
            e_shoff: U64::new(LE, sections.at),
            e_flags: U32::new(LE, elf::FileFlags(0)),
            e_ehsize: U16::new(LE, FILE_HEADER_BYTES as u16),
            e_phentsize: U16::new(LE, PROGRAM_HEADER_BYTES as u16),
            e_phnum: U16::new(LE, PROGRAM_HEADERS as u16),
            e_shentsize: U16::new(LE, SECTION_HEADER_BYTES as u16),
            e_shnum: U16::new(LE, count),
            e_shstrndx: U16::new(LE, elf::SymbolSection(count - 1)),
        };
        let mut start = Out { bytes: bytes_of(&header).to_vec() };
        let [read, execute, write] = self.pieces;
        let (r, w, x) = (elf::PF_R.0, elf::PF_W.0, elf::PF_X.0);
        start.push(&segment(elf::PT_LOAD, r, read, 0, PAGE));
        // An empty segment cannot be mapped.
        let code_type = if execute.size > 0 { elf::PT_LOAD } else { elf::PT_NULL };
        start.push(&segment(code_type, r | x, execute, 0, PAGE));
        start.push(&segment(elf::PT_LOAD, r | w, write, self.zeros, PAGE));
        start.push(&segment(elf::PT_DYNAMIC, r | w, self.dynamic, 0, 8));
        start.push(&segment(elf::PT_GNU_STACK, r | w, Part::default(), 0, 16));
        out.bytes[..start.bytes.len()].copy_from_slice(&start.bytes);
    }
}

impl Kind {
    fn ty(self) -> SectionType {
        if self == Kind::Zeros { elf::SHT_NOBITS } else { elf::SHT_PROGBITS }
    }

    fn flags(self) -> SectionFlags {
        let loaded = elf::SHF_ALLOC.0;
        SectionFlags(match self {
            Kind::Constants => loaded,
            Kind::Code => loaded | elf::SHF_EXECINSTR.0,
            Kind::Variables | Kind::Zeros => loaded | elf::SHF_WRITE.0,
            Kind::Debug => 0,
        })
    }
}

/// A program header of a segment that takes `more` bytes in memory than in the file.
fn segment(ty: elf::ProgramType, flags: u32, part: Part, more: u64, align: u64) -> elf::ProgramHeader64<LE> {
    elf::ProgramHeader64 {
        p_type: U32::new(LE, ty),
        p_flags: U32::new(LE, elf::ProgramFlags(flags)),
        p_offset: U64::new(LE, part.at),
        p_vaddr: U64::new(LE, part.at),
        p_paddr: U64::new(LE, part.at),
        p_filesz: U64::new(LE, part.size),
        p_memsz: U64::new(LE, part.size + more),
        p_align: U64::new(LE, align),
    }
}

/// The first entry of a symbol table.
fn no_symbol() -> elf::Sym64<LE> {
    elf::Sym64 {
        st_name: U32::new(LE, 0),
        st_info: elf::SymbolInfo(0),
        st_other: elf::SymbolOther(0),
        st_shndx: U16::new(LE, elf::SHN_UNDEF),
        st_value: U64::new(LE, 0),
        st_size: U64::new(LE, 0),
    }
}

/// The entry of a symbol.
fn entry(symbol: &Symbol, name: u32, sections: &[Section]) -> elf::Sym64<LE> {
    let Place { section, offset } = symbol.place;
    let bind = if symbol.is_global { elf::STB_GLOBAL } else { elf::STB_LOCAL };
    let ty = if symbol.is_function { elf::STT_FUNC } else { elf::STT_OBJECT };
    elf::Sym64 {
        st_name: U32::new(LE, name),
        st_info: elf::SymbolInfo::new(bind, ty),
        st_shndx: U16::new(LE, elf::SymbolSection((HEADERS_IN_FRONT + section) as u16)),
        st_value: U64::new(LE, sections[section].address + offset),
        st_size: U64::new(LE, symbol.size),
        ..no_symbol()
    }
}

/// The bytes of the file so far.
struct Out {
    bytes: Vec<u8>,
}

impl Out {
    fn push(&mut self, entry: &impl Pod) {
        self.bytes.extend_from_slice(bytes_of(entry));
    }

    /// Pads with zeros up to an offset.
    fn pad(&mut self, to: u64) {
        debug_assert!(self.bytes.len() as u64 <= to, "what is written fits its room");
        self.bytes.resize(to as usize, 0);
    }

    fn place(&mut self, at: u64, bytes: &[u8]) {
        self.pad(at);
        self.bytes.extend_from_slice(bytes);
    }

    fn append(&mut self, align: u64, bytes: &[u8]) -> Part {
        let at = (self.bytes.len() as u64).next_multiple_of(align.max(1));
        self.place(at, bytes);
        Part { at, size: bytes.len() as u64 }
    }
}

/// A table of strings.
struct Names {
    bytes: Vec<u8>,
}

impl Names {
    fn new() -> Names {
        Names { bytes: vec![0] }
    }

    fn add(&mut self, name: &str) -> u32 {
        let at = self.bytes.len() as u32;
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        at
    }
}

/// The contents of a section header.
struct Header<'a> {
    name: &'a str,
    ty: SectionType,
    flags: SectionFlags,
    part: Part,
    link: u32,
    info: u32,
    align: u64,
    /// Bytes per entry, for tables.
    entry: u64,
}

impl<'a> Header<'a> {
    fn of(name: &'a str, ty: SectionType, flags: SectionFlags, part: Part) -> Header<'a> {
        Header { name, ty, flags, part, link: 0, info: 0, align: 8, entry: 0 }
    }
}

/// Section headers, the first of which is the null header, and their names.
struct Headers {
    headers: Vec<elf::SectionHeader64<LE>>,
    names: Names,
}

impl Headers {
    fn new() -> Headers {
        let mut headers = Headers { headers: Vec::new(), names: Names::new() };
        headers.add(Header { align: 0, ..Header::of("", elf::SHT_NULL, SectionFlags(0), Part::default()) });
        headers
    }

    fn count(&self) -> u32 {
        self.headers.len() as u32
    }

    fn add(&mut self, header: Header<'_>) {
        let name = if header.name.is_empty() { 0 } else { self.names.add(header.name) };
        let address = if header.flags.0 & elf::SHF_ALLOC.0 != 0 { header.part.at } else { 0 };
        self.headers.push(elf::SectionHeader64 {
            sh_name: U32::new(LE, name),
            sh_type: U32::new(LE, header.ty),
            sh_flags: U64::new(LE, header.flags),
            sh_addr: U64::new(LE, address),
            sh_offset: U64::new(LE, header.part.at),
            sh_size: U64::new(LE, header.part.size),
            sh_link: U32::new(LE, header.link),
            sh_info: U32::new(LE, header.info),
            sh_addralign: U64::new(LE, header.align),
            sh_entsize: U64::new(LE, header.entry),
        });
    }

    /// Writes the names, whose header is the last one, and the headers; returns the part with the
    /// headers.
    fn write(mut self, out: &mut Out) -> Part {
        let name = ".shstrtab";
        let size = (self.names.bytes.len() + name.len() + 1) as u64;
        let names = Part { at: out.bytes.len() as u64, size };
        self.add(Header { align: 1, ..Header::of(name, elf::SHT_STRTAB, SectionFlags(0), names) });
        out.append(1, &self.names.bytes);
        let headers: Vec<u8> = self.headers.iter().flat_map(|header| bytes_of(header).to_vec()).collect();
        out.append(8, &headers)
    }
}
