//! The CUDA runtime API on top of any CUDA driver: `libcudart.so` for programs that `nvcc` built.
//!
//! A program that `nvcc -cudart shared` built calls the runtime API and registers its code when it
//! starts. This library implements the API with the driver that it finds as `libcuda.so.1`: the
//! driver of sessions (`runtime/interpose`), the stand-in of the tests, or NVIDIA's.
//!
//! | file | contents |
//! |---|---|
//! | `exports` | the entry points, one file per family, and the list of those that are missing |
//! | `arguments` | pointer arguments of the program |
//! | `code` | code, kernels and variables that the program has registered |
//! | `loaded` | the modules of registered code in each context |
//! | `device` | the devices' primary contexts, and the current device of each thread |
//! | `driver` | the driver's library, by the table in `runtime/cuda-library` |
//! | `error` | error numbers and their texts |
//! | `properties` | the struct of a device's properties in each version |
//! | `version` | which versions of the runtime the process has loaded |
//!
//! Known differences from NVIDIA's runtime:
//! - What the driver lacks is missing here too: in sessions mapped memory and peer access.
//! - Variables declared `__managed__` are missing.
//! - Arrays, textures, surfaces and interoperation with other libraries are missing.
//! - The default stream of a thread is the default stream of the process.
//! - Code that `nvcc -rdc=true` compiled has no PTX once it is linked, and this library does not
//!   link.
//!
//! Invariants: an entry point that is missing prints its name once and returns
//! `cudaErrorNotSupported`. A panic becomes `cudaErrorUnknown` and does not unwind into the
//! program. No error here ends the program. No code is loaded before the program uses a kernel or
//! variable.
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
mod properties;
mod version;
