//! Compiles PTX text for this machine and runs it in this process.

#![allow(
    dead_code,
    clippy::missing_panics_doc,
    reason = "an example uses a part; a failed expectation is the test's failure"
)]

pub(crate) mod forms;
pub(crate) mod op;

use atoll_kgraph::host_abi::{HOST_ABI_SYMBOL, HOST_ABI_VERSION, HostContext, HostHelpers, HostKernel};
use atoll_target_host::{CompiledKernel, CpuLevel, HostError, KernelShape, Options, compile};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::cell::Cell;
use std::ffi::c_void;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;

/// The first lines of every module.
pub(crate) const HEADER: &str = ".version 7.0\n.target sm_80\n.address_size 64\n";

thread_local! {
    /// Code and line of the last trap on this thread.
    static TRAP: Cell<Option<(u32, u32)>> = const { Cell::new(None) };
}

unsafe extern "C" fn on_trap(_: *const HostContext, code: u32, line: u32, _thread: u32, _access: u32, _address: u64) {
    TRAP.set(Some((code, line)));
}

/// Compiles the module's text (without its header) for one level.
pub(crate) fn try_compile(text: &str, name: &str, block: [u32; 3], level: CpuLevel) -> Result<Loaded, HostError> {
    let module = atoll_ptx::parse(&format!("{HEADER}{text}")).unwrap_or_else(|e| panic!("{e}"));
    let shape = KernelShape { name: name.into(), block };
    let object = compile(&module, &[shape], level, &Options { keep_ir: true, threads: 1, ..Options::default() })?;
    Ok(Loaded::new(&object.elf, object.kernels[0].clone()))
}

/// Every level this machine supports.
pub(crate) fn levels() -> Vec<CpuLevel> {
    let highest = CpuLevel::of_this_machine();
    CpuLevel::ALL.into_iter().filter(|l| Some(*l) <= highest).collect()
}

/// Compiles and runs a kernel at every level, with new arguments each time.
pub(crate) fn at_every_level(text: &str, name: &str, block: [u32; 3], mut run: impl FnMut(&Loaded)) {
    for level in levels() {
        run(&try_compile(text, name, block, level).unwrap_or_else(|e| panic!("{e}")));
    }
}

/// A kernel in memory.
pub(crate) struct Loaded {
    _library: libloading::Library,
    /// Kept open: the loader identifies libraries by path, and the path contains the descriptor's
    /// number, which must not be reused.
    _file: std::fs::File,
    kernel: HostKernel,
    pub(crate) facts: CompiledKernel,
}

/// The parameters of a launch besides its arguments.
pub(crate) struct Launch {
    pub(crate) grid: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) blocks: Option<(u64, u64)>,
    pub(crate) stop: u32,
}

impl Launch {
    pub(crate) fn grid(x: u32, y: u32, z: u32) -> Launch {
        Launch { grid: [x, y, z], shared_bytes: 0, blocks: None, stop: 0 }
    }

    pub(crate) fn shared(self, shared_bytes: u32) -> Launch {
        Launch { shared_bytes, ..self }
    }

    pub(crate) fn blocks(self, begin: u64, end: u64) -> Launch {
        Launch { blocks: Some((begin, end)), ..self }
    }
}

/// The parameter block, built with natural alignment.
#[derive(Default)]
pub(crate) struct Args(Vec<u8>);

impl Args {
    pub(crate) fn new() -> Args {
        Args::default()
    }

    fn push(mut self, bytes: &[u8]) -> Args {
        self.0.resize(self.0.len().next_multiple_of(bytes.len()), 0);
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn slice<T>(self, slice: &mut [T]) -> Args {
        self.push(&(slice.as_mut_ptr() as u64).to_le_bytes())
    }

    pub(crate) fn u32(self, value: u32) -> Args {
        self.push(&value.to_le_bytes())
    }

    pub(crate) fn f32(self, value: f32) -> Args {
        self.push(&value.to_le_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Args {
        self.push(&value.to_le_bytes())
    }
}

/// 256 bytes of memory, aligned for any vector register.
#[repr(align(256))]
#[derive(Clone)]
struct Chunk(#[allow(dead_code, reason = "only its address matters")] [u8; 256]);

fn arena(bytes: u32) -> Vec<Chunk> {
    vec![Chunk([0xAB; 256]); bytes.div_ceil(256).max(1) as usize]
}

impl Loaded {
    pub(crate) fn new(elf: &[u8], facts: CompiledKernel) -> Loaded {
        let file = rustix::fs::memfd_create("kernels", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        let mut file = std::fs::File::from(file);
        file.write_all(elf).expect("write to memory");
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        // SAFETY: the object has no initialisers; its exported symbols have the types of the host
        // ABI.
        let library = unsafe { libloading::Library::new(path) }.expect("load the object");
        // SAFETY: a u32 by the host ABI.
        let version = unsafe { **library.get::<*const u32>(HOST_ABI_SYMBOL.as_bytes()).expect("version symbol") };
        assert_eq!(version, HOST_ABI_VERSION);
        // SAFETY: kernels have this type by the host ABI.
        let kernel = unsafe { *library.get::<HostKernel>(facts.name.as_bytes()).expect("kernel symbol") };
        Loaded { _library: library, _file: file, kernel, facts }
    }

    /// Runs the kernel; returns code and line of a trap, if there was one.
    pub(crate) fn run(&self, launch: Launch, args: Args) -> Option<(u32, u32)> {
        let mut params = arena(args.0.len() as u32);
        let shared_bytes = launch.shared_bytes + self.facts.shared_static_bytes.next_multiple_of(16);
        let (mut shared, mut scratch) = (arena(shared_bytes), arena(self.facts.scratch_bytes));
        // SAFETY: the arena is at least as long as the arguments.
        unsafe { std::ptr::copy_nonoverlapping(args.0.as_ptr(), params.as_mut_ptr().cast::<u8>(), args.0.len()) };
        assert_eq!(args.0.len() as u32, self.facts.params_bytes, "arguments do not match the parameters");
        let helpers = HostHelpers { trap: on_trap as *const c_void as u64, print: 0, check: 0 };
        let (halt, mut running) = (0u32, 0u64);
        let all = launch.grid.iter().map(|&g| u64::from(g)).product();
        let (block_begin, block_end) = launch.blocks.unwrap_or((0, all));
        let context = HostContext {
            version: HOST_ABI_VERSION,
            compute_unit: 0,
            params: params.as_mut_ptr() as u64,
            grid: launch.grid,
            block: self.facts.block,
            block_begin,
            block_end,
            shared: shared.as_mut_ptr() as u64,
            shared_bytes,
            scratch_bytes: self.facts.scratch_bytes,
            scratch: scratch.as_mut_ptr() as u64,
            stop_word: &raw const launch.stop as u64,
            helpers: &raw const helpers as u64,
            block_word: &raw mut running as u64,
            halt_word: &raw const halt as u64,
        };
        TRAP.set(None);
        // SAFETY: the context is valid for the call; the tests pass addresses of live slices.
        unsafe { (self.kernel)(&raw const context) };
        TRAP.take()
    }
}

/// A seeded generator, so that failures repeat.
pub(crate) struct Random(SplitMix64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(SplitMix64::seed_from_u64(seed))
    }

    pub(crate) fn next_u32(&mut self) -> u32 {
        (self.0.next_u64() >> 32) as u32
    }

    /// Between −1 and 1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit()).collect()
    }
}
