//! System shared memory with a real daemon and unmodified clients of Triton.

use crate::serve::Daemon;
use anyhow::{Result, ensure};
use atoll_tests::{python, root};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::process::Command;

fn script(arguments: &[&OsStr]) -> Result<()> {
    let output = Command::new(python()).arg(root().join("tests/python/shared_memory.py")).args(arguments).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    Ok(())
}

#[test]
fn clients_of_triton_share_memory_over_both_protocols() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let repository = folder.path().join("repository");
    std::fs::create_dir(&repository)?;
    script(&["model".as_ref(), repository.join("simple.onnx").as_os_str()])?;
    let mut daemon = Daemon::start_with(&repository, folder.path(), &["--no-control"])?;
    script(&["run".as_ref(), daemon.http.as_ref(), daemon.grpc.as_ref()])?;
    let status = daemon.signal(Signal::TERM)?;
    ensure!(status.code() == Some(0), "SIGTERM ended the daemon with {status}");
    Ok(())
}
