//! Batches of requests of unmodified clients.

use crate::serve::{Daemon, LOG};
use anyhow::{Result, ensure};
use atoll_models::{BuildOptions, build_onnx};
use atoll_tests::{python, root};
use std::path::Path;
use std::process::Command;

/// Writes a model in Triton's layout.
pub(crate) fn add(repository: &Path, name: &str, model: &[u8], config: &str) -> Result<()> {
    let folder = repository.join(name);
    std::fs::create_dir_all(folder.join("1"))?;
    std::fs::write(folder.join("1/model.onnx"), model)?;
    std::fs::write(folder.join("config.pbtxt"), config)?;
    Ok(())
}

#[test]
fn rows_of_several_clients_share_runs_and_equal_the_rows_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let repository = folder.path().join("repository");
    let options = BuildOptions { symbolic: true, image: Some(64), ..BuildOptions::default() };
    let model = build_onnx("mlp", &options)?;
    let path = folder.path().join("mlp.onnx");
    std::fs::write(&path, &model)?;
    let batching =
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 2000 }";
    add(&repository, "mlp", &model, batching)?;
    add(&repository, "alone", &model, "")?;
    // It always has one row.
    add(&repository, "fixed", &build_onnx("null", &BuildOptions::default())?, "max_batch_size: 4")?;
    let daemon = Daemon::start_with(&repository, folder.path(), &[])?;
    let output = Command::new(python())
        .arg(root().join("tests/python/batching.py"))
        .args([&daemon.http, &daemon.metrics])
        .arg(&path)
        .output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    let log = std::fs::read_to_string(folder.path().join(LOG))?;
    ensure!(log.contains("max_batch_size is 4, but the rows of"), "{log}");
    ensure!(log.contains("all its sizes are fixed"), "{log}");
    Ok(())
}
