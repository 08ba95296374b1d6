//! Device memory of other processes.

use crate::gpu::{Gpu, code, cuda, ok};
use atoll_cuda_api::types::CUipcMemHandle;
use std::process::Command;

/// The variable with a handle, for the process that opens it. The test runs itself as that process.
const HANDLE: &str = "ATOLL_TEST_IPC_HANDLE";

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const LAZY: u32 = 1;

fn open(handle: CUipcMemHandle) -> (u32, u64) {
    let mut at = 0;
    (cuda!(cuIpcOpenMemHandle_v2(&mut at => *mut u64, handle => CUipcMemHandle, LAZY => u32)), at)
}

/// The status with which another process opens a handle. It changes the memory if it can.
fn other_process(handle: CUipcMemHandle) -> u32 {
    let text: String = handle.reserved.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut command = Command::new(std::env::current_exe().expect("a test has a path"));
    command.args(["--exact", "ipc::another_process_maps_memory_by_its_handle", "--nocapture"]).env(HANDLE, text);
    let output = command.output().expect("this program can be started");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let status = said.lines().find_map(|line| line.split_once("opened: ")?.1.trim().parse().ok());
    status.unwrap_or_else(|| panic!("no status in {said}"))
}

#[allow(clippy::print_stdout, reason = "the other process tells the status")]
fn be_the_other_process(text: &str) {
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    for (index, byte) in handle.reserved.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).expect("a byte");
    }
    let gpu = Gpu::new();
    let (status, at) = open(handle);
    println!("opened: {status}");
    if status != code::OK {
        return;
    }
    assert_eq!(gpu.read(at, 4), [7; 4]);
    let (mut base, mut bytes) = (0u64, 0usize);
    ok!(cuMemGetAddressRange_v2(&mut base => *mut u64, &mut bytes => *mut usize, at => u64));
    assert_eq!((base, bytes), (at, 16));
    ok!(cuMemsetD32_v2(at + 4 => u64, 9 => u32, 1 => usize));
    assert_eq!(cuda!(cuMemFree_v2(at => u64)), code::INVALID_VALUE, "it is not this process's memory");
    assert_eq!(open(handle), (code::OK, at), "a second opening is counted");
    ok!(cuIpcCloseMemHandle(at => u64));
    assert_eq!(gpu.read(at, 2), [7, 9]);
    ok!(cuIpcCloseMemHandle(at => u64));
    assert_eq!(cuda!(cuIpcCloseMemHandle(at => u64)), code::INVALID_VALUE);
}

#[test]
fn another_process_maps_memory_by_its_handle() {
    if let Ok(text) = std::env::var(HANDLE) {
        return be_the_other_process(&text);
    }
    let gpu = Gpu::new();
    let words = gpu.words(4, 7);
    let (mut handle, mut again) = (CUipcMemHandle { reserved: [0; 64] }, CUipcMemHandle { reserved: [0; 64] });
    ok!(cuIpcGetMemHandle(&mut handle => *mut CUipcMemHandle, words => u64));
    ok!(cuIpcGetMemHandle(&mut again => *mut CUipcMemHandle, words => u64));
    assert_eq!(handle.reserved, again.reserved);
    assert_eq!(open(handle).0, code::INVALID_CONTEXT, "a process cannot open its own memory");
    assert_eq!(open(CUipcMemHandle { reserved: [1; 64] }).0, code::INVALID_HANDLE);
    let inside = cuda!(cuIpcGetMemHandle(&mut again => *mut CUipcMemHandle, words + 4 => u64));
    assert_eq!(inside, code::INVALID_VALUE);
    assert_eq!(other_process(handle), code::OK);
    assert_eq!(gpu.read(words, 4), [7, 9, 7, 7]);
    // The memory still belongs to this process.
    ok!(cuMemsetD32_v2(words => u64, 0 => u32, 4 => usize));
    assert_eq!(gpu.read(words, 4), [0; 4]);
    ok!(cuMemFree_v2(words => u64));
    assert_eq!(other_process(handle), code::INVALID_HANDLE, "the memory was freed");
}
