//! CUDA shared memory: device memory that a client has exported by CUDA IPC. The process that has
//! the device's context opens it, and copies for the daemon ([`Imports`]).

use super::region::Failure;
use crate::requests::error::{Kind, RequestError};
use atoll_engine::{HANDLE_BYTES, ImportError, ImportId, Imports, MemoryHandle};
use atoll_protocol::CudaRegionStatus;
use std::sync::Arc;

/// A request to register device memory.
#[derive(Clone, Debug)]
pub(crate) struct CudaRegister {
    /// The handle as CUDA wrote it.
    pub(crate) handle: Vec<u8>,
    /// The device, as the daemon's driver numbers it.
    pub(crate) device_id: i64,
    pub(crate) byte_size: u64,
}

/// Device memory of a client. Closed when dropped.
#[derive(Debug)]
pub(super) struct CudaMemory {
    imports: Arc<dyn Imports>,
    id: ImportId,
    handle: MemoryHandle,
}

impl CudaMemory {
    /// Opens the memory of a request, under an id that was not used before. `devices` are those
    /// that can open memory. Blocks.
    pub(super) fn open(
        devices: &[Arc<dyn Imports>],
        id: ImportId,
        request: &CudaRegister,
    ) -> Result<CudaMemory, RequestError> {
        let CudaRegister { handle, device_id, byte_size } = request;
        if *byte_size == 0 {
            return Err(RequestError::bad_request("its byte_size is 0"));
        }
        let handle = <[u8; HANDLE_BYTES]>::try_from(&handle[..]).map(MemoryHandle).map_err(|_| {
            let bytes = handle.len();
            let text = format!("its raw_handle has {bytes} bytes; a handle of CUDA IPC has {HANDLE_BYTES}");
            RequestError::bad_request(text)
        })?;
        let imports = devices.iter().find(|device| i64::from(device.ordinal()) == *device_id).ok_or_else(|| {
            let known: Vec<String> = devices.iter().map(|device| device.ordinal().to_string()).collect();
            let known = known.join(", ");
            RequestError::bad_request(format!("its device_id is {device_id}; the daemon's GPUs are: {known}"))
        })?;
        let memory = CudaMemory { imports: imports.clone(), id, handle };
        let all = imports.open(id, &handle).map_err(|error| match error {
            ImportError::Refused(reason) => RequestError::bad_request(format!(
                "its raw_handle cannot be opened: {reason}. It must name memory of device {device_id} that a running \
                process of a user whose memory the daemon may open has allocated with cudaMalloc"
            )),
            ImportError::Unavailable(reason) => RequestError::new(Kind::Unavailable, reason),
        })?;
        if *byte_size > all {
            let text = format!("its byte_size is {byte_size}, and the memory of its raw_handle has {all} bytes");
            return Err(RequestError::bad_request(text));
        }
        Ok(memory)
    }

    pub(super) fn status(&self, name: &str, byte_size: u64) -> CudaRegionStatus {
        CudaRegionStatus { name: name.into(), device_id: self.imports.ordinal().into(), byte_size }
    }

    pub(super) fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), Failure> {
        self.imports.read(self.id, &self.handle, at, bytes).map_err(|error| failed("read", &error))
    }

    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Failure> {
        self.imports.write(self.id, &self.handle, at, bytes).map_err(|error| failed("written", &error))
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        self.imports.close(self.id);
    }
}

fn failed(what: &str, error: &ImportError) -> Failure {
    let kind = match error {
        ImportError::Refused(_) => Kind::BadRequest,
        ImportError::Unavailable(_) => Kind::Unavailable,
    };
    (kind, format!("cannot be {what}: {error}"))
}
