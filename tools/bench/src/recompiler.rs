//! Compiles bundles of untrusted tenants, and reads the PTX of CUDA programs, in a separate process.
//! If PTX makes the compiler crash, run for hours or exhaust memory, only that process ends, and not
//! the daemon.
//!
//! The daemon starts `atoll recompile` with the bundle or the PTX as standard input. The process
//! maps a bundle, or reads PTX without looking at it, and enters a jail
//! ([`atoll_executor::enter_compile_jail`]): from then on it has this memory and its pipes, and no
//! files, network or other processes. It writes its progress, and the reason of a failure, as lines
//! of JSON to standard error, and the code or the answer to standard output. It does not use the
//! cache of native code that the daemon's own compilations share, so it cannot put anything there.
//!
//! PTX may exploit a bug of the compiler, so the daemon trusts nothing that the process sends: it
//! reads a limited number of lines and bytes, kills the process at its deadline whatever it does,
//! and checks the code as it checks that of a file.

use anyhow::{Context, Result, anyhow, bail};
use atoll_executor::enter_compile_jail;
use atoll_kgraph::limits::CODE_BYTES_MAX;
use atoll_kgraph::{Bundle, Mapped, TargetContents, decode_code, encode_code};
use atoll_pipeline::{
    CompileOptions, Fences, LaunchShape, Observer, Stage, Target, launch_source, read_module, recompile,
};
use atoll_server::{CompileFailure, CompileLimits, CompileProgress};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Resource, Rlimit, Signal, nice, set_parent_process_death_signal, setrlimit};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

/// Name of the hidden command.
pub const COMMAND: &str = "recompile";

/// Increase of the nice value of the process, so that serving requests has priority.
const NICE: i32 = 10;

/// The out-of-memory score of the process: the system kills it after executors and before the
/// daemon.
const OUT_OF_MEMORY_SCORE: &str = "800";

/// Stack size of the thread that compiles: the usual size for the first thread of a program.
const STACK_BYTES: usize = 8 << 20;

/// Longest line that is read from the process. Its failures quote lines of PTX.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Most lines that are read from the process: it writes one for each stage, and LLVM may warn.
/// Further output is discarded.
const LINES_MAX: usize = 1024;

/// Most lines that were read and not handled yet.
const LINES_WAITING_MAX: usize = 16;

/// How often the daemon looks whether a process that has closed its standard error has ended.
const END_INTERVAL: Duration = Duration::from_millis(5);

/// Longest reason of a failure, in characters; any of them takes at most twelve bytes in JSON.
const REASON_CHARS_MAX: usize = 4096;

/// A line that the process writes.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    Progress {
        stage: String,
        done: usize,
        total: usize,
    },
    Failure(String),
    /// Parts of the jail that this machine does not support.
    Missing(Vec<String>),
}

/// A question about the PTX of a CUDA program. It is the first line of the process's standard
/// input, and the PTX is the rest.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// Its kernels and variables. The answer is a [`ModuleContents`](atoll_pipeline::ModuleContents)
    /// in JSON.
    Module,
    /// One kernel for a launch shape. The answer is a
    /// [`LaunchSource`](atoll_pipeline::LaunchSource) in JSON.
    Launch {
        /// The kernel.
        kernel: String,
        /// Threads of a block in x, y, z.
        block: [u32; 3],
        /// Shared memory of a launch besides what the kernel declares, in bytes.
        dynamic_shared_bytes: u32,
        /// The address of each variable of the module.
        variables: Vec<(String, u64)>,
    },
}

/// Answers a question about PTX in a separate process.
///
/// # Errors
/// The PTX is not valid, or cannot be read within the limits.
pub fn ask<T: DeserializeOwned>(question: &Question, ptx: &str, limits: CompileLimits) -> Result<T, CompileFailure> {
    let asked = || -> Result<T> {
        let mut input = File::from(memfd_create("atoll-ptx", MemfdFlags::CLOEXEC)?);
        serde_json::to_writer(&mut input, question)?;
        input.write_all(b"\n")?;
        input.write_all(ptx.as_bytes())?;
        input.rewind()?;
        let mut command = command(input, limits);
        command.arg("--ptx");
        let answer = run(command, limits, &|_| ())?;
        serde_json::from_slice(&answer).context("the compiler's answer is not valid")
    };
    asked().map_err(|error| CompileFailure(format!("{error:#}")))
}

/// Compiles the kernels of a bundle again, with a fence, in a separate process.
///
/// # Errors
/// The kernels cannot be compiled, or not within the limits.
pub fn in_process(
    bundle: &Bundle,
    targets: &[Target],
    fences: Fences,
    limits: CompileLimits,
    progress: &dyn Fn(CompileProgress),
) -> Result<Vec<TargetContents>, CompileFailure> {
    let failed = |error: anyhow::Error| CompileFailure(format!("{error:#}"));
    let file = File::open(bundle.path()).with_context(|| bundle.path().display().to_string()).map_err(failed)?;
    let mut command = command(file, limits);
    for target in targets {
        command.args(["--target", target.name()]);
    }
    if fences == Fences::All {
        command.arg("--fence-nvidia");
    }
    let code = run(command, limits, progress).map_err(failed)?;
    decode_code(&code).map_err(|reason| CompileFailure(format!("the compiler's answer is not valid: {reason}")))
}

