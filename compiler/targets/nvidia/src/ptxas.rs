//! Runs NVIDIA's assembler and reads its report.
//!
//! The user installs `ptxas`: it is part of CUDA and of the `nvidia-cuda-nvcc` Python wheels. Atoll
//! also works without it, because the driver assembles PTX too. Registers and spills are then
//! unknown until a kernel is loaded.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Limit on the time for one module. The slowest kernel known to us (523 kB of PTX) takes 5 s.
const ASSEMBLE_TIME_MAX: Duration = Duration::from_secs(120);

/// Interval at which a running assembler is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Limit on the bytes of the assembler's messages that are kept; its report has about 300 bytes per
/// function.
const MESSAGES_BYTES_MAX: usize = 4 << 20;

/// An installed assembler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ptxas {
    path: PathBuf,
}

/// The assembler's report on one kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelResources {
    /// Registers per thread, including those of all callees.
    pub registers: u32,
    /// Spilled bytes per thread that are written to memory.
    pub spill_store_bytes: u32,
    /// Spilled bytes per thread that are read back.
    pub spill_load_bytes: u32,
    /// Stack frame per thread in bytes.
    pub stack_bytes: u32,
    /// Static shared memory per block in bytes.
    pub shared_bytes: u32,
    /// Hardware barriers per block.
    pub barriers: u32,
}

/// The assembler's report on a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AssembleReport {
    /// By entry name.
    pub kernels: BTreeMap<String, KernelResources>,
    /// Its warnings, one per line.
    pub warnings: Vec<String>,
}

/// An assembled module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembled {
    /// Machine code for the architecture.
    pub cubin: Vec<u8>,
    /// The assembler's report.
    pub report: AssembleReport,
}

