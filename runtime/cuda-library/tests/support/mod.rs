//! Checks that the tests of libraries with kernels of their own have in common.

use std::path::Path;
use std::process::Command;

/// Compiles a C program into `folder`, linked with libraries there by these names.
pub(crate) fn compile(folder: &Path, source: &str, program: &str, libraries: &[&str]) {
    let mut command = Command::new("cc");
    command.args(["-O1", "-Wall", "-Werror", "-Wno-unused-function", "-o"]);
    command.arg(folder.join(program)).arg(source).arg(format!("-L{}", folder.display()));
    command.args(libraries.iter().map(|name| format!("-l:{name}"))).args(["-pthread", "-lm"]);
    let output = command.output().expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
