//! Order within a stream and concurrency between streams; what a running kernel sees; events.

use crate::gpu::{DOUBLE_ADD, Gpu, HOLD, code, cuda, ok};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

#[test]
fn work_of_one_stream_is_done_in_order() {
    let gpu = Gpu::new();
    let (kernel, stream, words) = (gpu.kernel(DOUBLE_ADD), gpu.stream(), gpu.words(256, 0));
    for round in 0..20 {
        gpu.launch(kernel, stream, 4, 64, &[words, round]);
    }
    gpu.synchronize(stream);
    let expected = (0..20).fold(0u32, |value, round| value * 2 + round);
    assert_eq!(gpu.read(words, 256), vec![expected; 256]);
}

#[test]
fn streams_run_beside_a_kernel_that_waits_and_the_host_can_release_it() {
    let gpu = Gpu::new();
    let (hold, double) = (gpu.kernel(HOLD), gpu.kernel(DOUBLE_ADD));
    let (waiting, other) = (gpu.stream(), gpu.stream());
    let (flag, words, count) = (&gpu.shared(1)[0], gpu.words(32, 3), gpu.words(1, 0));
    gpu.launch(hold, waiting, 1, 1, &[flag.as_ptr() as u64, 1, count]);
    gpu.launch(double, other, 1, 32, &[words, 1]);
    gpu.synchronize(other);
    assert_eq!(cuda!(cuStreamQuery(waiting => u64)), code::NOT_READY);
    flag.store(1, Ordering::Release);
    gpu.synchronize(waiting);
    ok!(cuStreamQuery(waiting => u64));
    assert_eq!((gpu.read(words, 1), gpu.read(count, 1)), (vec![7], vec![1]));
}

#[test]
fn a_value_that_a_stream_writes_reaches_a_kernel_that_runs() {
    let gpu = Gpu::new();
    let (hold, stream, writer) = (gpu.kernel(HOLD), gpu.stream(), gpu.stream());
    let (word, count) = (gpu.words(1, 0), gpu.words(1, 0));
    gpu.launch(hold, stream, 1, 1, &[word, 5, count]);
    ok!(cuStreamWriteValue32_v2(writer => u64, word => u64, 4 => u32, 0 => u32));
    gpu.synchronize(writer);
    assert_eq!(cuda!(cuStreamQuery(stream => u64)), code::NOT_READY);
    ok!(cuStreamWriteValue32_v2(writer => u64, word => u64, 5 => u32, 0 => u32));
    gpu.synchronize(stream);
    assert_eq!(gpu.read(count, 1), [1]);
}

#[test]
fn a_stream_waits_for_a_value() {
    let gpu = Gpu::new();
    let (stream, flag, seen) = (gpu.stream(), &gpu.shared(1)[0], gpu.words(1, 0));
    ok!(cuStreamWaitValue32_v2(stream => u64, flag.as_ptr() as u64 => u64, 3 => u32, 0 => u32));
    ok!(cuMemsetD32Async(seen => u64, 9 => u32, 1 => usize, stream => u64));
    assert_eq!(cuda!(cuStreamQuery(stream => u64)), code::NOT_READY);
    flag.store(2, Ordering::Release);
    assert_eq!(cuda!(cuStreamQuery(stream => u64)), code::NOT_READY);
    flag.store(3, Ordering::Release);
    gpu.synchronize(stream);
    assert_eq!(gpu.read(seen, 1), [9]);
    assert_eq!(cuda!(cuStreamWaitValue32_v2(stream => u64, seen + 2 => u64, 3 => u32, 0 => u32)), code::INVALID_VALUE);
}

#[test]
fn events_order_streams_and_record_times() {
    let gpu = Gpu::new();
    let (hold, first, second) = (gpu.kernel(HOLD), gpu.stream(), gpu.stream());
    let (flag, count, copy) = (&gpu.shared(1)[0], gpu.words(1, 41), gpu.words(1, 0));
    let (begin, end) = (gpu.event(), gpu.event());
    ok!(cuEventQuery(begin => u64));
    ok!(cuEventRecord(begin => u64, first => u64));
    gpu.launch(hold, first, 1, 1, &[flag.as_ptr() as u64, 1, count]);
    ok!(cuEventRecord(end => u64, first => u64));
    ok!(cuStreamWaitEvent(second => u64, end => u64, 0 => u32));
    ok!(cuMemcpyDtoDAsync_v2(copy => u64, count => u64, 4 => usize, second => u64));
    ok!(cuEventSynchronize(begin => u64));
    assert_eq!(cuda!(cuEventQuery(end => u64)), code::NOT_READY);
    assert_eq!(cuda!(cuStreamQuery(second => u64)), code::NOT_READY);
    let mut elapsed = -1.0f32;
    assert_eq!(cuda!(cuEventElapsedTime(&mut elapsed => *mut f32, begin => u64, end => u64)), code::NOT_READY);
    flag.store(1, Ordering::Release);
    gpu.synchronize(second);
    ok!(cuEventElapsedTime(&mut elapsed => *mut f32, begin => u64, end => u64));
    assert!(elapsed >= 0.0);
    assert_eq!(gpu.read(copy, 1), [42]);
}

