//! The driver's answers as errors of a device.
//!
//! [`GpuError`] stands between the two: neither type is this crate's, so `?` cannot go from one to
//! the other at once.

use atoll_cuda::{CudaError, OpenError, PartitionError, TransferError, status};
use atoll_device::DeviceError;

/// An answer of the driver, as an error of a device.
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

/// What happened to the context, by what every call answers since.
pub(super) fn fault(error: &CudaError) -> String {
    let what = match error.code {
        status::ILLEGAL_ADDRESS => "a kernel accessed memory that is not there",
        status::MISALIGNED_ADDRESS => "a kernel accessed an address that is no multiple of the access's size",
        status::ASSERT => "an assertion of a kernel failed",
        status::ILLEGAL_INSTRUCTION => "a kernel ran into an instruction that the GPU does not have",
        status::MPS_RPC_FAILURE | status::MPS_CLIENT_TERMINATED => "MPS ended what this process had on the GPU",
        _ => "a kernel trapped or faulted",
    };
    format!("{what} ({}, {}); the GPU's context ended with it", error.name, error.code)
}
