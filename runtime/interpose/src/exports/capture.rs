//! Streams that are captured.

use super::entry_points;
use super::node::{check_edges, nodes};
use crate::arguments::{In, Out, Place};
use crate::captures::{exchange_mode, thread};
use crate::handles::{Kind, handle, stream_number};
use crate::shim::Shim;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use atoll_session::{CaptureMode, CaptureStatus, Code};
use std::cell::RefCell;

thread_local! {
    /// Nodes on which the next work of a stream depends, as the last call of this thread has returned
    /// them. The program may read them until its next call.
    static LAST: RefCell<Vec<CUgraphNode>> = const { RefCell::new(Vec::new()) };
}

entry_points! { CAPTURE:
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode) {
        let mode = mode_of(mode)?;
        let stream = stream_number(stream)?;
        let (mut shim, _) = Shim::current()?;
        shim.client.check_stream(stream)?;
        // The default stream cannot be captured; here it is also that of each thread.
        if stream == 0 {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        shim.graphs.begin_capture(stream, mode, thread())
    }

    fn cuStreamEndCapture(stream: CUstream, graph: Out<CUgraph>) {
        graph.is_wanted()?;
        let stream = stream_number(stream)?;
        let (mut shim, _) = Shim::current()?;
        shim.client.check_stream(stream)?;
        graph.set(CUgraph::NULL)?;
        let ended = shim.graphs.end_capture(stream, thread());
        let swept = shim.sweep_graph_memory();
        graph.set(handle(Kind::Graph, ended?))?;
        swept
    }

    fn cuStreamIsCapturing(stream: CUstream, status: Out<CUstreamCaptureStatus>) {
        let stream = stream_number(stream)?;
        let (shim, _) = Shim::current()?;
        status.set(status_of(shim.capture_status(stream)?).0)
    }

    fn cuStreamGetCaptureInfo(stream: CUstream, status: Out<CUstreamCaptureStatus>, id: Out<u64>) {
        info(stream, status, id, Place::NULL.out(), Place::NULL, Place::NULL.out())
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: CUstream, status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<CUgraph>,
        dependencies: Place, count: Out<usize>
    ) {
        info(stream, status, id, graph, dependencies, count)
    }

    fn cuStreamGetCaptureInfo_v3(
        stream: CUstream, status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<CUgraph>,
        dependencies: Place, edges: Place, count: Out<usize>
    ) {
        // All dependencies are on whole nodes, which null stands for.
        edges.out::<u64>().set_if_wanted(0);
        info(stream, status, id, graph, dependencies, count)
    }

    fn cuStreamUpdateCaptureDependencies(
        stream: CUstream, dependencies: In<CUgraphNode>, count: usize, flags: c_uint
    ) {
        update(stream, dependencies, count, flags)
    }

    fn cuStreamUpdateCaptureDependencies_v2(
        stream: CUstream, dependencies: In<CUgraphNode>, edges: In<CUgraphEdgeData>, count: usize, flags: c_uint
    ) {
        check_edges(edges, count)?;
        update(stream, dependencies, count, flags)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<CUstreamCaptureMode>) {
        Shim::check()?;
        mode.is_wanted()?;
        let before = exchange_mode(mode_of(mode.value()?)?);
        mode.set(match before {
            CaptureMode::Global => CU_STREAM_CAPTURE_MODE_GLOBAL,
            CaptureMode::ThreadLocal => CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            CaptureMode::Relaxed => CU_STREAM_CAPTURE_MODE_RELAXED,
        })
    }
}

fn mode_of(mode: CUstreamCaptureMode) -> Result<CaptureMode, Code> {
    Ok(match mode {
        CU_STREAM_CAPTURE_MODE_GLOBAL => CaptureMode::Global,
        CU_STREAM_CAPTURE_MODE_THREAD_LOCAL => CaptureMode::ThreadLocal,
        CU_STREAM_CAPTURE_MODE_RELAXED => CaptureMode::Relaxed,
        _ => return Err(Code::INVALID_VALUE),
    })
}

/// The driver's status, and the number of the capture; 0 for none.
fn status_of(status: CaptureStatus) -> (CUstreamCaptureStatus, u32) {
    match status {
        CaptureStatus::None => (CU_STREAM_CAPTURE_STATUS_NONE, 0),
        CaptureStatus::Active(number) => (CU_STREAM_CAPTURE_STATUS_ACTIVE, number),
        CaptureStatus::Invalidated(number) => (CU_STREAM_CAPTURE_STATUS_INVALIDATED, number),
    }
}

fn info(
    stream: CUstream,
    status: Out<CUstreamCaptureStatus>,
    id: Out<u64>,
    graph: Out<CUgraph>,
    dependencies: Place,
    count: Out<usize>,
) -> Result<(), Code> {
    status.is_wanted()?;
    let stream = stream_number(stream)?;
    let (shim, _) = Shim::current()?;
    let (is, number) = status_of(shim.capture_status(stream)?);
    if is == CU_STREAM_CAPTURE_STATUS_ACTIVE
        && let Some((of, tips)) = shim.graphs.capture_place(stream)
    {
        id.set_if_wanted(number.into());
        graph.set_if_wanted(handle(Kind::Graph, of));
        count.set_if_wanted(tips.len());
        let tips: Vec<CUgraphNode> = tips.into_iter().map(|tip| handle(Kind::Node, tip)).collect();
        let kept = LAST.try_with(|last| {
            let mut last = last.borrow_mut();
            *last = tips;
            last.as_ptr().expose_provenance() as u64
        });
        dependencies.out::<u64>().set_if_wanted(kept.unwrap_or(0));
    }
    status.set(is)
}

fn update(stream: CUstream, dependencies: In<CUgraphNode>, count: usize, flags: c_uint) -> Result<(), Code> {
    let replaces = match flags {
        CU_STREAM_ADD_CAPTURE_DEPENDENCIES => false,
        CU_STREAM_SET_CAPTURE_DEPENDENCIES => true,
        _ => return Err(Code::INVALID_VALUE),
    };
    let nodes = nodes(dependencies, count)?;
    let stream = stream_number(stream)?;
    let (mut shim, _) = Shim::current()?;
    shim.client.check_stream(stream)?;
    shim.graphs.set_capture_place(stream, &nodes, replaces)
}
