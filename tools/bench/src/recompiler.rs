//! Compiles bundles of untrusted tenants in a separate process. If PTX makes the compiler crash,
//! run for hours or exhaust memory, only that process ends, and not the daemon.
//!
//! The daemon starts `atoll recompile` with the bundle as standard input. The process writes its
//! progress, and the reason of a failure, as lines of JSON to standard error, and the code to
//! standard output. It does not use the cache of native code that the daemon's own compilations
//! share, so it cannot put anything there.

use anyhow::{Context, Result, anyhow, bail};
use atoll_kgraph::limits::CODE_BYTES_MAX;
use atoll_kgraph::{Bundle, TargetContents, decode_code, encode_code};
use atoll_pipeline::{CompileOptions, Observer, Stage, Target, recompile};
use atoll_server::{CompileFailure, CompileLimits, CompileProgress};
use rustix::process::{Resource, Rlimit, Signal, nice, set_parent_process_death_signal, setrlimit};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Instant;

/// Name of the hidden command.
pub const COMMAND: &str = "recompile";

/// Increase of the nice value of the process, so that serving requests has priority.
const NICE: i32 = 10;

/// The out-of-memory score of the process: the system kills it after executors and before the
/// daemon.
const OUT_OF_MEMORY_SCORE: &str = "800";

/// Longest line that is read from the process. Its failures quote lines of PTX.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Longest reason of a failure, in characters; any of them takes at most twelve bytes in JSON.
const REASON_CHARS_MAX: usize = 4096;

/// A line that the process writes.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    Progress { stage: String, done: usize, total: usize },
    Failure(String),
}

/// Compiles the kernels of a bundle again, with a fence, in a separate process.
///
/// # Errors
/// The kernels cannot be compiled, or not within the limits.
pub fn in_process(
    bundle: &Bundle,
    targets: &[Target],
    limits: CompileLimits,
    progress: &dyn Fn(CompileProgress),
) -> Result<Vec<TargetContents>, CompileFailure> {
    let failed = |error: anyhow::Error| CompileFailure(format!("{error:#}"));
    let file = File::open(bundle.path()).with_context(|| bundle.path().display().to_string()).map_err(failed)?;
    let code = run(command(file, targets, limits), limits, progress).map_err(failed)?;
    decode_code(&code).map_err(|reason| CompileFailure(format!("the compiler's answer is not valid: {reason}")))
}

fn command(bundle: File, targets: &[Target], limits: CompileLimits) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(COMMAND).args(["--memory", &limits.memory_bytes.to_string()]);
    for target in targets {
        command.args(["--target", target.name()]);
    }
    command.env_clear().stdin(bundle).stdout(Stdio::piped()).stderr(Stdio::piped());
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
        let (sender, lines) = mpsc::channel();
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

/// Forwards the lines of the process until it closes its standard error.
fn forward(errors: impl Read, lines: &mpsc::Sender<String>) {
    let mut errors = BufReader::new(errors);
    let mut line = Vec::new();
    while (&mut errors).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
        // After the time limit, there is no receiver.
        let _ = lines.send(String::from_utf8_lossy(&line).into_owned());
        line.clear();
    }
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
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(Line::Progress { stage, done, total }) => progress(CompileProgress { stage, done, total }),
                Ok(Line::Failure(reason)) => failure = Some(reason),
                Err(_) => tracing::warn!(line = line.trim_end(), "the compiler of a tenant's bundle wrote a line"),
            },
            Err(RecvTimeoutError::Timeout) => {
                child.kill()?;
                child.wait()?;
                return Ok((failure, None));
            }
            Err(RecvTimeoutError::Disconnected) => return Ok((failure, Some(child.wait()?))),
        }
    }
}

/// The message for a process that ended without reporting a reason.
fn ended(status: ExitStatus, memory_bytes: u64) -> String {
    format!(
        "the compiler ended with {status}: it failed, or needed more than {memory_bytes} bytes of memory, the tenant's \
        limit (compile_bytes)"
    )
}

/// The main function of the process: compiles the bundle in standard input.
///
/// # Errors
/// The code cannot be written. Failures of the compilation are reported to the daemon.
pub fn serve(targets: &[String], memory_bytes: u64) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let limit = Rlimit { current: Some(memory_bytes), maximum: Some(memory_bytes) };
    setrlimit(Resource::Data, limit)?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    setrlimit(Resource::Fsize, Rlimit { current: Some(0), maximum: Some(0) })?;
    nice(NICE)?;
    // Replaces the score inherited from the daemon. Ignores an error: without this file there is no
    // score.
    let _ = std::fs::write("/proc/self/oom_score_adj", OUT_OF_MEMORY_SCORE);
    match compiled(targets) {
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

fn compiled(targets: &[String]) -> Result<Vec<u8>> {
    let file = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let bundle = Bundle::of_file(&file, Path::new("the bundle"))?;
    let targets = targets.iter().map(|name| Ok(name.parse::<Target>()?)).collect::<Result<Vec<Target>>>()?;
    let options = CompileOptions { targets, fence: true, ..CompileOptions::default() };
    let code = recompile(&bundle, &options, &Reporter)?;
    encode_code(&code).map_err(|reason| anyhow!(reason))
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
