//! Nodes of graphs, and their dependencies.

use super::entry_points;
use super::launch::read_params;
use crate::arguments::{Argument, In, Out, Place};
use crate::boxes::BoxCopy;
use crate::handles::{Kind, handle, number};
use crate::shim::Shim;
use crate::work::{Fill, HostCall, Kernel, Shape, Work};
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use atoll_session::{Code, Task};
use std::sync::Arc;

entry_points! { NODE:
    fn cuGraphAddKernelNode(
        node: Out<CUgraphNode>, graph: CUgraph, before: In<CUgraphNode>, count: usize,
        params: In<CUDA_KERNEL_NODE_PARAMS_v1>
    ) {
        add(node, graph, before, count, |shim| kernel_work(shim, &newer(params.get(0)?)))
    }

    fn cuGraphAddKernelNode_v2(
        node: Out<CUgraphNode>, graph: CUgraph, before: In<CUgraphNode>, count: usize,
        params: In<CUDA_KERNEL_NODE_PARAMS_v2>
    ) {
        add(node, graph, before, count, |shim| kernel_work(shim, &params.get(0)?))
    }

    fn cuGraphKernelNodeGetParams(node: CUgraphNode, params: Out<CUDA_KERNEL_NODE_PARAMS_v1>) {
        let all = kernel_params(node)?;
        params.set(CUDA_KERNEL_NODE_PARAMS_v1 {
            function: all.function,
            grid_dim_x: all.grid_dim_x,
            grid_dim_y: all.grid_dim_y,
            grid_dim_z: all.grid_dim_z,
            block_dim_x: all.block_dim_x,
            block_dim_y: all.block_dim_y,
            block_dim_z: all.block_dim_z,
            shared_mem_bytes: all.shared_mem_bytes,
            kernel_params: all.kernel_params,
            extra: all.extra,
        })
    }

    fn cuGraphKernelNodeGetParams_v2(node: CUgraphNode, params: Out<CUDA_KERNEL_NODE_PARAMS_v2>) {
        params.set(kernel_params(node)?)
    }

    fn cuGraphKernelNodeSetParams(node: CUgraphNode, params: In<CUDA_KERNEL_NODE_PARAMS_v1>) {
        set(node, |shim| kernel_work(shim, &newer(params.get(0)?)))
    }

    fn cuGraphKernelNodeSetParams_v2(node: CUgraphNode, params: In<CUDA_KERNEL_NODE_PARAMS_v2>) {
        set(node, |shim| kernel_work(shim, &params.get(0)?))
    }

    fn cuGraphAddMemcpyNode(
        node: Out<CUgraphNode>, graph: CUgraph, before: In<CUgraphNode>, count: usize,
        params: In<CUDA_MEMCPY3D_v2>, _context: CUcontext
    ) {
        add(node, graph, before, count, |shim| copy_work(shim, params))
    }

    fn cuGraphMemcpyNodeGetParams(node: CUgraphNode, params: Out<CUDA_MEMCPY3D_v2>) {
        get(node, |work| match work {
            Work::Copy(copy) => params.set(copy.description()),
            _ => Err(Code::INVALID_VALUE),
        })
    }

    fn cuGraphMemcpyNodeSetParams(node: CUgraphNode, params: In<CUDA_MEMCPY3D_v2>) {
        set(node, |shim| copy_work(shim, params))
    }

    fn cuGraphAddMemsetNode(
        node: Out<CUgraphNode>, graph: CUgraph, before: In<CUgraphNode>, count: usize,
        params: In<CUDA_MEMSET_NODE_PARAMS_v1>, _context: CUcontext
    ) {
        add(node, graph, before, count, |_| fill_work(params))
    }

    fn cuGraphMemsetNodeGetParams(node: CUgraphNode, params: Out<CUDA_MEMSET_NODE_PARAMS_v1>) {
        get(node, |work| match work {
            Work::Fill(fill) => params.set(CUDA_MEMSET_NODE_PARAMS_v1 {
                destination: fill.at,
                pitch: fill.pitch as usize,
                value: fill.value,
                element_size: fill.size,
                width: fill.width as usize,
                height: fill.height as usize,
            }),
            _ => Err(Code::INVALID_VALUE),
        })
    }

    fn cuGraphMemsetNodeSetParams(node: CUgraphNode, params: In<CUDA_MEMSET_NODE_PARAMS_v1>) {
        set(node, |_| fill_work(params))
    }

    fn cuGraphAddHostNode(
        node: Out<CUgraphNode>, graph: CUgraph, before: In<CUgraphNode>, count: usize,
        params: In<CUDA_HOST_NODE_PARAMS_v1>
    ) {
        add(node, graph, before, count, |_| host_work(params))
    }

    fn cuGraphHostNodeGetParams(node: CUgraphNode, params: Out<CUDA_HOST_NODE_PARAMS_v1>) {
        get(node, |work| match work {
            Work::Host(HostCall { function, data }) => params.set(CUDA_HOST_NODE_PARAMS_v1 {
                function: Some(*function),
                user_data: std::ptr::with_exposed_provenance_mut(*data as usize),
            }),
            _ => Err(Code::INVALID_VALUE),
        })
    }

    fn cuGraphHostNodeSetParams(node: CUgraphNode, params: In<CUDA_HOST_NODE_PARAMS_v1>) {
        set(node, |_| host_work(params))
    }

    fn cuGraphAddEventRecordNode(
        node: Out<CUgraphNode>, graph: CUgraph, before: In<CUgraphNode>, count: usize, event: CUevent
    ) {
        add(node, graph, before, count, |shim| event_number(shim, event).map(Work::Record))
    }

    fn cuGraphEventRecordNodeGetEvent(node: CUgraphNode, event: Out<CUevent>) {
        get(node, |work| match work {
            Work::Record(number) => event.set(handle(Kind::Event, *number)),
            _ => Err(Code::INVALID_VALUE),
        })
    }

    fn cuGraphEventRecordNodeSetEvent(node: CUgraphNode, event: CUevent) {
        set(node, |shim| event_number(shim, event).map(Work::Record))
    }

    fn cuGraphAddEventWaitNode(
        node: Out<CUgraphNode>, graph: CUgraph, before: In<CUgraphNode>, count: usize, event: CUevent
    ) {
        add(node, graph, before, count, |shim| event_number(shim, event).map(Work::Wait))
    }

    fn cuGraphEventWaitNodeGetEvent(node: CUgraphNode, event: Out<CUevent>) {
        get(node, |work| match work {
            Work::Wait(number) => event.set(handle(Kind::Event, *number)),
            _ => Err(Code::INVALID_VALUE),
        })
    }

    fn cuGraphEventWaitNodeSetEvent(node: CUgraphNode, event: CUevent) {
        set(node, |shim| event_number(shim, event).map(Work::Wait))
    }

    fn cuGraphAddEmptyNode(node: Out<CUgraphNode>, graph: CUgraph, before: In<CUgraphNode>, count: usize) {
        node.is_wanted()?;
        let (graph, before) = (graph_number(graph)?, nodes(before, count)?);
        node.set(handle(Kind::Node, Shim::get()?.graphs.add(graph, &before, None)?))
    }

    fn cuGraphAddChildGraphNode(
        node: Out<CUgraphNode>, graph: CUgraph, before: In<CUgraphNode>, count: usize, child: CUgraph
    ) {
        node.is_wanted()?;
        let (graph, before, child) = (graph_number(graph)?, nodes(before, count)?, graph_number(child)?);
        node.set(handle(Kind::Node, Shim::get()?.graphs.add_child(graph, &before, child)?))
    }

    fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: Out<CUgraph>) {
        graph.set(handle(Kind::Graph, Shim::get()?.graphs.child(node_number(node)?)?))
    }

    fn cuGraphNodeGetType(node: CUgraphNode, kind: Out<CUgraphNodeType>) {
        let shim = Shim::get()?;
        kind.set(match shim.graphs.task(node_number(node)?)? {
            Task::Empty => CU_GRAPH_NODE_TYPE_EMPTY,
            Task::Child(_) => CU_GRAPH_NODE_TYPE_GRAPH,
            Task::Work(work) => work.kind(),
        })
    }

    fn cuGraphDestroyNode(node: CUgraphNode) {
        let node = node_number(node)?;
        let mut shim = Shim::get()?;
        shim.graphs.remove(node)?;
        shim.sweep_graph_memory()
    }

    fn cuGraphNodeGetDependencies(node: CUgraphNode, to: Out<CUgraphNode>, count: Place) {
        list(&Shim::get()?.graphs.before(node_number(node)?)?, to, count)
    }

    fn cuGraphNodeGetDependencies_v2(
        node: CUgraphNode, to: Out<CUgraphNode>, edges: Out<CUgraphEdgeData>, count: Place
    ) {
        let before = Shim::get()?.graphs.before(node_number(node)?)?;
        list_edges(before.len(), to, edges, count)?;
        list(&before, to, count)
    }

    fn cuGraphNodeGetDependentNodes(node: CUgraphNode, to: Out<CUgraphNode>, count: Place) {
        list(&Shim::get()?.graphs.after(node_number(node)?)?, to, count)
    }

    fn cuGraphNodeGetDependentNodes_v2(
        node: CUgraphNode, to: Out<CUgraphNode>, edges: Out<CUgraphEdgeData>, count: Place
    ) {
        let after = Shim::get()?.graphs.after(node_number(node)?)?;
        list_edges(after.len(), to, edges, count)?;
        list(&after, to, count)
    }

    fn cuGraphAddDependencies(graph: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, count: usize) {
        let (graph, pairs) = (graph_number(graph)?, pairs(from, to, count)?);
        Shim::get()?.graphs.connect(graph, &pairs)
    }

    fn cuGraphAddDependencies_v2(
        graph: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, edges: In<CUgraphEdgeData>, count: usize
    ) {
        check_edges(edges, count)?;
        let (graph, pairs) = (graph_number(graph)?, pairs(from, to, count)?);
        Shim::get()?.graphs.connect(graph, &pairs)
    }

    fn cuGraphRemoveDependencies(graph: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, count: usize) {
        let (graph, pairs) = (graph_number(graph)?, pairs(from, to, count)?);
        Shim::get()?.graphs.disconnect(graph, &pairs)
    }

    fn cuGraphRemoveDependencies_v2(
        graph: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, edges: In<CUgraphEdgeData>, count: usize
    ) {
        check_edges(edges, count)?;
        let (graph, pairs) = (graph_number(graph)?, pairs(from, to, count)?);
        Shim::get()?.graphs.disconnect(graph, &pairs)
    }
}

