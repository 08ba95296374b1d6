//! A Triton repository, served to Triton's own clients.

use crate::serve::{Daemon, LOG};
use anyhow::{Result, ensure};
use atoll_tests::{program, python, root};
use std::process::{Command, Output};

fn text(output: &Output) -> String {
    [&output.stdout[..], &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

#[test]
fn a_triton_repository_is_served_to_tritons_clients() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let repository = folder.path().join("repository");
    let script = root().join("tests/python/triton_repository.py");
    let made = Command::new(python()).arg(&script).arg("make").arg(&repository).output()?;
    ensure!(made.status.success(), "{}", text(&made));
    let daemon = Daemon::start_with(&repository, folder.path(), &["--no-control"])?;
    let checked = Command::new(python()).arg(&script).args(["check", &daemon.http, &daemon.grpc]).output()?;
    ensure!(checked.status.success(), "{}", text(&checked));
    let log = std::fs::read_to_string(folder.path().join(LOG))?;
    let named = log.lines().any(|line| line.contains("instance_group.count") && line.contains("not honoured"));
    ensure!(named, "the log does not name what is not honoured: {log}");
    let explained =
        Command::new(program("atoll")).args(["models", "--explain", "scale", "--url", &daemon.http]).output()?;
    ensure!(explained.status.success(), "{}", text(&explained));
    for words in ["scale has versions 1, 2; the policy `all` serves 1, 2", "instance_group.count", "not honoured"] {
        ensure!(text(&explained).contains(words), "{words}: {}", text(&explained));
    }
    Ok(())
}
