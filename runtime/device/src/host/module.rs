//! Native code in memory: an ELF object becomes callable kernels.

use super::cpu;
use super::elf::check_shared_object;
use crate::{DeviceError, ModuleImage};
use atoll_kgraph::KernelFacts;
use atoll_kgraph::host_abi::{HOST_ABI_SYMBOL, HOST_ABI_VERSION, HostKernel};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use rustix::fs::MemfdFlags;
use std::os::fd::{AsRawFd, OwnedFd};

/// Most scratch memory a kernel may want per compute unit; more is a compiler's mistake, not a need.
pub(crate) const SCRATCH_BYTES_MAX: u32 = 256 << 20;

/// A loaded object. Its code stays mapped while the module lives.
#[derive(Debug)]
pub(crate) struct Module {
    kernels: Vec<Kernel>,
    _library: Library,
    /// Kept open, because the loader knows an object by its path: a second object under the same descriptor number would give the first one's code.
    _file: OwnedFd,
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
        check_shared_object(image.code).map_err(DeviceError::BadModule)?;
        let (library, file) = open(image.code)?;
        check_version(&library)?;
        let kernels = image.kernels.iter().map(|facts| Kernel::find(&library, facts)).collect::<Result<_, _>>()?;
        Ok(Module { kernels, _library: library, _file: file })
    }

    pub(crate) fn kernel(&self, index: u32) -> Option<&Kernel> {
        self.kernels.get(index as usize)
    }

    pub(crate) fn scratch_bytes_max(&self) -> u32 {
        self.kernels.iter().map(|k| k.facts.scratch_bytes).max().unwrap_or(0)
    }
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

fn open(code: &[u8]) -> Result<(Library, OwnedFd), DeviceError> {
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
    Ok((library, file))
}

/// What the loader said; the error itself only says which call failed.
fn error_text(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

fn check_version(library: &Library) -> Result<(), DeviceError> {
    // SAFETY: the symbol is a `u32` in every object of ours; one that has it as something else still has four readable bytes there or is no object of ours.
    let version = unsafe { library.get::<*const u32>(HOST_ABI_SYMBOL.as_bytes()).map(|symbol| symbol.read_unaligned()) };
    match version {
        Ok(HOST_ABI_VERSION) => Ok(()),
        Ok(other) => {
            Err(DeviceError::BadModule(format!("it is for host ABI {other}, this device speaks {HOST_ABI_VERSION}; compile it again")))
        }
        Err(_) => Err(DeviceError::BadModule(format!("it has no symbol `{HOST_ABI_SYMBOL}`; it was not made by Atoll's compiler"))),
    }
}
