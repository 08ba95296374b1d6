//! What lets kernels share a launch (design D6): the occupancy of each device, and the dkp modules made for it.

mod device_model;
mod occupancy;

pub use device_model::{DeviceModel, RegisterFile, SharedMemory};
pub use occupancy::{KernelNeeds, Limit, Occupancy};
