//! A loaded code object: its segments in memory, its kernels, and its instructions decoded once.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock};

use object::elf::{EM_AMDGPU, ET_DYN, PF_W, PF_X, PT_LOAD};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{LittleEndian, Object, ObjectSymbol};

use crate::decode::decode;
use crate::descriptor::{self, Descriptor};
use crate::disasm::Disassembler;
use crate::fault::{FaultKind, LoadError, RunError};
use crate::memory::Memory;
use crate::op::Inst;
use crate::target::Target;

/// Maximum size of a code object, and of its image, in bytes.
const LARGEST: u64 = 1 << 26;
const RELATIVE64: u32 = 13;
const ABS64: u32 = 3;

/// Address of the first byte of an image that [`Program::load`] loads.
pub const DEFAULT_BASE: u64 = 0x7000_0000_0000;

struct Segment {
    address: u64,
    bytes: Vec<u8>,
    writable: bool,
    /// One cell for each 4 bytes of code; empty for a segment without code.
    decoded: Vec<OnceLock<Box<Inst>>>,
}

/// A code object that has been parsed, checked and placed at an address.
pub struct Program {
    /// Its architecture.
    pub target: Target,
    base: u64,
    segments: Vec<Segment>,
    kernels: BTreeMap<String, Kernel>,
    /// Address and size.
    symbols: BTreeMap<String, (u64, u64)>,
    disassemblers: [OnceLock<Option<Mutex<Disassembler>>>; 2],
}

/// Why an address has no decoded instruction.
pub(crate) struct Refusal {
    pub(crate) kind: FaultKind,
    /// LLVM's text, if it decodes the bytes.
    pub(crate) text: String,
    /// Size in bytes.
    pub(crate) size: u64,
}

/// A kernel of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its name, without `.kd`.
    pub name: String,
    /// Its descriptor.
    pub descriptor: Descriptor,
    /// Address of its first instruction.
    pub entry: u64,
    /// Bytes of its code.
    pub code_bytes: u64,
    /// Address of the descriptor.
    pub(crate) object: u64,
}

impl Program {
    /// Parses a linked code object and places it at [`DEFAULT_BASE`].
    pub fn load(elf: &[u8]) -> Result<Self, LoadError> {
        Self::load_at(elf, DEFAULT_BASE)
    }

    /// Parses a linked code object and places its address 0 at `base`, a multiple of 4096.
    pub fn load_at(elf: &[u8], base: u64) -> Result<Self, LoadError> {
        if elf.len() as u64 > LARGEST {
            return Err(LoadError::Elf(format!("{} bytes; at most {LARGEST} are read", elf.len())));
        }
        let file = ElfFile64::<LittleEndian>::parse(elf).map_err(|e| LoadError::Elf(e.to_string()))?;
        let (header, little) = (file.elf_header(), LittleEndian);
        if header.e_machine(little) != EM_AMDGPU || header.e_type(little) != ET_DYN {
            return Err(LoadError::NotCodeObject("machine or type of the ELF header differ".to_owned()));
        }
        let flags = header.e_flags(little).0;
        let target = Target::of_flags(flags).ok_or(LoadError::UnknownArchitecture(flags & 0xff))?;
        let mut segments = read_segments(&file, elf, base)?;
        relocate(&file, &mut segments, base)?;
        let symbols = symbols(&file, base);
        let kernels = kernels(&symbols, &segments, &target)?;
        let program = Self { target, base, segments, kernels, symbols, disassemblers: Default::default() };
        program.disassembler(64).ok_or_else(|| LoadError::NoDisassembler(target.name.to_owned()))?;
        Ok(program)
    }

    /// The kernel of this name.
    pub fn kernel(&self, name: &str) -> Result<&Kernel, RunError> {
        self.kernels.get(name).ok_or_else(|| RunError::NoKernel {
            name: name.to_owned(),
            present: self.kernels.keys().cloned().collect(),
        })
    }

