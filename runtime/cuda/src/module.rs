//! Modules and their kernels.

use crate::context::Context;
use crate::error::{CudaError, status};
use crate::functions::Functions;
use crate::memory::DevicePtr;
use crate::stream::Stream;
use atoll_cuda_api::constants::{
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
    CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT, CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT, CU_LAUNCH_PARAM_END_AS_INT,
};
use atoll_cuda_api::types::{CUfunction, CUmodule, DriverHandle};
use std::ffi::{CString, c_int, c_void};
use std::ptr;
use std::sync::Arc;

/// Bytes of the compiler log that are kept.
const LOG_BYTES_MAX: usize = 16 << 10;

/// Why code could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}{}{log}", if log.is_empty() { "" } else { "\n" })]
pub struct LoadError {
    /// The driver's error.
    pub error: CudaError,
    /// The log of the driver's compiler.
    pub log: String,
}

/// Code on a device. Its kernels keep it loaded.
#[derive(Clone, Debug)]
pub struct Module(Arc<Loaded>);

#[derive(Debug)]
struct Loaded {
    context: Arc<Context>,
    handle: CUmodule,
}

impl Module {
    /// Loads PTX, which the driver compiles, or machine code.
    pub fn load(context: &Arc<Context>, code: &[u8]) -> Result<Module, LoadError> {
        let mut image = code.to_vec();
        // Terminates PTX. Harmless after machine code, which contains its own size.
        image.push(0);
        let mut log = vec![0_u8; LOG_BYTES_MAX];
        let mut options = [CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // The option's value is passed in place of a pointer.
        let mut values = [log.as_mut_ptr().cast::<c_void>(), ptr::without_provenance_mut(LOG_BYTES_MAX - 1)];
        let mut handle = CUmodule::NULL;
        // SAFETY: the image is NUL-terminated or ELF, and only read during the call; there are as
        // many values as options, and the log has the size given by the second one.
        let loaded = context.call("cuModuleLoadDataEx", |f| unsafe {
            (f.module_load)(&mut handle, image.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr())
        });
        let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
        loaded.map_err(|error| LoadError { error, log: String::from_utf8_lossy(text).trim().to_owned() })?;
        Ok(Module(Arc::new(Loaded { context: context.clone(), handle })))
    }

    /// The variable with this name.
    pub fn variable(&self, name: &str) -> Result<Variable, CudaError> {
        let text = CString::new(name).map_err(|_| not_found("cuModuleGetGlobal"))?;
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: the name is NUL-terminated and only read during the call; the module is loaded;
        // writes an address and a size to the given addresses.
        self.0.context.call("cuModuleGetGlobal", |f| unsafe {
            (f.module_variable)(&mut address, &mut bytes, self.0.handle, text.as_ptr())
        })?;
        Ok(Variable { module: self.0.clone(), address, bytes: bytes as u64 })
    }

    /// A kernel, loaded now: a kernel that is loaded at its first launch would wait for running
    /// kernels.
    pub fn kernel(&self, name: &str) -> Result<Kernel, CudaError> {
        let context = &self.0.context;
        let text = CString::new(name).map_err(|_| not_found("cuModuleGetFunction"))?;
        let mut handle = CUfunction::NULL;
        // SAFETY: the name is NUL-terminated and only read during the call; the module is loaded.
        context.call("cuModuleGetFunction", |f| unsafe {
            (f.module_function)(&mut handle, self.0.handle, text.as_ptr())
        })?;
        // SAFETY: the handle was just returned.
        let ready = context.call("cuFuncLoad", |f| f.function_load.map_or(0, |load| unsafe { load(handle) }));
        ready.or_else(|error| if error.code == status::NOT_SUPPORTED { Ok(()) } else { Err(error) })?;
        Ok(Kernel { module: self.0.clone(), handle })
    }
}

fn not_found(call: &'static str) -> CudaError {
    CudaError { call, code: status::NOT_FOUND, name: "CUDA_ERROR_NOT_FOUND".to_owned() }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and not used again.
        self.context.release(|f| unsafe { (f.module_unload)(self.handle) });
    }
}

/// A variable of a loaded module, in device memory.
#[derive(Clone, Debug)]
pub struct Variable {
    module: Arc<Loaded>,
    address: DevicePtr,
    bytes: u64,
}

impl Variable {
    /// Its address.
    pub fn address(&self) -> DevicePtr {
        self.address
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether this is a variable of the module.
    pub fn is_of(&self, module: &Module) -> bool {
        Arc::ptr_eq(&self.module, &module.0)
    }
}

/// A kernel of a loaded module.
#[derive(Clone, Debug)]
pub struct Kernel {
    module: Arc<Loaded>,
    handle: CUfunction,
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub enum Arg {
    /// A `.u32` parameter.
    U32(u32),
    /// A `.u64` parameter.
    U64(u64),
}

/// Grid, block and shared memory of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: u32,
}

impl Kernel {
    /// Raises the limit of dynamic shared memory for its launches; required above the driver's
    /// default.
    pub fn allow_shared(&self, bytes: u32) -> Result<(), CudaError> {
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        // SAFETY: the kernel is loaded.
        self.module.context.call("cuFuncSetAttribute", |f| unsafe {
            (f.function_set)(self.handle, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes)
        })
    }

