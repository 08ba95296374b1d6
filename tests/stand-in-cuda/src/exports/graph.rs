//! Graphs: captured work that is launched as one.

use super::arguments::{Out, Pointer};
use super::entry_points;
use crate::driver::Driver;
use crate::graph::Graph;
use crate::status::Status;
use crate::table::Handle;
use crate::work::Work;
use std::ffi::{c_char, c_ulonglong};
use std::sync::Arc;

entry_points! { GRAPH:
    fn cuGraphInstantiateWithFlags(executable: Out<u64>, graph: u64, _flags: c_ulonglong) {
        instantiate(executable, graph)
    }

    fn cuGraphInstantiate_v2(executable: Out<u64>, graph: u64, _node: Out<u64>, _log: Out<c_char>, _room: usize) {
        instantiate(executable, graph)
    }

    fn cuGraphLaunch(executable: u64, stream: u64) {
        let driver = Driver::get()?;
        let (executable, stream) = (driver.executables.get(Handle(executable))?, driver.stream(Handle(stream))?);
        if executable.context.handle != stream.context.handle {
            return Err(Status::InvalidContext);
        }
        stream.push(Work::Sequence(executable.works.clone()))
    }

    fn cuGraphUpload(executable: u64, stream: u64) {
        let driver = Driver::get()?;
        driver.executables.get(Handle(executable))?;
        driver.stream(Handle(stream))?.context.check()
    }

    fn cuGraphGetNodes(graph: u64, nodes: Pointer, count: Out<usize>) {
        let graph = Driver::get()?.graphs.get(Handle(graph))?;
        // Nodes have no names of their own: they can be counted, not changed.
        if nodes.address() != 0 {
            return Err(Status::NotSupported);
        }
        count.set(graph.works.len())
    }

    fn cuGraphDestroy(graph: u64) {
        Driver::get()?.graphs.remove(Handle(graph)).map(drop)
    }

    fn cuGraphExecDestroy(executable: u64) {
        Driver::get()?.executables.remove(Handle(executable)).map(drop)
    }
}

fn instantiate(executable: Out<u64>, graph: u64) -> Result<(), Status> {
    executable.is_wanted()?;
    let driver = Driver::get()?;
    let graph = driver.graphs.get(Handle(graph))?;
    graph.context.check()?;
    let handle = Handle::fresh();
    driver.executables.put(handle, Arc::new(Graph { context: graph.context.clone(), works: graph.works.clone() }));
    executable.set(handle.0)
}
