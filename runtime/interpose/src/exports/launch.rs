//! Launches of kernels, and occupancy.

use super::entry_points;
use crate::arguments::{Argument, In, Out, Place};
use crate::handles::{Kind, number, stream_number};
use crate::shim::Shim;
use crate::work::{Kernel, Shape, Work};
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use atoll_session::{Code, KernelFacts, active_blocks, available_shared, best_block};

/// Launch attributes that are ignored: hints, and permission to begin before the launch before has
/// ended.
const IGNORED: [c_uint; 9] = [
    CU_LAUNCH_ATTRIBUTE_IGNORE,
    CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
    CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY,
    CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
    CU_LAUNCH_ATTRIBUTE_PRIORITY,
    CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP,
    CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
    CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
];

entry_points! { LAUNCH:
    fn cuLaunchKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: CUstream, each: In<Place>, extra: In<Place>
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(function, &Shape { grid, block, shared_bytes, is_cooperative: false }, stream, each, extra)
    }

    fn cuLaunchCooperativeKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: CUstream, each: In<Place>
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(function, &Shape { grid, block, shared_bytes, is_cooperative: true }, stream, each, In::null())
    }

    fn cuLaunchKernelEx(config: In<CUlaunchConfig>, function: CUfunction, each: In<Place>, extra: In<Place>) {
        let config = config.get(0)?;
        let mut is_cooperative = false;
        for index in 0..config.attribute_count as usize {
            let attribute = In::of(config.attributes).get(index)?;
            match attribute.id {
                CU_LAUNCH_ATTRIBUTE_COOPERATIVE => is_cooperative |= attribute.value[0] != 0,
                CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION if attribute.value[..3] == [1; 3] => {}
                id if IGNORED.contains(&id) => {}
                _ => return Err(Code::NOT_SUPPORTED),
            }
        }
        let shape = Shape {
            grid: [config.grid_dim_x, config.grid_dim_y, config.grid_dim_z],
            block: [config.block_dim_x, config.block_dim_y, config.block_dim_z],
            shared_bytes: config.shared_mem_bytes,
            is_cooperative,
        };
        launch(function, &shape, config.stream, each, extra)
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

    fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<c_int>, block: Out<c_int>, function: CUfunction, shared_of_block: CUoccupancyB2DSize,
        shared_bytes: usize, limit: c_int
    ) {
        best(function, shared_of_block, shared_bytes, limit, (grid, block))
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Out<c_int>, block: Out<c_int>, function: CUfunction, shared_of_block: CUoccupancyB2DSize,
        shared_bytes: usize, limit: c_int, _flags: c_uint
    ) {
        best(function, shared_of_block, shared_bytes, limit, (grid, block))
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(
        bytes: Out<usize>, function: CUfunction, blocks: c_int, threads: c_int
    ) {
        let shim = Shim::get()?;
        let kernel = shim.client.kernel_facts(number(Kind::Kernel, function)?)?;
        let blocks = u64::try_from(blocks).ok().filter(|blocks| *blocks > 0).ok_or(Code::INVALID_VALUE)?;
        if threads <= 0 {
            return Err(Code::INVALID_VALUE);
        }
        bytes.set(available_shared(shim.client.facts(), &kernel, blocks) as usize)
    }
}

fn occupancy(blocks: Out<c_int>, function: CUfunction, threads: c_int, shared_bytes: usize) -> Result<(), Code> {
    let shim = Shim::get()?;
    let kernel = shim.client.kernel_facts(number(Kind::Kernel, function)?)?;
    let threads = u64::try_from(threads).ok().filter(|threads| *threads > 0).ok_or(Code::INVALID_VALUE)?;
    blocks.set(active_blocks(shim.client.facts(), &kernel, threads, shared_bytes as u64) as c_int)
}

/// Writes the grid and the block with the highest occupancy.
fn best(
    function: CUfunction,
    shared_of_block: CUoccupancyB2DSize,
    shared_bytes: usize,
    limit: c_int,
    (grid, block): (Out<c_int>, Out<c_int>),
) -> Result<(), Code> {
    let shim = Shim::get()?;
    let kernel = shim.client.kernel_facts(number(Kind::Kernel, function)?)?;
    let device = shim.client.facts().clone();
    // The program's function may call the driver, so the lock must be free.
    drop(shim);
    let shared = |threads: u64| match shared_of_block {
        // SAFETY: the program passes null or a function of this type.
        Some(shared) => unsafe { shared(threads as c_int) as u64 },
        None => shared_bytes as u64,
    };
    let most = u64::try_from(limit).map_err(|_| Code::INVALID_VALUE)?;
    let (blocks, threads) = best_block(&device, &kernel, shared, most);
    grid.set(blocks as c_int)?;
    block.set(threads as c_int)
}

fn launch(
    function: CUfunction,
    shape: &Shape,
    stream: CUstream,
    each: In<Place>,
    extra: In<Place>,
) -> Result<(), Code> {
    let (mut shim, _) = Shim::current()?;
    let kernel = number(Kind::Kernel, function)?;
    let facts = shim.client.kernel_facts(kernel)?;
    let params = read_params(&facts, each, extra)?;
    let stream = stream_number(stream)?;
    if shim.is_captured(stream)? {
        let work = Work::Kernel(Kernel::new(kernel, *shape, &facts, params));
        work.check(&shim)?;
        return shim.capture(stream, work);
    }
    shim.launch(stream, kernel, shape, &params)
}

/// The parameter block of a kernel.
pub(super) fn read_params(facts: &KernelFacts, each: In<Place>, extra: In<Place>) -> Result<Vec<u8>, Code> {
    if extra.is_null() { read_each(facts, each) } else { read_buffer(facts, extra) }
}

/// The parameter block, read from the address of each parameter.
fn read_each(facts: &KernelFacts, each: In<Place>) -> Result<Vec<u8>, Code> {
    let mut params = vec![0; facts.params_bytes()];
    for (index, &(at, bytes)) in facts.params.iter().enumerate() {
        let value = each.get(index)?.bytes(bytes.into())?;
        params[at as usize..][..value.len()].copy_from_slice(value);
    }
    Ok(params)
}

/// The parameter block, read from one buffer. As NVIDIA's driver, this refuses one that is longer than
/// the block.
fn read_buffer(facts: &KernelFacts, extra: In<Place>) -> Result<Vec<u8>, Code> {
    let (mut buffer, mut bytes) = (Place::NULL, 0);
    for index in (0..).step_by(2) {
        match extra.get(index)?.address() as usize {
            CU_LAUNCH_PARAM_END_AS_INT => break,
            CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT => buffer = extra.get(index + 1)?,
            CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT => bytes = extra.get(index + 1)?.values::<usize>().get(0)?,
            _ => return Err(Code::INVALID_VALUE),
        }
    }
    if bytes > facts.params_bytes() {
        return Err(Code::LAUNCH_OUT_OF_RESOURCES);
    }
    if bytes < facts.params_bytes() {
        return Err(Code::INVALID_VALUE);
    }
    Ok(buffer.bytes(facts.params_bytes() as u64)?.to_vec())
}
