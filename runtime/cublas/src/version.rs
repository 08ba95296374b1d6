//! The version of cuBLAS that the program was built for, by the name under which it loaded this
//! library.

use atoll_cuda_library::is_loaded;

/// The names under which programs look for cuBLAS and cuBLASLt, and the version of each: cuBLAS of
/// CUDA 11.8, 12.9 and 13.0.
const NAMES: [(&str, Version); 6] = [
    ("libcublas.so.13", [13, 0, 0]),
    ("libcublasLt.so.13", [13, 0, 0]),
    ("libcublas.so.12", [12, 9, 0]),
    ("libcublasLt.so.12", [12, 9, 0]),
    ("libcublas.so.11", [11, 11, 3]),
    ("libcublasLt.so.11", [11, 11, 3]),
];

/// Major and minor version, and patch level.
pub(crate) type Version = [i32; 3];

/// The newest version that is loaded; the newest known one if the program loaded the library under
/// another name.
pub(crate) fn version() -> Version {
    let loaded = NAMES.into_iter().find(|(name, _)| is_loaded(name));
    loaded.map_or(NAMES[0].1, |(_, version)| version)
}

/// The version as cuBLAS reports it: 120900 is 12.9.0.
pub(crate) fn number() -> i32 {
    let [major, minor, patch] = version();
    major * 10_000 + minor * 100 + patch
}
