//! Graphs: launches that were captured from a stream and are launched with one call.

use crate::context::Context;
use crate::error::{CudaError, status};
use crate::functions::Functions;
use crate::module::{Kernel, LaunchShape};
use crate::stream::Stream;
use atoll_cuda_api::constants::CU_STREAM_CAPTURE_MODE_RELAXED;
use atoll_cuda_api::types::{CUgraph, CUgraphExec, DriverHandle};
use std::sync::Arc;

/// A launch in a graph.
#[derive(Clone, Copy, Debug)]
pub struct GraphLaunch<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// Grid, block and shared memory.
    pub shape: LaunchShape,
    /// Its parameter block, copied into the graph: each launch of the graph uses the same.
    pub params: &'a [u8],
}

/// Launches that go to the device in one call, one after the other. Keeps its kernels loaded.
#[derive(Debug)]
pub struct Graph {
    context: Arc<Context>,
    handle: CUgraphExec,
    _kernels: Vec<Kernel>,
}

impl Graph {
    /// Captures launches. They run on the partition of this stream, with the priority of the stream
    /// in which the graph is launched. Nothing runs, and earlier work in the stream is not waited
    /// for.
    pub fn capture(stream: &Stream, launches: &[GraphLaunch<'_>]) -> Result<Graph, CudaError> {
        let context = stream.context();
        let mut captured = CUgraph::NULL;
        let begin = |f: &Functions| match f.capture_begin {
            // SAFETY: the stream is alive. Relaxed mode does not restrict other threads and
            // streams.
            Some(begin) => unsafe { begin(stream.handle, CU_STREAM_CAPTURE_MODE_RELAXED) },
            None => status::NOT_SUPPORTED,
        };
        context.call("cuStreamBeginCapture", begin)?;
        let launched =
            launches.iter().try_for_each(|launch| launch.kernel.launch_with(stream, launch.shape, launch.params));
        let end = |f: &Functions| {
            // SAFETY: the stream is alive; writes one handle to the given address.
            f.capture_end.map_or(status::NOT_SUPPORTED, |end| unsafe { end(stream.handle, &mut captured) })
        };
        // Also if a launch failed, so that the stream leaves capture mode.
        let ended = context.call("cuStreamEndCapture", end);
        let instance = launched.and(ended).and_then(|()| instantiate(context, captured));
        if captured != CUgraph::NULL {
            // SAFETY: the handle is ours and not used again; the instance is a copy.
            context.release(|f| f.graph_destroy.map_or(status::NOT_SUPPORTED, |destroy| unsafe { destroy(captured) }));
        }
        let kernels = launches.iter().map(|launch| launch.kernel.clone()).collect();
        Ok(Graph { context: context.clone(), handle: instance?, _kernels: kernels })
    }

    /// Launches the graph in a stream. The driver serializes launches of the same graph.
    pub fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        let launch = |f: &Functions| {
            // SAFETY: graph and stream are alive.
            f.graph_launch.map_or(status::NOT_SUPPORTED, |launch| unsafe { launch(self.handle, stream.handle) })
        };
        self.context.call("cuGraphLaunch", launch)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and not used again; launches in flight still complete.
        self.context
            .release(|f| f.graph_release.map_or(status::NOT_SUPPORTED, |release| unsafe { release(self.handle) }));
    }
}

fn instantiate(context: &Context, captured: CUgraph) -> Result<CUgraphExec, CudaError> {
    let mut instance = CUgraphExec::NULL;
    let make = |f: &Functions| match f.graph_instantiate {
        // SAFETY: the graph is alive; writes one handle to the given address.
        Some(make) => unsafe { make(&mut instance, captured, 0) },
        None => status::NOT_SUPPORTED,
    };
    context.call("cuGraphInstantiateWithFlags", make)?;
    Ok(instance)
}
