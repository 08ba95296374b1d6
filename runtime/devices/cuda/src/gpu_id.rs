//! Which GPU a device uses, and what its process sees.
//!
//! A GPU can be named by the number that the driver gives it, or by its UUID; a MIG instance has a
//! UUID only, and a process sees one instance only. So an executor for a device with a UUID sees just
//! that device: its `CUDA_VISIBLE_DEVICES` names it.

use atoll_cuda::{Driver, Gpu, OpenError};
use serde::{Deserialize, Serialize};
use std::env::{VarError, var};
use std::fmt;
use std::path::Path;

/// The environment variable that lists what a process sees.
pub const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// Which GPU a device uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GpuId {
    /// The number that the driver gives it.
    Number(u32),
    /// Its UUID, with the prefix `GPU-`, or `MIG-` for a MIG instance.
    Uuid(String),
}

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuId::Number(number) => number.fmt(f),
            GpuId::Uuid(id) => id.fmt(f),
        }
    }
}

impl GpuId {
    /// The GPU, by the installed driver or the one in a file.
    pub(crate) fn open(&self, library: Option<&Path>) -> Result<Gpu, OpenError> {
        let driver = library.map_or_else(Driver::load, Driver::load_from);
        match (self, driver) {
            (GpuId::Number(number), driver) => driver?.gpu(*number),
            // The variable names a device that does not exist.
            (GpuId::Uuid(id), Err(OpenError::NoDevice)) => Err(OpenError::NoSuchId { id: id.clone() }),
            (GpuId::Uuid(id), driver) => driver?.gpu_with_id(id),
        }
    }

    /// The value of [`VISIBLE_DEVICES`] for a process that is to see this GPU only. `None` if the
    /// variable stays as it is: the GPU has a number, or the variable of this process does not list
    /// its UUID.
    pub fn visible_alone(&self) -> Option<&str> {
        match var(VISIBLE_DEVICES) {
            Err(VarError::NotPresent) => self.alone(None),
            list => self.alone(Some(&list.unwrap_or_default())),
        }
    }

    /// The same for a given list.
    fn alone(&self, list: Option<&str>) -> Option<&str> {
        let GpuId::Uuid(id) = self else { return None };
        let id_lower = id.to_ascii_lowercase();
        // An entry may be the beginning of an id, with more than its kind.
        let is_listed = |entry: &str| entry.len() > "GPU-".len() && id_lower.starts_with(&entry.to_ascii_lowercase());
        list.is_none_or(|list| list.split(',').any(|entry| is_listed(entry.trim()))).then_some(id.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_narrowed_to_a_uuid_that_its_list_allows() {
        let id = "MIG-61746f6c-6c20-7374-616e-642d696e4130";
        let mig = GpuId::Uuid(id.to_owned());
        for list in [None, Some(id), Some("GPU-1, MIG-61746F6C"), Some("MIG-6,0")] {
            assert_eq!(mig.alone(list), Some(id), "{list:?}");
        }
        for list in ["", "0", "MIG-", "MIG-7", "GPU-61746f6c"] {
            assert_eq!(mig.alone(Some(list)), None, "{list}");
        }
        assert_eq!(GpuId::Number(0).alone(None), None);
    }
}
