//! Checks the installed HIP runtime without a GPU: its exports and its errors.
//! `ATOLL_HIP_LIBRARY` names a library; `tools/setup.sh` downloads Debian's for full test runs.
//! Without it, the installed one is used (Debian: `apt-get install libamdhip64-5`).

use atoll_hip::{Driver, OpenError, status};
use atoll_hip_api::ENTRY_POINTS;
use std::path::{Path, PathBuf};

#[allow(clippy::print_stderr, reason = "the runner collects these lines")]
fn skip(reason: &str) {
    eprintln!("SKIPPED: {reason}");
}

/// The library; reports that the test is skipped if there is none.
fn library() -> Option<PathBuf> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/opt/rocm/lib"];
    let files = ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"];
    let installed = folders.iter().flat_map(|folder| files.map(|file| PathBuf::from(folder).join(file)));
    let named = std::env::var_os("ATOLL_HIP_LIBRARY").map(PathBuf::from);
    let found = named.into_iter().chain(installed).find(|path| path.exists());
    match &found {
        Some(path) => preload(path.parent().unwrap_or(path)),
        None => skip("no HIP runtime is installed (libamdhip64-5), and ATOLL_HIP_LIBRARY names none"),
    }
    found
}

/// Loads the libraries that the runtime needs and that lie beside it, since the loader does not look
/// for them there. One that needs another comes after it.
fn preload(folder: &Path) {
    const NEEDED: [&str; 6] =
        ["libdrm.so.2", "libdrm_amdgpu.so.1", "libnuma.so.1", "libelf.so.1", "libhsakmt.so.1", "libhsa-runtime64.so.1"];
    for file in NEEDED.map(|name| folder.join(name)).iter().filter(|file| file.exists()) {
        // SAFETY: the libraries are meant to be loaded like this; their initializers have no
        // preconditions.
        std::mem::forget(unsafe { libloading::Library::new(file) }.expect("a library of the package"));
    }
}

#[test]
fn the_library_exports_the_table_up_to_its_version() {
    let Some(path) = library() else { return };
    // SAFETY: the library is meant to be loaded like this.
    let library = unsafe { libloading::Library::new(&path) }.expect("it can be loaded");
    let has = |symbol: &str| {
        // SAFETY: the symbol is only looked for.
        unsafe { library.get::<*const ()>(symbol) }.is_ok()
    };
    let missing: Vec<&str> = ENTRY_POINTS
        .iter()
        .filter(|entry| !entry.is_extension() && entry.since <= 502 && !has(entry.symbol))
        .map(|entry| entry.symbol)
        .collect();
    assert!(missing.is_empty(), "{} lacks {missing:?}", path.display());
    assert!(has("hipGetErrorName") && has("hipGetErrorString"));
}

#[test]
fn a_machine_without_a_gpu_is_told_so() {
    let Some(path) = library() else { return };
    if PathBuf::from("/dev/kfd").exists() {
        return skip("this machine has an AMD GPU");
    }
    let error = Driver::load_from(&path).expect_err("there is no GPU");
    let OpenError::NoDevice(cause) = &error else { panic!("{error:?}") };
    assert!(
        [(status::INVALID_DEVICE, "hipErrorInvalidDevice"), (status::NO_DEVICE, "hipErrorNoDevice")]
            .contains(&(cause.code, cause.name.as_str())),
        "{cause}"
    );
    let text = error.to_string();
    assert!(text.contains("finds no device (hipInit: ") && text.contains("/dev/kfd"), "{text}");
}
