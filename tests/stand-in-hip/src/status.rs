//! The library's error numbers, from the table of `runtime/hip-api`.

use atoll_hip_api::types::hipError_t;

macro_rules! statuses {
    ($($variant:ident $name:ident = $number:literal $text:literal;)+) => {
        /// Why a call failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
        #[repr(i32)]
        pub(crate) enum Status {
            $(#[error($text)] $variant = $number,)+
        }

        impl Status {
            /// The status with a number.
            pub(crate) fn of_number(number: hipError_t) -> Status {
                let known = [$(Status::$variant),+].into_iter().find(|status| *status as hipError_t == number);
                known.unwrap_or(Status::Unknown)
            }
        }

        /// The name and the text of an error, NUL-terminated. As in AMD's library, an unknown
        /// number has the name of `hipErrorUnknown`.
        pub(crate) fn texts(number: hipError_t) -> (&'static str, &'static str) {
            match number {
                0 => ("hipSuccess\0", "no error\0"),
                $($number => (concat!("hipError", stringify!($variant), "\0"), concat!($text, "\0")),)+
                _ => ("hipErrorUnknown\0", "unknown error\0"),
            }
        }
    };
}
atoll_hip_api::for_each_error!(statuses);
