//! Valid accesses, and when the bytes of a copy are read.

use crate::gpu::{Gpu, HOLD, STORE_TO, code, cuda, ok};
use std::sync::atomic::Ordering;

#[test]
fn memory_runs_out_and_comes_back() {
    let gpu = Gpu::new();
    let info = || {
        let (mut free, mut total) = (0usize, 0usize);
        ok!(cuMemGetInfo_v2(&mut free => *mut usize, &mut total => *mut usize));
        (free, total)
    };
    let mut at = 0;
    assert_eq!(cuda!(cuMemAlloc_v2(&mut at => *mut u64, info().1 + 1 => usize)), code::OUT_OF_MEMORY);
    assert_eq!(cuda!(cuMemAlloc_v2(&mut at => *mut u64, 0 => usize)), code::INVALID_VALUE);
    ok!(cuMemAlloc_v2(&mut at => *mut u64, 1 << 20 => usize));
    assert!(at.is_multiple_of(256) && info().0 <= info().1 - (1 << 20));
    ok!(cuMemFree_v2(at => u64));
    assert_eq!(cuda!(cuMemFree_v2(at => u64)), code::INVALID_VALUE);
    ok!(cuMemFree_v2(0 => u64));
    drop(gpu);
}

#[test]
fn a_copy_stays_inside_its_allocation() {
    let gpu = Gpu::new();
    let (words, mut there) = (gpu.words(4, 7), [0u32; 8]);
    assert_eq!(cuda!(cuMemcpyDtoH_v2(there.as_mut_ptr() => *mut u32, words => u64, 20 => usize)), code::INVALID_VALUE);
    assert_eq!(cuda!(cuMemsetD32_v2(words + 8 => u64, 0 => u32, 3 => usize)), code::INVALID_VALUE);
    assert_eq!(cuda!(cuMemsetD32_v2(words + 2 => u64, 0 => u32, 1 => usize)), code::INVALID_VALUE);
    ok!(cuMemcpyDtoH_v2(there.as_mut_ptr() => *mut u32, words + 8 => u64, 8 => usize));
    assert_eq!(there[..3], [7, 7, 0]);
    ok!(cuMemFree_v2(words => u64));
    assert_eq!(cuda!(cuMemcpyDtoH_v2(there.as_mut_ptr() => *mut u32, words => u64, 4 => usize)), code::INVALID_VALUE);
}

#[test]
fn a_kernel_that_touches_memory_which_was_freed_faults() {
    let gpu = Gpu::new();
    let (kernel, words) = (gpu.kernel(STORE_TO), gpu.words(4, 7));
    gpu.launch(kernel, 0, 1, 1, &[words]);
    ok!(cuCtxSynchronize());
    ok!(cuMemFree_v2(words => u64));
    gpu.launch(kernel, 0, 1, 1, &[words]);
    assert_eq!(cuda!(cuCtxSynchronize()), code::ILLEGAL_ADDRESS);
}

#[test]
fn pinned_memory_is_read_in_stream_order_and_other_memory_at_once() {
    let gpu = Gpu::new();
    let (hold, stream) = (gpu.kernel(HOLD), gpu.stream());
    let (flag, count, words) = (&gpu.shared(1)[0], gpu.words(1, 0), gpu.words(2, 0));
    let (pinned, mut plain) = (&gpu.shared(1)[0], 1u32);
    pinned.store(1, Ordering::Relaxed);
    gpu.launch(hold, stream, 1, 1, &[flag.as_ptr() as u64, 1, count]);
    ok!(cuMemcpyHtoDAsync_v2(words => u64, pinned.as_ptr() => *const u32, 4 => usize, stream => u64));
    ok!(cuMemcpyHtoDAsync_v2(words + 4 => u64, &raw const plain => *const u32, 4 => usize, stream => u64));
    pinned.store(2, Ordering::Release);
    plain = 2;
    flag.store(1, Ordering::Release);
    gpu.synchronize(stream);
    assert_eq!((gpu.read(words, 2), plain), (vec![2, 1], 2));
}

#[test]
fn registered_memory_is_accessible_to_the_device() {
    let gpu = Gpu::new();
    let mut own = vec![0u64; 1024];
    let at = own.as_mut_ptr();
    let (kernel, mut device) = (gpu.kernel(STORE_TO), 0);
    assert_eq!(
        cuda!(cuMemHostGetDevicePointer_v2(&mut device => *mut u64, at => *mut u64, 0 => u32)),
        code::INVALID_VALUE
    );
    ok!(cuMemHostRegister_v2(at => *mut u64, 8192 => usize, 2 => u32));
    assert_eq!(cuda!(cuMemHostRegister_v2(at => *mut u64, 8 => usize, 2 => u32)), 712);
    ok!(cuMemHostGetDevicePointer_v2(&mut device => *mut u64, at => *mut u64, 0 => u32));
    gpu.launch(kernel, 0, 1, 1, &[device]);
    ok!(cuCtxSynchronize());
    ok!(cuMemHostUnregister(at => *mut u64));
    assert_eq!(cuda!(cuMemHostUnregister(at => *mut u64)), 713);
    assert_eq!(own[0], device);
}

#[test]
fn the_attributes_of_a_pointer_describe_its_memory() {
    let gpu = Gpu::new();
    let (words, shared) = (gpu.words(4, 0), gpu.shared(4).as_ptr() as u64);
    let kind = |at: u64| {
        let mut kind = 0u32;
        (cuda!(cuPointerGetAttribute(&mut kind => *mut u32, 2 => u32, at => u64)), kind)
    };
    assert_eq!((kind(words + 4), kind(shared), kind(16)), ((0, 2), (0, 1), (code::INVALID_VALUE, 0)));
    let (mut base, mut bytes) = (0u64, 0usize);
    ok!(cuMemGetAddressRange_v2(&mut base => *mut u64, &mut bytes => *mut usize, words + 9 => u64));
    assert_eq!((base, bytes), (words, 16));
}

#[test]
fn new_device_memory_is_not_zero() {
    let _gpu = Gpu::new();
    let (mut at, mut word) = (0, 0u32);
    ok!(cuMemAlloc_v2(&mut at => *mut u64, 64 => usize));
    ok!(cuMemcpyDtoH_v2(&mut word => *mut u32, at => u64, 4 => usize));
    assert_ne!(word, 0);
}
