//! cuBLAS and cuBLASLt on top of any CUDA driver: `libcublas.so` and `libcublasLt.so` for programs
//! that were built with NVIDIA's libraries.
//!
//! The library loads kernels of its own, in PTX, into the program's context through the driver that
//! it finds as `libcuda.so.1`: the driver of sessions (`runtime/interpose`), the stand-in of the
//! tests, or NVIDIA's. It calls only the public driver API. Handles, templates, the driver and the
//! declaration of entry points are in `runtime/cuda-library`, which `runtime/cudnn` uses too.
//!
//! | file | contents |
//! |---|---|
//! | `exports` | the entry points, one file per family, and the list of those that are missing |
//! | `kernels` | the kernels' templates and variants |
//! | `gemm` | a matrix product of any types and strides, and its launch |
//! | `vector` | operations on vectors |
//! | `handle` | handles and their settings |
//! | `number` | types of products, and factors (`alpha` and `beta`) |
//! | `lt` | descriptors of cuBLASLt |
//! | `checks` | checks of arguments |
//! | `status` | numbers, names and texts of results |
//! | `version` | which version of cuBLAS the process has loaded |
//!
//! Known differences from NVIDIA's library:
//! - Complex numbers, FP8 and most of levels 2 and 3 are missing.
//! - Products of narrow types are summed in f32, also where the program asks for f16.
//! - `cublasDot`, `cublasNrm2`, `cublasAsum`, `cublasIamax` and `cublasIamin` use one block.
//! - Workspaces, algorithms and math modes are accepted and have no effect.
//!
//! Invariants: an entry point that is missing, or a combination of arguments that is not supported,
//! prints its name once and returns `CUBLAS_STATUS_NOT_SUPPORTED`. A panic becomes
//! `CUBLAS_STATUS_INTERNAL_ERROR` and does not unwind into the program. No error here ends the
//! program. No kernel is loaded before it is first used with a handle. Results do not depend on the
//! number of compute units.
//!
//! Start reading at `exports`, then `gemm`.

mod checks;
mod exports;
mod gemm;
mod handle;
mod kernels;
mod lt;
mod number;
mod status;
mod vector;
mod version;

#[cfg(test)]
#[path = "../../cuda-library/tests/support/kernels.rs"]
mod kernel_checks;
