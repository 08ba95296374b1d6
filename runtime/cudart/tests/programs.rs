//! Runs a C program that registers its code as programs of nvcc do. It is built for each version of
//! the runtime and runs in a session, with a server on the stand-in driver.

#![cfg(target_arch = "x86_64")]

#[allow(dead_code, reason = "each test uses a part")]
mod support;

use atoll_session_server::{BLAS, LIBRARY, Libraries, RUNTIME, STAND_IN, environment};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use support::{Sessions, library};
use tempfile::TempDir;

/// The library names of the runtime's versions, and the version number that each reports.
const VERSIONS: [(&str, i32); 3] =
    [("libcudart.so.11.0", 11080), ("libcudart.so.12", 12090), ("libcudart.so.13", 13000)];

/// A kernel that multiplies and adds in place, and one that sums up the numbers.
const PTX: &str = "\
.version 7.0
.target sm_80
.address_size 64
.const .align 4 .b8 scale[8];
.global .align 4 .u32 sum;
.visible .entry add(.param .u64 numbers, .param .u32 count) {
  .reg .pred %p; .reg .b32 %r<9>; .reg .b64 %d<4>;
  ld.param.u64 %d1, [numbers]; ld.param.u32 %r1, [count];
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.u32 %r2, %r2, %r3, %r4;
  setp.ge.u32 %p, %r2, %r1;
  @%p bra done;
  mul.wide.u32 %d2, %r2, 4; add.s64 %d1, %d1, %d2;
  ld.global.u32 %r3, [%d1]; ld.const.u32 %r4, [scale]; ld.const.u32 %r5, [scale+4];
  atom.global.add.u32 %r6, [sum], %r3;
  mad.lo.u32 %r3, %r3, %r4, %r5; st.global.u32 [%d1], %r3;
done:
  ret;
}
";

/// How the contents of a fat binary are compressed.
#[derive(Clone, Copy)]
enum Form {
    Plain,
    Lz4,
}

/// A fat binary with machine code for another device, and PTX.
fn fat(form: Form, capability: u32) -> Vec<u8> {
    let (flags, payload) = match form {
        Form::Plain => (0x11u64, PTX.as_bytes().to_vec()),
        Form::Lz4 => (0x2011, lz4_flex::block::compress(PTX.as_bytes())),
    };
    let mut entries = Vec::new();
    for (kind, flags, payload) in [(2u16, 0x11, b"for another GPU!".to_vec()), (1, flags, payload)] {
        let padded = payload.len().next_multiple_of(8);
        let compressed = if flags & 0x2000 == 0 { 0 } else { payload.len() as u32 };
        entries.extend(kind.to_le_bytes());
        entries.extend([1, 1, 64, 0, 0, 0]);
        entries.extend((padded as u64).to_le_bytes());
        entries.extend(compressed.to_le_bytes());
        entries.extend([0; 8]);
        entries.extend(capability.to_le_bytes());
        entries.extend([0; 8]);
        entries.extend(flags.to_le_bytes());
        entries.extend([0; 8]);
        entries.extend((PTX.len() as u64).to_le_bytes());
        entries.extend(&payload);
        entries.resize(entries.len() + padded - payload.len(), 0);
    }
    let mut file = atoll_fatbin::MAGIC.to_le_bytes().to_vec();
    file.extend([1, 0, 16, 0]);
    file.extend((entries.len() as u64).to_le_bytes());
    file.extend(entries);
    file
}

/// The folder with the programs, one for each version, and fat binaries.
fn built() -> &'static TempDir {
    static BUILT: OnceLock<TempDir> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/registered.c");
        for (name, _) in VERSIONS {
            // The program loads the library by the name by which it was linked.
            std::os::unix::fs::symlink(library(RUNTIME), path(name)).expect("a link");
            let search = format!("-L{}", folder.path().display());
            let options = [source, &search, &format!("-l:{name}"), "-pthread", "-ldl"];
            compile(&path(&format!("for-{name}")), &options);
        }
        let mut lying = fat(Form::Lz4, 80);
        let declared = 16 + 64 + 16 + 56;
        lying[declared] ^= 1;
        let files = [
            ("plain", fat(Form::Plain, 80)),
            ("lz4", fat(Form::Lz4, 80)),
            ("newer", fat(Form::Plain, 999)),
            ("lying", lying),
        ];
        files.iter().for_each(|(name, bytes)| std::fs::write(path(name), bytes).expect("a file"));
        folder
    })
}

