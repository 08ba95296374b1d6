//! cuDNN on top of any CUDA driver: `libcudnn.so` and its parts for programs that were built with
//! NVIDIA's library, version 8 or 9.
//!
//! The library loads kernels of its own, in PTX, into the program's context, as `runtime/cublas` does.
//! Handles, templates, the driver and the declaration of entry points are in `runtime/cuda-library`.
//!
//! | file | contents |
//! |---|---|
//! | `exports` | the entry points, one file per family, and the list of those that are missing |
//! | `kernels` | the kernels' templates and variants |
//! | `tensor` | tensors, and the dimensions through which a kernel goes |
//! | `descriptors` | the other descriptors, and their numbers |
//! | `convolve` | convolutions and their gradients, with one kernel |
//! | `point` | operations on elements, also of tensors of which one element is used several times |
//! | `rows` | softmax and reductions |
//! | `window` | pooling, and normalization across channels |
//! | `factors` | `alpha` and `beta` |
//! | `handle` | handles |
//! | `checks` | checks of arguments |
//! | `status` | numbers and names of results in both versions |
//! | `version` | which version of cuDNN the process has loaded |
//!
//! Known differences from NVIDIA's library:
//! - The interface of graphs (`cudnnBackend…`), recurrent networks, attention, and gradients except those of
//!   convolutions are missing. So are integers, FP8 and vectors of channels.
//! - f16 and bf16 are summed in f32. Fast softmax is accurate softmax.
//! - There is one algorithm for each convolution, which needs no workspace. Any algorithm that the
//!   program names is this one. Math types are accepted and have no effect.
//!
//! Invariants: an entry point that is missing, or a combination of arguments that is not supported,
//! prints its name once and returns `CUDNN_STATUS_NOT_SUPPORTED`. A panic becomes
//! `CUDNN_STATUS_INTERNAL_ERROR` and does not unwind into the program. With beta = 0 the output is not
//! read. Results do not depend on the number of compute units.
//!
//! Start reading at `exports`, then `convolve`.

mod checks;
mod convolve;
mod descriptors;
mod exports;
mod factors;
mod handle;
mod kernels;
mod point;
mod rows;
mod status;
mod tensor;
mod version;
mod window;

#[cfg(test)]
#[path = "../../cuda-library/tests/support/kernels.rs"]
mod kernel_checks;
