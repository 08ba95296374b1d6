//! The CUDA runtime over any CUDA driver: `libcudart.so` for programs that `nvcc` built.
//!
//! A program that `nvcc -cudart shared` built calls the runtime API and registers its code when it
//! starts. This library carries the calls out with the driver that it finds as `libcuda.so.1`: that
//! of sessions (`runtime/interpose`), the tests' stand-in, or NVIDIA's.
//!
//! | file | contents |
//! |---|---|
//! | `exports` | the entry points, one file per family, and the list of those that are missing |
//! | `arguments` | pointer arguments of the program |
//! | `code` | code, kernels and variables that the program has registered |
//! | `loaded` | the modules of registered code in each context |
//! | `device` | the devices' contexts, and the current one of each thread |
//! | `driver` | the driver's library, generated from the table of `runtime/cuda-api` |
//! | `error` | error numbers and their texts |
//! | `properties` | the struct of a device's properties in each version |
//! | `version` | which versions of the runtime the process has loaded |
//! | `log` | lines on standard error |
//!
//! Known differences from NVIDIA's runtime:
//! - what the driver below lacks is missing here too: with sessions no graphs, no captures, no
//!   managed memory, no pools;
//! - no arrays, textures and surfaces, and no interfaces to other libraries;
//! - the default stream of a thread is that of the process;
//! - code that `nvcc -rdc=true` compiled has no PTX after it was linked, and is not linked here.
//!
//! Invariants: an entry point that is missing says its name once and returns
//! `cudaErrorNotSupported`; a panic becomes `cudaErrorUnknown` and does not unwind into the
//! program; nothing here ends the program. The library loads no code before a kernel or variable is
//! used.
//!
//! Start reading at `exports`, then `code`.

#[cfg(not(target_os = "linux"))]
compile_error!("the library is for Linux: it is loaded under the name that the runtime has there");

mod arguments;
mod code;
mod device;
mod driver;
mod error;
mod exports;
mod loaded;
mod log;
mod properties;
mod version;
