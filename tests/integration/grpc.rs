//! gRPC with a real daemon and unmodified clients.

use crate::serve::Daemon;
use anyhow::{Result, ensure};
use atoll_tests::{python, root, trained, trained_models};
use rustix::process::Signal;
use std::process::Command;

#[test]
fn clients_of_triton_are_served_over_grpc() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let repository = folder.path().join("repository");
    std::fs::create_dir_all(repository.join("silero_vad/1"))?;
    std::fs::copy(trained("magika", &[])?.path, repository.join("magika.onnx"))?;
    std::fs::copy(trained("silero_vad", &[])?.path, repository.join("silero_vad/1/model.onnx"))?;
    let config = r#"sequence_batching {
        state [ { input_name: "h" output_name: "hn" }, { input_name: "c" output_name: "cn" } ]
    }"#;
    std::fs::write(repository.join("silero_vad/config.pbtxt"), config)?;
    let mut daemon = Daemon::start_with(&repository, folder.path(), &["--no-control"])?;
    let script = root().join("tests/python/grpc_conformance.py");
    let output = Command::new(python()).arg(script).arg(&daemon.grpc).arg(trained_models()).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let status = daemon.signal(Signal::TERM)?;
    ensure!(status.code() == Some(0), "SIGTERM ended the daemon with {status}");
    Ok(())
}
