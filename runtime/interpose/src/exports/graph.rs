//! Graphs, and executable graphs.
//!
//! A launch of an executable graph makes the calls of its nodes one after the other in one stream.
//! First all of them are checked, so a launch that returns an error of this library has done nothing.

use super::entry_points;
use super::node::{
    copy_work, event_number, fill_work, graph_number, host_work, kernel_work, list, list_edges, newer, node_number,
};
use crate::arguments::{In, Out, Place};
use crate::handles::{Kind, handle, number, stream_number};
use crate::shim::Shim;
use crate::work::Work;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use atoll_session::{Code, Mismatch, MismatchKind};
use std::sync::Arc;

/// Flags of executable graphs that are accepted. Nothing has to be uploaded, and nodes have no
/// priorities.
const FLAGS: c_ulonglong = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
    | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
    | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;

entry_points! { GRAPH:
    fn cuGraphCreate(graph: Out<CUgraph>, flags: c_uint) {
        graph.is_wanted()?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        graph.set(handle(Kind::Graph, Shim::get()?.graphs.create()?))
    }

    fn cuGraphDestroy(graph: CUgraph) {
        let graph = graph_number(graph)?;
        let mut shim = Shim::get()?;
        shim.graphs.destroy(graph)?;
        shim.sweep_graph_memory()
    }

    fn cuGraphClone(clone: Out<CUgraph>, graph: CUgraph) {
        clone.is_wanted()?;
        clone.set(handle(Kind::Graph, Shim::get()?.graphs.copy(graph_number(graph)?)?))
    }

    fn cuGraphNodeFindInClone(node: Out<CUgraphNode>, original: CUgraphNode, clone: CUgraph) {
        node.is_wanted()?;
        let found = Shim::get()?.graphs.find_in_copy(node_number(original)?, graph_number(clone)?)?;
        node.set(handle(Kind::Node, found))
    }

    fn cuGraphGetNodes(graph: CUgraph, nodes: Out<CUgraphNode>, count: Place) {
        list(&Shim::get()?.graphs.nodes(graph_number(graph)?)?, nodes, count)
    }

    fn cuGraphGetRootNodes(graph: CUgraph, nodes: Out<CUgraphNode>, count: Place) {
        list(&Shim::get()?.graphs.roots(graph_number(graph)?)?, nodes, count)
    }

    fn cuGraphGetEdges(graph: CUgraph, from: Out<CUgraphNode>, to: Out<CUgraphNode>, count: Place) {
        edges(graph, from, to, Place::NULL.out(), count)
    }

    fn cuGraphGetEdges_v2(
        graph: CUgraph, from: Out<CUgraphNode>, to: Out<CUgraphNode>, data: Out<CUgraphEdgeData>, count: Place
    ) {
        edges(graph, from, to, data, count)
    }

    fn cuGraphInstantiateWithFlags(executable: Out<CUgraphExec>, graph: CUgraph, flags: c_ulonglong) {
        instantiate(executable, graph, flags)
    }

    fn cuGraphInstantiate_v2(
        executable: Out<CUgraphExec>, graph: CUgraph, node: Out<CUgraphNode>, _log: Out<c_char>, _room: usize
    ) {
        node.set_if_wanted(CUgraphNode::NULL);
        instantiate(executable, graph, 0)
    }

    fn cuGraphInstantiateWithParams(
        executable: Out<CUgraphExec>, graph: CUgraph, params: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>
    ) {
        let mut values = params.value()?;
        let instantiated = instantiate(executable, graph, values.flags);
        values.error_node = CUgraphNode::NULL;
        values.result = match instantiated {
            Ok(()) => CUDA_GRAPH_INSTANTIATE_SUCCESS,
            Err(Code::INVALID_VALUE) => CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE,
            Err(_) => CUDA_GRAPH_INSTANTIATE_ERROR,
        };
        params.set(values)?;
        instantiated
    }

    fn cuGraphExecGetFlags(executable: CUgraphExec, flags: Out<u64>) {
        flags.set(Shim::get()?.graphs.flags(executable_number(executable)?)?)
    }

    fn cuGraphExecDestroy(executable: CUgraphExec) {
        let executable = executable_number(executable)?;
        let mut shim = Shim::get()?;
        shim.graphs.destroy_executable(executable)?;
        shim.launched.remove(&executable);
        shim.sweep_graph_memory()
    }

    fn cuGraphUpload(executable: CUgraphExec, stream: CUstream) {
        let (executable, stream) = (executable_number(executable)?, stream_number(stream)?);
        let (shim, _) = Shim::current()?;
        shim.client.check_stream(stream)?;
        shim.graphs.flags(executable).map(drop)
    }

    fn cuGraphLaunch(executable: CUgraphExec, stream: CUstream) {
        let (executable, stream) = (executable_number(executable)?, stream_number(stream)?);
        let (mut shim, context) = Shim::current()?;
        if shim.is_captured(stream)? {
            return shim.graphs.capture_launch(stream, executable).map(drop);
        }
        let works = shim.graphs.launch(executable)?;
        works.iter().try_for_each(|work| work.check(&shim))?;
        allocate(&mut shim, executable, &works)?;
        order(&mut shim, context, executable, stream)?;
        drop(shim);
        works.split_inclusive(|work| matches!(**work, Work::Host(_))).try_for_each(|part| run(part, stream))
    }

    fn cuGraphExecUpdate(
        executable: CUgraphExec, graph: CUgraph, node: Out<CUgraphNode>, result: Out<CUgraphExecUpdateResult>
    ) {
        let (updated, info) = update(executable, graph);
        node.set_if_wanted(info.error_node);
        result.set_if_wanted(info.result);
        updated
    }

    fn cuGraphExecUpdate_v2(executable: CUgraphExec, graph: CUgraph, result: Out<CUgraphExecUpdateResultInfo>) {
        let (updated, info) = update(executable, graph);
        result.set_if_wanted(info);
        updated
    }

    fn cuGraphExecKernelNodeSetParams(
        executable: CUgraphExec, node: CUgraphNode, params: In<CUDA_KERNEL_NODE_PARAMS_v1>
    ) {
        set(executable, node, |shim| kernel_work(shim, &newer(params.get(0)?)))
    }

    fn cuGraphExecKernelNodeSetParams_v2(
        executable: CUgraphExec, node: CUgraphNode, params: In<CUDA_KERNEL_NODE_PARAMS_v2>
    ) {
        set(executable, node, |shim| kernel_work(shim, &params.get(0)?))
    }

    fn cuGraphExecMemcpyNodeSetParams(
        executable: CUgraphExec, node: CUgraphNode, params: In<CUDA_MEMCPY3D_v2>, _context: CUcontext
    ) {
        set(executable, node, |shim| copy_work(shim, params))
    }

    fn cuGraphExecMemsetNodeSetParams(
        executable: CUgraphExec, node: CUgraphNode, params: In<CUDA_MEMSET_NODE_PARAMS_v1>, _context: CUcontext
    ) {
        set(executable, node, |_| fill_work(params))
    }

    fn cuGraphExecHostNodeSetParams(
        executable: CUgraphExec, node: CUgraphNode, params: In<CUDA_HOST_NODE_PARAMS_v1>
    ) {
        set(executable, node, |_| host_work(params))
    }

    fn cuGraphExecEventRecordNodeSetEvent(executable: CUgraphExec, node: CUgraphNode, event: CUevent) {
        set(executable, node, |shim| event_number(shim, event).map(Work::Record))
    }

    fn cuGraphExecEventWaitNodeSetEvent(executable: CUgraphExec, node: CUgraphNode, event: CUevent) {
        set(executable, node, |shim| event_number(shim, event).map(Work::Wait))
    }

    fn cuGraphExecChildGraphNodeSetParams(executable: CUgraphExec, node: CUgraphNode, child: CUgraph) {
        let (executable, node) = (executable_number(executable)?, node_number(node)?);
        let child = graph_number(child)?;
        let updated = Shim::get()?.graphs.update_child(executable, node, child, |old, new| old.differs(new))?;
        updated.map_err(|_| Code::INVALID_VALUE)
    }

    fn cuGraphNodeSetEnabled(executable: CUgraphExec, node: CUgraphNode, is_enabled: c_uint) {
        let (executable, node) = (executable_number(executable)?, node_number(node)?);
        let mut shim = Shim::get()?;
        check_switch(&mut shim, executable, node)?;
        shim.graphs.enable(executable, node, is_enabled != 0)
    }

    fn cuGraphNodeGetEnabled(executable: CUgraphExec, node: CUgraphNode, is_enabled: Out<c_uint>) {
        let (executable, node) = (executable_number(executable)?, node_number(node)?);
        let mut shim = Shim::get()?;
        check_switch(&mut shim, executable, node)?;
        is_enabled.set(shim.graphs.is_enabled(executable, node)?.into())
    }
}

