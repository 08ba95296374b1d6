//! Converts errors of the driver to device errors.
//!
//! [`GpuError`] is needed because both types are foreign, so no `From` between them can be
//! implemented here.

use atoll_cuda::{CudaError, OpenError, PartitionError, TransferError, status};
use atoll_device::DeviceError;

/// A device error made from an error of the driver.
#[derive(Debug)]
pub(crate) struct GpuError(pub(crate) DeviceError);

impl From<GpuError> for DeviceError {
    fn from(error: GpuError) -> DeviceError {
        error.0
    }
}

impl From<DeviceError> for GpuError {
    fn from(error: DeviceError) -> GpuError {
        GpuError(error)
    }
}

impl From<OpenError> for GpuError {
    fn from(error: OpenError) -> GpuError {
        GpuError(DeviceError::Unavailable(error.to_string()))
    }
}

impl From<CudaError> for GpuError {
    fn from(error: CudaError) -> GpuError {
        GpuError(match error.is_context_lost() {
            true => DeviceError::Lost(fault(&error)),
            false => DeviceError::Driver(error.to_string()),
        })
    }
}

impl From<PartitionError> for GpuError {
    fn from(error: PartitionError) -> GpuError {
        match error {
            PartitionError::Driver(error) => error.into(),
            refusal => GpuError(DeviceError::Unavailable(refusal.to_string())),
        }
    }
}

impl From<TransferError> for GpuError {
    fn from(error: TransferError) -> GpuError {
        match error {
            TransferError::OutOfBounds(error) => {
                GpuError(DeviceError::OutOfRange { at: error.at, bytes: error.bytes, memory_bytes: error.memory_bytes })
            }
            TransferError::Driver(error) => error.into(),
        }
    }
}

/// Describes what happened to a lost context, from the error that every call returns since.
pub(super) fn fault(error: &CudaError) -> String {
    let what = match error.code {
        status::ILLEGAL_ADDRESS => "a kernel accessed unmapped memory",
        status::MISALIGNED_ADDRESS => "a kernel accessed an address that is not a multiple of the access size",
        status::ASSERT => "an assertion of a kernel failed",
        status::ILLEGAL_INSTRUCTION => "a kernel executed an instruction that the GPU does not support",
        status::MPS_RPC_FAILURE | status::MPS_CLIENT_TERMINATED => "MPS terminated this process's work on the GPU",
        _ => "a kernel trapped or faulted",
    };
    format!("{what} ({}, {}); the GPU's context ended with it", error.name, error.code)
}
