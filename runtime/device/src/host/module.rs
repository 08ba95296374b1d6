//! Native code in memory: an ELF object becomes callable kernels.

use super::bounds::{self, Bounds};
use super::cpu;
use super::elf::check_shared_object;
use super::line_table::{LineTable, Lines};
use crate::{DeviceError, ModuleImage};
use atoll_kgraph::KernelFacts;
use atoll_kgraph::host_abi::{HOST_ABI_SYMBOL, HOST_ABI_VERSION, HostKernel};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use object::{Object, ObjectSection, ObjectSymbol};
use rustix::fs::MemfdFlags;
use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

/// Most scratch memory a kernel may want per compute unit; more is a compiler's mistake, not a need.
pub(crate) const SCRATCH_BYTES_MAX: u32 = 256 << 20;

/// What the names of module variables begin with in an object.
const VARIABLE_PREFIX: &str = "atoll_var_";

/// A loaded object. Its code stays mapped while the module lives.
#[derive(Debug)]
pub(crate) struct Module {
    kernels: Vec<Kernel>,
    /// Where its first byte is mapped.
    base: u64,
    /// Where its instructions are mapped.
    code: Range<u64>,
    /// Its `.global` and `.const` variables.
    variables: Bounds,
    lines: OnceLock<LineTable>,
    _library: Library,
    /// Kept open, because the loader knows an object by its path: a second object under the same descriptor number would give the first one's code.
    file: std::fs::File,
}

/// One callable kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) facts: KernelFacts,
    pub(crate) entry: HostKernel,
}

impl Module {
    pub(crate) fn load(image: ModuleImage<'_>, shared_bytes_max: u32) -> Result<Module, DeviceError> {
        let targets = cpu::targets();
        if !targets.iter().any(|t| t == image.target) {
            return Err(DeviceError::BadModule(format!(
                "the code is for {}, this CPU runs {}; compile for one of these",
                image.target,
                if targets.is_empty() { "none of our targets".to_owned() } else { targets.join(", ") }
            )));
        }
        image.kernels.iter().try_for_each(|facts| check_facts(facts, shared_bytes_max))?;
        let code = check_shared_object(image.code).map_err(DeviceError::BadModule)?;
        let (library, file) = open(image.code)?;
        let base = check_version(&library)?;
        let kernels = image.kernels.iter().map(|facts| Kernel::find(&library, facts)).collect::<Result<_, _>>()?;
        let code = base.wrapping_add(code.start)..base.wrapping_add(code.end);
        let variables = variables(image.code, base);
        Ok(Module { kernels, base, code, variables, lines: OnceLock::new(), _library: library, file })
    }

    pub(crate) fn kernel(&self, index: u32) -> Option<&Kernel> {
        self.kernels.get(index as usize)
    }

    pub(crate) fn scratch_bytes_max(&self) -> u32 {
        self.kernels.iter().map(|k| k.facts.scratch_bytes).max().unwrap_or(0)
    }

    /// Addresses of its instructions.
    pub(crate) fn code(&self) -> &Range<u64> {
        &self.code
    }

    /// Its variables.
    pub(crate) fn variables(&self) -> &Bounds {
        &self.variables
    }

    /// The lines of PTX that an instruction of it stands for. Slow the first time.
    pub(crate) fn lines_of(&self, instruction: u64) -> Option<Lines> {
        let table = self.lines.get_or_init(|| {
            let mut code = vec![0; self.file.metadata().map_or(0, |m| m.len()) as usize];
            if self.file.read_exact_at(&mut code, 0).is_ok() { LineTable::read(&code) } else { LineTable::default() }
        });
        self.code.contains(&instruction).then(|| table.find(instruction - self.base)).flatten()
    }
}

/// The module variables of an object that is mapped at `base`, by the names they have in PTX.
fn variables(code: &[u8], base: u64) -> Bounds {
    let Ok(file) = object::File::parse(code) else { return Bounds::default() };
    let ranges = file.symbols().filter_map(|symbol| {
        let name = symbol.name().ok()?.strip_prefix(VARIABLE_PREFIX)?.to_owned();
        let section = file.section_by_index(symbol.section_index()?).ok()?;
        let object::SectionFlags::Elf { sh_flags, .. } = section.flags() else { return None };
        let begin = base.wrapping_add(symbol.address());
        Some(bounds::Range { name, begin, end: begin.saturating_add(symbol.size()), read_only: sh_flags.0 & object::elf::SHF_WRITE.0 == 0 })
    });
    Bounds::new(ranges.collect())
}

impl Kernel {
    fn find(library: &Library, facts: &KernelFacts) -> Result<Kernel, DeviceError> {
        // SAFETY: the compiler exports kernels with this type and nothing else under their names; the ABI version was checked.
        let symbol = unsafe { library.get::<HostKernel>(facts.name.as_bytes()) };
        let symbol = symbol.map_err(|_| DeviceError::BadModule(format!("it has no kernel `{}`", facts.name)))?;
        Ok(Kernel { facts: facts.clone(), entry: *symbol })
    }
}

fn check_facts(facts: &KernelFacts, shared_bytes_max: u32) -> Result<(), DeviceError> {
    let refuse = |what: String| Err(DeviceError::BadModule(format!("kernel `{}` {what}", facts.name)));
    if facts.shared_bytes > shared_bytes_max {
        return refuse(format!("wants {} bytes of shared memory, a compute unit has {shared_bytes_max}", facts.shared_bytes));
    }
    if facts.scratch_bytes > SCRATCH_BYTES_MAX {
        return refuse(format!("wants {} bytes of scratch memory, {SCRATCH_BYTES_MAX} is the limit", facts.scratch_bytes));
    }
    Ok(())
}

fn open(code: &[u8]) -> Result<(Library, std::fs::File), DeviceError> {
    let os = |what| move |e: rustix::io::Errno| DeviceError::Os { what, source: e.into() };
    let file = rustix::fs::memfd_create("atoll-module", MemfdFlags::CLOEXEC).map_err(os("create memory for a module"))?;
    let mut rest = code;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest).map_err(os("write a module"))?;
        rest = &rest[written..];
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // SAFETY: loading runs the object's initialisers; objects come from our compiler (a bundle's digest covers them), which emits none.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|e| DeviceError::BadModule(error_text(&e).replace(&path, "the object")))?;
    Ok((library, file.into()))
}

/// What the loader said; the error itself only says which call failed.
fn error_text(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Refuses an object for another version of the contract; the answer is where the object is mapped.
fn check_version(library: &Library) -> Result<u64, DeviceError> {
    // SAFETY: the symbol is a `u32` in every object of ours; one that has it as something else still has four readable bytes there or is no object of ours.
    let found = unsafe { library.get::<*const u32>(HOST_ABI_SYMBOL.as_bytes()).map(|symbol| (*symbol, symbol.read_unaligned())) };
    match found {
        Ok((symbol, HOST_ABI_VERSION)) => Ok(mapped_at(symbol.cast())),
        Ok((_, other)) => {
            Err(DeviceError::BadModule(format!("it is for host ABI {other}, this device speaks {HOST_ABI_VERSION}; compile it again")))
        }
        Err(_) => Err(DeviceError::BadModule(format!("it has no symbol `{HOST_ABI_SYMBOL}`; it was not made by Atoll's compiler"))),
    }
}

/// Where the object that holds `symbol` is mapped; 0 where the loader does not say.
fn mapped_at(symbol: *const c_void) -> u64 {
    // SAFETY: all-zero is a valid `Dl_info`, which the call fills for an address that the loader mapped.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(symbol, &raw mut info) == 0 { 0 } else { info.dli_fbase as u64 }
    }
}
