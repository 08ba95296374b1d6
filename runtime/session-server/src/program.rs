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

/// Which libraries over the driver a program gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Libraries {
    /// The runtime, cuBLAS and cuDNN of Atoll.
    #[default]
    Atoll,
    /// The runtime of Atoll; for others the program searches as it does without Atoll.
    System,
}

/// Links the library into `folder` under the driver's names. Links the runtime, cuBLAS and
/// cuDNN under their names too, if they lie beside the library and the program is to get them. Returns the
/// environment variables by which a program finds the server, and these libraries before any others, also if it
/// has an `RPATH` or loads a library by its path.
pub fn environment(
    folder: &Path,
    library: &Path,
    address: &Address,
    libraries: Libraries,
) -> io::Result<[(&'static str, OsString); 4]> {
    let library = library.canonicalize()?;
    for name in NAMES {
        std::os::unix::fs::symlink(&library, folder.join(name))?;
    }
    let wanted = LIBRARIES.iter().filter(|(file, _)| libraries == Libraries::Atoll || *file == RUNTIME);
    for (file, names) in wanted {
        let built = library.with_file_name(file);
        if built.is_file() {
            std::os::unix::fs::symlink(&built, folder.join(file))?;
            for name in *names {
                std::fs::write(folder.join(name), stub(name, file))?;
            }
        }
    }
    Ok([
        ("LD_LIBRARY_PATH", extended("LD_LIBRARY_PATH", Some(folder), None)?),
        // Not the link in the folder: a background process of the program may outlive the folder,
        // and the dynamic linker would print an error for each of its children.
        ("LD_AUDIT", extended("LD_AUDIT", None, Some(&library))?),
        ("ATOLL_LIBRARIES", folder.into()),
        ("ATOLL_SESSION", address.to_string().into()),
    ])
}

/// The paths of an environment variable, between others.
fn extended(variable: &str, first: Option<&Path>, last: Option<&Path>) -> io::Result<OsString> {
    let present = std::env::var_os(variable).unwrap_or_default();
    let present = std::env::split_paths(&present).filter(|path| !path.as_os_str().is_empty());
    let [first, last] = [first, last].map(|path| path.map(Path::to_owned));
    std::env::join_paths(first.into_iter().chain(present).chain(last)).map_err(io::Error::other)
}
