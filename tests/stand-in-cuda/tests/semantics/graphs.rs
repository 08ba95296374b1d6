//! Captures: which work becomes a graph, and which calls invalidate a capture.

use crate::gpu::{DOUBLE_ADD, Gpu, code, cuda, ok};

/// Ends a capture; returns the graph and the status.
fn end(stream: u64) -> (u64, u32) {
    let mut graph = 0;
    let status = cuda!(cuStreamEndCapture(stream => u64, &mut graph => *mut u64));
    (graph, status)
}

fn begin(stream: u64) {
    ok!(cuStreamBeginCapture_v2(stream => u64, 2 => i32));
}

fn instantiate(graph: u64) -> u64 {
    let mut executable = 0;
    ok!(cuGraphInstantiateWithFlags(&mut executable => *mut u64, graph => u64, 0 => u64));
    executable
}

#[test]
fn captured_work_is_done_when_its_graph_is_launched_each_time() {
    let gpu = Gpu::new();
    let (kernel, stream, words) = (gpu.kernel(DOUBLE_ADD), gpu.stream(), gpu.words(32, 1));
    begin(stream);
    gpu.launch(kernel, stream, 1, 32, &[words, 1]);
    gpu.launch(kernel, stream, 1, 32, &[words, 0]);
    let (graph, status) = end(stream);
    assert_eq!((status, gpu.read(words, 1)), (code::OK, vec![1]));
    let mut nodes = 0usize;
    ok!(cuGraphGetNodes(graph => u64, std::ptr::null_mut() => *mut u64, &mut nodes => *mut usize));
    assert_eq!(nodes, 2);
    let executable = instantiate(graph);
    ok!(cuGraphDestroy(graph => u64));
    for _ in 0..2 {
        ok!(cuGraphLaunch(executable => u64, stream => u64));
    }
    gpu.synchronize(stream);
    assert_eq!(gpu.read(words, 1), [26]);
    ok!(cuGraphExecDestroy(executable => u64));
    assert_eq!(cuda!(cuGraphLaunch(executable => u64, stream => u64)), code::INVALID_HANDLE);
}

#[test]
fn streams_join_a_capture_through_events_and_have_to_be_waited_for() {
    let gpu = Gpu::new();
    let (kernel, first, second, words) = (gpu.kernel(DOUBLE_ADD), gpu.stream(), gpu.stream(), gpu.words(64, 1));
    let (fork, join) = (gpu.event(), gpu.event());
    for is_joined in [true, false] {
        begin(first);
        ok!(cuEventRecord(fork => u64, first => u64));
        ok!(cuStreamWaitEvent(second => u64, fork => u64, 0 => u32));
        gpu.launch(kernel, first, 1, 32, &[words, 1]);
        gpu.launch(kernel, second, 1, 32, &[words + 128, 2]);
        ok!(cuEventRecord(join => u64, second => u64));
        assert_eq!(cuda!(cuEventQuery(join => u64)), code::CAPTURED_EVENT);
        if is_joined {
            ok!(cuStreamWaitEvent(first => u64, join => u64, 0 => u32));
        }
        assert_eq!(end(second).1, code::CAPTURE_UNMATCHED);
        let (_, status) = end(first);
        // Ending the capture in the wrong stream has invalidated it.
        assert_eq!(status, code::CAPTURE_INVALIDATED);
    }
    for (is_joined, expected) in [(true, code::OK), (false, code::CAPTURE_UNJOINED)] {
        begin(first);
        ok!(cuEventRecord(fork => u64, first => u64));
        ok!(cuStreamWaitEvent(second => u64, fork => u64, 0 => u32));
        gpu.launch(kernel, second, 1, 32, &[words + 128, 2]);
        ok!(cuEventRecord(join => u64, second => u64));
        if is_joined {
            ok!(cuStreamWaitEvent(first => u64, join => u64, 0 => u32));
            gpu.launch(kernel, first, 1, 32, &[words, 1]);
        }
        let (graph, status) = end(first);
        assert_eq!(status, expected);
        if is_joined {
            ok!(cuGraphLaunch(instantiate(graph) => u64, second => u64));
            gpu.synchronize(second);
            assert_eq!((gpu.read(words, 1), gpu.read(words + 128, 1)), (vec![3], vec![4]));
        }
    }
    // Both streams work as before.
    gpu.launch(kernel, second, 1, 32, &[words, 0]);
    gpu.synchronize(second);
    assert_eq!(gpu.read(words, 1), [6]);
}

#[test]
fn a_call_that_cannot_be_captured_invalidates_the_capture() {
    let gpu = Gpu::new();
    let (kernel, stream, words) = (gpu.kernel(DOUBLE_ADD), gpu.stream(), gpu.words(32, 1));
    assert_eq!(end(stream).1, code::ILLEGAL_STATE);
    begin(stream);
    assert_eq!(cuda!(cuStreamSynchronize(stream => u64)), code::CAPTURE_UNSUPPORTED);
    assert_eq!(gpu.try_launch(kernel, stream, 1, 32, &[words, 1]), code::CAPTURE_INVALIDATED);
    assert_eq!(end(stream).1, code::CAPTURE_INVALIDATED);
    assert_eq!(cuda!(cuStreamBeginCapture_v2(0 => u64, 2 => i32)), code::CAPTURE_UNSUPPORTED);
    ok!(cuStreamBeginCapture_v2(stream => u64, 0 => i32));
    assert_eq!(cuda!(cuMemAlloc_v2(&mut 0 => *mut u64, 4 => usize)), code::CAPTURE_UNSUPPORTED);
    assert_eq!(end(stream).1, code::CAPTURE_INVALIDATED);
    let blocking = gpu.stream_with(0);
    begin(blocking);
    assert_eq!(gpu.try_launch(kernel, 0, 1, 32, &[words, 1]), code::CAPTURE_IMPLICIT);
    assert_eq!(end(blocking).1, code::OK);
    gpu.launch(kernel, stream, 1, 32, &[words, 0]);
    gpu.synchronize(stream);
    assert_eq!(gpu.read(words, 1), [2]);
}