/// Runs the C compiler.
fn compile(out: &Path, options: &[&str]) {
    let mut command = Command::new("cc");
    command.args(["-O1", "-Wall", "-Werror", "-Wno-unused-result", "-o"]).arg(out).args(options);
    let output = command.output().expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn program(version: &str) -> PathBuf {
    built().path().join(format!("for-{version}"))
}

fn file(name: &str) -> String {
    built().path().join(name).to_str().expect("a UTF-8 path").to_owned()
}

#[test]
fn a_registered_kernel_runs_with_each_version_of_the_runtime() {
    for (version, _) in VERSIONS {
        let sessions = Sessions::start();
        let (text, said) = sessions.output(&program(version), &["run", &file("lz4")]);
        assert_eq!((text.as_str(), said.as_str()), ("added\n", ""), "{version}");
        let report = sessions.report(1);
        assert_eq!((report.launches, report.failures), (3, 0));
    }
}

#[test]
fn contents_that_are_not_compressed_run_and_rows_are_copied() {
    let sessions = Sessions::start();
    let program = program("libcudart.so.13");
    assert_eq!(sessions.output(&program, &["run", &file("plain")]).0, "added\n");
    assert_eq!(sessions.output(&program, &["rows", &file("plain")]).0, "rows\n");
}

#[test]
fn errors_are_those_of_the_runtime() {
    let sessions = Sessions::start();
    let (text, said) = sessions.output(&program("libcudart.so.12"), &["errors", &file("plain")]);
    assert_eq!(text, "errors\n");
    let missing: Vec<&str> = said.lines().filter(|line| line.contains("cudaErrorNotSupported")).collect();
    assert_eq!(
        missing,
        [
            "atoll: cudaFreeArray is not supported; it returns cudaErrorNotSupported",
            "atoll: cudaBindTexture is not supported; it returns cudaErrorNotSupported"
        ]
    );
}

#[test]
fn graphs_pools_and_managed_memory_work_with_each_version_of_the_runtime() {
    for (version, _) in VERSIONS {
        let sessions = Sessions::start();
        let (text, said) = sessions.output(&program(version), &["graphs", &file("plain")]);
        assert_eq!((text.as_str(), said.as_str()), ("graphs\n", ""), "{version}");
        let report = sessions.report(1);
        assert_eq!((report.launches, report.failures), (5, 0), "{version}");
    }
}

#[test]
fn properties_have_the_layout_of_the_version() {
    let sessions = Sessions::start();
    for (version, number) in VERSIONS {
        let (text, said) = sessions.output(&program(version), &["properties", &file("plain")]);
        assert_eq!(text, format!("version {number}: Atoll stand-in 0 (host CPU, no GPU)\n"), "{said}");
    }
}

#[test]
fn code_that_cannot_be_loaded_is_an_error_with_a_reason() {
    let sessions = Sessions::start();
    let program = program("libcudart.so.13");
    let (text, said) = sessions.output(&program, &["load", &file("newer")]);
    assert_eq!(text, "209 cudaErrorNoKernelImageForDevice\n");
    assert!(said.contains("no PTX for sm_90; it has machine code for sm_999, PTX for sm_999"), "{said}");
    assert_eq!(said.matches("the driver cannot load the program's code").count(), 1, "{said}");
    let (text, said) = sessions.output(&program, &["load", &file("lying")]);
    assert_eq!(text, "200 cudaErrorInvalidKernelImage\n");
    assert!(said.contains("cannot be decompressed by LZ4"), "{said}");
}

#[test]
fn a_device_that_was_reset_is_used_again_by_every_thread() {
    let sessions = Sessions::start();
    let program = program("libcudart.so.12");
    assert_eq!(sessions.output(&program, &["threads", &file("plain")]), ("threads\n".into(), String::new()));
    assert_eq!(sessions.output(&program, &["contexts", &file("plain")]).0, "contexts\n");
    // The same without a session, on the stand-in driver, where a reset clears the fault.
    let direct = Sessions::with_driver(STAND_IN);
    assert_eq!(direct.output(&program, &["threads", &file("plain")]), ("threads\n".into(), String::new()));
    assert_eq!(direct.output(&program, &["contexts", &file("plain")]).0, "contexts\n");
    assert_eq!(direct.output(&program, &["reset", &file("plain")]).0, "reset\n");
}

#[test]
fn registrations_are_kept_apart() {
    let sessions = Sessions::start();
    let program = program("libcudart.so.13");
    assert_eq!(sessions.output(&program, &["launches", &file("plain")]).0, "launches\n");
    assert_eq!(sessions.output(&program, &["twice", &file("plain")]), ("twice\n".into(), String::new()));
    assert_eq!(sessions.output(&program, &["forks", &file("plain")]).0, "forks\n");
    for (what, name) in [("managed", "__managed__ variables"), ("texture", "references to textures")] {
        let (text, said) = sessions.output(&program, &[what, &file("plain")]);
        assert_eq!(text, "refused\n", "{said}");
        assert!(said.starts_with(&format!("atoll: the program has {name}, which are not supported")), "{said}");
    }
}

#[test]
fn without_a_server_every_call_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = atoll_session::Address::Unix(folder.path().join("absent.sock"));
    let interpose = library(LIBRARY);
    environment(folder.path(), &interpose, &address, Libraries::Atoll).expect("links");
    let run = |driver: bool| {
        if !driver {
            std::fs::remove_file(folder.path().join("libcuda.so.1")).expect("a link");
            std::fs::remove_file(folder.path().join("libcuda.so")).expect("a link");
        }
        let mut command = Command::new(program("libcudart.so.13"));
        command.args(["load", &file("plain")]).env("LD_LIBRARY_PATH", folder.path());
        let output = command.env("ATOLL_SESSION", address.to_string()).output().expect("the program");
        assert!(output.status.success());
        (String::from_utf8(output.stdout).expect("text"), String::from_utf8(output.stderr).expect("text"))
    };
    let (text, said) = run(true);
    assert_eq!(text, "100 cudaErrorNoDevice\n", "{said}");
    // Skipped on a machine with a driver: the runtime would load that one.
    if !std::path::Path::new("/proc/driver/nvidia").exists() {
        let (text, said) = run(false);
        assert_eq!(text, "35 cudaErrorInsufficientDriver\n");
        assert!(said.contains("there is no CUDA driver: libcuda.so.1 cannot be loaded"), "{said}");
    }
}

