//! Native code in memory: turns an ELF object into callable kernels.

use super::bounds::{self, Bounds};
use super::cpu;
use super::image::Image;
use super::line_table::{LineTable, Lines};
use atoll_device::{DeviceError, ModuleImage};
use atoll_kgraph::KernelFacts;
use atoll_kgraph::host_abi::{HOST_ABI_SYMBOL, HOST_ABI_VERSION, HostKernel};
use object::{Object, ObjectSection, ObjectSymbol};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most scratch memory that a kernel may need per compute unit, in bytes; more is a mistake of the
/// compiler.
pub(crate) const SCRATCH_BYTES_MAX: u32 = 256 << 20;

/// Prefix of the symbols of module variables in an object.
const VARIABLE_PREFIX: &str = "atoll_var_";

/// A loaded object. Its code stays mapped while the module lives.
#[derive(Debug)]
pub(crate) struct Module {
    kernels: Vec<Kernel>,
    image: Image,
    /// Its `.global` and `.const` variables.
    variables: Bounds,
    /// Its line table, as in the file.
    debug_line: Vec<u8>,
    lines: OnceLock<LineTable>,
}

/// One callable kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) facts: KernelFacts,
    pub(crate) entry: HostKernel,
    /// Time of one block in its last measured launch, in nanoseconds; 0 before.
    block_ns: AtomicU64,
}

impl Module {
    pub(crate) fn load(image: ModuleImage<'_>, shared_bytes_max: u32) -> Result<Module, DeviceError> {
        let targets = cpu::targets();
        if !targets.iter().any(|t| t == image.target) {
            return Err(DeviceError::BadModule(format!(
                "the code is for {}, but this CPU runs {}; compile it for one of these",
                image.target,
                if targets.is_empty() { "no target".to_owned() } else { targets.join(", ") }
            )));
        }
        image.kernels.iter().try_for_each(|facts| check_facts(facts, shared_bytes_max))?;
        let loaded = Image::load(image.code).map_err(DeviceError::BadModule)?;
        check_version(&loaded)?;
        let kernels = image.kernels.iter().map(|facts| Kernel::find(&loaded, facts)).collect::<Result<_, _>>()?;
        let variables = variables(image.code, loaded.base());
        Ok(Module {
            kernels,
            image: loaded,
            variables,
            debug_line: LineTable::section_of(image.code),
            lines: OnceLock::new(),
        })
    }

    pub(crate) fn kernel(&self, index: u32) -> Option<&Kernel> {
        self.kernels.get(index as usize)
    }

    pub(crate) fn scratch_bytes_max(&self) -> u32 {
        self.kernels.iter().map(|k| k.facts.scratch_bytes).max().unwrap_or(0)
    }

    /// The range of its instructions, as addresses.
    pub(crate) fn code(&self) -> &Range<u64> {
        self.image.code()
    }

    /// Its variables.
    pub(crate) fn variables(&self) -> &Bounds {
        &self.variables
    }

    /// The lines of PTX from which an instruction was compiled. Slow the first time.
    pub(crate) fn lines_of(&self, instruction: u64) -> Option<Lines> {
        let table = self.lines.get_or_init(|| LineTable::read(&self.debug_line));
        self.code().contains(&instruction).then(|| table.find(instruction - self.image.base())).flatten()
    }
}

/// The module variables of an object mapped at `base`, by their names in PTX.
fn variables(code: &[u8], base: u64) -> Bounds {
    let Ok(file) = object::File::parse(code) else { return Bounds::default() };
    let ranges = file.symbols().filter_map(|symbol| {
        let name = symbol.name().ok()?.strip_prefix(VARIABLE_PREFIX)?.to_owned();
        let section = file.section_by_index(symbol.section_index()?).ok()?;
        let object::SectionFlags::Elf { sh_flags, .. } = section.flags() else { return None };
        let begin = base.wrapping_add(symbol.address());
        Some(bounds::Range {
            name,
            begin,
            end: begin.saturating_add(symbol.size()),
            read_only: sh_flags.0 & object::elf::SHF_WRITE.0 == 0,
        })
    });
    Bounds::new(ranges.collect())
}

impl Kernel {
    fn find(image: &Image, facts: &KernelFacts) -> Result<Kernel, DeviceError> {
        let address = image.function(&facts.name);
        let address = address.ok_or_else(|| DeviceError::BadModule(format!("it has no kernel `{}`", facts.name)))?;
        // SAFETY: the compiler exports kernels, and nothing else, under these names with this type;
        // the ABI version was checked.
        let entry = unsafe {
            std::mem::transmute::<*const (), HostKernel>(std::ptr::with_exposed_provenance(address as usize))
        };
        Ok(Kernel { facts: facts.clone(), entry, block_ns: AtomicU64::new(0) })
    }

    /// Time of one block in the last measured launch, in nanoseconds.
    pub(crate) fn block_ns(&self) -> Option<u64> {
        Some(self.block_ns.load(Ordering::Relaxed)).filter(|&block_ns| block_ns > 0)
    }

    /// Keeps the time of one block for the next launch.
    pub(crate) fn keep_block_ns(&self, block_ns: u64) {
        self.block_ns.store(block_ns, Ordering::Relaxed);
    }
}

fn check_facts(facts: &KernelFacts, shared_bytes_max: u32) -> Result<(), DeviceError> {
    let refuse = |what: String| Err(DeviceError::BadModule(format!("kernel `{}` {what}", facts.name)));
    if facts.shared_bytes > shared_bytes_max {
        return refuse(format!(
            "needs {} bytes of shared memory, a compute unit has {shared_bytes_max}",
            facts.shared_bytes
        ));
    }
    if facts.scratch_bytes > SCRATCH_BYTES_MAX {
        return refuse(format!(
            "needs {} bytes of scratch memory, {SCRATCH_BYTES_MAX} is the limit",
            facts.scratch_bytes
        ));
    }
    Ok(())
}

/// Refuses an object for another version of the host ABI.
fn check_version(image: &Image) -> Result<(), DeviceError> {
    match image.number(HOST_ABI_SYMBOL) {
        Some(HOST_ABI_VERSION) => Ok(()),
        Some(other) => Err(DeviceError::BadModule(format!(
            "it is for host ABI {other}, this device supports {HOST_ABI_VERSION}; compile it again"
        ))),
        None => Err(DeviceError::BadModule(format!(
            "it has no symbol `{HOST_ABI_SYMBOL}`; Atoll's compiler did not make it"
        ))),
    }
}