/// The number of a graph. A handle of something else is an invalid value, as for a graph that was
/// destroyed.
pub(super) fn graph_number(graph: CUgraph) -> Result<u32, Code> {
    number(Kind::Graph, graph).map_err(|_| Code::INVALID_VALUE)
}

pub(super) fn node_number(node: CUgraphNode) -> Result<u32, Code> {
    number(Kind::Node, node).map_err(|_| Code::INVALID_VALUE)
}

/// Numbers of several nodes.
pub(super) fn nodes(nodes: In<CUgraphNode>, count: usize) -> Result<Vec<u32>, Code> {
    (0..count).map(|index| node_number(nodes.get(index)?)).collect()
}

fn pairs(from: In<CUgraphNode>, to: In<CUgraphNode>, count: usize) -> Result<Vec<(u32, u32)>, Code> {
    (0..count).map(|index| Ok((node_number(from.get(index)?)?, node_number(to.get(index)?)?))).collect()
}

/// Returns an error unless all dependencies are on whole nodes.
pub(super) fn check_edges(edges: In<CUgraphEdgeData>, count: usize) -> Result<(), Code> {
    if edges.is_null() {
        return Ok(());
    }
    (0..count).try_for_each(|index| {
        let edge = edges.get(index)?;
        let is_whole = [edge.from_port, edge.to_port, edge.kind] == [0; 3];
        if is_whole { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
    })
}

/// Writes handles of nodes if there is room for them, and how many there are. The program says how
/// much room there is; the rest of it is set to null.
pub(super) fn list(nodes: &[u32], to: Out<CUgraphNode>, count: Place) -> Result<(), Code> {
    count.is_wanted()?;
    if to.is_null() {
        return count.out().set(nodes.len());
    }
    let room: usize = count.values().get(0)?;
    for index in 0..room {
        to.set_at(index, nodes.get(index).map_or(CUgraphNode::NULL, |node| handle(Kind::Node, *node)));
    }
    count.out().set(room.min(nodes.len()))
}

/// Writes that dependencies are on whole nodes, for which `list` writes the nodes.
pub(super) fn list_edges(
    len: usize,
    nodes: Out<CUgraphNode>,
    to: Out<CUgraphEdgeData>,
    count: Place,
) -> Result<(), Code> {
    if nodes.is_null() || to.is_null() {
        return Ok(());
    }
    let room: usize = count.values().get(0)?;
    for index in 0..room.min(len) {
        to.set_at(index, CUgraphEdgeData { from_port: 0, to_port: 0, kind: 0, reserved: [0; 5] });
    }
    Ok(())
}

/// Adds a node.
fn add(
    node: Out<CUgraphNode>,
    graph: CUgraph,
    before: In<CUgraphNode>,
    count: usize,
    work: impl FnOnce(&Shim) -> Result<Work, Code>,
) -> Result<(), Code> {
    node.is_wanted()?;
    let (graph, before) = (graph_number(graph)?, nodes(before, count)?);
    let (mut shim, _) = Shim::current()?;
    let work = work(&shim)?;
    node.set(handle(Kind::Node, shim.graphs.add(graph, &before, Some(Arc::new(work)))?))
}

/// Changes the call of a node to one of the same kind.
fn set(node: CUgraphNode, work: impl FnOnce(&Shim) -> Result<Work, Code>) -> Result<(), Code> {
    let node = node_number(node)?;
    let (mut shim, _) = Shim::current()?;
    let mut work = work(&shim)?;
    let old = shim.graphs.work(node)?;
    if old.kind() != work.kind() {
        return Err(Code::INVALID_VALUE);
    }
    work.keep(old);
    shim.graphs.set_work(node, Arc::new(work))
}

/// Reads the call of a node.
fn get(node: CUgraphNode, read: impl FnOnce(&Work) -> Result<(), Code>) -> Result<(), Code> {
    let shim = Shim::get()?;
    read(shim.graphs.work(node_number(node)?)?)
}

/// The newer form of a launch.
pub(super) fn newer(params: CUDA_KERNEL_NODE_PARAMS_v1) -> CUDA_KERNEL_NODE_PARAMS_v2 {
    CUDA_KERNEL_NODE_PARAMS_v2 {
        function: params.function,
        grid_dim_x: params.grid_dim_x,
        grid_dim_y: params.grid_dim_y,
        grid_dim_z: params.grid_dim_z,
        block_dim_x: params.block_dim_x,
        block_dim_y: params.block_dim_y,
        block_dim_z: params.block_dim_z,
        shared_mem_bytes: params.shared_mem_bytes,
        kernel_params: params.kernel_params,
        extra: params.extra,
        kernel: CUkernel::NULL,
        context: CUcontext::NULL,
    }
}

pub(super) fn kernel_work(shim: &Shim, params: &CUDA_KERNEL_NODE_PARAMS_v2) -> Result<Work, Code> {
    let kernel = if params.function == CUfunction::NULL {
        number(Kind::Kernel, params.kernel)?
    } else {
        number(Kind::Kernel, params.function)?
    };
    let facts = shim.client.kernel_facts(kernel)?;
    let block = read_params(&facts, In::of(params.kernel_params), In::of(params.extra))?;
    let shape = Shape {
        grid: [params.grid_dim_x, params.grid_dim_y, params.grid_dim_z],
        block: [params.block_dim_x, params.block_dim_y, params.block_dim_z],
        shared_bytes: params.shared_mem_bytes,
        is_cooperative: false,
    };
    let work = Work::Kernel(Kernel::new(kernel, shape, &facts, block));
    work.check(shim)?;
    Ok(work)
}

pub(super) fn copy_work(shim: &Shim, params: In<CUDA_MEMCPY3D_v2>) -> Result<Work, Code> {
    Ok(Work::Copy(BoxCopy::of_planes(&params.get(0)?)?.resolved(shim)))
}

pub(super) fn fill_work(params: In<CUDA_MEMSET_NODE_PARAMS_v1>) -> Result<Work, Code> {
    let params = params.get(0)?;
    let (at, value, size) = (params.destination, params.value, params.element_size);
    if ![1, 2, 4].contains(&size) || params.width == 0 || params.height == 0 || !at.is_multiple_of(size.into()) {
        return Err(Code::INVALID_VALUE);
    }
    let [pitch, width, height] = [params.pitch, params.width, params.height].map(|number| number as u64);
    let row = width.checked_mul(size.into()).ok_or(Code::INVALID_VALUE)?;
    if height > 1 && (pitch < row || !pitch.is_multiple_of(size.into())) {
        return Err(Code::INVALID_VALUE);
    }
    Ok(Work::Fill(Fill { at, pitch, width, height, value, size }))
}

pub(super) fn host_work(params: In<CUDA_HOST_NODE_PARAMS_v1>) -> Result<Work, Code> {
    let params = params.get(0)?;
    let function = params.function.ok_or(Code::INVALID_VALUE)?;
    Ok(Work::Host(HostCall { function, data: params.user_data.expose_provenance() as u64 }))
}

/// The number of an event that exists.
pub(super) fn event_number(shim: &Shim, event: CUevent) -> Result<u32, Code> {
    let event = number(Kind::Event, event)?;
    shim.client.is_recorded(event).map(|_| event)
}

/// The launch of a node. The program may read the parameters until the node changes.
fn kernel_params(node: CUgraphNode) -> Result<CUDA_KERNEL_NODE_PARAMS_v2, Code> {
    let shim = Shim::get()?;
    let work = shim.graphs.work(node_number(node)?)?;
    let Work::Kernel(kernel) = &**work else { return Err(Code::INVALID_VALUE) };
    let Shape { grid, block, shared_bytes, .. } = kernel.shape;
    Ok(CUDA_KERNEL_NODE_PARAMS_v2 {
        function: handle(Kind::Kernel, kernel.kernel),
        grid_dim_x: grid[0],
        grid_dim_y: grid[1],
        grid_dim_z: grid[2],
        block_dim_x: block[0],
        block_dim_y: block[1],
        block_dim_z: block[2],
        shared_mem_bytes: shared_bytes,
        kernel_params: kernel.addresses(),
        extra: std::ptr::null_mut(),
        kernel: CUkernel::NULL,
        context: CUcontext::NULL,
    })
}
