//! The entry points that `nvcc` makes a program call: registration of its code, and launch shapes.

use super::{entry_points, set_last};
use crate::arguments::{In, Out};
use crate::code::{Wrapper, add_binary, add_kernel, add_variable, is_kernel, refuse_binary, remove_binary};
use crate::error::Code;
use atoll_cuda_library::log;
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::panic::catch_unwind;

/// A size in three dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Dim3 {
    pub(crate) x: c_uint,
    pub(crate) y: c_uint,
    pub(crate) z: c_uint,
}

/// Grid, block, dynamic shared memory in bytes, and stream.
type Shape = (Dim3, Dim3, usize, u64);

/// Maximum depth of nested launches: a launch can stand in the arguments of another.
const SHAPES_MAX: usize = 1024;

thread_local! {
    /// Shapes of launches that have begun: `kernel<<<…>>>(…)` pushes one and pops it again.
    static SHAPES: RefCell<Vec<Shape>> = const { RefCell::new(Vec::new()) };
}

/// Registers a fat binary. The result is its number instead of an address; the program only passes
/// it back.
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinary(wrapper: In<Wrapper>) -> *mut *mut c_void {
    let number = catch_unwind(|| add_binary(wrapper)).unwrap_or(0);
    std::ptr::without_provenance_mut(number as usize)
}

/// Ends the registrations of a fat binary.
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinaryEnd(_binary: u64) {}

/// Unregisters a fat binary.
#[unsafe(no_mangle)]
extern "C" fn __cudaUnregisterFatBinary(binary: u64) {
    // A panic cannot be reported here; the program ends as usual.
    let _ = catch_unwind(|| remove_binary(binary));
}

/// Registers a kernel by an address in the program.
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFunction(
    binary: u64,
    host: u64,
    _device: u64,
    name: In<c_char>,
    _threads: c_int,
    _thread: u64,
    _block: u64,
    _block_size: u64,
    _grid_size: u64,
    _warp_size: u64,
) {
    let _ = catch_unwind(|| {
        if let Ok(name) = name.text() {
            add_kernel(binary, host, name);
        }
    });
}

/// Registers a variable by an address in the program.
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterVar(
    binary: u64,
    host: u64,
    _device: u64,
    name: In<c_char>,
    _is_external: c_int,
    _bytes: usize,
    _is_constant: c_int,
    _is_global: c_int,
) {
    let _ = catch_unwind(|| {
        if let Ok(name) = name.text() {
            add_variable(binary, host, name);
        }
    });
}

/// Refuses the fat binary, since managed variables are missing. If it were loaded, its kernels would
/// use a copy of the variable that the host does not see.
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterManagedVar(
    binary: u64,
    _host: u64,
    _device: u64,
    name: In<c_char>,
    _is_external: c_int,
    _bytes: usize,
    _is_constant: c_int,
    _is_global: c_int,
) {
    refuse(binary, "__managed__ variables", name);
}

/// Refuses the fat binary: texture references are missing.
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterTexture(
    binary: u64,
    _host: u64,
    _device: u64,
    name: In<c_char>,
    _dimensions: c_int,
    _is_normalized: c_int,
    _is_external: c_int,
) {
    refuse(binary, "references to textures", name);
}

/// Refuses the fat binary: surface references are missing.
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterSurface(
    binary: u64,
    _host: u64,
    _device: u64,
    name: In<c_char>,
    _dimensions: c_int,
    _is_external: c_int,
) {
    refuse(binary, "references to surfaces", name);
}

/// Refuses the fat binary: host variables in kernels are missing.
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterHostVar(binary: u64, name: In<c_char>, _host: u64, _bytes: usize) {
    refuse(binary, "variables of the host in kernels", name);
}

/// Refuses the fat binary: tables of functions that host and kernels share are missing. The further
/// arguments of this call are undocumented, so they are not declared.
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterUnifiedTable(binary: u64) {
    refuse(binary, "functions that the host and kernels share", In::NULL);
}

/// Reports the missing feature that a fat binary needs. This runs before `main`, so no call can
/// return the error; later uses of the fat binary return it.
fn refuse(binary: u64, what: &str, name: In<c_char>) {
    let _ = catch_unwind(|| {
        let name = name.text().unwrap_or_default();
        let colon = if name.is_empty() { "" } else { ": " };
        log(&format_args!(
            "the program has {what}, which are not supported{colon}{}; a use of its kernels and variables returns \
             cudaErrorNotSupported",
            name.to_string_lossy()
        ));
        refuse_binary(binary);
    });
}

/// Called before managed variables are used. Does nothing and returns success.
#[unsafe(no_mangle)]
extern "C" fn __cudaInitModule(_binary: u64) -> c_char {
    1
}

/// Stores the shape of a launch. Returns 0 if the program may go on with the launch.
#[unsafe(no_mangle)]
extern "C" fn __cudaPushCallConfiguration(grid: Dim3, block: Dim3, shared_bytes: usize, stream: u64) -> c_uint {
    let pushed = SHAPES.try_with(|shapes| {
        let mut shapes = shapes.borrow_mut();
        let is_room = shapes.len() < SHAPES_MAX;
        if is_room {
            shapes.push((grid, block, shared_bytes, stream));
        }
        is_room
    });
    match pushed {
        Ok(true) => return 0,
        // Too many launches have begun without being finished.
        Ok(false) => set_last(Code::LAUNCH_OUT_OF_RESOURCES.0),
        // The thread is ending.
        Err(_) => set_last(Code::UNKNOWN.0),
    }
    1
}

entry_points! {
    /// Returns the shape of the launch that began last.
    fn __cudaPopCallConfiguration(grid: Out<Dim3>, block: Out<Dim3>, shared_bytes: Out<usize>, stream: Out<u64>) {
        let shape = SHAPES.try_with(|shapes| shapes.borrow_mut().pop()).map_err(|_| Code::UNKNOWN)?;
        let (of_grid, of_block, of_shared, of_stream) = shape.ok_or(Code::MISSING_CONFIGURATION)?;
        grid.set(of_grid)?;
        block.set(of_block)?;
        shared_bytes.set(of_shared)?;
        stream.set(of_stream)
    }

    /// The handle of a kernel: its address in the program.
    fn __cudaGetKernel(kernel: Out<u64>, host: u64) {
        kernel.is_wanted()?;
        if is_kernel(host) { kernel.set(host) } else { Err(Code::INVALID_DEVICE_FUNCTION) }
    }
}