    /// All kernels, by name.
    pub fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.kernels.values()
    }

    /// The address of a symbol: a function or a variable.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        self.extent(name).map(|(address, _)| address)
    }

    /// Address and size in bytes of a symbol.
    pub fn extent(&self, name: &str) -> Option<(u64, u64)> {
        self.symbols.get(name).copied()
    }

    /// Number of instructions of a kernel's code.
    pub fn instructions_of(&self, kernel: &Kernel) -> u32 {
        let (mut count, mut address) = (0, kernel.entry);
        while address < kernel.entry.saturating_add(kernel.code_bytes) {
            let size = match self.instruction(address, kernel.descriptor.wave_size) {
                Ok(inst) => inst.size,
                Err(refusal) => refusal.size,
            };
            count += 1;
            address += size.max(4);
        }
        count
    }

    /// All instructions of the code that the interpreter refuses: address, text and reason. Padding
    /// after functions is skipped, and bytes that are not an instruction are not listed.
    pub fn unknown_instructions(&self, wave_size: u32) -> Vec<(u64, String, FaultKind)> {
        let mut unknown = Vec::new();
        for segment in self.segments.iter().filter(|s| !s.decoded.is_empty()) {
            let end = segment.address.saturating_add(segment.bytes.len() as u64 & !3);
            let mut address = segment.address;
            while address < end {
                let size = match self.instruction(address, wave_size) {
                    Ok(inst) => inst.size,
                    Err(refusal) => {
                        let size = refusal.size;
                        if !refusal.text.is_empty() && refusal.text != "s_code_end" {
                            unknown.push((address, refusal.text, refusal.kind));
                        }
                        size
                    }
                };
                address += size.max(4);
            }
        }
        unknown
    }

    /// Adds the segments to memory, unless they are there, so that kernels can access variables.
    pub fn map(&self, memory: &mut Memory) {
        for segment in self.segments.iter().filter(|s| !memory.has(s.address)).collect::<Vec<_>>() {
            let name = format!("image {:#x}", self.base);
            memory.add_at(&name, segment.address, segment.bytes.clone(), segment.writable);
        }
    }

    /// Removes the segments from memory, including the values of variables.
    pub fn unmap(&self, memory: &mut Memory) {
        self.segments.iter().for_each(|segment| drop(memory.remove(segment.address)));
    }

    /// Whether an address is in the code.
    pub(crate) fn has_code(&self, address: u64) -> bool {
        self.code(address).is_some()
    }

    fn code(&self, address: u64) -> Option<(&Segment, usize)> {
        let segment = self
            .segments
            .iter()
            .find(|s| !s.decoded.is_empty() && address >= s.address && address - s.address < s.bytes.len() as u64)?;
        Some((segment, (address - segment.address) as usize))
    }

    fn disassembler(&self, wave_size: u32) -> Option<&Mutex<Disassembler>> {
        let new = || Disassembler::new(self.target.name, wave_size).map(Mutex::new);
        self.disassemblers[usize::from(wave_size == 32)].get_or_init(new).as_ref()
    }

    /// The instruction at an address, decoded for `wave_size`, that of the first kernel to reach
    /// it.
    pub(crate) fn instruction(&self, address: u64, wave_size: u32) -> Result<&Inst, Refusal> {
        let outside = || Refusal { kind: FaultKind::OutsideCode(address), text: String::new(), size: 4 };
        let (segment, offset) = self.code(address).filter(|(_, o)| o % 4 == 0).ok_or_else(outside)?;
        let cell = segment.decoded.get(offset / 4).ok_or_else(outside)?;
        if let Some(inst) = cell.get() {
            return Ok(inst);
        }
        let undecodable = || Refusal { kind: FaultKind::Undecodable, text: String::new(), size: 4 };
        let disassembler = self.disassembler(wave_size).ok_or_else(undecodable)?;
        let mut guard = disassembler.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (text, size) = guard.text(&segment.bytes[offset..], address).ok_or_else(undecodable)?;
        drop(guard);
        let bytes = &segment.bytes[offset..offset + size];
        let inst = decode(&text, bytes, &self.target).map_err(|kind| Refusal { kind, text, size: size as u64 })?;
        Ok(cell.get_or_init(|| Box::new(inst)))
    }
}

