//! Launches, kernels and their attributes, and occupancy.

use super::entry_points;
use super::register::Dim3;
use crate::arguments::{In, Out};
use crate::code::kernel;
use crate::error::Code;
use crate::version::oldest;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;

/// The attributes at the beginning of `cudaFuncAttributes`, which all versions have: three sizes of
/// 8 bytes, then numbers of 4 bytes.
const SIZES: [CUfunction_attribute; 3] =
    [CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES];
const NUMBERS: [CUfunction_attribute; 7] = [
    CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
    CU_FUNC_ATTRIBUTE_NUM_REGS,
    CU_FUNC_ATTRIBUTE_PTX_VERSION,
    CU_FUNC_ATTRIBUTE_BINARY_VERSION,
    CU_FUNC_ATTRIBUTE_CACHE_MODE_CA,
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
    CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
];

/// Attributes that CUDA 12 appended: whether a cluster size must be set; its required width, height
/// and depth; the scheduling policy of clusters; whether non-portable cluster sizes are allowed.
const OF_CLUSTERS: [CUfunction_attribute; 6] = [10, 11, 12, 13, 15, 14];

/// Sizes of `cudaFuncAttributes` in bytes, in CUDA 11 and since CUDA 12.
const ATTRIBUTES_BYTES: [usize; 2] = [56, 144];

/// The configuration of `cudaLaunchKernelExC`.
#[derive(Clone, Copy)]
#[repr(C)]
struct LaunchConfig {
    grid: Dim3,
    block: Dim3,
    shared_bytes: usize,
    stream: CUstream,
    attributes: *mut CUlaunchAttribute,
    attribute_count: c_uint,
}

entry_points! {
    fn cudaLaunchKernel(
        host: u64, grid: Dim3, block: Dim3, arguments: Out<*mut c_void>, shared_bytes: usize, stream: CUstream
    ) also cudaLaunchKernel_ptsz {
        launch(host, (grid, block), arguments, shared_bytes, stream)
    }

    fn __cudaLaunchKernel(
        host: u64, grid: Dim3, block: Dim3, arguments: Out<*mut c_void>, shared_bytes: usize, stream: CUstream
    ) also __cudaLaunchKernel_ptsz {
        launch(host, (grid, block), arguments, shared_bytes, stream)
    }

    fn cudaLaunchCooperativeKernel(
        host: u64, grid: Dim3, block: Dim3, arguments: Out<*mut c_void>, shared_bytes: usize, stream: CUstream
    ) also cudaLaunchCooperativeKernel_ptsz {
        let (current, function) = kernel(host)?;
        let shared = shared(shared_bytes)?;
        let launched = current.driver.cuLaunchCooperativeKernel(
            function, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, stream, arguments.raw(),
        );
        launched.map_err(of_shape)
    }

    fn cudaLaunchKernelExC(
        config: In<LaunchConfig>, host: u64, arguments: Out<*mut c_void>
    ) also cudaLaunchKernelExC_ptsz {
        let LaunchConfig { grid, block, shared_bytes, stream, attributes, attribute_count } = config.get()?;
        let (current, function) = kernel(host)?;
        let config = CUlaunchConfig {
            grid_dim_x: grid.x,
            grid_dim_y: grid.y,
            grid_dim_z: grid.z,
            block_dim_x: block.x,
            block_dim_y: block.y,
            block_dim_z: block.z,
            shared_mem_bytes: shared(shared_bytes)?,
            stream,
            attributes,
            attribute_count,
        };
        let launched =
            current.driver.cuLaunchKernelEx(&config, function, arguments.raw(), std::ptr::null_mut());
        launched.map_err(of_shape)
    }

    fn cudaFuncGetAttributes(attributes: Out<u8>, host: u64) {
        attributes.is_wanted()?;
        let (current, function) = kernel(host)?;
        let get = |wanted| {
            let mut value = 0;
            current.driver.cuFuncGetAttribute(&mut value, wanted, function).map(|()| value)
        };
        let mut bytes = Vec::new();
        for wanted in SIZES {
            bytes.extend(i64::from(get(wanted)?).to_le_bytes());
        }
        for wanted in NUMBERS {
            bytes.extend(get(wanted)?.to_le_bytes());
        }
        // While CUDA 11 is loaded the caller may be of that version and have no room for the rest.
        let is_whole = oldest() >= 12000;
        if is_whole {
            // A driver without these attributes has no clusters either.
            OF_CLUSTERS.iter().for_each(|wanted| bytes.extend(get(*wanted).unwrap_or(0).to_le_bytes()));
        }
        // The remaining bytes are reserved or padding.
        bytes.resize(ATTRIBUTES_BYTES[usize::from(is_whole)], 0);
        attributes.set_bytes(&bytes)
    }

    fn cudaFuncSetAttribute(host: u64, wanted: CUfunction_attribute, value: c_int) {
        let (current, function) = kernel(host)?;
        current.driver.cuFuncSetAttribute(function, wanted, value)
    }

    fn cudaFuncSetCacheConfig(host: u64, preference: CUfunc_cache) {
        let (current, function) = kernel(host)?;
        current.driver.cuFuncSetCacheConfig(function, preference)
    }

    /// A hint that current devices ignore.
    fn cudaFuncSetSharedMemConfig(host: u64, _config: c_int) {
        kernel(host).map(drop)
    }

    fn cudaFuncGetParamInfo(host: u64, index: usize, offset: Out<usize>, size: Out<usize>) {
        let (current, function) = kernel(host)?;
        current.driver.cuFuncGetParamInfo(function, index, offset.raw(), size.raw())
    }

    fn cudaGetFuncBySymbol(function: Out<CUfunction>, host: u64) {
        function.is_wanted()?;
        function.set(kernel(host)?.1)
    }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<c_int>, host: u64, threads: c_int, shared_bytes: usize
    ) {
        blocks.is_wanted()?;
        let (current, function) = kernel(host)?;
        current.driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks.raw(), function, threads, shared_bytes)
    }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<c_int>, host: u64, threads: c_int, shared_bytes: usize, flags: c_uint
    ) {
        blocks.is_wanted()?;
        let (current, function) = kernel(host)?;
        let (driver, blocks) = (current.driver, blocks.raw());
        driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared_bytes, flags)
    }

    fn cudaOccupancyAvailableDynamicSMemPerBlock(bytes: Out<usize>, host: u64, blocks: c_int, threads: c_int) {
        bytes.is_wanted()?;
        let (current, function) = kernel(host)?;
        current.driver.cuOccupancyAvailableDynamicSMemPerBlock(bytes.raw(), function, blocks, threads)
    }
}

fn launch(
    host: u64,
    (grid, block): (Dim3, Dim3),
    arguments: Out<*mut c_void>,
    shared_bytes: usize,
    stream: CUstream,
) -> Result<(), Code> {
    let (current, function) = kernel(host)?;
    let shared = shared(shared_bytes)?;
    let launched = current.driver.cuLaunchKernel(
        function,
        grid.x,
        grid.y,
        grid.z,
        block.x,
        block.y,
        block.z,
        shared,
        stream,
        arguments.raw(),
        std::ptr::null_mut(),
    );
    launched.map_err(of_shape)
}

fn shared(bytes: usize) -> Result<c_uint, Code> {
    c_uint::try_from(bytes).map_err(|_| Code::INVALID_VALUE)
}

/// Maps the driver's error for an invalid grid or block to the runtime's.
fn of_shape(code: Code) -> Code {
    if code == Code::INVALID_VALUE { Code::INVALID_CONFIGURATION } else { code }
}
