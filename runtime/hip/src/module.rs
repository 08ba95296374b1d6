//! Modules and their kernels.

use crate::code_object::CodeObject;
use crate::context::Context;
use crate::error::{HipError, status};
use crate::memory::DevicePtr;
use crate::stream::Stream;
use atoll_hip_api::constants::{LAUNCH_PARAM_BUFFER_POINTER, LAUNCH_PARAM_BUFFER_SIZE, LAUNCH_PARAM_END};
use atoll_hip_api::types::{HipHandle, c_int, c_void, hipFunction_t, hipModule_t};
use std::ffi::CString;
use std::ptr;
use std::sync::Arc;

/// Code on a device. Its kernels keep it loaded.
#[derive(Clone, Debug)]
pub struct Module(Arc<Loaded>);

#[derive(Debug)]
struct Loaded {
    context: Arc<Context>,
    handle: hipModule_t,
}

impl Module {
    /// Loads a code object: an ELF file for one architecture.
    pub fn load(context: &Arc<Context>, code: &[u8]) -> Result<Module, HipError> {
        let mut handle = hipModule_t::NULL;
        // The library computes the size from the ELF header, and would read beyond the end of a
        // truncated file.
        CodeObject::read(code).map_err(|_| HipError::of("hipModuleLoadData", status::INVALID_IMAGE))?;
        // SAFETY: the code is as long as its header says, and only read during the call; writes one
        // handle to the given address.
        context.call("hipModuleLoadData", |f| unsafe { (f.module_load)(&mut handle, code.as_ptr().cast()) })?;
        Ok(Module(Arc::new(Loaded { context: context.clone(), handle })))
    }

    /// A kernel by its name.
    pub fn kernel(&self, name: &str) -> Result<Kernel, HipError> {
        let text = CString::new(name).map_err(|_| HipError::of("hipModuleGetFunction", status::NOT_FOUND))?;
        let mut handle = hipFunction_t::NULL;
        // SAFETY: the name is NUL-terminated and only read during the call; the module is loaded.
        self.0.context.call("hipModuleGetFunction", |f| unsafe {
            (f.module_function)(&mut handle, self.0.handle, text.as_ptr())
        })?;
        Ok(Kernel { module: self.0.clone(), handle })
    }

    /// Address and size of a variable by its name. It lives as long as the module.
    pub fn variable(&self, name: &str) -> Result<(DevicePtr, u64), HipError> {
        let text = CString::new(name).map_err(|_| HipError::of("hipModuleGetGlobal", status::NOT_FOUND))?;
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: the name is NUL-terminated and only read during the call; the module is loaded;
        // writes an address and a size to the given addresses.
        self.0.context.call("hipModuleGetGlobal", |f| unsafe {
            (f.module_variable)(&mut address, &mut bytes, self.0.handle, text.as_ptr())
        })?;
        Ok((address, bytes as u64))
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and not used again.
        self.context.release(|f| unsafe { (f.module_unload)(self.handle) });
    }
}

/// A kernel of a loaded module.
#[derive(Clone, Debug)]
pub struct Kernel {
    module: Arc<Loaded>,
    handle: hipFunction_t,
}

/// Grid, block and LDS of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic LDS of a block in bytes.
    pub shared_bytes: u32,
}

impl Kernel {
    /// An attribute by its number in the header.
    pub fn attribute(&self, number: i32) -> Result<i32, HipError> {
        let mut value: c_int = 0;
        self.module.context.call("hipFuncGetAttribute", |f| {
            // SAFETY: the kernel is loaded; writes one int to the given address.
            unsafe { (f.function_get)(&mut value, number, self.handle) }
        })?;
        Ok(value)
    }

    /// The number of blocks with this many threads and bytes of dynamic LDS that fit on a compute
    /// unit at once.
    pub fn occupancy(&self, threads: u32, shared_bytes: u32) -> Result<u32, HipError> {
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        let mut blocks: c_int = 0;
        self.module.context.call("hipModuleOccupancyMaxActiveBlocksPerMultiprocessor", |f| {
            // SAFETY: the kernel is loaded; writes one int to the given address.
            unsafe { (f.occupancy)(&mut blocks, self.handle, threads, shared_bytes as usize) }
        })?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// Launches with a kernarg segment.
    ///
    /// # Safety
    /// The segment has at least the size that the metadata of the code object declares for the
    /// kernel (`.kernarg_segment_size`). The library reads that many bytes, whatever length it
    /// gets.
    pub unsafe fn launch_with(&self, stream: &Stream, shape: LaunchShape, kernarg: &[u8]) -> Result<(), HipError> {
        let LaunchShape { grid: [x, y, z], block: [width, height, depth], shared_bytes } = shape;
        let mut bytes = kernarg.len();
        let mut extra = [
            ptr::without_provenance_mut(LAUNCH_PARAM_BUFFER_POINTER),
            kernarg.as_ptr().cast_mut().cast::<c_void>(),
            ptr::without_provenance_mut(LAUNCH_PARAM_BUFFER_SIZE),
            (&raw mut bytes).cast::<c_void>(),
            ptr::without_provenance_mut(LAUNCH_PARAM_END),
        ];
        // SAFETY: kernel and stream are alive; the caller guarantees that the segment is as long as
        // the kernel declares; the library copies it before it returns.
        self.module.context.call("hipModuleLaunchKernel", |f| unsafe {
            (f.launch)(
                self.handle,
                x,
                y,
                z,
                width,
                height,
                depth,
                shared_bytes,
                stream.handle,
                ptr::null_mut(),
                extra.as_mut_ptr(),
            )
        })
    }
}