fn read_segments(file: &ElfFile64<LittleEndian>, elf: &[u8], base: u64) -> Result<Vec<Segment>, LoadError> {
    let mut segments = Vec::new();
    let cut = || LoadError::Elf("a segment reaches beyond the file".to_owned());
    let mut total = 0u64;
    for header in file.elf_program_headers().iter().filter(|h| h.p_type(LittleEndian) == PT_LOAD) {
        let (memory, flags) = (header.p_memsz(LittleEndian), header.p_flags(LittleEndian).0);
        total = total.saturating_add(memory);
        if total > LARGEST {
            return Err(LoadError::Elf(format!("its segments have over {LARGEST} bytes")));
        }
        let mut bytes = header.data(LittleEndian, elf).map_err(|()| cut())?.to_vec();
        if bytes.len() as u64 > memory {
            return Err(cut());
        }
        bytes.resize(memory as usize, 0);
        let code = flags & PF_X.0 != 0;
        let decoded = (0..if code { bytes.len() / 4 } else { 0 }).map(|_| OnceLock::new()).collect();
        let address = base.checked_add(header.p_vaddr(LittleEndian)).ok_or_else(cut)?;
        segments.push(Segment { address, bytes, writable: flags & PF_W.0 != 0, decoded });
    }
    Ok(segments)
}

/// Applies the relocations that lld leaves in a shared object.
fn relocate(file: &ElfFile64<LittleEndian>, segments: &mut [Segment], base: u64) -> Result<(), LoadError> {
    let Some(relocations) = file.dynamic_relocations() else { return Ok(()) };
    for (offset, relocation) in relocations {
        let object::RelocationFlags::Elf { r_type } = relocation.flags() else { continue };
        let kind = r_type.0;
        let unsupported = LoadError::Relocation { kind, offset };
        let target = match (kind, relocation.target()) {
            (RELATIVE64, _) => 0,
            (ABS64, object::RelocationTarget::Symbol(index)) => match file.dynamic_symbol_table() {
                Some(table) => object::ObjectSymbolTable::symbol_by_index(&table, index)
                    .map_err(|e| LoadError::Elf(e.to_string()))?
                    .address(),
                None => return Err(unsupported),
            },
            _ => return Err(unsupported),
        };
        let value = base.wrapping_add(target).wrapping_add(relocation.addend() as u64);
        let place = base.wrapping_add(offset);
        let slot = segments.iter_mut().find_map(|s| {
            let start = usize::try_from(place.checked_sub(s.address)?).ok()?;
            s.bytes.get_mut(start..start.checked_add(8)?)
        });
        slot.ok_or(unsupported)?.copy_from_slice(&value.to_le_bytes());
    }
    Ok(())
}

/// The addresses and sizes of symbols.
fn symbols(file: &ElfFile64<LittleEndian>, base: u64) -> BTreeMap<String, (u64, u64)> {
    let defined = file.dynamic_symbols().chain(file.symbols()).filter(|s| s.is_definition());
    defined.filter_map(|s| Some((s.name().ok()?.to_owned(), (base.wrapping_add(s.address()), s.size())))).collect()
}

fn kernels(
    symbols: &BTreeMap<String, (u64, u64)>,
    segments: &[Segment],
    target: &Target,
) -> Result<BTreeMap<String, Kernel>, LoadError> {
    let mut kernels = BTreeMap::new();
    for (symbol, &(object, _)) in symbols {
        let Some(name) = symbol.strip_suffix(".kd") else { continue };
        let bytes = segments.iter().find_map(|s| {
            let start = usize::try_from(object.checked_sub(s.address)?).ok()?;
            s.bytes.get(start..start.checked_add(descriptor::BYTES)?)?.first_chunk::<{ descriptor::BYTES }>()
        });
        let missing = || LoadError::NotCodeObject(format!("the descriptor of `{name}` is outside its segments"));
        let descriptor = Descriptor::parse(bytes.ok_or_else(missing)?, target);
        let entry = object.wrapping_add_signed(descriptor.entry);
        // The size of a symbol is a claim of the file: code ends with its segment at the latest.
        let rest = segments.iter().find(|s| !s.decoded.is_empty() && entry >= s.address);
        let rest = rest.map_or(0, |s| s.address.saturating_add(s.bytes.len() as u64).saturating_sub(entry));
        let code_bytes = symbols.get(name).map_or(0, |(_, size)| *size).min(rest);
        kernels.insert(name.to_owned(), Kernel { name: name.to_owned(), descriptor, entry, code_bytes, object });
    }
    Ok(kernels)
}
