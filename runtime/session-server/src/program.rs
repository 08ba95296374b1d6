//! The environment of a program whose driver is the library of sessions.

use crate::stub::stub;
use atoll_session::Address;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// The file of the library that takes the driver's place (`runtime/interpose`).
pub const LIBRARY: &str = "libatoll_interpose.so";

/// The file of the driver that runs kernels on the CPU (`tests/stand-in-cuda`).
pub const STAND_IN: &str = "libatoll_stand_in_cuda.so";

/// The file of the CUDA runtime over any driver (`runtime/cudart`).
pub const RUNTIME: &str = "libatoll_cudart.so";

/// The file of cuBLAS and cuBLASLt over any driver (`runtime/cublas`).
pub const BLAS: &str = "libatoll_cublas.so";

/// The file of cuDNN over any driver (`runtime/cudnn`).
pub const DNN: &str = "libatoll_cudnn.so";

/// Names under which programs look for the driver.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// Libraries over the driver, and the names under which programs look for them.
const LIBRARIES: [(&str, &[&str]); 3] = [
    (RUNTIME, &["libcudart.so.11.0", "libcudart.so.12", "libcudart.so.13"]),
    (
        BLAS,
        &[
            "libcublas.so.11",
            "libcublas.so.12",
            "libcublas.so.13",
            "libcublasLt.so.11",
            "libcublasLt.so.12",
            "libcublasLt.so.13",
        ],
    ),
    (
        DNN,
        &[
            "libcudnn.so.8",
            "libcudnn_ops_infer.so.8",
            "libcudnn_ops_train.so.8",
            "libcudnn_cnn_infer.so.8",
            "libcudnn_cnn_train.so.8",
            "libcudnn_adv_infer.so.8",
            "libcudnn_adv_train.so.8",
            "libcudnn.so.9",
            "libcudnn_graph.so.9",
            "libcudnn_ops.so.9",
            "libcudnn_cnn.so.9",
            "libcudnn_adv.so.9",
        ],
    ),
];

/// A file in the folder of this program, if it exists.
pub fn beside(name: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    program.parent().map(|folder| folder.join(name)).filter(|file| file.is_file())
}

/// Links the library into `folder` under the driver's names. Links the runtime, cuBLAS and
/// cuDNN under their names too, if they lie beside the library. Returns the environment variables by which a
/// program finds them, before any installed ones, and the server.
pub fn environment(folder: &Path, library: &Path, address: &Address) -> io::Result<[(&'static str, OsString); 2]> {
    let library = library.canonicalize()?;
    for name in NAMES {
        std::os::unix::fs::symlink(&library, folder.join(name))?;
    }
    for (file, names) in LIBRARIES {
        let built = library.with_file_name(file);
        if built.is_file() {
            std::os::unix::fs::symlink(&built, folder.join(file))?;
            for name in names {
                std::fs::write(folder.join(name), stub(name, file))?;
            }
        }
    }
    let others = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let others = std::env::split_paths(&others).filter(|path| !path.as_os_str().is_empty());
    let path = std::env::join_paths(std::iter::once(folder.to_owned()).chain(others)).map_err(io::Error::other)?;
    Ok([("LD_LIBRARY_PATH", path), ("ATOLL_SESSION", address.to_string().into())])
}
