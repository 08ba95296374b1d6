//! Devices by their UUIDs, as `CUDA_VISIBLE_DEVICES` names them.

use crate::driver::{Driver, Gpu, OpenError};
use crate::error::CudaError;
use atoll_cuda_api::signature::cuDeviceGetUuid;
use atoll_cuda_api::types::CUuuid;
use std::sync::Arc;

impl Driver {
    /// The device with an [id](Gpu::id), among those that this process sees.
    pub fn gpu_with_id(self: &Arc<Driver>, id: &str) -> Result<Gpu, OpenError> {
        let mut seen = Vec::new();
        for index in 0..self.device_count()? {
            let gpu = self.gpu(index)?;
            let its_id = gpu.id()?;
            if its_id.eq_ignore_ascii_case(id) {
                return Ok(gpu);
            }
            seen.push(its_id);
        }
        let id = id.to_owned();
        Err(if seen.is_empty() { OpenError::NoSuchId { id } } else { OpenError::NotSeen { id, seen: seen.join(", ") } })
    }
}

impl Gpu {
    /// Its id: `GPU-` and its UUID, or `MIG-` and the UUID of the instance if it is a MIG instance.
    pub fn id(&self) -> Result<String, CudaError> {
        let kind = if self.is_mig()? { "MIG" } else { "GPU" };
        Ok(text(kind, self.instance_uuid()?))
    }

    /// The id of the whole GPU, also of a MIG instance.
    pub fn whole_id(&self) -> Result<String, CudaError> {
        Ok(text("GPU", self.uuid()?))
    }

    /// Whether it is a MIG instance: the driver gives an instance a UUID of its own, and a name that
    /// ends in its profile.
    pub fn is_mig(&self) -> Result<bool, CudaError> {
        Ok(self.instance_uuid()? != self.uuid()? || self.name()?.contains(" MIG "))
    }

    /// The UUID of the GPU, also of a MIG instance; zeros if the driver is too old.
    pub fn uuid(&self) -> Result<[u8; 16], CudaError> {
        self.uuid_by("cuDeviceGetUuid", self.driver.functions.device_uuid)
    }

    /// The UUID of the GPU or the MIG instance.
    fn instance_uuid(&self) -> Result<[u8; 16], CudaError> {
        match self.driver.functions.instance_uuid {
            None => self.uuid(),
            some => self.uuid_by("cuDeviceGetUuid_v2", some),
        }
    }

    fn uuid_by(&self, call: &'static str, get: Option<cuDeviceGetUuid>) -> Result<[u8; 16], CudaError> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        let Some(get) = get else { return Ok(uuid.bytes) };
        // SAFETY: writes one UUID to the given address.
        self.driver.check(call, unsafe { get(&mut uuid, self.ordinal) })?;
        Ok(uuid.bytes)
    }

    /// Its memory, in use or not.
    pub fn memory_bytes(&self) -> Result<u64, CudaError> {
        let mut bytes = 0;
        let get = self.driver.functions.device_memory;
        // SAFETY: writes one number to the given address.
        self.driver.check("cuDeviceTotalMem", unsafe { get(&mut bytes, self.ordinal) })?;
        Ok(bytes as u64)
    }
}

/// A UUID as in `CUDA_VISIBLE_DEVICES`.
fn text(kind: &str, uuid: [u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{kind}-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_the_five_groups_of_a_uuid() {
        let uuid = std::array::from_fn(|at| at as u8 + 0xa0);
        assert_eq!(text("GPU", uuid), "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf");
    }
}
