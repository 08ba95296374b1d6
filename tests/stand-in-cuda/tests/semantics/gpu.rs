//! Loads the stand-in as a program loads the driver: as a shared library with entry points.

use libloading::Library;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;

/// Numbers of the driver's header.
pub(crate) mod code {
    pub(crate) const OK: u32 = 0;
    pub(crate) const INVALID_VALUE: u32 = 1;
    pub(crate) const OUT_OF_MEMORY: u32 = 2;
    pub(crate) const DEVICE_UNAVAILABLE: u32 = 46;
    pub(crate) const NO_DEVICE: u32 = 100;
    pub(crate) const INVALID_DEVICE: u32 = 101;
    pub(crate) const INVALID_CONTEXT: u32 = 201;
    pub(crate) const NO_BINARY: u32 = 209;
    pub(crate) const INVALID_PTX: u32 = 218;
    pub(crate) const UNSUPPORTED_PTX: u32 = 222;
    pub(crate) const INVALID_HANDLE: u32 = 400;
    pub(crate) const ILLEGAL_STATE: u32 = 401;
    pub(crate) const NOT_FOUND: u32 = 500;
    pub(crate) const NOT_READY: u32 = 600;
    pub(crate) const ILLEGAL_ADDRESS: u32 = 700;
    pub(crate) const LAUNCH_TIMEOUT: u32 = 702;
    pub(crate) const CONTEXT_DESTROYED: u32 = 709;
    pub(crate) const MISALIGNED: u32 = 716;
    pub(crate) const LAUNCH_FAILED: u32 = 719;
    pub(crate) const NOT_SUPPORTED: u32 = 801;
    pub(crate) const CAPTURE_UNSUPPORTED: u32 = 900;
    pub(crate) const CAPTURE_INVALIDATED: u32 = 901;
    pub(crate) const CAPTURE_UNMATCHED: u32 = 903;
    pub(crate) const CAPTURE_UNJOINED: u32 = 904;
    pub(crate) const CAPTURE_IMPLICIT: u32 = 906;
    pub(crate) const CAPTURED_EVENT: u32 = 907;
}

/// `CU_STREAM_NON_BLOCKING`.
pub(crate) const NON_BLOCKING: u32 = 1;

/// The library that cargo built for this test.
pub(crate) fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let path = library_path();
        // SAFETY: our own library, which does nothing when it is loaded.
        unsafe { Library::new(&path) }.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    })
}

pub(crate) fn library_path() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    test.ancestors().nth(1).expect("target/<profile>/deps").join("libatoll_stand_in_cuda.so")
}

/// Calls an entry point: `cuda!(cuMemFree_v2(at => u64))` returns its status.
macro_rules! cuda {
    ($name:ident($($value:expr => $type:ty),* $(,)?)) => {{
        // SAFETY: the types are those of the function in `cuda.h`.
        let function = unsafe {
            $crate::gpu::library().get::<unsafe extern "C" fn($($type),*) -> u32>(stringify!($name))
        };
        let function = function.expect("the stand-in exports it");
        // SAFETY: pointers are to locals of the caller that are large enough, or null, or wrong in
        // a way that the function has to find.
        unsafe { function($($value),*) }
    }};
}
pub(crate) use cuda;

/// The same, for a call that must succeed.
macro_rules! ok {
    ($name:ident($($arguments:tt)*)) => {
        assert_eq!($crate::gpu::cuda!($name($($arguments)*)), $crate::gpu::code::OK, stringify!($name))
    };
}
pub(crate) use ok;

/// A context for this test, current on this thread.
pub(crate) struct Gpu {
    pub(crate) context: u64,
}

impl Gpu {
    pub(crate) fn new() -> Gpu {
        ok!(cuInit(0 => u32));
        let mut context = 0;
        ok!(cuCtxCreate_v2(&mut context => *mut u64, 0 => u32, 0 => i32));
        Gpu { context }
    }

    pub(crate) fn stream(&self) -> u64 {
        self.stream_with(NON_BLOCKING)
    }

    pub(crate) fn stream_with(&self, flags: u32) -> u64 {
        let mut stream = 0;
        ok!(cuStreamCreate(&mut stream => *mut u64, flags => u32));
        stream
    }

    pub(crate) fn event(&self) -> u64 {
        let mut event = 0;
        ok!(cuEventCreate(&mut event => *mut u64, 0 => u32));
        event
    }

    /// Allocates words of device memory with the same value.
    pub(crate) fn words(&self, count: usize, value: u32) -> u64 {
        let mut at = 0;
        ok!(cuMemAlloc_v2(&mut at => *mut u64, count * 4 => usize));
        ok!(cuMemsetD32_v2(at => u64, value => u32, count => usize));
        ok!(cuCtxSynchronize());
        at
    }

    pub(crate) fn read(&self, at: u64, count: usize) -> Vec<u32> {
        let mut words = vec![0; count];
        ok!(cuMemcpyDtoH_v2(words.as_mut_ptr() => *mut u32, at => u64, count * 4 => usize));
        words
    }

