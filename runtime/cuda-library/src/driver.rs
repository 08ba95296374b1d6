//! The driver's library, and a method for each of its functions.

use crate::log::log_once;
use crate::status::Status;
use atoll_cuda_api::signature;
use atoll_cuda_api::types::*;
use libloading::Library;
use std::marker::PhantomData;
use std::sync::OnceLock;

/// File names of the driver.
const LIBRARY_NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// An error of a library over the driver.
pub trait DriverError: Sized {
    /// What a call returns if the driver lacks its function, for the line that says so.
    const OF_LACKING: &'static str;

    /// The error for one of the driver.
    fn of_driver(result: CUresult) -> Self;

    /// The error of a call whose function the driver lacks.
    fn lacking() -> Self;

    /// The error if there is no driver.
    fn absent() -> Self;
}

impl DriverError for Status {
    const OF_LACKING: &'static str = "an error";

    fn of_driver(result: CUresult) -> Status {
        Status::of_driver(result)
    }

    fn lacking() -> Status {
        Status::NotSupported
    }

    fn absent() -> Status {
        Status::NotInitialized
    }
}

/// Declares the driver's functions from the table, and a method for each.
macro_rules! functions {
    ($($since:literal fn $symbol:ident($($parameter:ident: $type:ty),*);)+) => {
        /// The driver's functions; `None` if it does not have one. Their errors are `E`.
        #[allow(non_snake_case, reason = "the names are those of the driver's symbols")]
        pub struct Driver<E = Status> {
            $($symbol: Option<signature::$symbol>,)+
            _library: Library,
            _error: PhantomData<fn() -> E>,
        }

        #[allow(non_snake_case, reason = "the names are those of the driver's symbols")]
        #[allow(clippy::too_many_arguments, reason = "as many as the driver's functions have")]
        #[allow(clippy::not_unsafe_ptr_arg_deref, reason = "the libraries pass on the pointers of unsafe entry points")]
        impl<E: DriverError> Driver<E> {
            fn find(library: Library) -> Driver<E> {
                $(
                    let $symbol: Option<signature::$symbol> =
                        // SAFETY: the type is that of the function with this symbol in the table;
                        // the library is stored with the pointer.
                        unsafe { library.get(stringify!($symbol)) }.ok().map(|found| *found);
                )+
                Driver { $($symbol,)+ _library: library, _error: PhantomData }
            }

            $(
                /// Calls the driver's function of this name. Pointers are those that the program passed
                /// for the same purpose, null, or addresses of values of the caller.
                pub fn $symbol(&self, $($parameter: $type),*) -> Result<(), E> {
                    let Some(function) = self.$symbol else { return Err(lacks(stringify!($symbol))) };
                    // SAFETY: the caller passes valid pointers, as described above.
                    match unsafe { function($($parameter),*) } {
                        0 => Ok(()),
                        result => Err(E::of_driver(result)),
                    }
                }
            )+
        }
    };
}
atoll_cuda_api::for_each_entry_point!(functions);

fn lacks<E: DriverError>(symbol: &'static str) -> E {
    log_once(symbol, &format_args!("the CUDA driver lacks {symbol}; the call returns {}", E::OF_LACKING));
    E::lacking()
}

impl<E: DriverError> Driver<E> {
    /// Loads the driver's library, and does not initialize it. Prints a line if there is none.
    pub fn load() -> Result<Driver<E>, E> {
        let mut why = None;
        for name in LIBRARY_NAMES {
            // SAFETY: the driver's library may be loaded at any time.
            match unsafe { Library::new(name) } {
                Ok(library) => return Ok(Driver::find(library)),
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
        Err(E::absent())
    }
}

/// The driver of cuBLAS and cuDNN, initialized; loaded when the first handle is created. It is never
/// unloaded, since functions that run at exit may still call it. Two threads may both load it; one
/// result is kept, and no lock is held while it is loaded.
pub fn driver() -> Result<&'static Driver, Status> {
    static DRIVER: OnceLock<Result<Driver, Status>> = OnceLock::new();
    let found = match DRIVER.get() {
        Some(found) => found,
        None => {
            let loaded = Driver::<Status>::load().and_then(|driver| driver.cuInit(0).map(|()| driver));
            DRIVER.get_or_init(|| loaded)
        }
    };
    found.as_ref().map_err(|status| *status)
}
