//! The baseline: a process of its own for every client, which owns the device while it lives.
//!
//! That is KaaS's exclusive pool on one device: a request whose client has no process takes the
//! device from the one that has it; a process is killed, another is started and loads its function
//! from its file. Clients wait in turn.

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

/// What a worker says when it has done what it was asked for, and when it is ready.
const DONE: &str = "done";

/// Serve one function to whoever holds the other end of standard input.
#[derive(Debug, clap::Args)]
pub(crate) struct WorkerArgs {
    /// The function's bundle
    bundle: PathBuf,

    #[command(flatten)]
    engine: EngineArgs,
}

/// The worker's side: a line is a request.
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

/// A running worker. Dropped, it is killed, as the pool kills it.
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
        let requests = process.stdin.take().expect("it was piped");
        let answers = BufReader::new(process.stdout.take().expect("it was piped"));
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
        ensure!(line.trim_end() == DONE, "a worker ended; what it wrote to standard error says why");
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

/// Requests per second of clients that ask without a pause, one bundle each.
pub(super) fn throughput(bundles: &[PathBuf], engine: &EngineArgs, duration: Duration) -> Result<f64> {
    let mut worker = Worker::start(0, &bundles[0], engine)?;
    worker.ask()?;
    let begin = Instant::now();
    let mut answers = 0_u32;
    // Whoever was answered asks again and waits behind the others.
    for client in (0..bundles.len()).cycle() {
        if worker.client != client {
            // The device is free only when the one that had it is gone.
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
