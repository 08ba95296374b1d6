//! Devices, contexts, handles, and names.

use crate::gpu::{DOUBLE_ADD, Gpu, code, cuda, ok};
use std::ffi::{CStr, c_char};

#[test]
fn the_device_describes_itself() {
    let _gpu = Gpu::new();
    let mut name = [0 as c_char; 64];
    ok!(cuDeviceGetName(name.as_mut_ptr() => *mut c_char, 64 => i32, 0 => i32));
    // SAFETY: the call wrote a NUL-terminated text.
    assert!(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().contains("stand-in"));
    let attribute = |attribute: i32| {
        let mut value = -1;
        ok!(cuDeviceGetAttribute(&mut value => *mut i32, attribute => i32, 0 => i32));
        value
    };
    assert_eq!((attribute(10), attribute(75), attribute(76)), (32, 9, 0));
    assert!(attribute(16) >= 2, "compute units");
    assert_eq!(cuda!(cuDeviceGetAttribute(&mut 0 => *mut i32, 100_000 => i32, 0 => i32)), code::INVALID_VALUE);
    assert_eq!(cuda!(cuDeviceGet(&mut 0 => *mut i32, 9 => i32)), code::INVALID_DEVICE);
}

#[test]
fn errors_have_names_and_texts() {
    for (status, name) in [(0, "CUDA_SUCCESS"), (code::ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS")] {
        let (mut text, mut words) = (std::ptr::null::<c_char>(), std::ptr::null::<c_char>());
        ok!(cuGetErrorName(status => u32, &mut text => *mut *const c_char));
        ok!(cuGetErrorString(status => u32, &mut words => *mut *const c_char));
        // SAFETY: the calls returned static, NUL-terminated texts.
        let (text, words) = unsafe { (CStr::from_ptr(text), CStr::from_ptr(words)) };
        assert_eq!(text.to_str(), Ok(name));
        assert!(!words.is_empty());
    }
    assert_eq!(cuda!(cuGetErrorName(12_345 => u32, &mut std::ptr::null() => *mut *const c_char)), code::INVALID_VALUE);
}

#[test]
fn entry_points_are_found_by_the_names_without_versions() {
    let _gpu = Gpu::new();
    for name in ["cuMemAlloc", "cuLaunchKernel", "cuGetProcAddress", "cuStreamWriteValue32", "cuStreamSynchronize"] {
        let (name, mut entry, mut found) = (format!("{name}\0"), 0usize, -1);
        ok!(cuGetProcAddress_v2(
            name.as_ptr() => *const u8, &mut entry => *mut usize, 12_000 => i32, 0 => u64, &mut found => *mut i32
        ));
        assert!(entry != 0 && found == 0, "{name}");
    }
    let status = cuda!(cuGetProcAddress_v2(
        c"cuNoSuchThing".as_ptr() => *const c_char, &mut 0 => *mut usize, 12_000 => i32, 0 => u64, &mut 0 => *mut i32
    ));
    assert_eq!(status, code::NOT_FOUND);
}

#[test]
fn contexts_belong_to_threads() {
    let gpu = Gpu::new();
    let current = || {
        let mut context = 0;
        ok!(cuCtxGetCurrent(&mut context => *mut u64));
        context
    };
    assert_eq!(current(), gpu.context);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(current(), 0);
            assert_eq!(cuda!(cuCtxSynchronize()), code::INVALID_CONTEXT);
            ok!(cuCtxSetCurrent(gpu.context => u64));
            ok!(cuCtxSynchronize());
        });
    });
    let inner = Gpu::new();
    assert_eq!(current(), inner.context);
    drop(inner);
    assert_eq!(current(), gpu.context);
}

#[test]
fn destroyed_and_unknown_contexts_are_distinguished() {
    let gpu = Gpu::new();
    let meeting = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            ok!(cuCtxSetCurrent(gpu.context => u64));
            meeting.wait();
            meeting.wait();
            cuda!(cuCtxSynchronize())
        });
        meeting.wait();
        ok!(cuCtxDestroy_v2(gpu.context => u64));
        meeting.wait();
        assert_eq!(other.join().expect("no panic"), code::CONTEXT_DESTROYED);
    });
    assert_eq!(cuda!(cuCtxSetCurrent(77 => u64)), code::INVALID_CONTEXT);
}

