//! LLVM's tools: translate kernels in IR or assembly to linked code objects.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use atoll_amd_interp::{Launch, Memory, Options, Program, RunError, Stats, run};

/// The architectures on which every kernel runs.
pub(crate) const CPUS: [&str; 3] = ["gfx906", "gfx90a", "gfx1100"];

/// The architectures of a run: [`CPUS`], and more with `ATOLL_TEST_FULL=1`.
pub(crate) fn cpus() -> Vec<&'static str> {
    let more = ["gfx908", "gfx942", "gfx1030", "gfx1201"];
    let full = std::env::var_os("ATOLL_TEST_FULL").is_some();
    CPUS.into_iter().chain(more.into_iter().filter(|_| full)).collect()
}

/// The folder with `llc`, `llvm-mc` and `ld.lld`. `None`, with a line that says so, if they are
/// missing.
fn folder() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = FOLDER.get_or_init(|| {
        let prefix = std::env::var_os("LLVM_SYS_221_PREFIX").map(|p| PathBuf::from(p).join("bin"));
        let configured = ["llvm-config-22", "llvm-config"].iter().filter_map(|config| {
            let output = Command::new(config).arg("--bindir").output().ok()?;
            Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
        });
        let complete = |bin: &PathBuf| ["llc", "llvm-mc", "ld.lld"].iter().all(|tool| bin.join(tool).exists());
        prefix.into_iter().chain(configured).find(complete)
    });
    if found.is_none() {
        eprintln!("SKIPPED: llc, llvm-mc and ld.lld are not in LLVM's folder (packages llvm-22, lld-22)");
    }
    found.as_deref()
}

fn tool(name: &str, arguments: &[&str]) {
    let bin = folder().expect("checked by the caller");
    let output = Command::new(bin.join(name)).args(arguments).output().unwrap();
    assert!(output.status.success(), "{name} {arguments:?}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Compiles IR (`ll`) or assembles (`s`), and links. `options` are passed to the compiler.
pub(crate) fn code_object(source: &str, extension: &str, cpu: &str, options: &[&str]) -> Option<Vec<u8>> {
    folder()?;
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (input, object, linked) = (path(&format!("k.{extension}")), path("k.o"), path("k.so"));
    std::fs::write(&input, source).unwrap();
    let cpu = format!("-mcpu={cpu}");
    let common = ["-filetype=obj", &cpu, &input, "-o", &object];
    if extension == "ll" {
        tool("llc", &[&["-mtriple=amdgcn-amd-amdhsa", "-O2"], &common[..], options].concat());
    } else {
        tool("llvm-mc", &[&["-triple=amdgcn-amd-amdhsa"], &common[..], options].concat());
    }
    tool("ld.lld", &["-shared", &object, "-o", &linked]);
    Some(std::fs::read(linked).unwrap())
}

/// The program of a file in `kernels/`, for a processor.
pub(crate) fn program(file: &str, cpu: &str) -> Option<Program> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels").join(file);
    let source = std::fs::read_to_string(&path).unwrap();
    let extension = path.extension().unwrap().to_str().unwrap();
    Some(Program::load(&code_object(&source, extension, cpu, &[])?).unwrap())
}

/// The program of a text in IR.
pub(crate) fn compiled(source: &str, cpu: &str) -> Option<Program> {
    Some(Program::load(&code_object(source, "ll", cpu, &[])?).unwrap())
}

/// Kernel arguments, each at a multiple of its size.
#[derive(Clone, Default)]
pub(crate) struct Arguments(pub(crate) Vec<u8>);

impl Arguments {
    /// Appends an argument.
    pub(crate) fn push(mut self, bytes: &[u8]) -> Self {
        self.0.resize(self.0.len().next_multiple_of(bytes.len().min(16)), 0);
        self.0.extend_from_slice(bytes);
        self
    }

    /// Appends a 64-bit argument.
    pub(crate) fn pointer(self, address: u64) -> Self {
        self.push(&address.to_le_bytes())
    }

    /// Appends a 32-bit argument.
    pub(crate) fn word(self, value: u32) -> Self {
        self.push(&value.to_le_bytes())
    }
}

/// A launch of a one-dimensional grid and block.
pub(crate) fn line(grid: u32, block: u32, kernarg: Arguments) -> Launch {
    Launch { grid: [grid, 1, 1], block: [block, 1, 1], dynamic_lds: 0, kernarg: kernarg.0 }
}

/// Runs a kernel with an instruction limit that no test reaches.
pub(crate) fn launch(program: &Program, kernel: &str, launch: &Launch, memory: &mut Memory) -> Result<Stats, RunError> {
    let options = Options { limit: 20_000_000, seed: seed(), ..Options::default() };
    launch_with(&[program], kernel, launch, memory, &options)
}

/// Runs a kernel. Its hidden arguments, which it does not read, are arbitrary bytes.
pub(crate) fn launch_with(
    programs: &[&Program],
    kernel: &str,
    launch: &Launch,
    memory: &mut Memory,
    options: &Options,
) -> Result<Stats, RunError> {
    let mut launch = launch.clone();
    if let Ok(kernel) = programs[0].kernel(kernel) {
        // A damaged descriptor may declare gigabytes.
        let needed = kernel.descriptor.kernarg_bytes.min(1 << 16) as usize;
        launch.kernarg.resize(launch.kernarg.len().max(needed), 0xa5);
    }
    run(programs, kernel, &launch, memory, options)
}

/// The seed of all random choices; `ATOLL_SEED` sets it.
pub(crate) fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let seed = std::env::var("ATOLL_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
        eprintln!("seed {seed} (ATOLL_SEED sets it)");
        seed
    })
}

/// 32-bit words as bytes.
pub(crate) fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The words of a buffer.
pub(crate) fn read_words(memory: &Memory, address: u64) -> Vec<u32> {
    memory.bytes(address).unwrap().chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect()
}