/// The number of an executable graph. A handle of something else is an invalid value, as for one that
/// was destroyed.
fn executable_number(executable: CUgraphExec) -> Result<u32, Code> {
    number(Kind::Executable, executable).map_err(|_| Code::INVALID_VALUE)
}

fn instantiate(executable: Out<CUgraphExec>, graph: CUgraph, flags: c_ulonglong) -> Result<(), Code> {
    executable.is_wanted()?;
    let graph = graph_number(graph)?;
    if flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH != 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    if flags & !FLAGS != 0 {
        return Err(Code::INVALID_VALUE);
    }
    executable.set(handle(Kind::Executable, Shim::get()?.graphs.instantiate(graph, flags)?))
}

/// Returns an error if memory that a launch allocates is still live from an earlier launch, unless
/// the executable graph frees it itself.
fn allocate(shim: &mut Shim, executable: u32, works: &[Arc<Work>]) -> Result<(), Code> {
    let frees = shim.graphs.flags(executable)? & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH != 0;
    let allocates = |work: &Arc<Work>| if let Work::Alloc(share) = &**work { Some(share.at) } else { None };
    let is_live = works.iter().filter_map(allocates).any(|at| shim.graph_memory.is_live(at));
    if is_live && !frees { Err(Code::INVALID_VALUE) } else { Ok(()) }
}

