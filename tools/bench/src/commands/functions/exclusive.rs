//! The baseline: one process per client, which owns the device while it lives.
//!
//! This is KaaS's exclusive pool on one device. For a request of a client without a process, the
//! process that owns the device is killed, and a new process is started and loads the function from
//! its file. Clients are served round-robin.

use crate::engine::EngineArgs;
use crate::invoker::{Invoker, Local, Terms};
use crate::random::Random;
use crate::symbols::ModelArgs;
use crate::tensors::InputSpecs;
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The line that a worker prints when it is ready, and after each request.
const DONE: &str = "done";

/// Serve one function; each line on standard input is a request
#[derive(Debug, clap::Args)]
pub(crate) struct WorkerArgs {
    /// Bundle of the function
    bundle: PathBuf,

    #[command(flatten)]
    engine: EngineArgs,
}

/// The worker process: each line on standard input is a request.
pub(crate) fn work(args: &WorkerArgs) -> Result<()> {
    let invoker = Invoker::Local(Local::start(&args.bundle, &ModelArgs::default(), &args.engine)?);
    let inputs = InputSpecs::default().tensors(invoker.inputs(), &mut Random::new(0))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{DONE}")?;
    for line in std::io::stdin().lock().lines() {
        line?;
        invoker.invoke(&inputs, Terms::default())?;
        writeln!(out, "{DONE}")?;
    }
    invoker.stop();
    Ok(())
}

/// A running worker; dropping it kills the process, as the pool does.
struct Worker {
    client: usize,
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    fn start(client: usize, bundle: &Path, engine: &EngineArgs) -> Result<Worker> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "worker"]).arg(bundle);
        if let Some(units) = engine.compute_units() {
            command.args(["--compute-units", &units.to_string()]);
        }
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a worker")?;
        let requests = process.stdin.take().expect("standard input and output are piped");
        let answers = BufReader::new(process.stdout.take().expect("standard input and output are piped"));
        let mut worker = Worker { client, process, requests, answers };
        worker.wait()?;
        Ok(worker)
    }

    fn ask(&mut self) -> Result<()> {
        writeln!(self.requests)?;
        self.wait()
    }

    fn wait(&mut self) -> Result<()> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        ensure!(line.trim_end() == DONE, "a worker process ended; see its standard error for the reason");
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Requests per second of clients that send requests without pauses, with one bundle each.
pub(super) fn throughput(bundles: &[PathBuf], engine: &EngineArgs, duration: Duration) -> Result<f64> {
    let mut worker = Worker::start(0, &bundles[0], engine)?;
    worker.ask()?;
    let begin = Instant::now();
    let mut answers = 0_u32;
    // A client that received its answer sends the next request, behind the others.
    for client in (0..bundles.len()).cycle() {
        if worker.client != client {
            // The device is free once the previous process has ended.
            drop(worker);
            worker = Worker::start(client, &bundles[client], engine)?;
        }
        worker.ask()?;
        answers += 1;
        if begin.elapsed() >= duration {
            break;
        }
    }
    Ok(f64::from(answers) / begin.elapsed().as_secs_f64())
}
