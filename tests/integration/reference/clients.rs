//! The page of clients: the examples of Triton's Python client, each unmodified.

use super::hold;
use crate::serve::Daemon;
use anyhow::{Result, ensure};
use atoll_tests::{full, python, root, skip};
use std::path::Path;
use std::process::Command;

/// Runs a task of the script that makes the models and runs the examples. Returns what it printed.
fn run(task: &str, arguments: &[&str]) -> Result<String> {
    let script = root().join("tests/python/triton_examples.py");
    let output =
        Command::new(python()).env("PYTHONDONTWRITEBYTECODE", "1").arg(script).arg(task).args(arguments).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    Ok(text)
}

/// A daemon that serves a repository, with its cache beside it, and its ports as the script takes them.
fn daemon(repository: &Path, options: &[&str]) -> Result<(Daemon, String)> {
    let cache = repository.with_extension(if options.is_empty() { "cache" } else { "control" });
    std::fs::create_dir_all(&cache)?;
    let daemon = Daemon::start_with(repository, &cache, &[&["--no-control"], options].concat())?;
    let port = |address: &str| address.rsplit(':').next().unwrap_or_default().to_owned();
    let ports = format!("{},{}", port(&daemon.http), port(&daemon.grpc));
    Ok((daemon, ports))
}

#[test]
fn tritons_examples() -> Result<()> {
    if !full() {
        skip("the examples of Triton's client: `make test-full` runs them");
        return Ok(());
    }
    let Ok(examples) = std::env::var("ATOLL_TRITON_EXAMPLES") else {
        skip("ATOLL_TRITON_EXAMPLES names no folder with the examples of Triton's client; tools/setup.sh downloads it");
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let [seven, eight] = ["seven", "eight"].map(|name| folder.path().join(name));
    run("make", &[&seven.to_string_lossy(), &eight.to_string_lossy()])?;
    let explicit = ["--model-control-mode", "explicit"];
    let (_all, all) = daemon(&seven, &[])?;
    let (_seven, seven) = daemon(&seven, &explicit)?;
    let (_eight, eight) = daemon(&eight, &explicit)?;
    let table = run("check", &[&examples, &all, &seven, &eight])?;
    hold("clients.md", "Clients", &table)
}
