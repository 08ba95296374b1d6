//! Graphs: launches that were captured from a stream, and go to the device in one call.

use crate::context::Context;
use crate::error::{CudaError, status};
use crate::functions::Functions;
use crate::module::{Kernel, LaunchShape};
use crate::stream::Stream;
use atoll_cuda_api::constants::CU_STREAM_CAPTURE_MODE_RELAXED;
use atoll_cuda_api::types::{CUgraph, CUgraphExec, DriverHandle};
use std::sync::Arc;

/// A launch of a graph.
#[derive(Clone, Copy, Debug)]
pub struct GraphLaunch<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// How it is launched.
    pub shape: LaunchShape,
    /// Its parameter block, which the graph keeps: each launch of the graph has the same.
    pub params: &'a [u8],
}

/// Launches that go to the device in one call, each behind the one before it. It keeps its kernels
/// loaded.
#[derive(Debug)]
pub struct Graph {
    context: Arc<Context>,
    handle: CUgraphExec,
    _kernels: Vec<Kernel>,
}

impl Graph {
    /// Captures launches; they stay on the partition of this stream, and have the priority of the
    /// one that they are launched into. Nothing is run, and what the stream already has is not
    /// waited for.
    pub fn capture(stream: &Stream, launches: &[GraphLaunch<'_>]) -> Result<Graph, CudaError> {
        let context = stream.context();
        let mut captured = CUgraph::NULL;
        let begin = |f: &Functions| match f.capture_begin {
            // SAFETY: the stream is alive. Relaxed: other threads and streams go on as if nothing were captured.
            Some(begin) => unsafe { begin(stream.handle, CU_STREAM_CAPTURE_MODE_RELAXED) },
            None => status::NOT_SUPPORTED,
        };
        context.call("cuStreamBeginCapture", begin)?;
        let launched =
            launches.iter().try_for_each(|launch| launch.kernel.launch_with(stream, launch.shape, launch.params));
        let end = |f: &Functions| {
            // SAFETY: the stream is alive; writes one handle to the address given.
            f.capture_end.map_or(status::NOT_SUPPORTED, |end| unsafe { end(stream.handle, &mut captured) })
        };
        // Also where a launch was refused: the stream has to be one again.
        let ended = context.call("cuStreamEndCapture", end);
        let instance = launched.and(ended).and_then(|()| instantiate(context, captured));
        if captured != CUgraph::NULL {
            // SAFETY: the handle is ours and not used again; what was made of it is a copy.
            context.release(|f| f.graph_destroy.map_or(status::NOT_SUPPORTED, |destroy| unsafe { destroy(captured) }));
        }
        let kernels = launches.iter().map(|launch| launch.kernel.clone()).collect();
        Ok(Graph { context: context.clone(), handle: instance?, _kernels: kernels })
    }

    /// Puts the launches into a stream. While they run the driver takes the graph again only behind
    /// them.
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
        // SAFETY: the handle is ours and not used again; launches that are under way still end.
        self.context
            .release(|f| f.graph_release.map_or(status::NOT_SUPPORTED, |release| unsafe { release(self.handle) }));
    }
}

fn instantiate(context: &Context, captured: CUgraph) -> Result<CUgraphExec, CudaError> {
    let mut instance = CUgraphExec::NULL;
    let make = |f: &Functions| match f.graph_instantiate {
        // SAFETY: the graph is alive; writes one handle to the address given.
        Some(make) => unsafe { make(&mut instance, captured, 0) },
        None => status::NOT_SUPPORTED,
    };
    context.call("cuGraphInstantiateWithFlags", make)?;
    Ok(instance)
}
