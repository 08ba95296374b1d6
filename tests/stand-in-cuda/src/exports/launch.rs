//! Launches of kernels, and occupancy.

use super::arguments::{Argument, In, Out, Pointer};
use super::entry_points;
use crate::device::{Order, SHARED_BYTES_MAX};
use crate::driver::Driver;
use crate::module::Function;
use crate::status::Status;
use crate::table::Handle;
use crate::work::Work;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use std::sync::atomic::Ordering::Relaxed;

/// Attributes of a launch that are ignored.
const IGNORED: [c_uint; 4] = [
    CU_LAUNCH_ATTRIBUTE_IGNORE,
    CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
    CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY,
    CU_LAUNCH_ATTRIBUTE_PRIORITY,
];

/// The parameters from the caller: the address of each, or a buffer with all.
#[derive(Clone, Copy, Debug)]
struct Parameters {
    each: In<Pointer>,
    extra: In<Pointer>,
}

entry_points! { LAUNCH:
    fn cuLaunchKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: CUstream, each: In<Pointer>, extra: In<Pointer>
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(function, grid, block, shared_bytes, stream, Parameters { each, extra })
    }

    fn cuLaunchCooperativeKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: CUstream, each: In<Pointer>
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        check_cooperative(grid)?;
        launch(function, grid, block, shared_bytes, stream, Parameters { each, extra: In::null() })
    }

    fn cuLaunchKernelEx(config: In<CUlaunchConfig>, function: CUfunction, each: In<Pointer>, extra: In<Pointer>) {
        let config = config.get()?;
        let grid = [config.grid_dim_x, config.grid_dim_y, config.grid_dim_z];
        let block = [config.block_dim_x, config.block_dim_y, config.block_dim_z];
        for index in 0..config.attribute_count as usize {
            let attribute = In::of(config.attributes).at(index)?;
            match attribute.id {
                CU_LAUNCH_ATTRIBUTE_COOPERATIVE if attribute.value[0] != 0 => check_cooperative(grid)?,
                CU_LAUNCH_ATTRIBUTE_COOPERATIVE => {}
                CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION if attribute.value[..3] == [1; 3] => {}
                id if IGNORED.contains(&id) => {}
                _ => return Err(Status::NotSupported),
            }
        }
        launch(function, grid, block, config.shared_mem_bytes, config.stream, Parameters { each, extra })
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<c_int>, function: CUfunction, threads: c_int, shared_bytes: usize
    ) {
        occupancy(blocks, function, threads, shared_bytes)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<c_int>, function: CUfunction, threads: c_int, shared_bytes: usize, _flags: c_uint
    ) {
        occupancy(blocks, function, threads, shared_bytes)
    }
}

/// A compute unit runs one block at a time, whatever the block needs.
fn occupancy(blocks: Out<c_int>, function: CUfunction, threads: c_int, shared_bytes: usize) -> Result<(), Status> {
    let function = Driver::get()?.functions.get(Handle::of(function))?;
    let threads = u32::try_from(threads).ok().filter(|threads| *threads > 0).ok_or(Status::InvalidValue)?;
    let fits = threads <= function.threads_max()
        && shared_bytes as u64 + u64::from(function.shared_bytes()?) <= u64::from(SHARED_BYTES_MAX);
    blocks.set(fits.into())
}

/// Blocks of a cooperative launch wait for each other, so each needs a compute unit.
fn check_cooperative(grid: [u32; 3]) -> Result<(), Status> {
    let blocks = grid.iter().fold(1u64, |blocks, size| blocks.saturating_mul(u64::from(*size)));
    if blocks > u64::from(Driver::get()?.options.compute_units) {
        Err(Status::CooperativeLaunchTooLarge)
    } else {
        Ok(())
    }
}

fn launch(
    function: CUfunction,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: CUstream,
    given: Parameters,
) -> Result<(), Status> {
    let driver = Driver::get()?;
    let function = driver.functions.get(Handle::of(function))?;
    let stream = driver.stream(Handle::of(stream))?;
    stream.context.check()?;
    if function.module.context.handle != stream.context.handle {
        return Err(Status::InvalidHandle);
    }
    check_shape(&function, grid, block)?;
    if shared_bytes > function.dynamic_shared_bytes_max.load(Relaxed) {
        return Err(Status::InvalidValue);
    }
    let params = given.read(&function)?;
    let code = function.code(block)?;
    let shared_bytes = shared_bytes.checked_add(code.facts.shared_bytes).filter(|bytes| *bytes <= SHARED_BYTES_MAX);
    let order = Order { grid, shared_bytes: shared_bytes.ok_or(Status::InvalidValue)?, params };
    stream.push(Work::Launch { code, order })
}

fn check_shape(function: &Function, grid: [u32; 3], block: [u32; 3]) -> Result<(), Status> {
    let is_grid =
        grid.iter().all(|size| *size > 0) && grid[0] <= i32::MAX as u32 && grid[1..].iter().all(|size| *size <= 65_535);
    let threads = block.iter().fold(1u64, |threads, size| threads.saturating_mul(u64::from(*size)));
    let is_block = threads > 0 && threads <= 1024 && block[2] <= 64;
    if !is_grid || !is_block || function.block_required().is_some_and(|required| required != block) {
        return Err(Status::InvalidValue);
    }
    // More threads than `.maxntid` allows: on a GPU the code may need more registers than are
    // available.
    if threads > u64::from(function.threads_max()) { Err(Status::LaunchOutOfResources) } else { Ok(()) }
}

impl Parameters {
    /// The parameter block.
    fn read(self, function: &Function) -> Result<Vec<u8>, Status> {
        let size = function.params_bytes().ok_or(Status::NotSupported)?;
        if !self.extra.is_null() {
            return self.read_extra(size);
        }
        let mut block = vec![0; size];
        for (index, &(at, bytes)) in function.params.iter().enumerate() {
            let value = self.each.at(index)?.span(bytes)?.to_vec();
            block[at as usize..][..value.len()].copy_from_slice(&value);
        }
        Ok(block)
    }

    /// Reads them from one buffer. As NVIDIA's driver, this refuses one that is longer than the block.
    fn read_extra(self, size: usize) -> Result<Vec<u8>, Status> {
        let (mut buffer, mut bytes) = (None, None);
        let mut index = 0;
        loop {
            let value = |at: usize| self.extra.at(at);
            match value(index)?.address() as usize {
                CU_LAUNCH_PARAM_END_AS_INT => break,
                CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT => buffer = Some(value(index + 1)?),
                CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT => bytes = Some(value(index + 1)?.as_in::<usize>().get()?),
                _ => return Err(Status::InvalidValue),
            }
            index += 2;
        }
        if size == 0 {
            return Ok(Vec::new());
        }
        let (Some(buffer), Some(bytes)) = (buffer, bytes) else { return Err(Status::InvalidValue) };
        if bytes > size {
            return Err(Status::LaunchOutOfResources);
        }
        if bytes < size {
            return Err(Status::InvalidValue);
        }
        Ok(buffer.span(size as u64)?.to_vec())
    }
}
