//! The driver below: its library, loaded at the first call that needs it.

use crate::error::Code;
use crate::log::{log, log_once};
use atoll_cuda_api::signature;
use atoll_cuda_api::types::*;
use libloading::Library;
use std::sync::OnceLock;

/// File names of the driver.
const LIBRARY_NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// Declares the driver's functions from the table, and a method for each. What the program passes
/// goes to the driver as it is.
macro_rules! functions {
    ($($since:literal fn $symbol:ident($($parameter:ident: $type:ty),*);)+) => {
        /// The driver's functions; `None` if it does not have one.
        #[allow(non_snake_case, reason = "the names are those of the driver's symbols")]
        pub(crate) struct Driver {
            $($symbol: Option<signature::$symbol>,)+
            _library: Library,
        }

        #[allow(non_snake_case, reason = "the names are those of the driver's symbols")]
        #[allow(clippy::too_many_arguments, reason = "as many as the driver's functions have")]
        #[allow(dead_code, reason = "it has all entry points of the table")]
        impl Driver {
            fn find(library: Library) -> Driver {
                $(
                    let $symbol: Option<signature::$symbol> =
                        // SAFETY: the type is that of the function with this symbol in the table;
                        // the library is stored with the pointer.
                        unsafe { library.get(stringify!($symbol)) }.ok().map(|found| *found);
                )+
                Driver { $($symbol,)+ _library: library }
            }

            $(pub(crate) fn $symbol(&self, $($parameter: $type),*) -> Result<(), Code> {
                let function = self.$symbol.ok_or_else(|| lacks(stringify!($symbol)))?;
                // SAFETY: pointers are those that the program passed for the same purpose, null, or
                // addresses of values of the caller.
                match unsafe { function($($parameter),*) } {
                    0 => Ok(()),
                    code => Err(Code(code)),
                }
            })+
        }
    };
}
atoll_cuda_api::for_each_entry_point!(functions);

fn lacks(symbol: &'static str) -> Code {
    log_once(
        symbol,
        &format_args!("the CUDA driver lacks {symbol}; the call returns cudaErrorCallRequiresNewerDriver"),
    );
    Code::CALL_REQUIRES_NEWER_DRIVER
}

/// The driver, initialized. It is never unloaded: functions that run at exit may still call it.
pub(crate) fn driver() -> Result<&'static Driver, Code> {
    static DRIVER: OnceLock<Result<Driver, Code>> = OnceLock::new();
    DRIVER.get_or_init(load).as_ref().map_err(|code| *code)
}

fn load() -> Result<Driver, Code> {
    let mut why = None;
    for name in LIBRARY_NAMES {
        // SAFETY: the driver's library may be loaded at any time.
        match unsafe { Library::new(name) } {
            Ok(library) => {
                let driver = Driver::find(library);
                driver.cuInit(0)?;
                return Ok(driver);
            }
            Err(error) => why = why.or(Some(error)),
        }
    }
    let why = why.map_or_else(String::new, |error| error.to_string());
    log(&format_args!(
        "there is no CUDA driver: {} cannot be loaded ({why}); start the program by `atoll run`",
        LIBRARY_NAMES[0]
    ));
    Err(Code::INSUFFICIENT_DRIVER)
}
