//! The driver's answers as errors of a device.

use crate::DeviceError;
use atoll_cuda::{CudaError, OpenError, PartitionError, TransferError, status};

impl From<OpenError> for DeviceError {
    fn from(error: OpenError) -> DeviceError {
        DeviceError::Unavailable(error.to_string())
    }
}

impl From<CudaError> for DeviceError {
    fn from(error: CudaError) -> DeviceError {
        match error.is_context_lost() {
            true => DeviceError::Lost(fault(&error)),
            false => DeviceError::Driver(error.to_string()),
        }
    }
}

impl From<PartitionError> for DeviceError {
    fn from(error: PartitionError) -> DeviceError {
        match error {
            PartitionError::Driver(error) => error.into(),
            refusal => DeviceError::Unavailable(refusal.to_string()),
        }
    }
}

impl From<TransferError> for DeviceError {
    fn from(error: TransferError) -> DeviceError {
        match error {
            TransferError::OutOfBounds(error) => {
                DeviceError::OutOfRange { at: error.at, bytes: error.bytes, memory_bytes: error.memory_bytes }
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
