//! Graphs, executable graphs, and questions about captures. Most structs of the runtime are those of
//! the driver. Where a version of CUDA has changed the arguments of a function, the versions that are
//! loaded decide.

use super::copy::{Copy3D, Kind};
use super::entry_points;
use super::node::{KernelParams, kernel_params};
use crate::arguments::{In, Out};
use crate::device::current;
use crate::version::{oldest, since};
use atoll_cuda_api::types::*;

/// Flags of `cudaGraphInstantiate` since CUDA 12 are below this; the argument of CUDA 11 in their
/// place is an address.
const FLAGS_END: u64 = 1 << 12;

entry_points! {
    fn cudaGraphCreate(graph: Out<CUgraph>, flags: c_uint) {
        graph.is_wanted()?;
        current()?.driver.cuGraphCreate(graph.raw(), flags)
    }

    fn cudaGraphDestroy(graph: CUgraph) {
        current()?.driver.cuGraphDestroy(graph)
    }

    fn cudaGraphClone(clone: Out<CUgraph>, graph: CUgraph) {
        clone.is_wanted()?;
        current()?.driver.cuGraphClone(clone.raw(), graph)
    }

    fn cudaGraphNodeFindInClone(node: Out<CUgraphNode>, original: CUgraphNode, clone: CUgraph) {
        node.is_wanted()?;
        current()?.driver.cuGraphNodeFindInClone(node.raw(), original, clone)
    }

    fn cudaGraphGetNodes(graph: CUgraph, nodes: Out<CUgraphNode>, count: Out<usize>) {
        current()?.driver.cuGraphGetNodes(graph, nodes.raw(), count.raw())
    }

    fn cudaGraphGetRootNodes(graph: CUgraph, nodes: Out<CUgraphNode>, count: Out<usize>) {
        current()?.driver.cuGraphGetRootNodes(graph, nodes.raw(), count.raw())
    }

    /// The last argument is the number, or since CUDA 13 data of the edges and the number.
    fn cudaGraphGetEdges(
        graph: CUgraph, from: Out<CUgraphNode>, to: Out<CUgraphNode>, fourth: Out<usize>, fifth: Out<usize>
    ) {
        let driver = current()?.driver;
        if since(13000)? {
            driver.cuGraphGetEdges_v2(graph, from.raw(), to.raw(), fourth.raw().cast(), fifth.raw())
        } else {
            driver.cuGraphGetEdges(graph, from.raw(), to.raw(), fourth.raw())
        }
    }

    fn cudaGraphGetEdges_v2(
        graph: CUgraph, from: Out<CUgraphNode>, to: Out<CUgraphNode>, data: Out<CUgraphEdgeData>, count: Out<usize>
    ) {
        current()?.driver.cuGraphGetEdges_v2(graph, from.raw(), to.raw(), data.raw(), count.raw())
    }

    /// The third argument is flags, or in CUDA 11 the address for a node with an error, before a log
    /// and its size.
    fn cudaGraphInstantiate(executable: Out<CUgraphExec>, graph: CUgraph, third: Out<CUgraphNode>) {
        executable.is_wanted()?;
        let (driver, flags) = (current()?.driver, third.raw().addr() as u64);
        if flags >= FLAGS_END && oldest() < 12000 {
            third.set(CUgraphNode::NULL)?;
            return driver.cuGraphInstantiateWithFlags(executable.raw(), graph, 0);
        }
        driver.cuGraphInstantiateWithFlags(executable.raw(), graph, flags)
    }

    fn cudaGraphInstantiateWithFlags(executable: Out<CUgraphExec>, graph: CUgraph, flags: c_ulonglong) {
        executable.is_wanted()?;
        current()?.driver.cuGraphInstantiateWithFlags(executable.raw(), graph, flags)
    }

    fn cudaGraphInstantiateWithParams(
        executable: Out<CUgraphExec>, graph: CUgraph, params: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>
    ) also cudaGraphInstantiateWithParams_ptsz {
        executable.is_wanted()?;
        params.is_wanted()?;
        current()?.driver.cuGraphInstantiateWithParams(executable.raw(), graph, params.raw())
    }

    fn cudaGraphExecGetFlags(executable: CUgraphExec, flags: Out<u64>) {
        flags.is_wanted()?;
        current()?.driver.cuGraphExecGetFlags(executable, flags.raw())
    }

    fn cudaGraphExecDestroy(executable: CUgraphExec) {
        current()?.driver.cuGraphExecDestroy(executable)
    }

    fn cudaGraphUpload(executable: CUgraphExec, stream: CUstream) also cudaGraphUpload_ptsz {
        current()?.driver.cuGraphUpload(executable, stream)
    }

    fn cudaGraphLaunch(executable: CUgraphExec, stream: CUstream) also cudaGraphLaunch_ptsz {
        current()?.driver.cuGraphLaunch(executable, stream)
    }

    /// The last argument is one struct, or in CUDA 11 the addresses for a node and for the result.
    fn cudaGraphExecUpdate(
        executable: CUgraphExec, graph: CUgraph, third: Out<CUgraphNode>, fourth: Out<CUgraphExecUpdateResult>
    ) {
        let driver = current()?.driver;
        if since(12000)? {
            driver.cuGraphExecUpdate_v2(executable, graph, third.raw().cast())
        } else {
            driver.cuGraphExecUpdate(executable, graph, third.raw(), fourth.raw())
        }
    }

    fn cudaGraphExecKernelNodeSetParams(executable: CUgraphExec, node: CUgraphNode, params: In<KernelParams>) {
        let (driver, params) = kernel_params(params)?;
        driver.cuGraphExecKernelNodeSetParams(executable, node, &params)
    }

    fn cudaGraphExecMemcpyNodeSetParams(executable: CUgraphExec, node: CUgraphNode, copy: In<Copy3D>) {
        let current = current()?;
        let copy = copy.get()?.for_driver()?;
        current.driver.cuGraphExecMemcpyNodeSetParams(executable, node, &copy, current.context)
    }

    fn cudaGraphExecMemcpyNodeSetParams1D(
        executable: CUgraphExec, node: CUgraphNode, to: u64, from: u64, bytes: usize, kind: Kind
    ) {
        let current = current()?;
        let copy = Copy3D::row(to, from, bytes, kind).for_driver()?;
        current.driver.cuGraphExecMemcpyNodeSetParams(executable, node, &copy, current.context)
    }

    fn cudaGraphExecMemsetNodeSetParams(
        executable: CUgraphExec, node: CUgraphNode, params: In<CUDA_MEMSET_NODE_PARAMS_v1>
    ) {
        let current = current()?;
        current.driver.cuGraphExecMemsetNodeSetParams(executable, node, params.raw(), current.context)
    }

    fn cudaGraphExecHostNodeSetParams(
        executable: CUgraphExec, node: CUgraphNode, params: In<CUDA_HOST_NODE_PARAMS_v1>
    ) {
        current()?.driver.cuGraphExecHostNodeSetParams(executable, node, params.raw())
    }

    fn cudaGraphExecChildGraphNodeSetParams(executable: CUgraphExec, node: CUgraphNode, child: CUgraph) {
        current()?.driver.cuGraphExecChildGraphNodeSetParams(executable, node, child)
    }

    fn cudaGraphExecEventRecordNodeSetEvent(executable: CUgraphExec, node: CUgraphNode, event: CUevent) {
        current()?.driver.cuGraphExecEventRecordNodeSetEvent(executable, node, event)
    }

    fn cudaGraphExecEventWaitNodeSetEvent(executable: CUgraphExec, node: CUgraphNode, event: CUevent) {
        current()?.driver.cuGraphExecEventWaitNodeSetEvent(executable, node, event)
    }

    fn cudaGraphNodeSetEnabled(executable: CUgraphExec, node: CUgraphNode, is_enabled: c_uint) {
        current()?.driver.cuGraphNodeSetEnabled(executable, node, is_enabled)
    }

    fn cudaGraphNodeGetEnabled(executable: CUgraphExec, node: CUgraphNode, is_enabled: Out<c_uint>) {
        is_enabled.is_wanted()?;
        current()?.driver.cuGraphNodeGetEnabled(executable, node, is_enabled.raw())
    }

    /// Before CUDA 13 there are only the first three arguments.
    fn cudaStreamGetCaptureInfo(
        stream: CUstream, status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<CUgraph>,
        dependencies: Out<*const CUgraphNode>, edges: Out<*const CUgraphEdgeData>, count: Out<usize>
    ) also cudaStreamGetCaptureInfo_ptsz {
        let driver = current()?.driver;
        let (status, id) = (status.raw(), id.raw());
        if since(13000)? {
            let (dependencies, edges) = (dependencies.raw(), edges.raw());
            driver.cuStreamGetCaptureInfo_v3(stream, status, id, graph.raw(), dependencies, edges, count.raw())
        } else {
            driver.cuStreamGetCaptureInfo(stream, status, id)
        }
    }

    fn cudaStreamGetCaptureInfo_v2(
        stream: CUstream, status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<CUgraph>,
        dependencies: Out<*const CUgraphNode>, count: Out<usize>
    ) also cudaStreamGetCaptureInfo_v2_ptsz {
        let (status, id) = (status.raw(), id.raw());
        let driver = current()?.driver;
        driver.cuStreamGetCaptureInfo_v2(stream, status, id, graph.raw(), dependencies.raw(), count.raw())
    }

    fn cudaStreamGetCaptureInfo_v3(
        stream: CUstream, status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<CUgraph>,
        dependencies: Out<*const CUgraphNode>, edges: Out<*const CUgraphEdgeData>, count: Out<usize>
    ) also cudaStreamGetCaptureInfo_v3_ptsz {
        let (status, id, edges) = (status.raw(), id.raw(), edges.raw());
        let driver = current()?.driver;
        driver.cuStreamGetCaptureInfo_v3(stream, status, id, graph.raw(), dependencies.raw(), edges, count.raw())
    }

    /// The last arguments are the number and flags, or since CUDA 13 data of the edges, the number and
    /// flags.
    fn cudaStreamUpdateCaptureDependencies(
        stream: CUstream, dependencies: Out<CUgraphNode>, third: In<CUgraphEdgeData>, fourth: u64, fifth: c_uint
    ) also cudaStreamUpdateCaptureDependencies_ptsz {
        let (driver, nodes) = (current()?.driver, dependencies.raw());
        if since(13000)? {
            driver.cuStreamUpdateCaptureDependencies_v2(stream, nodes, third.raw(), fourth as usize, fifth)
        } else {
            driver.cuStreamUpdateCaptureDependencies(stream, nodes, third.raw().addr(), fourth as c_uint)
        }
    }

    fn cudaStreamUpdateCaptureDependencies_v2(
        stream: CUstream, dependencies: Out<CUgraphNode>, edges: In<CUgraphEdgeData>, count: usize, flags: c_uint
    ) also cudaStreamUpdateCaptureDependencies_v2_ptsz {
        let (driver, nodes) = (current()?.driver, dependencies.raw());
        driver.cuStreamUpdateCaptureDependencies_v2(stream, nodes, edges.raw(), count, flags)
    }
}
