//! Where the functions of a fleet run.

use atoll_core::placement::PoolConfig;

/// Where functions run that name no device.
#[derive(Clone, Copy, Debug)]
pub enum Placing {
    /// Each function on the device that is emptiest when it is loaded.
    Home,
    /// Each function on all devices that can run it; a pool chooses the device of each request.
    Pool(PoolConfig),
}
