//! Modules, kernels and launches.

use super::device::LDS_BYTES;
use super::{at, entry_points, put};
use crate::machine::RESIDENT;
use crate::options::Options;
use crate::runtime::{Function, Module, Runtime, fresh};
use crate::status::Status;
use crate::work::{LaunchWork, Work};
use atoll_amd_interp::{DEFAULT_BASE, Kernel, Launch, Program};
use atoll_hip_api::constants::{
    FUNC_LOCAL_SIZE_BYTES, FUNC_MAX_THREADS_PER_BLOCK, FUNC_NUM_REGS, FUNC_SHARED_SIZE_BYTES,
    LAUNCH_PARAM_BUFFER_POINTER, LAUNCH_PARAM_BUFFER_SIZE, LAUNCH_PARAM_END,
};
use atoll_hip_api::types::*;
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Maximum number of threads of a block.
const THREADS_MAX: u32 = 1024;

/// Maximum size of a kernarg segment in bytes.
const KERNARG_BYTES_MAX: usize = 64 << 10;

/// Bytes of the header of an ELF file.
const HEADER_BYTES: usize = 64;

/// Distance of the base addresses of programs: more than the largest image.
const PROGRAM_BYTES: u64 = 1 << 28;

entry_points! { MODULE:
    fn hipModuleLoadData(module: *mut hipModule_t, image: *const c_void) {
        static PROGRAMS: AtomicU64 = AtomicU64::new(0);
        let runtime = Runtime::get()?;
        let device = runtime.current()?;
        // SAFETY: as the caller guarantees.
        let elf = unsafe { file(image.cast())? };
        let base = DEFAULT_BASE + PROGRAMS.fetch_add(1, Relaxed) * PROGRAM_BYTES;
        let program = Program::load_at(&elf, base).map_err(|_| Status::InvalidImage)?;
        if program.target.name != runtime.options.architecture || !loads(&elf, &runtime.options) {
            return Err(runtime.options.refusal());
        }
        let handle = fresh();
        runtime.modules.put(handle, Arc::new(Module { program: Arc::new(program), device: device.clone() }));
        // SAFETY: as the caller guarantees.
        unsafe { put(module, hipModule_t::from_bits(handle)) }
    }

    fn hipModuleUnload(module: hipModule_t) {
        let runtime = Runtime::get()?;
        let unloaded = runtime.modules.remove(module)?;
        runtime.functions.retain(|function| function.module != module.bits());
        unloaded.device.forget(unloaded.program.clone());
        Ok(())
    }

    fn hipModuleGetFunction(function: *mut hipFunction_t, module: hipModule_t, name: *const c_char) {
        let runtime = Runtime::get()?;
        let loaded = runtime.modules.get(module)?;
        if name.is_null() {
            return Err(Status::InvalidValue);
        }
        // SAFETY: as the caller guarantees.
        let kernel = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| Status::NotFound)?.to_owned();
        loaded.program.kernel(&kernel).map_err(|_| Status::NotFound)?;
        let handle = fresh();
        runtime.functions.put(handle, Function { module: module.bits(), kernel });
        // SAFETY: as the caller guarantees.
        unsafe { put(function, hipFunction_t::from_bits(handle)) }
    }

    fn hipModuleGetGlobal(
        pointer: *mut hipDeviceptr_t, bytes: *mut usize, module: hipModule_t, name: *const c_char
    ) {
        let loaded = Runtime::get()?.modules.get(module)?;
        if name.is_null() {
            return Err(Status::InvalidValue);
        }
        // SAFETY: as the caller guarantees.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| Status::NotFound)?;
        let (address, size) = loaded.program.extent(name).ok_or(Status::NotFound)?;
        // SAFETY: as the caller guarantees.
        unsafe {
            put(pointer, address)?;
            put(bytes, size as usize)
        }
    }

    fn hipFuncGetAttribute(value: *mut c_int, attribute: hipFunction_attribute, function: hipFunction_t) {
        let number = with_kernel(function, |_, kernel| match attribute {
            FUNC_MAX_THREADS_PER_BLOCK => Ok(THREADS_MAX as c_int),
            FUNC_SHARED_SIZE_BYTES => Ok(kernel.descriptor.lds_bytes as c_int),
            FUNC_LOCAL_SIZE_BYTES => Ok(kernel.descriptor.private_bytes as c_int),
            FUNC_NUM_REGS => Ok(kernel.descriptor.vgprs as c_int),
            _ => Err(Status::InvalidValue),
        })?;
        // SAFETY: as the caller guarantees.
        unsafe { put(value, number) }
    }

    fn hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
        num_blocks: *mut c_int, function: hipFunction_t, block_size: c_int, dynamic_lds_bytes: usize
    ) {
        Runtime::get()?.functions.get(function)?;
        if !(1..=THREADS_MAX as c_int).contains(&block_size) || dynamic_lds_bytes > LDS_BYTES as usize {
            return Err(Status::InvalidValue);
        }
        // SAFETY: as the caller guarantees.
        unsafe { put(num_blocks, RESIDENT as c_int) }
    }

    fn hipModuleLaunchKernel(
        function: hipFunction_t, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint,
        block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint,
        stream: hipStream_t, kernel_params: *mut *mut c_void, extra: *mut *mut c_void
    ) {
        let runtime = Runtime::get()?;
        let device = runtime.streams.get(stream)?;
        device.check()?;
        let grid = [grid_dim_x, grid_dim_y, grid_dim_z];
        let block = [block_dim_x, block_dim_y, block_dim_z];
        let threads = block.iter().try_fold(1_u32, |all, count| all.checked_mul(*count)).unwrap_or(u32::MAX);
        if grid.contains(&0) || !(1..=THREADS_MAX).contains(&threads) {
            return Err(Status::InvalidConfiguration);
        }
        if !kernel_params.is_null() {
            // Launches with the addresses of single parameters are not implemented, only those with
            // a kernarg segment.
            return Err(Status::NotSupported);
        }
        // SAFETY: as the caller guarantees.
        let kernarg = unsafe { segment(extra)? };
        let (program, kernel) = with_kernel(function, |program, kernel| {
            let lds = u64::from(kernel.descriptor.lds_bytes) + u64::from(shared_mem_bytes);
            let is_enough = kernarg.len() >= kernel.descriptor.kernarg_bytes as usize;
            match is_enough && lds <= u64::from(LDS_BYTES) {
                true => Ok((program.clone(), kernel.name.clone())),
                false => Err(Status::InvalidValue),
            }
        })?;
        let launch = Launch { grid, block, dynamic_lds: shared_mem_bytes, kernarg };
        device.push(stream.bits(), Work::Launch(Box::new(LaunchWork { program, kernel, launch })))
    }
}

