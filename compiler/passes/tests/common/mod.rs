//! Runs kernels on this machine's CPU: the host target compiles them, the system's loader loads
//! them.

use atoll_kgraph::host_abi::{HOST_ABI_VERSION, HostContext, HostHelpers, HostKernel};
use atoll_ptx::Module;
use atoll_target_host::{CompiledKernel, CpuLevel, KernelShape, Options, compile};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;

/// A kernel in memory.
pub(crate) struct Loaded {
    _library: libloading::Library,
    /// Kept open: the loader identifies libraries by path, and the path contains the descriptor's
    /// number, which must not be reused.
    _file: std::fs::File,
    kernel: HostKernel,
    facts: CompiledKernel,
}

/// 256 bytes, aligned as the host ABI requires.
#[repr(align(256))]
#[derive(Clone)]
struct Chunk([u8; 256]);

fn arena(bytes: u32) -> Vec<Chunk> {
    vec![Chunk([0xAB; 256]); bytes.div_ceil(256).max(1) as usize]
}

unsafe extern "C" fn on_trap(_: *const HostContext, code: u32, line: u32, _thread: u32, _access: u32, _address: u64) {
    eprintln!("trap {code} at line {line}");
    std::process::abort();
}

impl Loaded {
    /// Compiles a kernel of a module; `None` if the host target does not support this machine's
    /// CPU.
    pub(crate) fn new(module: &Module, name: &str, block: [u32; 3]) -> Option<Loaded> {
        let level = CpuLevel::of_this_machine()?;
        let shape = KernelShape { name: name.into(), block };
        let object = compile(module, &[shape], level, &Options { threads: 1, ..Options::default() })
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let descriptor = rustix::fs::memfd_create("kernel", rustix::fs::MemfdFlags::CLOEXEC).expect("a file in memory");
        let mut file = std::fs::File::from(descriptor);
        file.write_all(&object.elf).expect("room in memory");
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        // SAFETY: the object has no initialisers, and its kernels have this type by the host ABI.
        let library = unsafe { libloading::Library::new(path) }.expect("a loadable object");
        // SAFETY: as above; the pointer does not outlive the library.
        let kernel = unsafe { *library.get::<HostKernel>(name.as_bytes()).expect("the kernel's symbol") };
        Some(Loaded { _library: library, _file: file, kernel, facts: object.kernels[0].clone() })
    }

    /// Runs some blocks of a launch, one after another. `params` is the parameter block.
    pub(crate) fn run(&self, grid: [u32; 3], blocks: std::ops::Range<u64>, dynamic_shared_bytes: u32, params: &[u8]) {
        assert_eq!(
            params.len(),
            self.facts.params_bytes as usize,
            "the arguments are not those of {}",
            self.facts.name
        );
        let mut block = arena(self.facts.params_bytes);
        block.iter_mut().flat_map(|chunk| chunk.0.iter_mut()).zip(params).for_each(|(to, from)| *to = *from);
        let shared_bytes = self.facts.shared_static_bytes.next_multiple_of(16) + dynamic_shared_bytes;
        let (mut shared, mut scratch) = (arena(shared_bytes), arena(self.facts.scratch_bytes));
        let helpers = HostHelpers { trap: on_trap as *const () as u64, print: 0, check: 0 };
        let (stop, mut running) = (0_u32, 0_u64);
        let context = HostContext {
            version: HOST_ABI_VERSION,
            compute_unit: 0,
            params: block.as_mut_ptr() as u64,
            grid,
            block: self.facts.block,
            block_begin: blocks.start,
            block_end: blocks.end,
            shared: shared.as_mut_ptr() as u64,
            shared_bytes,
            scratch_bytes: self.facts.scratch_bytes,
            scratch: scratch.as_mut_ptr() as u64,
            stop_word: &raw const stop as u64,
            helpers: &raw const helpers as u64,
            block_word: &raw mut running as u64,
            halt_word: &raw const stop as u64,
        };
        // SAFETY: the context and all memory it names outlive the call; the test's kernels access
        // only memory that their arguments name.
        unsafe { (self.kernel)(&raw const context) };
    }
}