fn command(input: File, limits: CompileLimits) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(COMMAND).args(["--memory", &limits.memory_bytes.to_string()]);
    command.env_clear().stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Where LLVM's library lies, if that is not a folder of the system.
    if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
        command.env("LD_LIBRARY_PATH", path);
    }
    command
}

/// Runs the process until it ends or exceeds its time limit, and returns its output.
fn run(mut command: Command, limits: CompileLimits, progress: &dyn Fn(CompileProgress)) -> Result<Vec<u8>> {
    let deadline = Instant::now() + limits.time;
    let mut child = command.spawn().context("cannot start the compiler")?;
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let (Some(output), Some(errors)) = (output, errors) else { bail!("the compiler has no pipes") };
    std::thread::scope(|scope| {
        let code = scope.spawn(move || {
            let mut code = Vec::new();
            output.take(CODE_BYTES_MAX + 1).read_to_end(&mut code).map(|_| code)
        });
        let (sender, lines) = mpsc::sync_channel(LINES_WAITING_MAX);
        scope.spawn(move || forward(errors, &sender));
        let (failure, status) = follow(&mut child, &lines, deadline, progress)?;
        let code = code.join().map_err(|_| anyhow!("a thread panicked"))??;
        let Some(status) = status else {
            bail!("it took longer than {} s, the tenant's limit (compile_seconds)", limits.time.as_secs())
        };
        match failure {
            Some(reason) => bail!("{reason}"),
            None if status.success() => Ok(code),
            None => bail!("{}", ended(status, limits.memory_bytes)),
        }
    })
}

/// Forwards lines of the process, and reads until it closes its standard error.
fn forward(errors: impl Read, lines: &SyncSender<String>) {
    let mut errors = BufReader::new(errors);
    let mut line = Vec::new();
    for _ in 0..LINES_MAX {
        if !(&mut errors).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            return;
        }
        // After the time limit, there is no receiver.
        let _ = lines.send(String::from_utf8_lossy(&line).into_owned());
        line.clear();
    }
    // The rest is read, so that the process does not block on a full pipe. Ignores an error: the
    // process has ended.
    let _ = std::io::copy(&mut errors, &mut std::io::sink());
}

/// Reports progress until the process ends; kills it at the deadline. Returns the failure that it
/// reported, and how it ended; `None` if it was killed.
fn follow(
    child: &mut Child,
    lines: &Receiver<String>,
    deadline: Instant,
    progress: &dyn Fn(CompileProgress),
) -> Result<(Option<String>, Option<ExitStatus>)> {
    let mut failure = None;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            child.kill()?;
            child.wait()?;
            return Ok((failure, None));
        }
        match lines.recv_timeout(left) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(Line::Progress { stage, done, total }) => progress(CompileProgress { stage, done, total }),
                Ok(Line::Failure(reason)) => failure = Some(reason),
                Ok(Line::Missing(parts)) => {
                    tracing::warn!(?parts, "this machine does not support parts of the compiler's jail")
                }
                Err(_) => tracing::warn!(line = line.trim_end(), "the compiler of a tenant's bundle wrote a line"),
            },
            Err(RecvTimeoutError::Timeout) => {}
            // It has closed its standard error: usually it is about to end, but it may also go on.
            Err(RecvTimeoutError::Disconnected) => match child.try_wait()? {
                Some(status) => return Ok((failure, Some(status))),
                None => std::thread::sleep(END_INTERVAL.min(left)),
            },
        }
    }
}

/// The message for a process that ended without reporting a reason.
fn ended(status: ExitStatus, memory_bytes: u64) -> String {
    format!("the compiler ended with {status}: it failed, or {}", out_of_memory(memory_bytes))
}

fn out_of_memory(memory_bytes: u64) -> String {
    format!("needed more than {memory_bytes} bytes of memory, the tenant's limit (compile_bytes)")
}

/// The main function of the process: compiles the bundle in standard input, or, without targets,
/// answers the question there.
///
/// # Errors
/// The code cannot be written. Failures of the compilation are reported to the daemon.
pub fn serve(targets: &[String], fences: Fences, memory_bytes: u64) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let limit = Rlimit { current: Some(memory_bytes), maximum: Some(memory_bytes) };
    setrlimit(Resource::Data, limit)?;
    nice(NICE)?;
    // Replaces the score inherited from the daemon. Ignores an error: without this file there is no
    // score.
    let _ = std::fs::write("/proc/self/oom_score_adj", OUT_OF_MEMORY_SCORE);
    match confined(targets, fences, memory_bytes) {
        Ok(code) => {
            let mut output = std::io::stdout();
            output.write_all(&code)?;
            Ok(output.flush()?)
        }
        Err(error) => {
            write_line(&Line::Failure(format!("{error:#}").chars().take(REASON_CHARS_MAX).collect()));
            Ok(())
        }
    }
}

