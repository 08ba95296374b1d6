//! The entry points. Each family has a file; [`missing`] lists those that are not implemented.

mod copy;
mod gemm;
mod gemv;
mod info;
mod lt;
mod matrices;
mod missing;
mod settings;
mod vector;
mod vector_ex;

/// Declares the entry points of a family. A body returns `Result<(), Status>`. `Int` is `c_int`. The
/// name after `also` is the same entry point with 64-bit integers: there `Int` is `i64`.
macro_rules! entry_points {
    ($($(#[$doc:meta])* fn $name:ident $arguments:tt $(also $wide:ident)? $body:block)+) => {
        $(
            const _: () = {
                #[allow(dead_code, reason = "not all entry points have integers")]
                type Int = std::ffi::c_int;
                atoll_cuda_library::entry_point! { $crate::status::number; $(#[$doc])* $name $arguments $body }
            };
            $(const _: () = {
                #[allow(dead_code, reason = "not all entry points have integers")]
                type Int = i64;
                atoll_cuda_library::entry_point! { $crate::status::number; $wide $arguments $body }
            };)?
        )+
    };
}
use entry_points;
