//! ONNX Runtime in a separate process.

use super::measure::Turn;
use crate::failure::OrUserError;
use anyhow::{Context, Result, anyhow};
use atoll_protocol::Tensor;
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const SCRIPT: &str = include_str!("peer.py");

/// A model in ONNX Runtime; dropping it ends the process.
pub(super) struct Peer {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// Answers of the process.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Difference(f64),
    Turn(Turn),
}

impl Peer {
    /// Starts the process with this number of threads. Its first answer reports whether the model
    /// was loaded.
    pub(super) fn start(python: &Path, model: &Path, threads: u32) -> Result<Peer> {
        let mut command = Command::new(python);
        command.args(["-c", SCRIPT]).arg(model).arg(threads.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let child =
            command.spawn().with_context(|| format!("cannot run {}; choose a Python with --python", python.display()));
        let mut child = child.or_user_error()?;
        let (requests, answers) = child.stdin.take().zip(child.stdout.take()).context("a process without pipes")?;
        Ok(Peer { child, requests, answers: BufReader::new(answers) })
    }

    /// Sends the inputs of all runs. Returns the largest difference between Atoll's outputs and the
    /// peer's, relative to the largest element.
    pub(super) fn load(&mut self, inputs: &[Tensor], outputs: &[Tensor], folder: &Path) -> Result<f64> {
        let write = |kind: &str, tensors: &[Tensor]| -> Result<Vec<Value>> {
            let entry = |(index, tensor): (usize, &Tensor)| {
                let file = folder.join(format!("{kind}-{index}"));
                std::fs::write(&file, &tensor.bytes).with_context(|| file.display().to_string())?;
                Ok(json!({
                    "name": tensor.name,
                    "datatype": tensor.datatype.to_string(),
                    "shape": tensor.shape,
                    "file": file,
                }))
            };
            tensors.iter().enumerate().map(entry).collect()
        };
        match self.ask(&json!({ "inputs": write("input", inputs)?, "outputs": write("output", outputs)? }))? {
            Answer::Difference(difference) => Ok(difference),
            other => Err(anyhow!("unexpected answer of ONNX Runtime to a comparison: {other:?}")),
        }
    }

    /// Runs the model `runs` times, after one uncounted run.
    pub(super) fn run(&mut self, runs: u32) -> Result<Turn> {
        match self.ask(&json!({ "runs": runs }))? {
            Answer::Turn(turn) if turn.milliseconds.len() == runs as usize => Ok(turn),
            other => Err(anyhow!("unexpected answer of ONNX Runtime to {runs} runs: {other:?}")),
        }
    }

    fn ask(&mut self, request: &Value) -> Result<Answer> {
        // A failed process has printed the reason to standard error; the missing answer is reported
        // below.
        let _ = writeln!(self.requests, "{request}").and_then(|()| self.requests.flush());
        let mut line = String::new();
        self.answers.read_line(&mut line).context("cannot read the answer of ONNX Runtime")?;
        if line.is_empty() {
            let status = self.child.wait()?;
            return Err(anyhow!("ONNX Runtime ended ({status}); see its output above"));
        }
        serde_json::from_str(&line).with_context(|| format!("unexpected answer of ONNX Runtime: `{}`", line.trim()))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
