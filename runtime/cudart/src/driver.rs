//! The driver's library, loaded at the first call that needs it.

use crate::error::Code;
use atoll_cuda_api::types::CUresult;
use atoll_cuda_library::DriverError;
use std::sync::OnceLock;

/// The driver's functions, with the runtime's errors.
pub(crate) type Driver = atoll_cuda_library::Driver<Code>;

impl DriverError for Code {
    const OF_LACKING: &'static str = "cudaErrorCallRequiresNewerDriver";

    fn of_driver(result: CUresult) -> Code {
        Code(result)
    }

    fn lacking() -> Code {
        Code::CALL_REQUIRES_NEWER_DRIVER
    }

    fn absent() -> Code {
        Code::INSUFFICIENT_DRIVER
    }
}

/// The driver, initialized. It is never unloaded, since functions that run at exit may still call
/// it.
pub(crate) fn driver() -> Result<&'static Driver, Code> {
    static INITIALIZED: OnceLock<Result<(), Code>> = OnceLock::new();
    let driver = installed()?;
    if INITIALIZED.get().is_none() {
        let initialized = driver.cuInit(0);
        INITIALIZED.get_or_init(|| initialized);
    }
    INITIALIZED.get().copied().unwrap_or(Err(Code::UNKNOWN)).map(|()| driver)
}

/// The driver, perhaps not initialized; an error if there is none.
///
/// Two threads may both load it; one result is kept. No lock is held while the driver is loaded. A
/// library whose constructor calls the runtime holds the dynamic linker's lock, and a thread that
/// loads the driver waits for that lock.
pub(crate) fn installed() -> Result<&'static Driver, Code> {
    static DRIVER: OnceLock<Result<Driver, Code>> = OnceLock::new();
    let found = match DRIVER.get() {
        Some(found) => found,
        None => {
            let loaded = Driver::load();
            DRIVER.get_or_init(|| loaded)
        }
    };
    found.as_ref().map_err(|code| *code)
}
