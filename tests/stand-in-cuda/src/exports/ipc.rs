//! Device memory of other processes.

use super::arguments::Out;
use super::entry_points;
use crate::driver::Driver;
use crate::ipc::Export;
use crate::status::Status;
use atoll_cuda_api::constants::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
use atoll_cuda_api::types::*;

entry_points! { IPC:
    fn cuIpcGetMemHandle(handle: Out<CUipcMemHandle>, at: CUdeviceptr) {
        handle.is_wanted()?;
        let driver = Driver::get()?;
        driver.current()?.refuse_while_capturing()?;
        let allocation = driver.memory.find(at).filter(|allocation| allocation.at == at).ok_or(Status::InvalidValue)?;
        // The memory moves to a file, so nothing may use it meanwhile.
        driver.context(allocation.context)?.synchronize()?;
        handle.set(driver.memory.export(at)?.to_handle())
    }

    fn cuIpcOpenMemHandle(at: Out<CUdeviceptr>, handle: CUipcMemHandle, flags: c_uint) {
        open(at, &handle, flags)
    }

    fn cuIpcOpenMemHandle_v2(at: Out<CUdeviceptr>, handle: CUipcMemHandle, flags: c_uint) {
        open(at, &handle, flags)
    }

    fn cuIpcCloseMemHandle(at: CUdeviceptr) {
        let driver = Driver::get()?;
        driver.current()?.synchronize()?;
        driver.memory.close(at)
    }
}

/// Maps the memory of a handle. There is no access to the memory of other devices.
fn open(at: Out<CUdeviceptr>, handle: &CUipcMemHandle, flags: c_uint) -> Result<(), Status> {
    at.is_wanted()?;
    let driver = Driver::get()?;
    let context = driver.current()?;
    if flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS {
        return Err(Status::InvalidValue);
    }
    let export = Export::of_handle(handle)?;
    if export.device != context.device.ordinal {
        return Err(Status::InvalidDevice);
    }
    at.set(driver.memory.import(export, (context.handle, context.device.ordinal))?)
}