fn with_kernel<T>(
    function: hipFunction_t,
    look: impl FnOnce(&Arc<Program>, &Kernel) -> Result<T, Status>,
) -> Result<T, Status> {
    let runtime = Runtime::get()?;
    let Function { module, kernel } = runtime.functions.get(function)?;
    let module = runtime.modules.get(hipModule_t::from_bits(module))?;
    look(&module.program, module.program.kernel(&kernel).map_err(|_| Status::NotFound)?)
}

/// The bytes of an ELF file. Its size is the end of the section table.
///
/// # Safety
/// The pointer must be null or the address of a whole file.
unsafe fn file(image: *const u8) -> Result<Vec<u8>, Status> {
    // SAFETY: an image has at least four bytes.
    let begin: [u8; 4] = unsafe { at(image.cast(), 0)? };
    if begin != *b"\x7fELF" {
        return Err(Status::InvalidImage);
    }
    // SAFETY: an ELF file has a header.
    let header: [u8; HEADER_BYTES] = unsafe { at(image.cast(), 0)? };
    let number = |from: usize, bytes: usize| {
        header[from..from + bytes].iter().rev().fold(0_u64, |all, byte| all << 8 | u64::from(*byte))
    };
    let end = number(0x28, 8).checked_add(number(0x3a, 2) * number(0x3c, 2));
    let end = end.filter(|end| (HEADER_BYTES as u64..1 << 26).contains(end)).ok_or(Status::InvalidImage)?;
    // SAFETY: the header gives the size of the file, as the caller guarantees.
    Ok(unsafe { std::slice::from_raw_parts(image, end as usize) }.to_vec())
}

/// Whether the loader of this release knows the version of a code object, and its device has the
/// features that the code needs.
fn loads(elf: &[u8], options: &Options) -> bool {
    // `EI_ABIVERSION`: 2 is version 4 of the ABI.
    let is_known = match elf[8] {
        ..=2 => true,
        3 => options.rocm >= (5, 2),
        4 => options.rocm >= (6, 2),
        _ => false,
    };
    let has = |shift: u8, is_on: bool| match elf[0x31] >> shift & 3 {
        2 => !is_on,
        3 => is_on,
        _ => true,
    };
    is_known && has(0, options.xnack()) && has(2, options.sramecc())
}

/// The kernarg segment of a launch.
///
/// # Safety
/// The pointer must be null or a list as the reference describes.
unsafe fn segment(extra: *mut *mut c_void) -> Result<Vec<u8>, Status> {
    let (mut from, mut bytes): (*const u8, usize) = (std::ptr::null(), 0);
    let mut index = 0;
    loop {
        // SAFETY: the list goes on until its end element.
        match unsafe { at(extra, index)? } as usize {
            LAUNCH_PARAM_END => break,
            // SAFETY: each other element has a value.
            LAUNCH_PARAM_BUFFER_POINTER => from = unsafe { at(extra, index + 1)? }.cast_const().cast(),
            LAUNCH_PARAM_BUFFER_SIZE => {
                // SAFETY: this value is the address of a size.
                bytes = unsafe { at(at(extra, index + 1)?.cast_const().cast::<usize>(), 0)? };
            }
            _ => return Err(Status::InvalidValue),
        }
        index += 2;
    }
    if from.is_null() || bytes > KERNARG_BYTES_MAX {
        return Err(Status::InvalidValue);
    }
    // SAFETY: the list gives address and size of the segment.
    Ok(unsafe { std::slice::from_raw_parts(from, bytes) }.to_vec())
}
