//! A kernel's fault affects its own context, and no other.

use crate::gpu::{DOUBLE_ADD, Gpu, HOLD, STORE_TO, TRAP, code, cuda, ok};

/// An address in the first page, which is never mapped.
const UNMAPPED: u64 = 16;

#[test]
fn a_fault_stays_with_its_context() {
    let (gpu, healthy) = (Gpu::new(), Gpu::new());
    let words = healthy.words(32, 1);
    ok!(cuCtxPushCurrent_v2(gpu.context => u64));
    let (kernel, stream, event) = (gpu.kernel(STORE_TO), gpu.stream(), gpu.event());
    gpu.launch(kernel, stream, 1, 1, &[UNMAPPED]);
    assert_eq!(cuda!(cuStreamSynchronize(stream => u64)), code::ILLEGAL_ADDRESS);
    for _ in 0..2 {
        assert_eq!(cuda!(cuCtxSynchronize()), code::ILLEGAL_ADDRESS);
        assert_eq!(cuda!(cuMemAlloc_v2(&mut 0 => *mut u64, 4 => usize)), code::ILLEGAL_ADDRESS);
        assert_eq!(cuda!(cuEventRecord(event => u64, stream => u64)), code::ILLEGAL_ADDRESS);
        assert_eq!(gpu.try_launch(kernel, stream, 1, 1, &[UNMAPPED]), code::ILLEGAL_ADDRESS);
    }
    ok!(cuCtxPopCurrent_v2(std::ptr::null_mut() => *mut u64));
    let double = healthy.kernel(DOUBLE_ADD);
    healthy.launch(double, 0, 1, 32, &[words, 3]);
    assert_eq!(healthy.read(words, 1), [5]);
}

#[test]
fn faults_have_distinct_errors() {
    let status_of = |body: &str, args: &[u64]| {
        let gpu = Gpu::new();
        gpu.launch(gpu.kernel(body), 0, 1, 1, args);
        cuda!(cuCtxSynchronize())
    };
    assert_eq!(status_of(STORE_TO, &[UNMAPPED]), code::ILLEGAL_ADDRESS);
    assert_eq!(status_of(TRAP, &[]), code::LAUNCH_FAILED);
    let gpu = Gpu::new();
    let words = gpu.words(4, 0);
    gpu.launch(gpu.kernel(STORE_TO), 0, 1, 1, &[words + 4]);
    assert_eq!(cuda!(cuCtxSynchronize()), code::MISALIGNED);
}

#[test]
fn a_fault_ends_all_work_of_the_context() {
    let gpu = Gpu::new();
    let (hold, store) = (gpu.kernel(HOLD), gpu.kernel(STORE_TO));
    let (waiting, other, end) = (gpu.stream(), gpu.stream(), gpu.event());
    let (flag, count) = (&gpu.shared(1)[0], gpu.words(1, 0));
    gpu.launch(hold, waiting, 1, 1, &[flag.as_ptr() as u64, 1, count]);
    ok!(cuEventRecord(end => u64, waiting => u64));
    gpu.launch(store, other, 1, 1, &[UNMAPPED]);
    assert_eq!(cuda!(cuEventSynchronize(end => u64)), code::ILLEGAL_ADDRESS);
    assert_eq!(cuda!(cuStreamSynchronize(waiting => u64)), code::ILLEGAL_ADDRESS);
}

#[test]
fn work_after_a_fault_is_skipped() {
    let gpu = Gpu::new();
    let (kernel, stream, shared) = (gpu.kernel(STORE_TO), gpu.stream(), &gpu.shared(1)[0]);
    let at = shared.as_ptr() as u64;
    ok!(cuStreamWriteValue32_v2(stream => u64, at => u64, 1 => u32, 0 => u32));
    gpu.launch(kernel, stream, 1, 1, &[UNMAPPED]);
    // The driver may or may not have detected the fault by now.
    cuda!(cuStreamWriteValue32_v2(stream => u64, at => u64, 2 => u32, 0 => u32));
    assert_eq!(cuda!(cuStreamSynchronize(stream => u64)), code::ILLEGAL_ADDRESS);
    assert_eq!(shared.load(std::sync::atomic::Ordering::Acquire), 1);
}

#[test]
fn destroying_a_context_ends_its_kernels() {
    let gpu = Gpu::new();
    let (hold, stream) = (gpu.kernel(HOLD), gpu.stream());
    let (flag, count) = (&gpu.shared(1)[0], gpu.words(1, 0));
    gpu.launch(hold, stream, 1, 1, &[flag.as_ptr() as u64, 1, count]);
    ok!(cuCtxDestroy_v2(gpu.context => u64));
    let next = Gpu::new();
    let words = next.words(32, 1);
    next.launch(next.kernel(DOUBLE_ADD), 0, 1, 32, &[words, 0]);
    assert_eq!(next.read(words, 1), [2]);
}