    /// An attribute by its number in `cuda.h`.
    pub fn attribute(&self, number: i32) -> Result<i32, CudaError> {
        let mut value: c_int = 0;
        self.module.context.call("cuFuncGetAttribute", |f| {
            // SAFETY: the kernel is loaded; writes one int to the given address.
            unsafe { (f.function_get)(&mut value, number, self.handle) }
        })?;
        Ok(value)
    }

    /// Sets an attribute by its number in `cuda.h`.
    pub fn set_attribute(&self, number: i32, value: i32) -> Result<(), CudaError> {
        // SAFETY: the kernel is loaded.
        self.module.context.call("cuFuncSetAttribute", |f| unsafe { (f.function_set)(self.handle, number, value) })
    }

    /// Offset and size in bytes of a parameter in the parameter block; `None` after the last one.
    /// Needs the driver of CUDA 12.4.
    pub fn param(&self, index: usize) -> Result<Option<(u64, u64)>, CudaError> {
        let (mut offset, mut bytes) = (0, 0);
        let get = |f: &Functions| {
            let Some(get) = f.function_param else { return status::NOT_SUPPORTED };
            // SAFETY: the kernel is loaded; writes two numbers to the given addresses.
            unsafe { get(self.handle, index, &mut offset, &mut bytes) }
        };
        match self.module.context.call("cuFuncGetParamInfo", get) {
            Ok(()) => Ok(Some((offset as u64, bytes as u64))),
            Err(error) if error.code == status::INVALID_VALUE => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Blocks with this many threads and this much dynamic shared memory that fit on a compute unit
    /// at once.
    pub fn occupancy(&self, threads: u32, shared_bytes: u32) -> Result<u32, CudaError> {
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        let mut blocks: c_int = 0;
        self.module.context.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", |f| {
            // SAFETY: the kernel is loaded; `blocks` is written during the call.
            unsafe { (f.occupancy)(&mut blocks, self.handle, threads, shared_bytes as usize) }
        })?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// Launches a one-dimensional grid.
    pub fn launch(&self, stream: &Stream, blocks: u32, threads: u32, args: &[Arg]) -> Result<(), CudaError> {
        let shape = LaunchShape { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 };
        self.launch_with(stream, shape, &packed(args))
    }

    /// Like [`Kernel::launch_with`], but all blocks run at once.
    pub fn launch_cooperative(&self, stream: &Stream, shape: LaunchShape, params: &[u8]) -> Result<(), CudaError> {
        let LaunchShape { grid: [x, y, z], block: [width, height, depth], shared_bytes } = shape;
        let mut addresses = Vec::new();
        while let Some((at, bytes)) = self.param(addresses.len())? {
            let param = params.get(at as usize..).filter(|rest| rest.len() as u64 >= bytes);
            let invalid = || CudaError {
                call: "cuLaunchCooperativeKernel",
                code: status::INVALID_VALUE,
                name: "CUDA_ERROR_INVALID_VALUE".to_owned(),
            };
            addresses.push(param.ok_or_else(invalid)?.as_ptr().cast_mut().cast::<c_void>());
        }
        let launch = |f: &Functions| {
            let Some(launch) = f.launch_cooperative else { return status::NOT_SUPPORTED };
            let (kernel, stream) = (self.handle, stream.handle);
            // SAFETY: kernel and stream are alive; there are as many addresses as the kernel has
            // parameters, each of as many bytes, which the driver copies before it returns.
            unsafe { launch(kernel, x, y, z, width, height, depth, shared_bytes, stream, addresses.as_mut_ptr()) }
        };
        self.module.context.call("cuLaunchCooperativeKernel", launch)
    }

    /// Launches with a parameter block, which is naturally aligned and has the size that the kernel
    /// declares.
    pub fn launch_with(&self, stream: &Stream, shape: LaunchShape, params: &[u8]) -> Result<(), CudaError> {
        let LaunchShape { grid, block, shared_bytes } = shape;
        let mut bytes = params.len();
        let mut extra = [
            ptr::without_provenance_mut(CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT),
            params.as_ptr().cast_mut().cast::<c_void>(),
            ptr::without_provenance_mut(CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT),
            (&raw mut bytes).cast::<c_void>(),
            ptr::without_provenance_mut(CU_LAUNCH_PARAM_END_AS_INT),
        ];
        // SAFETY: kernel and stream are alive; the driver copies the parameters, whose size it is
        // given, before it returns.
        self.module.context.call("cuLaunchKernel", |f| unsafe {
            let [x, y, z] = grid;
            let [width, height, depth] = block;
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

/// Packs arguments into a parameter block, each aligned to its size.
fn packed(args: &[Arg]) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    for arg in args {
        match *arg {
            Arg::U32(value) => {
                bytes.resize(bytes.len().next_multiple_of(4), 0);
                bytes.extend(value.to_ne_bytes());
            }
            Arg::U64(value) => {
                bytes.resize(bytes.len().next_multiple_of(8), 0);
                bytes.extend(value.to_ne_bytes());
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_aligned() {
        assert_eq!(packed(&[]), []);
        let bytes = packed(&[Arg::U32(1), Arg::U64(2), Arg::U32(3), Arg::U32(4)]);
        assert_eq!(bytes, [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
    }
}
