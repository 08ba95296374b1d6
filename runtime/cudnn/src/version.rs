//! The version of cuDNN that the program was built for, by the name under which it loaded this
//! library.

use atoll_cuda_library::is_loaded;

/// Major and minor version, and patch level.
pub(crate) type Version = [i32; 3];

/// The names under which programs look for cuDNN 8. Its parts are named like the library: ops,
/// convolutions, and the rest, each for inference and training.
const NAMES_8: [&str; 7] = [
    "libcudnn.so.8",
    "libcudnn_ops_infer.so.8",
    "libcudnn_ops_train.so.8",
    "libcudnn_cnn_infer.so.8",
    "libcudnn_cnn_train.so.8",
    "libcudnn_adv_infer.so.8",
    "libcudnn_adv_train.so.8",
];

/// The version: cuDNN 8 only if the program loaded the library under a name of that version.
pub(crate) fn version() -> Version {
    let is_nine = is_loaded("libcudnn.so.9");
    if !is_nine && NAMES_8.into_iter().any(is_loaded) { [8, 9, 7] } else { [9, 13, 0] }
}

/// The version as cuDNN reports it: 8907 is 8.9.7, and 91300 is 9.13.0.
pub(crate) fn number() -> usize {
    let [major, minor, patch] = version().map(|part| part.unsigned_abs() as usize);
    let scale = if major < 9 { 1_000 } else { 10_000 };
    major * scale + minor * 100 + patch
}

/// The version of the CUDA runtime that the program uses: 12090 is 12.9.
pub(crate) fn runtime() -> usize {
    if is_loaded("libcudart.so.13") {
        13_000
    } else if is_loaded("libcudart.so.11.0") {
        11_080
    } else {
        12_090
    }
}
