//! Nodes of graphs, and their dependencies.

use super::copy::{Copy3D, Kind};
use super::entry_points;
use super::register::Dim3;
use super::symbol::part;
use crate::arguments::{In, Out};
use crate::code::kernel;
use crate::device::current;
use crate::driver::Driver;
use crate::error::Code;
use crate::loaded::host_of;
use crate::version::since;
use atoll_cuda_api::types::*;

/// A launch: `cudaKernelNodeParams`. The driver's struct has a kernel where this one has the address
/// of the kernel in the program.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct KernelParams {
    host: u64,
    grid: Dim3,
    block: Dim3,
    shared_bytes: c_uint,
    each: *mut *mut c_void,
    extra: *mut *mut c_void,
}

const _: () = assert!(size_of::<KernelParams>() == size_of::<CUDA_KERNEL_NODE_PARAMS_v1>());

entry_points! {
    fn cudaGraphAddKernelNode(
        node: Out<CUgraphNode>, graph: CUgraph, before: In<CUgraphNode>, count: usize, params: In<KernelParams>
    ) {
        node.is_wanted()?;
        let (driver, params) = kernel_params(params)?;
        driver.cuGraphAddKernelNode(node.raw(), graph, before.raw(), count, &params)
    }

    fn cudaGraphKernelNodeGetParams(node: CUgraphNode, params: Out<KernelParams>) {
        params.is_wanted()?;
        let driver = current()?.driver;
        let mut found = CUDA_KERNEL_NODE_PARAMS_v1 {
            function: CUfunction::NULL,
            grid_dim_x: 0,
            grid_dim_y: 0,
            grid_dim_z: 0,
            block_dim_x: 0,
            block_dim_y: 0,
            block_dim_z: 0,
            shared_mem_bytes: 0,
            kernel_params: std::ptr::null_mut(),
            extra: std::ptr::null_mut(),
        };
        driver.cuGraphKernelNodeGetParams(node, &mut found)?;
        params.set(KernelParams {
            host: host_of(found.function).ok_or(Code::INVALID_DEVICE_FUNCTION)?,
            grid: Dim3 { x: found.grid_dim_x, y: found.grid_dim_y, z: found.grid_dim_z },
            block: Dim3 { x: found.block_dim_x, y: found.block_dim_y, z: found.block_dim_z },
            shared_bytes: found.shared_mem_bytes,
            each: found.kernel_params,
            extra: found.extra,
        })
    }

    fn cudaGraphKernelNodeSetParams(node: CUgraphNode, params: In<KernelParams>) {
        let (driver, params) = kernel_params(params)?;
        driver.cuGraphKernelNodeSetParams(node, &params)
    }

    fn cudaGraphAddMemcpyNode(
        node: Out<CUgraphNode>, graph: CUgraph, before: In<CUgraphNode>, count: usize, copy: In<Copy3D>
    ) {
        add_copy(node, graph, (before, count), copy.get()?)
    }

    fn cudaGraphAddMemcpyNode1D(
        node: Out<CUgraphNode>, graph: CUgraph, before: In<CUgraphNode>, count: usize, to: u64, from: u64,
        bytes: usize, kind: Kind
    ) {
        add_copy(node, graph, (before, count), Copy3D::row(to, from, bytes, kind))
    }

    fn cudaGraphAddMemcpyNodeToSymbol(
        node: Out<CUgraphNode>, graph: CUgraph, before: In<CUgraphNode>, count: usize, symbol: u64, from: u64,
        bytes: usize, offset: usize, kind: Kind
    ) {
        let to = part(symbol, bytes, offset)?;
        add_copy(node, graph, (before, count), Copy3D::row(to, from, bytes, kind.on_device()?))
    }

    fn cudaGraphAddMemcpyNodeFromSymbol(
        node: Out<CUgraphNode>, graph: CUgraph, before: In<CUgraphNode>, count: usize, to: u64, symbol: u64,
        bytes: usize, offset: usize, kind: Kind
    ) {
        let from = part(symbol, bytes, offset)?;
        add_copy(node, graph, (before, count), Copy3D::row(to, from, bytes, kind.of_device()?))
    }

    fn cudaGraphMemcpyNodeGetParams(node: CUgraphNode, copy: Out<Copy3D>) {
        copy.is_wanted()?;
        let driver = current()?.driver;
        let mut found = Copy3D::row(0, 0, 0, Kind::DEFAULT).for_driver()?;
        driver.cuGraphMemcpyNodeGetParams(node, &mut found)?;
        copy.set(Copy3D::of_driver(&found))
    }

    fn cudaGraphMemcpyNodeSetParams(node: CUgraphNode, copy: In<Copy3D>) {
        let driver = current()?.driver;
        driver.cuGraphMemcpyNodeSetParams(node, &copy.get()?.for_driver()?)
    }

    fn cudaGraphMemcpyNodeSetParams1D(node: CUgraphNode, to: u64, from: u64, bytes: usize, kind: Kind) {
        let driver = current()?.driver;
        driver.cuGraphMemcpyNodeSetParams(node, &Copy3D::row(to, from, bytes, kind).for_driver()?)
    }

    fn cudaGraphAddMemsetNode(
        node: Out<CUgraphNode>, graph: CUgraph, before: In<CUgraphNode>, count: usize,
        params: In<CUDA_MEMSET_NODE_PARAMS_v1>
    ) {
        node.is_wanted()?;
        let current = current()?;
        let (driver, context) = (current.driver, current.context);
        driver.cuGraphAddMemsetNode(node.raw(), graph, before.raw(), count, params.raw(), context)
    }

    fn cudaGraphMemsetNodeGetParams(node: CUgraphNode, params: Out<CUDA_MEMSET_NODE_PARAMS_v1>) {
        params.is_wanted()?;
        current()?.driver.cuGraphMemsetNodeGetParams(node, params.raw())
    }

    fn cudaGraphMemsetNodeSetParams(node: CUgraphNode, params: In<CUDA_MEMSET_NODE_PARAMS_v1>) {
        current()?.driver.cuGraphMemsetNodeSetParams(node, params.raw())
    }

    fn cudaGraphAddHostNode(
        node: Out<CUgraphNode>, graph: CUgraph, before: In<CUgraphNode>, count: usize,
        params: In<CUDA_HOST_NODE_PARAMS_v1>
    ) {
        node.is_wanted()?;
        current()?.driver.cuGraphAddHostNode(node.raw(), graph, before.raw(), count, params.raw())
    }

    fn cudaGraphHostNodeGetParams(node: CUgraphNode, params: Out<CUDA_HOST_NODE_PARAMS_v1>) {
        params.is_wanted()?;
        current()?.driver.cuGraphHostNodeGetParams(node, params.raw())
    }

    fn cudaGraphHostNodeSetParams(node: CUgraphNode, params: In<CUDA_HOST_NODE_PARAMS_v1>) {
        current()?.driver.cuGraphHostNodeSetParams(node, params.raw())
    }

    fn cudaGraphAddChildGraphNode(
        node: Out<CUgraphNode>, graph: CUgraph, before: In<CUgraphNode>, count: usize, child: CUgraph
    ) {
        node.is_wanted()?;
        current()?.driver.cuGraphAddChildGraphNode(node.raw(), graph, before.raw(), count, child)
    }

    fn cudaGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: Out<CUgraph>) {
        graph.is_wanted()?;
        current()?.driver.cuGraphChildGraphNodeGetGraph(node, graph.raw())
    }

    fn cudaGraphAddEmptyNode(node: Out<CUgraphNode>, graph: CUgraph, before: In<CUgraphNode>, count: usize) {
        node.is_wanted()?;
        current()?.driver.cuGraphAddEmptyNode(node.raw(), graph, before.raw(), count)
    }

    fn cudaGraphAddEventRecordNode(
        node: Out<CUgraphNode>, graph: CUgraph, before: In<CUgraphNode>, count: usize, event: CUevent
    ) {
        node.is_wanted()?;
        current()?.driver.cuGraphAddEventRecordNode(node.raw(), graph, before.raw(), count, event)
    }

    fn cudaGraphEventRecordNodeGetEvent(node: CUgraphNode, event: Out<CUevent>) {
        event.is_wanted()?;
        current()?.driver.cuGraphEventRecordNodeGetEvent(node, event.raw())
    }

    fn cudaGraphEventRecordNodeSetEvent(node: CUgraphNode, event: CUevent) {
        current()?.driver.cuGraphEventRecordNodeSetEvent(node, event)
    }

    fn cudaGraphAddEventWaitNode(
        node: Out<CUgraphNode>, graph: CUgraph, before: In<CUgraphNode>, count: usize, event: CUevent
    ) {
        node.is_wanted()?;
        current()?.driver.cuGraphAddEventWaitNode(node.raw(), graph, before.raw(), count, event)
    }

    fn cudaGraphEventWaitNodeGetEvent(node: CUgraphNode, event: Out<CUevent>) {
        event.is_wanted()?;
        current()?.driver.cuGraphEventWaitNodeGetEvent(node, event.raw())
    }

    fn cudaGraphEventWaitNodeSetEvent(node: CUgraphNode, event: CUevent) {
        current()?.driver.cuGraphEventWaitNodeSetEvent(node, event)
    }

    fn cudaGraphNodeGetType(node: CUgraphNode, kind: Out<CUgraphNodeType>) {
        kind.is_wanted()?;
        current()?.driver.cuGraphNodeGetType(node, kind.raw())
    }

    fn cudaGraphDestroyNode(node: CUgraphNode) {
        current()?.driver.cuGraphDestroyNode(node)
    }

    /// The last argument is the number, or since CUDA 13 data of the edges and the number.
    fn cudaGraphNodeGetDependencies(
        node: CUgraphNode, nodes: Out<CUgraphNode>, third: Out<usize>, fourth: Out<usize>
    ) {
        let driver = current()?.driver;
        if since(13000)? {
            driver.cuGraphNodeGetDependencies_v2(node, nodes.raw(), third.raw().cast(), fourth.raw())
        } else {
            driver.cuGraphNodeGetDependencies(node, nodes.raw(), third.raw())
        }
    }

    fn cudaGraphNodeGetDependencies_v2(
        node: CUgraphNode, nodes: Out<CUgraphNode>, data: Out<CUgraphEdgeData>, count: Out<usize>
    ) {
        current()?.driver.cuGraphNodeGetDependencies_v2(node, nodes.raw(), data.raw(), count.raw())
    }

    /// As for `cudaGraphNodeGetDependencies`.
    fn cudaGraphNodeGetDependentNodes(
        node: CUgraphNode, nodes: Out<CUgraphNode>, third: Out<usize>, fourth: Out<usize>
    ) {
        let driver = current()?.driver;
        if since(13000)? {
            driver.cuGraphNodeGetDependentNodes_v2(node, nodes.raw(), third.raw().cast(), fourth.raw())
        } else {
            driver.cuGraphNodeGetDependentNodes(node, nodes.raw(), third.raw())
        }
    }

    fn cudaGraphNodeGetDependentNodes_v2(
        node: CUgraphNode, nodes: Out<CUgraphNode>, data: Out<CUgraphEdgeData>, count: Out<usize>
    ) {
        current()?.driver.cuGraphNodeGetDependentNodes_v2(node, nodes.raw(), data.raw(), count.raw())
    }

    /// The last argument is the number, or since CUDA 13 data of the edges and the number.
    fn cudaGraphAddDependencies(
        graph: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, fourth: In<CUgraphEdgeData>, fifth: usize
    ) {
        let driver = current()?.driver;
        if since(13000)? {
            driver.cuGraphAddDependencies_v2(graph, from.raw(), to.raw(), fourth.raw(), fifth)
        } else {
            driver.cuGraphAddDependencies(graph, from.raw(), to.raw(), fourth.raw().addr())
        }
    }

    fn cudaGraphAddDependencies_v2(
        graph: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, data: In<CUgraphEdgeData>, count: usize
    ) {
        current()?.driver.cuGraphAddDependencies_v2(graph, from.raw(), to.raw(), data.raw(), count)
    }

    /// As for `cudaGraphAddDependencies`.
    fn cudaGraphRemoveDependencies(
        graph: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, fourth: In<CUgraphEdgeData>, fifth: usize
    ) {
        let driver = current()?.driver;
        if since(13000)? {
            driver.cuGraphRemoveDependencies_v2(graph, from.raw(), to.raw(), fourth.raw(), fifth)
        } else {
            driver.cuGraphRemoveDependencies(graph, from.raw(), to.raw(), fourth.raw().addr())
        }
    }

    fn cudaGraphRemoveDependencies_v2(
        graph: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, data: In<CUgraphEdgeData>, count: usize
    ) {
        current()?.driver.cuGraphRemoveDependencies_v2(graph, from.raw(), to.raw(), data.raw(), count)
    }
}

/// The driver, and its form of a launch.
pub(super) fn kernel_params(params: In<KernelParams>) -> Result<(&'static Driver, CUDA_KERNEL_NODE_PARAMS_v1), Code> {
    let KernelParams { host, grid, block, shared_bytes, each, extra } = params.get()?;
    let (current, function) = kernel(host)?;
    let params = CUDA_KERNEL_NODE_PARAMS_v1 {
        function,
        grid_dim_x: grid.x,
        grid_dim_y: grid.y,
        grid_dim_z: grid.z,
        block_dim_x: block.x,
        block_dim_y: block.y,
        block_dim_z: block.z,
        shared_mem_bytes: shared_bytes,
        kernel_params: each,
        extra,
    };
    Ok((current.driver, params))
}

fn add_copy(
    node: Out<CUgraphNode>,
    graph: CUgraph,
    (before, count): (In<CUgraphNode>, usize),
    copy: Copy3D,
) -> Result<(), Code> {
    node.is_wanted()?;
    let current = current()?;
    let copy = copy.for_driver()?;
    current.driver.cuGraphAddMemcpyNode(node.raw(), graph, before.raw(), count, &copy, current.context)
}
