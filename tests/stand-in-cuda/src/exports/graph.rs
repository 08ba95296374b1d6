//! Graphs: captured work that is launched with one call.

use super::arguments::Out;
use super::entry_points;
use crate::driver::Driver;
use crate::graph::Graph;
use crate::status::Status;
use crate::table::Handle;
use crate::work::Work;
use atoll_cuda_api::types::*;
use std::sync::Arc;

entry_points! { GRAPH:
    fn cuGraphInstantiateWithFlags(executable: Out<CUgraphExec>, graph: CUgraph, _flags: c_ulonglong) {
        instantiate(executable, graph)
    }

    fn cuGraphInstantiate_v2(
        executable: Out<CUgraphExec>, graph: CUgraph, _node: Out<CUgraphNode>, _log: Out<c_char>, _room: usize
    ) {
        instantiate(executable, graph)
    }

    fn cuGraphLaunch(executable: CUgraphExec, stream: CUstream) {
        let driver = Driver::get()?;
        let executable = driver.executables.get(Handle::of(executable))?;
        let stream = driver.stream(Handle::of(stream))?;
        if executable.context.handle != stream.context.handle {
            return Err(Status::InvalidContext);
        }
        stream.push(Work::Sequence(executable.works.clone()))
    }

    fn cuGraphUpload(executable: CUgraphExec, stream: CUstream) {
        let driver = Driver::get()?;
        driver.executables.get(Handle::of(executable))?;
        driver.stream(Handle::of(stream))?.context.check()
    }

    fn cuGraphGetNodes(graph: CUgraph, nodes: Out<CUgraphNode>, count: Out<usize>) {
        let graph = Driver::get()?.graphs.get(Handle::of(graph))?;
        // Nodes have no handles: they can be counted, not changed.
        if !nodes.is_null() {
            return Err(Status::NotSupported);
        }
        count.set(graph.works.len())
    }

    fn cuGraphDestroy(graph: CUgraph) {
        Driver::get()?.graphs.remove(Handle::of(graph)).map(drop)
    }

    fn cuGraphExecDestroy(executable: CUgraphExec) {
        Driver::get()?.executables.remove(Handle::of(executable)).map(drop)
    }
}

fn instantiate(executable: Out<CUgraphExec>, graph: CUgraph) -> Result<(), Status> {
    executable.is_wanted()?;
    let driver = Driver::get()?;
    let graph = driver.graphs.get(Handle::of(graph))?;
    graph.context.check()?;
    let handle = Handle::fresh();
    driver.executables.put(handle, Arc::new(Graph { context: graph.context.clone(), works: graph.works.clone() }));
    executable.set(handle.raw())
}
