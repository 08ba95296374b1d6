//! FastAPI with ONNX Runtime in a separate process.

use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const SCRIPT: &str = include_str!("peer.py");

/// What the process imports.
pub(super) const PACKAGES: &str = "fastapi, numpy, onnxruntime, uvicorn";

/// A server of the null model; dropping it ends the process.
pub(super) struct Peer {
    child: Child,
    /// Its address, as `HOST:PORT`.
    pub(super) address: String,
}

impl Peer {
    /// Starts the process, which has the packages.
    pub(super) fn start(python: &Path, model: &Path) -> Result<Peer> {
        let mut command = Command::new(python);
        command.args(["-c", SCRIPT]).arg(model).stdin(Stdio::null()).stdout(Stdio::piped());
        let child = command.spawn().with_context(|| format!("cannot run {}", python.display()))?;
        let mut peer = Peer { child, address: String::new() };
        let output = peer.child.stdout.take().context("a process without output")?;
        BufReader::new(output).read_line(&mut peer.address)?;
        peer.address = peer.address.trim().into();
        ensure!(!peer.address.is_empty(), "FastAPI has not started; see its output above");
        Ok(peer)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