    /// Allocates words that host and device share.
    pub(crate) fn shared(&self, count: usize) -> &'static [AtomicU32] {
        let mut at = std::ptr::null_mut::<AtomicU32>();
        ok!(cuMemHostAlloc(&mut at => *mut *mut AtomicU32, count * 4 => usize, 3 => u32));
        // SAFETY: as many words as were allocated, new and aligned; no test reads them after the
        // end of their context.
        unsafe { std::slice::from_raw_parts(at, count) }
    }

    pub(crate) fn module(&self, body: &str) -> u64 {
        let (module, status, log) = load(&format!(".version 7.0\n.target sm_80\n.address_size 64\n{body}"));
        assert_eq!(status, code::OK, "{log}");
        module
    }

    pub(crate) fn function(&self, module: u64, name: &str) -> u64 {
        let (name, mut function) = (format!("{name}\0"), 0);
        ok!(cuModuleGetFunction(&mut function => *mut u64, module => u64, name.as_ptr() => *const u8));
        function
    }

    /// The kernel of a module that has only one.
    pub(crate) fn kernel(&self, body: &str) -> u64 {
        let name = body.split(".entry ").nth(1).and_then(|rest| rest.split('(').next()).expect("a kernel");
        self.function(self.module(body), name.trim())
    }

    pub(crate) fn launch(&self, function: u64, stream: u64, blocks: u32, threads: u32, args: &[u64]) {
        assert_eq!(self.try_launch(function, stream, blocks, threads, args), code::OK);
    }

    pub(crate) fn try_launch(&self, function: u64, stream: u64, blocks: u32, threads: u32, args: &[u64]) -> u32 {
        let mut params: Vec<*const u64> = args.iter().map(std::ptr::from_ref).collect();
        cuda!(cuLaunchKernel(
            function => u64, blocks => u32, 1 => u32, 1 => u32, threads => u32, 1 => u32, 1 => u32, 0 => u32,
            stream => u64, params.as_mut_ptr() => *mut *const u64, std::ptr::null() => *const u64,
        ))
    }

    pub(crate) fn synchronize(&self, stream: u64) {
        ok!(cuStreamSynchronize(stream => u64));
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // A test may have destroyed it already.
        cuda!(cuCtxDestroy_v2(self.context => u64));
    }
}

/// Loads PTX; returns the module, the status and the error log.
pub(crate) fn load(text: &str) -> (u64, u32, String) {
    let (text, mut module, mut log) = (format!("{text}\0"), 0, [0u8; 512]);
    let names = [5u32, 6];
    let mut values = [log.as_mut_ptr() as usize, log.len()];
    let status = cuda!(cuModuleLoadDataEx(
        &mut module => *mut u64, text.as_ptr() => *const u8, 2 => u32, names.as_ptr() => *const u32,
        values.as_mut_ptr() => *mut usize,
    ));
    let written = values[1];
    (module, status, String::from_utf8_lossy(&log[..written.saturating_sub(1)]).into_owned())
}

/// Waits until a word is at least a value, then adds 1 to another word.
pub(crate) const HOLD: &str = "
.visible .entry hold(.param .u64 word, .param .u32 value, .param .u64 count)
{
	.reg .pred %p;
	.reg .b32 %r<4>;
	.reg .b64 %rd<3>;
	ld.param.u64 %rd1, [word];
	ld.param.u32 %r1, [value];
	ld.param.u64 %rd2, [count];
$again:
	ld.relaxed.sys.global.u32 %r2, [%rd1];
	sub.s32 %r3, %r2, %r1;
	setp.lt.s32 %p, %r3, 0;
	@%p bra $again;
	atom.global.add.u32 %r1, [%rd2], 1;
	ret;
}";

/// Doubles a word per thread, then adds a number.
pub(crate) const DOUBLE_ADD: &str = "
.visible .entry double_add(.param .u64 words, .param .u32 addend)
{
	.reg .b32 %r<6>;
	.reg .b64 %rd<3>;
	ld.param.u64 %rd1, [words];
	ld.param.u32 %r1, [addend];
	mov.u32 %r2, %ctaid.x;
	mov.u32 %r3, %ntid.x;
	mov.u32 %r4, %tid.x;
	mad.lo.s32 %r2, %r2, %r3, %r4;
	mul.wide.u32 %rd2, %r2, 4;
	add.s64 %rd1, %rd1, %rd2;
	ld.global.u32 %r5, [%rd1];
	shl.b32 %r5, %r5, 1;
	add.s32 %r5, %r5, %r1;
	st.global.u32 [%rd1], %r5;
	ret;
}";

/// Stores to an address.
pub(crate) const STORE_TO: &str = "
.visible .entry store_to(.param .u64 address)
{
	.reg .b64 %rd;
	ld.param.u64 %rd, [address];
	st.global.u64 [%rd], %rd;
	ret;
}";

/// Executes `trap`.
pub(crate) const TRAP: &str = "
.visible .entry trapping()
{
	trap;
	ret;
}";