/// Enters the jail, and works there.
fn confined(targets: &[String], fences: Fences, memory_bytes: u64) -> Result<Vec<u8>> {
    let mut file = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let work: Box<dyn FnOnce() -> Result<Vec<u8>> + Send + '_> = if targets.is_empty() {
        let mut input = String::new();
        file.read_to_string(&mut input)?;
        Box::new(move || answered(&input))
    } else {
        let input = Bundle::map(&file, Path::new("the bundle"))?;
        Box::new(move || compiled(input, targets, fences))
    };
    drop(file);
    let missing = enter_compile_jail(memory_bytes)
        .map_err(|reason| anyhow!("this machine cannot confine compilations for tenants: {reason}"))?;
    if !missing.is_empty() {
        write_line(&Line::Missing(missing));
    }
    // On another thread, because the C library reads the bounds of the first thread's stack from a
    // file in `/proc`.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| anyhow!("{error}: the compiler {}", out_of_memory(memory_bytes)))?;
        thread.join().unwrap_or_else(|_| bail!("internal error: the compiler panicked; please report this bug"))
    })
}

fn compiled(input: Mapped, targets: &[String], fences: Fences) -> Result<Vec<u8>> {
    let bundle = input.check()?;
    let targets = targets.iter().map(|name| Ok(name.parse::<Target>()?)).collect::<Result<Vec<Target>>>()?;
    let options = CompileOptions { targets, fences, ..CompileOptions::default() };
    let code = recompile(&bundle, &options, &Reporter)?;
    encode_code(&code).map_err(|reason| anyhow!(reason))
}

/// Answers the question in the first line about the PTX in the others.
fn answered(input: &str) -> Result<Vec<u8>> {
    let (question, ptx) = input.split_once('\n').context("there is no question")?;
    Ok(match serde_json::from_str(question)? {
        Question::Module => serde_json::to_vec(&read_module(ptx)?)?,
        Question::Launch { kernel, block, dynamic_shared_bytes, variables } => {
            let shape = LaunchShape { kernel: &kernel, block, dynamic_shared_bytes, variables: &variables };
            serde_json::to_vec(&launch_source(ptx, shape)?)?
        }
    })
}

/// Writes stages to standard error.
struct Reporter;

impl Observer for Reporter {
    fn stage(&self, stage: Stage, done: usize, total: usize) {
        write_line(&Line::Progress { stage: stage.to_string(), done, total });
    }
}

/// Writes a line, ignoring errors: if the daemon has gone, this process ends too.
fn write_line(line: &Line) {
    if let Ok(text) = serde_json::to_string(line) {
        let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a shell script in place of the compiler.
    fn run_script(script: &str, time: Duration) -> Result<Vec<u8>> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        run(command, CompileLimits { time, memory_bytes: 1 << 30 }, &|_| ())
    }

    #[test]
    fn a_process_is_killed_at_the_limit_whatever_it_writes() {
        for script in ["exec sleep 600", "exec sleep 600 2>&-", "exec yes >&2"] {
            let begun = Instant::now();
            let error = run_script(script, Duration::from_millis(300)).unwrap_err().to_string();
            assert!(error.contains("the tenant's limit (compile_seconds)"), "{script}: {error}");
            assert!(begun.elapsed() < Duration::from_secs(300), "{script}");
        }
    }

    #[test]
    fn questions_are_answered_from_the_ptx_behind_them() {
        let ptx = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p) {\nret;\n}\n";
        let ask = |question: &Question| answered(&format!("{}\n{ptx}", serde_json::to_string(question).unwrap()));
        let contents: atoll_pipeline::ModuleContents =
            serde_json::from_slice(&ask(&Question::Module).unwrap()).unwrap();
        assert_eq!((contents.kernels[0].name.as_str(), contents.variables.len()), ("k", 0));
        let launch = |kernel: &str| {
            let variables = Vec::new();
            Question::Launch { kernel: kernel.into(), block: [32, 1, 1], dynamic_shared_bytes: 0, variables }
        };
        let source: atoll_pipeline::LaunchSource = serde_json::from_slice(&ask(&launch("k")).unwrap()).unwrap();
        assert_eq!(source.params, [(8, 8)]);
        assert!(ask(&launch("other")).unwrap_err().to_string().contains("no kernel `other`"));
        assert!(answered(ptx).is_err());
    }

    #[test]
    fn code_is_taken_from_a_process_that_closes_its_errors_or_writes_many_lines() {
        for script in ["exec 2>&-; sleep 0.1; printf code", "yes | head -n 20000 >&2; printf code"] {
            assert_eq!(run_script(script, Duration::from_secs(300)).unwrap(), b"code", "{script}");
        }
    }
}