#[test]
fn a_program_whose_rpath_has_another_runtime_gets_that_of_atoll() {
    let folder = tempfile::tempdir().expect("a folder");
    let (source, theirs) = (folder.path().join("theirs.c"), folder.path().join("libcudart.so.13"));
    std::fs::write(&source, "int cudaRuntimeGetVersion(int *version) { return 999; }").expect("a file");
    compile(&theirs, &["-shared", "-fPIC", "-Wl,-soname,libcudart.so.13", source.to_str().expect("UTF-8")]);
    let program = folder.path().join("searched");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/searched.c");
    let theirs = theirs.to_str().expect("UTF-8");
    // `RPATH`, which precedes the library path, as in NVIDIA's packages; `RUNPATH` follows it.
    let search = format!("-Wl,--disable-new-dtags,-rpath,{}", folder.path().display());
    compile(&program, &[source, theirs, &search, "-ldl"]);

    let links = tempfile::tempdir().expect("a folder");
    let address = atoll_session::Address::Unix(links.path().join("absent.sock"));
    let variables = environment(links.path(), &library(LIBRARY), &address, Libraries::System).expect("links");
    assert!(!links.path().join(BLAS).exists(), "cuBLAS is the system's");
    let run = |without: &str| {
        // The shell shows that a program without CUDA runs, and that its children find the runtime.
        let mut command = Command::new("sh");
        command.args(["-c", "\"$0\" \"$@\"; echo $?"]).arg(&program).args(["libcudart.so.13", theirs]);
        let output = command.envs(variables.clone()).env_remove(without).output().expect("the shell");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        String::from_utf8(output.stdout).expect("text")
    };
    assert_eq!(run("ATOLL_LIBRARIES"), "needed: theirs\nloaded: theirs\nloaded: theirs\n0\n");
    assert_eq!(run("nothing"), "needed: of Atoll\nloaded: of Atoll\nloaded: of Atoll\n0\n");
}
