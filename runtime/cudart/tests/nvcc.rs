//! Programs modelled on Rodinia's, and one with graphs, pools and managed memory. NVIDIA's compiler
//! builds them, and they run unmodified in a session. Each compares its results with those of the
//! CPU. `ATOLL_NVCC` names the compiler (`tools/setup.sh` installs it for `make test-full`); otherwise
//! it must be on the path.

#![cfg(target_arch = "x86_64")]

#[allow(dead_code, reason = "each test uses a part")]
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use support::{Sessions, skip};
use tempfile::TempDir;

/// The programs: name, output, and number of launches.
const PROGRAMS: [(&str, &str, u64); 6] = [
    ("bfs", "bfs: 4096 nodes, 3828 reached, 16 levels\n", 32),
    ("hotspot", "hotspot: 80 by 80, 25 steps\n", 25),
    ("pathfinder", "pathfinder: 1000 by 21, cheapest 16\n", 5),
    ("gaussian", "gaussian: 48 unknowns, 94 launches\n", 94),
    ("srad", "srad: 48 by 48, 10 steps\n", 30),
    ("graphs", "graphs: 4096 numbers, 20 launches of a graph\n", 61),
];

/// Whether this is a full run.
fn full() -> bool {
    std::env::var_os("ATOLL_TEST_FULL").is_some_and(|value| value == "1")
}

/// The compiler, and a folder for programs in which the linker finds the runtime.
struct Compiler {
    nvcc: PathBuf,
    folder: TempDir,
}

impl Compiler {
    /// The compiler, if it is installed; says so if it is not.
    fn find() -> Option<Compiler> {
        let on_path = std::env::var_os("PATH").and_then(|path| {
            let mut files = std::env::split_paths(&path).map(|folder| folder.join("nvcc"));
            files.find(|file| file.is_file())
        });
        let named = std::env::var_os("ATOLL_NVCC").map(PathBuf::from).filter(|file| file.is_file());
        let Some(nvcc) = named.or(on_path) else {
            skip("nvcc is not installed: programs that it builds did not run (make test-full installs it)");
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder");
        let home = nvcc.canonicalize().expect("it is there").ancestors().nth(2).expect("bin/nvcc").to_owned();
        // NVIDIA's Python packages have the library under its versioned name only.
        let library = home.join("lib/libcudart.so.13");
        if library.is_file() {
            std::os::unix::fs::symlink(library, folder.path().join("libcudart.so")).expect("a link");
        }
        Some(Compiler { nvcc, folder })
    }

    /// Builds a program.
    fn build(&self, program: &str, options: &[&str]) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda").join(format!("{program}.cu"));
        let out = self.folder.path().join(program);
        let bin = self.nvcc.parent().expect("a file");
        let tools = [bin.to_owned(), bin.with_file_name("nvvm").join("bin")];
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(tools.into_iter().chain(std::env::split_paths(&path))).expect("a path");
        let mut command = Command::new(&self.nvcc);
        command.args(options).arg(source).arg("-o").arg(&out).arg("-L").arg(self.folder.path());
        let output = command.env("PATH", path).output().expect("nvcc");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        out
    }
}

#[test]
fn programs_that_nvcc_built_run_unmodified() {
    let Some(compiler) = Compiler::find() else { return };
    let sessions = Sessions::start();
    let count = if full() { PROGRAMS.len() } else { 1 };
    for (number, (name, wanted, launches)) in (1..).zip(&PROGRAMS[..count]) {
        let program = compiler.build(name, &["-cudart", "shared", "-arch=sm_80"]);
        let (text, said) = sessions.output(&program, &[]);
        assert_eq!((text.as_str(), said.as_str()), (*wanted, ""), "{name}");
        let report = sessions.report(number);
        assert_eq!((report.launches, report.failures), (*launches, 0), "{name}");
    }
}

#[test]
fn programs_with_nvidias_static_runtime_run_unmodified() {
    let Some(compiler) = Compiler::find() else { return };
    let sessions = Sessions::start();
    let count = if full() { PROGRAMS.len() } else { 1 };
    for (number, (name, wanted, launches)) in (1..).zip(&PROGRAMS[..count]) {
        // NVIDIA's runtime is nvcc's default.
        let program = compiler.build(name, &["-arch=sm_80"]);
        let (text, said) = sessions.output(&program, &[]);
        assert_eq!((text.as_str(), said.as_str()), (*wanted, ""), "{name}");
        let report = sessions.report(number);
        assert_eq!((report.launches, report.failures), (*launches, 0), "{name}");
    }
}

#[test]
fn thrust_sums_and_sorts() {
    if !full() {
        return skip("a program that uses Thrust, which nvcc compiles for a minute (make test-full)");
    }
    let Some(compiler) = Compiler::find() else { return };
    let sessions = Sessions::start();
    for runtime in ["shared", "static"] {
        let program = compiler.build("thrust", &["-cudart", runtime, "-arch=sm_80"]);
        let (text, said) = sessions.output(&program, &[]);
        assert_eq!((text.as_str(), said.as_str()), ("thrust: 10000 numbers summed and sorted\n", ""), "{runtime}");
    }
}

#[test]
fn forms_of_code_that_nvcc_writes_run() {
    if !full() {
        return skip("forms of code that nvcc writes (make test-full)");
    }
    let Some(compiler) = Compiler::find() else { return };
    let sessions = Sessions::start();
    let (name, wanted, _) = PROGRAMS[4];
    let forms: [&[&str]; 5] = [
        &["-arch=compute_75"],
        &["-arch=sm_90", "-compress-mode", "size"],
        &["-arch=sm_80", "-compress-mode", "speed"],
        &["-arch=sm_80", "-no-compress", "-G"],
        &["-arch=sm_80", "--default-stream", "per-thread"],
    ];
    for form in forms {
        let program = compiler.build(name, &[&["-cudart", "shared"], form].concat());
        assert_eq!(sessions.output(&program, &[]), (wanted.to_owned(), String::new()), "{form:?}");
    }
}

#[test]
fn a_program_without_ptx_says_what_it_lacks() {
    if !full() {
        return skip("programs that nvcc built without PTX (make test-full)");
    }
    let Some(compiler) = Compiler::find() else { return };
    let sessions = Sessions::start();
    let program = compiler.build("bfs", &["-cudart", "shared", "-gencode", "arch=compute_80,code=sm_80"]);
    let output = sessions.run(&program, &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no PTX for sm_90; it has machine code for sm_80"), "{said}");
    assert_eq!(output.status.code(), Some(1));
}
