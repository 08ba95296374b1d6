//! The driver's error codes, from the table of `runtime/cuda-api`.

use atoll_cuda_api::types::CUresult;

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
            pub(crate) fn of_number(number: CUresult) -> Option<Status> {
                [$(Status::$variant),+].into_iter().find(|status| *status as CUresult == number)
            }

            /// Its name and its text, NUL-terminated.
            pub(crate) fn texts(number: CUresult) -> Option<(&'static str, &'static str)> {
                match number {
                    0 => Some(("CUDA_SUCCESS\0", "no error\0")),
                    $($number => Some((concat!("CUDA_ERROR_", stringify!($name), "\0"), concat!($text, "\0"))),)+
                    _ => None,
                }
            }
        }
    };
}
atoll_cuda_api::for_each_error!(statuses);