/// Orders a launch behind the last one of the same executable graph, which may be in another stream:
/// two launches of one executable graph never overlap.
fn order(shim: &mut Shim, context: u32, executable: u32, stream: u32) -> Result<(), Code> {
    let last = shim.launched.insert(executable, stream);
    let Some(last) = last.filter(|last| *last != stream) else { return Ok(()) };
    if shim.client.check_stream(last).is_err() {
        // Its work may go on after the stream was destroyed.
        let waited = shim.client.synchronize();
        return shim.waited(waited);
    }
    let event = match shim.order.filter(|event| shim.client.is_recorded(*event).is_ok()) {
        Some(event) => event,
        None => shim.client.create_event(context, CU_EVENT_DISABLE_TIMING)?,
    };
    shim.order = Some(event);
    shim.client.record_event(event, last)?;
    shim.client.wait_event(stream, event)
}

/// Makes calls in a stream. If the last one is a call of a host function, it is made when the work
/// before it is done.
fn run(works: &[Arc<Work>], stream: u32) -> Result<(), Code> {
    let mut shim = Shim::get()?;
    if let Err(code) = works.iter().try_for_each(|work| work.perform(&mut shim, stream)) {
        // After an error the program may free its memory, so no recorded copy may write to it later.
        return shim.client.complete_copies().and(Err(code));
    }
    let Some(Work::Host(call)) = works.last().map(|work| &**work) else { return Ok(()) };
    let waited = shim.client.synchronize_stream(stream);
    shim.waited(waited)?;
    drop(shim);
    call.call();
    Ok(())
}

/// Changes the call of a node of an executable graph to one of the same kind.
fn set(executable: CUgraphExec, node: CUgraphNode, work: impl FnOnce(&Shim) -> Result<Work, Code>) -> Result<(), Code> {
    let (executable, node) = (executable_number(executable)?, node_number(node)?);
    let (mut shim, _) = Shim::current()?;
    let mut work = work(&shim)?;
    let old = shim.graphs.executable_work(executable, node)?;
    if old.differs(&work).is_some() {
        return Err(Code::INVALID_VALUE);
    }
    work.keep(old);
    shim.graphs.set_executable_work(executable, node, Arc::new(work))
}

/// Updates an executable graph. Returns the result of the call, and what the program is told.
fn update(executable: CUgraphExec, graph: CUgraph) -> (Result<(), Code>, CUgraphExecUpdateResultInfo) {
    let update = || {
        let (executable, graph) = (executable_number(executable)?, graph_number(graph)?);
        Shim::get()?.graphs.update(executable, graph, |old, new| old.differs(new))
    };
    let (error_node, error_from_node) = (CUgraphNode::NULL, CUgraphNode::NULL);
    let info = |result, error_node| CUgraphExecUpdateResultInfo { result, error_node, error_from_node };
    match update() {
        Ok(Ok(())) => (Ok(()), info(CU_GRAPH_EXEC_UPDATE_SUCCESS, error_node)),
        Err(code) => (Err(code), info(CU_GRAPH_EXEC_UPDATE_ERROR, error_node)),
        Ok(Err(Mismatch { kind, node })) => {
            let result = match kind {
                MismatchKind::Topology => CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED,
                MismatchKind::Kind => CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED,
                MismatchKind::Parameters => CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED,
            };
            let node = if node == 0 { error_node } else { handle(Kind::Node, node) };
            (Err(Code::GRAPH_EXEC_UPDATE_FAILURE), info(result, node))
        }
    }
}

/// Returns an error unless a node is a launch, a copy or a fill: only those can be disabled.
fn check_switch(shim: &mut Shim, executable: u32, node: u32) -> Result<(), Code> {
    match **shim.graphs.executable_work(executable, node)? {
        Work::Kernel(_) | Work::Copy(_) | Work::Fill(_) => Ok(()),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// Writes the dependencies of a graph if there is room for them, and how many there are.
fn edges(
    graph: CUgraph,
    from: Out<CUgraphNode>,
    to: Out<CUgraphNode>,
    data: Out<CUgraphEdgeData>,
    count: Place,
) -> Result<(), Code> {
    if from.is_null() != to.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let (earlier, later): (Vec<u32>, Vec<u32>) = Shim::get()?.graphs.edges(graph_number(graph)?)?.into_iter().unzip();
    count.is_wanted()?;
    list_edges(earlier.len(), from, data, count)?;
    // The first list must leave the room as the program has given it.
    let room: usize = count.values().get(0)?;
    list(&earlier, from, count)?;
    if !to.is_null() {
        count.out().set(room)?;
    }
    list(&later, to, count)
}
