//! The GPUs of this machine and their MIG instances, with the names by which a process chooses them.

use crate::driver::{Attribute, Driver, Gpu, OpenError};
use crate::error::CudaError;
use crate::nvml::{Nvml, NvmlError};
use std::sync::Arc;

/// A GPU of this machine, or a MIG instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedGpu {
    /// Its UUID with the prefix `GPU-` or `MIG-`, as in `CUDA_VISIBLE_DEVICES`.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its compute units; unknown for a GPU that this process does not see.
    pub compute_units: Option<u32>,
    /// Its memory.
    pub memory_bytes: u64,
    /// Its relation to MIG.
    pub mig: Mig,
}

/// Whether a GPU is divided into MIG instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mig {
    /// A GPU that is not divided.
    Whole,
    /// A GPU in MIG mode: processes use its instances.
    Divided,
    /// An instance.
    Instance {
        /// The id of its GPU.
        gpu: String,
        /// The numbers of its GPU instance and its compute instance; only NVML tells them.
        numbers: Option<(u32, u32)>,
    },
}

/// The GPUs of this machine.
#[derive(Clone, Debug)]
pub struct GpuList {
    /// Each GPU, followed by its instances.
    pub gpus: Vec<ListedGpu>,
    /// Why the list has only what this process sees: at most one MIG instance.
    pub incomplete: Option<NvmlError>,
}

impl GpuList {
    /// The list by NVML, or by the driver if NVML cannot be used.
    pub fn read() -> Result<GpuList, OpenError> {
        let seen = Driver::load().and_then(|driver| seen(&driver));
        match Nvml::load().and_then(|nvml| nvml.gpus()) {
            Ok(mut gpus) => {
                complete(&mut gpus, seen.as_deref().unwrap_or_default());
                Ok(GpuList { gpus, incomplete: None })
            }
            Err(error) => Ok(GpuList { gpus: seen?, incomplete: Some(error) }),
        }
    }
}

/// The devices that this process sees.
fn seen(driver: &Arc<Driver>) -> Result<Vec<ListedGpu>, OpenError> {
    (0..driver.device_count()?).map(|index| Ok(describe(&driver.gpu(index)?)?)).collect()
}

fn describe(gpu: &Gpu) -> Result<ListedGpu, CudaError> {
    let mig = if gpu.is_mig()? { Mig::Instance { gpu: gpu.whole_id()?, numbers: None } } else { Mig::Whole };
    let (id, name) = (gpu.id()?, gpu.name()?);
    let compute_units = Some(gpu.attribute(Attribute::ComputeUnits)?);
    Ok(ListedGpu { id, name, compute_units, memory_bytes: gpu.memory_bytes()?, mig })
}

/// Adds the compute units that only the driver tells.
fn complete(gpus: &mut [ListedGpu], seen: &[ListedGpu]) {
    for gpu in gpus.iter_mut().filter(|gpu| gpu.compute_units.is_none()) {
        gpu.compute_units = seen.iter().find(|one| one.id == gpu.id).and_then(|one| one.compute_units);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compute_units_of_devices_that_the_process_sees_are_added() {
        let gpu = |id: &str, compute_units| ListedGpu {
            id: id.to_owned(),
            name: String::new(),
            compute_units,
            memory_bytes: 1,
            mig: Mig::Whole,
        };
        let mut gpus = [gpu("GPU-1", None), gpu("GPU-2", None), gpu("MIG-3", Some(7))];
        complete(&mut gpus, &[gpu("GPU-2", Some(132)), gpu("MIG-3", Some(8))]);
        assert_eq!(gpus.map(|gpu| gpu.compute_units), [None, Some(132), Some(7)]);
    }
}