#[test]
fn an_event_without_times_has_none() {
    let gpu = Gpu::new();
    let (with, mut without) = (gpu.event(), 0);
    ok!(cuEventCreate(&mut without => *mut u64, 2 => u32));
    let mut elapsed = 0.0f32;
    assert_eq!(
        cuda!(cuEventElapsedTime(&mut elapsed => *mut f32, with => u64, with => u64)),
        code::INVALID_HANDLE,
        "never recorded"
    );
    for event in [with, without] {
        ok!(cuEventRecord(event => u64, 0 => u64));
        ok!(cuEventSynchronize(event => u64));
    }
    assert_eq!(cuda!(cuEventElapsedTime(&mut elapsed => *mut f32, with => u64, without => u64)), code::INVALID_HANDLE);
}

#[test]
fn the_default_stream_keeps_order_with_blocking_streams_only() {
    let gpu = Gpu::new();
    let (hold, blocking, free) = (gpu.kernel(HOLD), gpu.stream_with(0), gpu.stream());
    let (flag, count, words) = (&gpu.shared(1)[0], gpu.words(1, 0), gpu.words(2, 0));
    gpu.launch(hold, blocking, 1, 1, &[flag.as_ptr() as u64, 1, count]);
    ok!(cuMemcpyDtoDAsync_v2(words => u64, count => u64, 4 => usize, 0 => u64));
    ok!(cuMemsetD32Async(words + 4 => u64, 8 => u32, 1 => usize, free => u64));
    gpu.synchronize(free);
    assert_eq!(cuda!(cuStreamQuery(0 => u64)), code::NOT_READY);
    flag.store(1, Ordering::Release);
    gpu.synchronize(0);
    assert_eq!(gpu.read(words, 2), [1, 8]);
}

#[test]
fn host_functions_are_called_in_stream_order() {
    extern "C" fn note(seen: *mut c_void) {
        // SAFETY: the test passes the address of a word that outlives the stream's work.
        unsafe { &*seen.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
    }
    let gpu = Gpu::new();
    let (hold, stream) = (gpu.kernel(HOLD), gpu.stream());
    let (flag, count, seen) = (&gpu.shared(1)[0], gpu.words(1, 0), AtomicU32::new(0));
    gpu.launch(hold, stream, 1, 1, &[flag.as_ptr() as u64, 1, count]);
    ok!(cuLaunchHostFunc(
        stream => u64, note => extern "C" fn(*mut c_void), (&raw const seen).cast_mut().cast() => *mut c_void
    ));
    assert_eq!(seen.load(Ordering::SeqCst), 0);
    flag.store(1, Ordering::Release);
    gpu.synchronize(stream);
    assert_eq!(seen.load(Ordering::SeqCst), 1);
}

#[test]
fn pending_work_of_a_destroyed_stream_is_completed() {
    let gpu = Gpu::new();
    let (hold, stream) = (gpu.kernel(HOLD), gpu.stream());
    let (flag, count) = (&gpu.shared(1)[0], gpu.words(1, 0));
    gpu.launch(hold, stream, 1, 1, &[flag.as_ptr() as u64, 1, count]);
    ok!(cuStreamDestroy_v2(stream => u64));
    flag.store(1, Ordering::Release);
    ok!(cuCtxSynchronize());
    assert_eq!(gpu.read(count, 1), [1]);
}

#[test]
fn a_more_urgent_stream_has_a_lower_number() {
    let gpu = Gpu::new();
    let (mut least, mut greatest, mut stream, mut priority) = (9, 9, 0, 9);
    ok!(cuCtxGetStreamPriorityRange(&mut least => *mut i32, &mut greatest => *mut i32));
    assert!(greatest < least && least == 0);
    ok!(cuStreamCreateWithPriority(&mut stream => *mut u64, 1 => u32, -100 => i32));
    ok!(cuStreamGetPriority(stream => u64, &mut priority => *mut i32));
    assert_eq!(priority, greatest);
    let (kernel, words) = (gpu.kernel(DOUBLE_ADD), gpu.words(32, 2));
    gpu.launch(kernel, stream, 1, 32, &[words, 0]);
    gpu.synchronize(stream);
    assert_eq!(gpu.read(words, 1), [4]);
}
