//! The daemon with real processes, clients and signals.

use anyhow::{Context, Result, ensure};
use atoll_tests::{python, root, share_kernels, trained, trained_models};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time until a daemon is ready, including the compilation of a small model in a debug
/// build.
const READY_TIMEOUT: Duration = Duration::from_secs(240);

/// Log file in the daemon's cache folder. A pipe without a reader would block the daemon.
pub(crate) const LOG: &str = "daemon.log";

/// The program under test, built by the same cargo call.
pub(crate) fn atoll() -> PathBuf {
    atoll_tests::program("atoll")
}

pub(crate) struct Daemon {
    process: Child,
    pub(crate) http: String,
    pub(crate) grpc: String,
    pub(crate) metrics: String,
    /// Empty without `--sessions`.
    pub(crate) sessions: String,
}

impl Daemon {
    fn start(repository: &Path, cache: &Path) -> Result<Daemon> {
        Daemon::start_with(repository, cache, &[])
    }

    pub(crate) fn start_with(repository: &Path, cache: &Path, options: &[&str]) -> Result<Daemon> {
        Daemon::start_in(repository, cache, options, &[])
    }

    /// Like [`Daemon::start_with`], with this many open files at most.
    pub(crate) fn start_with_files(repository: &Path, cache: &Path, options: &[&str], files: u32) -> Result<Daemon> {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n $0; exec \"$@\"", &files.to_string()]).arg(atoll());
        Daemon::start_as(command, repository, cache, options, &[])
    }

    /// Like [`Daemon::start_with`], with additional environment variables.
    pub(crate) fn start_in(
        repository: &Path,
        cache: &Path,
        options: &[&str],
        environment: &[(&'static str, OsString)],
    ) -> Result<Daemon> {
        Daemon::start_as(Command::new(atoll()), repository, cache, options, environment)
    }

    fn start_as(
        mut command: Command,
        repository: &Path,
        cache: &Path,
        options: &[&str],
        environment: &[(&'static str, OsString)],
    ) -> Result<Daemon> {
        let ready = cache.join("ready");
        let _ = std::fs::remove_file(&ready);
        let log = std::fs::File::options().create(true).append(true).open(cache.join(LOG))?;
        share_kernels(cache)?;
        let mut process = command
            .args(["serve", "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--model-repository"])
            .arg(repository)
            .arg("--ready-file")
            .arg(&ready)
            .args(options)
            .env("XDG_CACHE_HOME", cache)
            // Each daemon has its own socket and state.
            .env("XDG_RUNTIME_DIR", cache)
            .env("XDG_STATE_HOME", cache)
            .env_remove("ATOLL_CONTROL_SOCKET")
            .envs(environment.iter().cloned())
            .stdin(Stdio::null())
            .stderr(log)
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("{} is not built; run cargo build -p atoll", atoll().display()))?;
        let start = Instant::now();
        let text = loop {
            let text = std::fs::read_to_string(&ready).unwrap_or_default();
            if text.contains("http ") && text.ends_with('\n') {
                break text;
            }
            if process.try_wait()?.is_some() || start.elapsed() > READY_TIMEOUT {
                process.kill().ok();
                anyhow::bail!("the daemon did not get ready: {}", std::fs::read_to_string(cache.join(LOG))?);
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let address =
            |word: &str| text.lines().find_map(|l| l.strip_prefix(word)).unwrap_or_default().trim().to_string();
        let (http, grpc, metrics) = (address("http "), address("grpc "), address("metrics "));
        Ok(Daemon { http, grpc, metrics, sessions: address("sessions "), process })
    }

    /// Whether the process is still running.
    pub(crate) fn is_running(&mut self) -> Result<bool> {
        Ok(self.process.try_wait()?.is_none())
    }

    pub(crate) fn process(&self) -> &Child {
        &self.process
    }

    pub(crate) fn signal(&mut self, signal: Signal) -> Result<std::process::ExitStatus> {
        kill_process(Pid::from_child(&self.process), signal)?;
        Ok(self.process.wait()?)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

pub(crate) fn conformance(daemon: &Daemon) -> Result<()> {
    let script = root().join("tests/python/triton_conformance.py");
    let output = Command::new(python()).arg(script).arg(&daemon.http).arg(trained_models()).output()?;
    ensure!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

#[test]
fn tritonclient_is_served_killed_and_served_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let repository = folder.path().join("repository");
    std::fs::create_dir(&repository)?;
    std::fs::copy(trained("magika", &[])?.path, repository.join("magika.onnx"))?;
    let mut daemon = Daemon::start(&repository, folder.path())?;
    conformance(&daemon)?;
    let metrics = Command::new(python())
        .args([
            "-c",
            "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())",
            &format!("http://{}/metrics", daemon.metrics),
        ])
        .output()?;
    let metrics = String::from_utf8_lossy(&metrics.stdout).into_owned();
    ensure!(metrics.contains("nv_inference_request_success{model=\"magika\""), "{metrics}");
    daemon.signal(Signal::KILL)?;
    let mut daemon = Daemon::start(&repository, folder.path())?;
    conformance(&daemon)?;
    let status = daemon.signal(Signal::TERM)?;
    ensure!(status.code() == Some(0), "SIGTERM ended the daemon with {status}");
    Ok(())
}

#[test]
fn a_busy_port_is_named() -> Result<()> {
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = taken.local_addr()?.port().to_string();
    let folder = tempfile::tempdir()?;
    let output = Command::new(atoll())
        .args(["serve", "--http-port", &port, "--no-grpc", "--metrics-port", "0", "--no-control", "--model-repository"])
        .arg(folder.path())
        .output()?;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(!output.status.success() && message.contains(&port) && message.contains("--http-port"), "{message}");
    Ok(())
}