#[test]
fn the_primary_context_is_counted() {
    ok!(cuInit(0 => u32));
    let retain = || {
        let mut context = 0;
        ok!(cuDevicePrimaryCtxRetain(&mut context => *mut u64, 0 => i32));
        context
    };
    let is_active = || {
        let mut active = -1;
        ok!(cuDevicePrimaryCtxGetState(0 => i32, &mut 0 => *mut u32, &mut active => *mut i32));
        active == 1
    };
    assert!(!is_active());
    assert_eq!(retain(), retain());
    ok!(cuDevicePrimaryCtxRelease_v2(0 => i32));
    assert!(is_active());
    ok!(cuDevicePrimaryCtxRelease_v2(0 => i32));
    assert!(!is_active());
    assert_eq!(cuda!(cuDevicePrimaryCtxRelease_v2(0 => i32)), code::INVALID_CONTEXT);
    let context = retain();
    ok!(cuCtxSetCurrent(context => u64));
    ok!(cuDevicePrimaryCtxReset_v2(0 => i32));
    assert_eq!(cuda!(cuCtxSynchronize()), code::CONTEXT_DESTROYED);
    assert_eq!(retain(), context);
    ok!(cuCtxSynchronize());
    ok!(cuDevicePrimaryCtxRelease_v2(0 => i32));
}

#[test]
fn invalid_handles_are_refused() {
    let gpu = Gpu::new();
    let kernel = gpu.kernel(DOUBLE_ADD);
    let (stream, words) = (gpu.stream(), gpu.words(32, 1));
    ok!(cuStreamDestroy_v2(stream => u64));
    assert_eq!(cuda!(cuStreamSynchronize(stream => u64)), code::INVALID_HANDLE);
    assert_eq!(gpu.try_launch(kernel, stream, 1, 32, &[words, 0]), code::INVALID_HANDLE);
    assert_eq!(gpu.try_launch(99, 0, 1, 32, &[words, 0]), code::INVALID_HANDLE);
    assert_eq!(cuda!(cuEventRecord(5 => u64, 0 => u64)), code::INVALID_HANDLE);
    assert_eq!(cuda!(cuModuleUnload(5 => u64)), code::INVALID_HANDLE);
    let other = Gpu::new();
    assert_eq!(other.try_launch(kernel, 0, 1, 32, &[words, 0]), code::INVALID_HANDLE, "a kernel of another context");
}

#[test]
fn invalid_launches_are_refused() {
    let gpu = Gpu::new();
    let (kernel, words) = (gpu.kernel(DOUBLE_ADD), gpu.words(32, 1));
    assert_eq!(gpu.try_launch(kernel, 0, 0, 32, &[words, 0]), code::INVALID_VALUE);
    assert_eq!(gpu.try_launch(kernel, 0, 1, 1025, &[words, 0]), code::INVALID_VALUE);
    let launch_with_shared = |bytes: u32| {
        let (args, null) = ([words, 0], std::ptr::null::<u64>());
        let mut params = [&raw const args[0], &raw const args[1]];
        cuda!(cuLaunchKernel(
            kernel => u64, 1 => u32, 1 => u32, 1 => u32, 32 => u32, 1 => u32, 1 => u32, bytes => u32, 0 => u64,
            params.as_mut_ptr() => *mut *const u64, null => *const u64,
        ))
    };
    assert_eq!(launch_with_shared(48 << 10), code::OK);
    assert_eq!(launch_with_shared(64 << 10), code::INVALID_VALUE);
    ok!(cuFuncSetAttribute(kernel => u64, 8 => i32, 64 << 10 => i32));
    assert_eq!(launch_with_shared(64 << 10), code::OK);
    ok!(cuCtxSynchronize());
}

#[test]
fn parameters_come_one_by_one_or_in_a_buffer() {
    let gpu = Gpu::new();
    let (kernel, words) = (gpu.kernel(DOUBLE_ADD), gpu.words(32, 10));
    let mut block = [0u8; 12];
    block[..8].copy_from_slice(&words.to_le_bytes());
    block[8..].copy_from_slice(&7u32.to_le_bytes());
    let mut bytes = block.len();
    let extra = [1usize, block.as_ptr() as usize, 2, (&raw mut bytes) as usize, 0];
    ok!(cuLaunchKernel(
        kernel => u64, 1 => u32, 1 => u32, 1 => u32, 32 => u32, 1 => u32, 1 => u32, 0 => u32, 0 => u64,
        std::ptr::null() => *const u64, extra.as_ptr() => *const usize,
    ));
    assert_eq!(gpu.read(words, 32), [27; 32]);
}
