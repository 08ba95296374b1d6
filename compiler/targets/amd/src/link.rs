//! Links an object to a code object with `ld.lld`.

use crate::error::AmdError;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The environment variable that names the linker.
const VARIABLE: &str = "ATOLL_LLD";
/// The environment variables that name LLVM's folder; the build uses them too.
const LLVM_FOLDERS: [&str; 2] = ["LLVM_SYS_221_PREFIX", "LLVM_SYS_191_PREFIX"];
/// The folders of Debian's LLVM packages.
const PACKAGES: [&str; 2] = ["/usr/lib/llvm-22", "/usr/lib/llvm-19"];
/// The program's name, and its name in Debian's folder of programs.
const NAMES: [&str; 3] = ["ld.lld", "ld.lld-22", "ld.lld-19"];

/// Links an object to a shared object.
pub(crate) fn link(object: &[u8]) -> Result<Vec<u8>, AmdError> {
    let linker = find_linker()?;
    let failure = |message: String| AmdError::Link { linker: linker.display().to_string(), message };
    let folder = tempfile::tempdir().map_err(|e| failure(format!("no temporary folder: {e}")))?;
    let output = folder.path().join("linked");
    // Unresolved symbols are errors here; otherwise loading the code object would fail.
    let mut command = Command::new(&linker);
    command.args(["-shared", "--no-undefined", "--build-id=none", "-o"]).arg(&output);
    let input = folder.path().join("kernels.o");
    std::fs::write(&input, object).map_err(|e| failure(format!("writing {}: {e}", input.display())))?;
    command.arg(&input);
    let run = command.output().map_err(|e| failure(format!("it does not start: {e}")))?;
    if !run.status.success() {
        return Err(failure(String::from_utf8_lossy(&run.stderr).trim().to_owned()));
    }
    std::fs::read(&output).map_err(|e| failure(format!("reading its output: {e}")))
}

/// The linker: the one that [`VARIABLE`] names, otherwise LLVM's.
fn find_linker() -> Result<PathBuf, AmdError> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        let path = PathBuf::from(named);
        let tried = || format!("{VARIABLE} is {}, which is not a file", path.display());
        return if path.is_file() { Ok(path) } else { Err(AmdError::NoLinker { tried: tried() }) };
    }
    let folders = LLVM_FOLDERS.iter().filter_map(std::env::var_os).map(PathBuf::from);
    let folders = folders.chain(PACKAGES.iter().map(PathBuf::from)).map(|folder| folder.join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> = folders.chain(std::env::split_paths(&path)).collect();
    let in_folder = |folder: &PathBuf| NAMES.iter().map(|name| folder.join(name)).find(|file| is_program(file));
    places.iter().find_map(in_folder).ok_or_else(|| AmdError::NoLinker {
        tried: format!("looked in {} and in PATH", PACKAGES.map(|folder| format!("{folder}/bin")).join(", ")),
    })
}

fn is_program(path: &Path) -> bool {
    path.is_file()
}
