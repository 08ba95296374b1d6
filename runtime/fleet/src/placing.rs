//! The devices of functions that are loaded without a device.

use atoll_core::placement::PoolConfig;

/// The devices of functions that are loaded without a device.
#[derive(Clone, Copy, Debug)]
pub enum Placing {
    /// Each function runs on the device that is emptiest when it is loaded.
    Home,
    /// Each function runs on all devices that can run it; a pool chooses the device of each
    /// request.
    Pool(PoolConfig),
}
