//! The driver's library, loaded when the first handle is created.

use crate::log::log_once;
use crate::status::Status;
use atoll_cuda_api::signature;
use atoll_cuda_api::types::*;
use libloading::Library;
use std::sync::OnceLock;

/// File names of the driver.
const LIBRARY_NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// Declares the driver's functions from the table, and a method for each.
macro_rules! functions {
    ($($since:literal fn $symbol:ident($($parameter:ident: $type:ty),*);)+) => {
        /// The driver's functions; `None` if it does not have one.
        #[allow(non_snake_case, reason = "the names are those of the driver's symbols")]
        pub struct Driver {
            $($symbol: Option<signature::$symbol>,)+
            _library: Library,
        }

        #[allow(non_snake_case, reason = "the names are those of the driver's symbols")]
        #[allow(clippy::too_many_arguments, reason = "as many as the driver's functions have")]
        #[allow(clippy::not_unsafe_ptr_arg_deref, reason = "the libraries pass on the pointers of unsafe entry points")]
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

            $(
                /// Calls the driver's function of this name. Pointers are those that the program passed
                /// for the same purpose, null, or addresses of values of the caller.
                pub fn $symbol(&self, $($parameter: $type),*) -> Result<(), Status> {
                    let Some(function) = self.$symbol else { return Err(lacks(stringify!($symbol))) };
                    // SAFETY: the caller passes valid pointers, as described above.
                    match unsafe { function($($parameter),*) } {
                        0 => Ok(()),
                        result => Err(Status::of_driver(result)),
                    }
                }
            )+
        }
    };
}
atoll_cuda_api::for_each_entry_point!(functions);

fn lacks(symbol: &'static str) -> Status {
    log_once(symbol, &format_args!("the CUDA driver lacks {symbol}; the call returns an error"));
    Status::NotSupported
}

/// The driver, initialized. It is never unloaded, since functions that run at exit may still call
/// it. Two threads may both load it; one result is kept, and no lock is held while it is loaded.
pub fn driver() -> Result<&'static Driver, Status> {
    static DRIVER: OnceLock<Result<Driver, Status>> = OnceLock::new();
    let found = match DRIVER.get() {
        Some(found) => found,
        None => {
            let loaded = load();
            DRIVER.get_or_init(|| loaded)
        }
    };
    found.as_ref().map_err(|status| *status)
}

fn load() -> Result<Driver, Status> {
    let mut why = None;
    for name in LIBRARY_NAMES {
        // SAFETY: the driver's library may be loaded at any time.
        match unsafe { Library::new(name) } {
            Ok(library) => {
                let driver = Driver::find(library);
                return driver.cuInit(0).map(|()| driver);
            }
            Err(error) => why = why.or(Some(error)),
        }
    }
    let why = why.map_or_else(String::new, |error| error.to_string());
    log_once(
        LIBRARY_NAMES[0],
        &format_args!(
            "there is no CUDA driver: {} cannot be loaded ({why}); start the program by `atoll run`",
            LIBRARY_NAMES[0]
        ),
    );
    Err(Status::NotInitialized)
}