/// Why a module was not assembled.
#[derive(Debug, thiserror::Error)]
pub enum AssembleError {
    /// The PTX is not valid for the architecture.
    #[error("ptxas rejected the module for {arch}:\n{messages}")]
    Refused {
        /// The architecture, such as `sm_75`.
        arch: String,
        /// Its output.
        messages: String,
    },
    /// The assembler crashed or was killed.
    #[error("ptxas ended with {status}:\n{messages}")]
    Crashed {
        /// Its exit status.
        status: ExitStatus,
        /// Its output.
        messages: String,
    },
    /// It exceeded the time limit.
    #[error("ptxas took more than {} s and was stopped", ASSEMBLE_TIME_MAX.as_secs())]
    TooSlow,
    /// It could not be started.
    #[error("cannot run {}: {source}", path.display())]
    Io {
        /// The assembler.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

/// Finds an assembler: the file named by `ATOLL_PTXAS`, one on `PATH`, or one in the virtual
/// environment `ATOLL_VENV` (default `~/.cache/atoll/venv`).
pub fn find_ptxas() -> Option<Ptxas> {
    if let Some(path) = std::env::var_os("ATOLL_PTXAS").filter(|p| !p.is_empty()) {
        return Ptxas::at(path);
    }
    let on_path = std::env::var_os("PATH")
        .and_then(|path| std::env::split_paths(&path).find_map(|folder| Ptxas::at(folder.join("ptxas"))));
    on_path.or_else(|| {
        let default = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/atoll/venv"));
        in_venv(&std::env::var_os("ATOLL_VENV").map(PathBuf::from).or_else(default)?)
    })
}

/// Looks for `lib/python*/site-packages/nvidia/*/bin/ptxas`. The folder is named after the CUDA
/// release line; the last one is used.
fn in_venv(venv: &Path) -> Option<Ptxas> {
    let pythons = children(&venv.join("lib"));
    let releases = pythons.iter().flat_map(|python| children(&python.join("site-packages/nvidia")));
    let mut found: Vec<Ptxas> = releases.filter_map(|release| Ptxas::at(release.join("bin/ptxas"))).collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found.pop()
}

/// The entries of a folder; empty if it cannot be read.
fn children(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).map(|entries| entries.flatten().map(|e| e.path()).collect()).unwrap_or_default()
}

impl Ptxas {
    /// The assembler at a path; `None` if there is no file.
    pub fn at(path: impl Into<PathBuf>) -> Option<Ptxas> {
        let path = path.into();
        path.is_file().then_some(Ptxas { path })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Assembles a module for an architecture such as `sm_75`.
    ///
    /// # Errors
    /// [`AssembleError`], if the assembler cannot be started, rejects the module, crashes, or
    /// exceeds the time limit.
    pub fn assemble(&self, ptx: &str, arch: &str) -> Result<Assembled, AssembleError> {
        let io = |source| AssembleError::Io { path: self.path.clone(), source };
        let folder = tempfile::tempdir().map_err(io)?;
        let file = |name: &str| folder.path().join(name);
        fs::write(file("module.ptx"), ptx).map_err(io)?;
        let status = self
            .run(arch, &file("module.ptx"), &file("module.cubin"), &file("messages"))
            .map_err(io)?
            .ok_or(AssembleError::TooSlow)?;
        let mut messages = fs::read(file("messages")).map_err(io)?;
        messages.truncate(MESSAGES_BYTES_MAX);
        let messages = String::from_utf8_lossy(&messages).replace(&*folder.path().to_string_lossy(), "");
        match status.code() {
            Some(0) => Ok(Assembled {
                cubin: fs::read(file("module.cubin")).map_err(io)?,
                report: AssembleReport::parse(&messages),
            }),
            Some(_) => Err(AssembleError::Refused { arch: arch.to_owned(), messages }),
            None => Err(AssembleError::Crashed { status, messages }),
        }
    }

    /// Runs the assembler to its end; `None` if it was stopped at the time limit. It writes its
    /// messages to a file, because a pipe could fill up.
    fn run(&self, arch: &str, input: &Path, output: &Path, messages: &Path) -> io::Result<Option<ExitStatus>> {
        let log = File::create(messages)?;
        let mut command = Command::new(&self.path);
        command.arg("-v").arg(format!("-arch={arch}")).arg("-o").arg(output).arg(input);
        let mut child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        let started = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status));
            }
            if started.elapsed() > ASSEMBLE_TIME_MAX {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl AssembleReport {
    /// Parses the output of `ptxas -v`. Per entry, in any order of entries:
    ///
    /// ```text
    /// ptxas info    : Compiling entry function 'gemm' for 'sm_75'
    /// ptxas info    : Function properties for gemm
    ///     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
    /// ptxas info    : Used 14 registers, used 1 barriers, 16 bytes smem, 396 bytes cmem[0]
    /// ```
    ///
    /// Device functions have a line of properties but no line of registers; they are omitted.
    /// Unknown text is ignored.
    pub fn parse(messages: &str) -> AssembleReport {
        let mut report = AssembleReport::default();
        let mut entry = None;
        let mut described = None;
        for line in messages.lines() {
            let text = line.split_once(" : ").map_or(line, |(_, text)| text).trim();
            if let Some(rest) = text.strip_prefix("Compiling entry function '") {
                entry = rest.split('\'').next().map(str::to_owned);
                report.kernels.extend(entry.clone().map(|name| (name, KernelResources::default())));
            } else if let Some(name) = text.strip_prefix("Function properties for ") {
                described = Some(name.trim_matches('\'').to_owned());
            } else if line.contains("warning") {
                report.warnings.push(line.to_owned());
            } else if text.contains("spill stores") {
                let kernel = described
                    .take()
                    .filter(|name| Some(name) == entry.as_ref())
                    .and_then(|name| report.kernels.get_mut(&name));
                kernel.into_iter().for_each(|kernel| kernel.read_quantities(text));
            } else if text.starts_with("Used ") {
                let kernel = entry.as_ref().and_then(|name| report.kernels.get_mut(name));
                kernel.into_iter().for_each(|kernel| kernel.read_quantities(text));
            }
        }
        report
    }
}

impl KernelResources {
    /// Spilled bytes per thread, written and read back.
    pub fn spill_bytes(&self) -> u32 {
        self.spill_store_bytes.saturating_add(self.spill_load_bytes)
    }

    /// Reads `0 bytes stack frame, …` and `Used 14 registers, used 1 barriers, 4096+0 bytes smem`.
    fn read_quantities(&mut self, text: &str) {
        for part in text.split(',') {
            let mut words = part.split_whitespace().skip_while(|word| !word.starts_with(|c: char| c.is_ascii_digit()));
            let Some(number) = words.next() else { continue };
            // `4096+16` is user plus system.
            let number: u32 = number.split('+').filter_map(|n| n.parse::<u32>().ok()).fold(0, u32::saturating_add);
            let what: Vec<&str> = words.collect();
            match what[..] {
                ["registers"] => self.registers = number,
                ["barriers"] => self.barriers = number,
                ["bytes", "smem"] => self.shared_bytes = number,
                ["bytes", "stack", "frame"] => self.stack_bytes = number,
                ["bytes", "spill", "stores"] => self.spill_store_bytes = number,
                ["bytes", "spill", "loads"] => self.spill_load_bytes = number,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_entries_and_leaves_functions_out() {
        let report = AssembleReport::parse(
            "ptxas info    : 0 bytes gmem\n\
             ptxas info    : Compiling entry function 'b' for 'sm_80'\n\
             ptxas info    : Function properties for b\n\
             \x20   24 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n\
             ptxas info    : Function properties for helper\n\
             \x20   64 bytes stack frame, 1 bytes spill stores, 2 bytes spill loads\n\
             ptxas info    : Used 32 registers, used 2 barriers, 1024+16 bytes smem, 380 bytes cmem[0]\n\
             ptxas warning : something is odd\n\
             ptxas info    : Compiling entry function 'a' for 'sm_80'\n\
             ptxas info    : Function properties for a\n\
             \x20   0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
             ptxas info    : Used 10 registers, 360 bytes cmem[0]\n",
        );
        let b = KernelResources {
            registers: 32,
            spill_store_bytes: 8,
            spill_load_bytes: 12,
            stack_bytes: 24,
            shared_bytes: 1040,
            barriers: 2,
        };
        assert_eq!(report.kernels["b"], b);
        assert_eq!(report.kernels["a"], KernelResources { registers: 10, ..KernelResources::default() });
        assert_eq!(report.kernels.len(), 2);
        assert_eq!(report.warnings.len(), 1);
    }

    #[test]
    fn a_missing_assembler_is_none() {
        assert_eq!(Ptxas::at("/nonexistent/ptxas"), None);
        assert_eq!(in_venv(Path::new("/nonexistent")), None);
    }
}
